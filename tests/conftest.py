"""What all tests share."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

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
# Where Python may write nothing beside its sources, each of hundreds of processes would compile all of torch's: 12 s.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(os.environ["TORCHLEDGER_TESTS_CACHE"], "bytecode")
    sys.dont_write_bytecode, sys.pycache_prefix = False, os.environ["PYTHONPYCACHEPREFIX"]

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from warm import WarmProcess

# No test asserts a time: a busy machine is no failure.
hypothesis.settings.register_profile("torchledger", deadline=None)
hypothesis.settings.load_profile("torchledger")


# A compilation makes millions of objects that are no garbage: looking for some after each 700 takes its time.
gc.set_threshold(20_000, 20, 50)


@pytest.fixture(scope="module", autouse=True)
def _stays_there() -> None:
    """What is there before a module's tests is neither looked through for garbage nor for what lives: a plan does both
    several times, which took most of a small one's time."""
    gc.collect()
    gc.freeze()


def _link_quickly() -> None:
    """Have g++ link by the quicker of GNU's linkers, if it is there: each C++ kernel is linked against all of torch."""
    if linker := shutil.which("ld.gold"):
        folder = Path(os.environ["TORCHLEDGER_TESTS_CACHE"]) / "linker"
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another worker's
            (folder / "ld").symlink_to(linker)
        os.environ["COMPILER_PATH"] = str(folder)  # where g++ looks first for the programs that it calls


_link_quickly()


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


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmProcess]:
    """What runs the command line without its imports."""
    from warm import WarmProcess

    source = Path(__file__).parents[1] / "src"
    process = WarmProcess(os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"})
    yield process
    process.close()
