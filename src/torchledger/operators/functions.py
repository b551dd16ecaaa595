"""The sampling guide's way of adding an operator: a function that runs it, and functions that map its shapes.

A file of a user's may hold, instead of declarations,

- functions of ``(shapes, precision, device_num)``, each an operator of that name: it makes its inputs, runs forward and
  backward, and begins by unpacking ``shapes`` into the names of its parameters;
- if the file is called ``layer_input_to_predictor_input.py``, functions of one list: the parameters of the operator of
  that name to the numbers that its times depend on;
- if it is called ``encoder_config_to_layer_input.py``, functions of one list: an encoder's mp, b, h, l and dim to the
  parameters of the operator of that name.

Nobody says what such an operator computes. Which calls of it are its forward and its backward, the ``targets`` of the
guide's sweep file say (``aim_function``).
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from torchledger.errors import SampleError
from torchledger.operators.declaration import Direction, Input, Operator, Parameters, Work

FEATURES_MODULE, ENCODER_MODULE = "layer_input_to_predictor_input", "encoder_config_to_layer_input"

ENCODER_PARAMETERS = ("mp", "b", "h", "l", "dim")
"""What a function of ``encoder_config_to_layer_input.py`` is given, in order."""

_RUN_PARAMETERS = ["shapes", "precision", "device_num"]

_TRANSFORMS: dict[tuple[str, str], Callable[[Any], Any]] = {}


class FunctionOperator(Operator):
    """An operator that is one function of the user's, run whole; its FLOPs and bytes are unknown."""

    function: ClassVar[Any]
    """Called with the shapes as a list, the short name of the precision and the number of the device."""
    targets: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """For each direction, names in a profile from the outside in: the calls inside the last one are its time."""
    counts_work = False
    ratio_bounds = (0.0, float("inf"))

    def tensors(self, p: Parameters) -> dict[str, Input]:
        """None: the function makes its own."""
        return {}

    def features(self, p: Mapping[str, Any]) -> tuple[Any, ...]:
        """What its function in ``layer_input_to_predictor_input.py`` makes of the parameters; else these themselves."""
        values = [p[name] for name in self.parameters]
        transform = _TRANSFORMS.get((FEATURES_MODULE, self.name))
        return tuple(values) if transform is None else tuple(transform(values))

    @property
    def feature_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of ``features``."""
        if (FEATURES_MODULE, self.name) not in _TRANSFORMS:
            return self.parameters
        return tuple(f"feature {index}" for index in range(len(self.features(dict.fromkeys(self.parameters, 1)))))

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        """A tensor of as many elements as the features' product: times vary less over it than by themselves."""
        numel: Any = 1.0
        for value in self.features(p):
            numel = numel * value
        return (Work("pointwise", numel * item_size, numel * item_size),)

    def least_work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        """Nothing is known to be needed."""
        return (Work("fill", 0, 0 * self.work(p, direction, item_size)[0].bytes_written),)


def declare_functions(module: ModuleType, path: Path) -> list[type[FunctionOperator]]:
    """The operators that the functions of a user's module are; transforms among them are kept for their operators.

    Raises ``SampleError`` for a function whose parameters cannot be told.
    """
    declared = []
    for name, function in list(vars(module).items()):
        if not inspect.isfunction(function) or function.__module__ != module.__name__:
            continue
        arguments = list(inspect.signature(function).parameters)
        if arguments[-2:] == _RUN_PARAMETERS[-2:] and len(arguments) == len(_RUN_PARAMETERS):
            attributes = {
                "name": name,
                "parameters": _shape_names(path, name, arguments[0]),
                "function": staticmethod(function),
                "__doc__": function.__doc__ or FunctionOperator.__doc__,
            }
            declared.append(type(name, (FunctionOperator,), attributes))
        elif path.stem in (FEATURES_MODULE, ENCODER_MODULE) and len(arguments) == 1:
            _TRANSFORMS[path.stem, name] = function
    return declared


def holds_transforms(path: Path) -> bool:
    """True if a file that was loaded brought functions that map shapes."""
    return any(module == path.stem for module, _ in _TRANSFORMS)


def aim_function(operator: Operator, targets: Mapping[str, Sequence[str]]) -> None:
    """Say which calls of a function are its directions; a declared operator knows its own, and is left alone."""
    if isinstance(operator, FunctionOperator):
        directions: tuple[Direction, ...] = tuple(targets)  # type: ignore[arg-type]
        type(operator).directions = directions
        type(operator).targets = {direction: tuple(path) for direction, path in targets.items()}


def encoder_parameters(operator: Operator, encoder: Mapping[str, int]) -> Parameters:
    """The operator's parameters in an encoder of ``mp``, ``b``, ``h``, ``l``, ``dim``: what the user's function in
    ``encoder_config_to_layer_input.py`` says, else those of the same names."""
    transform = _TRANSFORMS.get((ENCODER_MODULE, operator.name))
    if transform is None:
        return operator.resolve({name: encoder[name] for name in operator.parameters})
    return operator.resolve([int(value) for value in transform([encoder[name] for name in ENCODER_PARAMETERS])])


def mapped_operators() -> tuple[str, ...]:
    """Names of the user's operators that say what they are in an encoder."""
    return tuple(name for module, name in _TRANSFORMS if module == ENCODER_MODULE)


def _shape_names(path: Path, function: str, argument: str) -> tuple[str, ...]:
    """The names into which a function unpacks its shapes: ``mp, b, l, dim = shapes``."""
    for definition in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(definition, ast.FunctionDef) and definition.name == function:
            for statement in ast.walk(definition):
                if (
                    isinstance(statement, ast.Assign)
                    and isinstance(statement.value, ast.Name)
                    and statement.value.id == argument
                    and isinstance(statement.targets[0], ast.Tuple | ast.List)
                    and all(isinstance(name, ast.Name) for name in statement.targets[0].elts)
                ):
                    return tuple(name.id for name in statement.targets[0].elts if isinstance(name, ast.Name))
    raise SampleError(
        f"{path}: {function} does not say what its shapes are. Unpack them by name first: mp, b, l, dim = {argument}"
    )
