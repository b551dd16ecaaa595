"""What all tests share."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

# Several workers share few cores: one thread each, and no pool of compile processes beside each of them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Inductor tries what the CPU can do with a compiler in each new cache: seconds, for one answer. "" lets it try.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# What an earlier run left in the machine's cache is no part of a test; the workers of one run share theirs.
os.environ["TORCHLEDGER_TESTS_CACHE"] = (
    "PYTEST_XDIST_WORKER" in os.environ and os.environ.get("TORCHLEDGER_TESTS_CACHE")
) or tempfile.mkdtemp(prefix="torchledger-tests-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TORCHLEDGER_TESTS_CACHE"]

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))

# No test asserts a time: a busy machine is no failure.
hypothesis.settings.register_profile("torchledger", deadline=None)
hypothesis.settings.load_profile("torchledger")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-golden", action="store_true", help="rewrite tests/golden from the present output")


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """Compare text with ``tests/golden/<name>``; ``--rewrite-golden`` rewrites the file instead."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--rewrite-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), f"{name} differs; `make golden` rewrites it if the change is meant"

    return compare
