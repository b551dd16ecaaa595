"""Finding operators by name, and adding the user's own."""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import logging
import os
from pathlib import Path

from torchledger.errors import SampleError
from torchledger.operators import general, guide
from torchledger.operators.collectives import COLLECTIVE_OPERATORS, OPERATOR_PREFIX
from torchledger.operators.declaration import Operator
from torchledger.operators.functions import ENCODER_MODULE, FEATURES_MODULE, declare_functions, holds_transforms

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "torchledger.operators"

_OPERATORS: dict[str, Operator] = {}


def find_operator(name: str, *, prefer_guide: bool = False) -> Operator:
    """The operator of that name.

    Some of the guide's names (``bmm``, ``softmax``, ``gelu``, ``embedding``) are general ones too, with other
    parameters: a bare name means the general form unless ``prefer_guide``; ``"guide.bmm"`` always means the guide's.

    Raises ``SampleError`` with the nearest names if there is none.
    """
    _load_built_in()
    collective = COLLECTIVE_OPERATORS.get(OPERATOR_PREFIX + name.removeprefix(OPERATOR_PREFIX))
    if collective is not None:
        return collective
    for key in [f"guide.{name}", name] if prefer_guide else [name, f"guide.{name}"]:
        if key in _OPERATORS:
            return _OPERATORS[key]
    _load_entry_points()
    if name in _OPERATORS:
        return _OPERATORS[name]
    near = difflib.get_close_matches(name, {key.removeprefix("guide.") for key in _OPERATORS}, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(operator_names())}."
    raise SampleError(f"unknown operator {name!r}; {hint} Add your own with --operators FILE.py.")


def operator_names() -> list[str]:
    """Unique names of all operators: the guide's as ``guide.<name>``, then the general forms, then the user's."""
    _load_built_in()
    return list(_OPERATORS)


def register_operator(declaration: type[Operator]) -> type[Operator]:
    """Add a user's operator; usable as a class decorator. Raises ``ValueError`` for a name that is taken."""
    _load_built_in()
    operator = declaration()
    if not operator.name or not operator.parameters:
        raise ValueError(f"{declaration.__name__} must set name and parameters")
    if operator.key in _OPERATORS:
        raise ValueError(f"an operator named {operator.key!r} exists already; choose another name")
    _OPERATORS[operator.key] = operator
    return declaration


def load_operators(path: str | os.PathLike[str]) -> list[str]:
    """Import a user's file and add what it defines: every ``Operator`` subclass with a name, and every function that is
    an operator in the sampling guide's way (``operators/functions.py``). Returns their names.

    The file is the user's program: it is executed. Raises ``SampleError`` if it fails or defines none.
    """
    path = Path(path)
    if not path.is_file():
        raise SampleError(f"{path} does not exist: --operators takes a Python file with Operator subclasses.")
    spec = importlib.util.spec_from_file_location(f"torchledger_user_operators_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise SampleError(f"{path} is no Python file: --operators takes a Python file with Operator subclasses.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise SampleError(f"{path} failed to import: {type(error).__name__}: {error}") from error
    declared = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Operator)
        and value.__module__ == module.__name__
        and value.name
    ]
    declared += declare_functions(module, path)
    for declaration in declared:
        _replace_own(declaration, path)
    if not declared and not holds_transforms(path):
        raise SampleError(
            f"{path} defines no Operator subclass with a name and no function of (shapes, precision, device_num). "
            f"Functions that map shapes stand in a file called {FEATURES_MODULE}.py or {ENCODER_MODULE}.py."
        )
    _LOADED[path.resolve()] = None
    return [declaration.name for declaration in declared]


_LOADED: dict[Path, None] = {}
"""Files that were loaded, in order."""


def loaded_operator_files() -> tuple[str, ...]:
    """The users' files that this process has loaded, for processes that it starts."""
    return tuple(str(path) for path in _LOADED)


_FILES: dict[str, Path] = {}


def _replace_own(declaration: type[Operator], path: Path) -> None:
    """Register; loading the same file again replaces what it brought before."""
    if _FILES.get(declaration.name) == path.resolve():
        _OPERATORS.pop(declaration.name, None)
    try:
        register_operator(declaration)
    except ValueError as error:
        raise SampleError(f"{path}: {error}") from error
    _FILES[declaration.name] = path.resolve()


def _load_built_in() -> None:
    if not _OPERATORS:
        for declarations in (guide.OPERATORS, general.OPERATORS):
            for declaration in declarations.values():
                operator = declaration()
                _OPERATORS[operator.key] = operator


def _load_entry_points() -> None:
    if os.environ.get("TORCHLEDGER_PLUGINS") == "0":
        return
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            declaration = entry.load()
            if declaration.name not in _OPERATORS:
                register_operator(declaration)
        except Exception as error:
            # A broken plugin of someone else's must not take the catalogue down; it is named and left out.
            distribution = entry.dist.name if entry.dist else "an unknown distribution"
            log.warning("operator %s of %s cannot be loaded: %s", entry.name, distribution, error)
