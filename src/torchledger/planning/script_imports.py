"""Whether the modules that a script begins by importing are there, before anything that takes seconds is imported."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from torchledger.errors import PlanError


def check_imports(script: str) -> None:
    """Raise ``PlanError`` with the line of a module that is not there.

    Only what stands before the script's first other statement is looked at, up to the first module of its own folder:
    what runs before an import may say where modules are.
    """
    try:
        tree = ast.parse(Path(script).read_bytes(), filename=script)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # running it says what is wrong
    folder = str(Path(script).resolve().parent)
    sys.path.insert(0, folder)
    try:
        for name, line in _first_imports(tree):
            found = _find(name)
            if found is None:
                raise PlanError(
                    f"the program needs the module {name!r} at {script}:{line}: install it here, or plan the script "
                    "without it."
                )
            if (found.origin or "").startswith(folder) or found.origin is None:
                return
    finally:
        sys.path.remove(folder)


def _first_imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Packages that are imported before anything else is done, with their lines."""
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            yield from ((alias.name.partition(".")[0], statement.lineno) for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
            yield statement.module.partition(".")[0], statement.lineno
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            return


def _find(name: str) -> ModuleSpec | None:
    """Where a package is; one that is loaded without saying where is taken to be there."""
    try:
        return find_spec(name)
    except ValueError:
        return ModuleSpec(name, None)
    except ImportError:
        return None
