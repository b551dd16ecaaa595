"""Whether ``python -m NAME`` has something to run, before a ledger is begun for it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec, PathFinder

from torchledger.errors import UsageError


def check_module(name: str) -> None:
    """Raise ``UsageError`` where ``python -m name`` finds nothing to run.

    A module that lies where its name says is found without importing anything. Only where none does, Python is asked in
    a process of its own: packages may say while they are imported where their modules are.
    """
    top = name.partition(".")[0]
    if not _has_top(top):
        raise UsageError(
            f"no module is called {top!r}. Name one that `python -m {name}` finds, or a script without -m."
        )
    if _lies_where_it_says(name):
        return
    asked = subprocess.run([sys.executable, "-c", _ASK, name], capture_output=True)
    if asked.returncode == _NO_MODULE:
        raise UsageError(
            f"{top!r} has no module {name!r}. Name one that `python -m {name}` finds, or a script without -m."
        )
    if asked.returncode == _NO_MAIN:
        raise UsageError(
            f"{name!r} is a package without a module __main__, so that `python -m {name}` has nothing to run. Name one "
            "of its modules, or a script without -m."
        )


_NO_MODULE, _NO_MAIN = 3, 4
_ASK = f"""
import sys
from importlib.util import find_spec
name = sys.argv.pop()
try:
    spec = find_spec(name)
except ModuleNotFoundError as error:  # of the name itself, and not of what one of its packages needs
    is_own = error.name is not None and (name + ".").startswith(error.name + ".")
    sys.exit({_NO_MODULE} if is_own else 0)
if spec is None:
    sys.exit({_NO_MODULE})
is_package = spec.submodule_search_locations is not None
sys.exit({_NO_MAIN} if is_package and find_spec(name + ".__main__") is None else 0)
"""


def _spec_of_top(top: str) -> ModuleSpec | None:
    # The script's own path begins with the working folder, this command's need not.
    return PathFinder.find_spec(top, [os.getcwd()]) or importlib.util.find_spec(top)


def _has_top(top: str) -> bool:
    try:
        return _spec_of_top(top) is not None
    except ValueError:  # "__main__", and the empty name
        return False


def _lies_where_it_says(name: str) -> bool:
    top, *parts = name.split(".")
    spec = _spec_of_top(top)
    for part in parts:
        if spec is None or spec.submodule_search_locations is None:
            return False
        spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    if spec is None or spec.submodule_search_locations is None:
        return spec is not None
    return PathFinder.find_spec(f"{spec.name}.__main__", list(spec.submodule_search_locations)) is not None
