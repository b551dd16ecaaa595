"""What all tests share."""

from __future__ import annotations

import sys
from pathlib import Path

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
