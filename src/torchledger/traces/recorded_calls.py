"""Operator calls as a trace's events record them: shapes, dtypes and strides of their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchledger.work.op_shapes import UNRECORDED_DTYPE, Argument, OpCall, Tensor, dtype_name


def call_from_arguments(name: str, arguments: Mapping[str, Any], *, list_dtype: str | None = None) -> OpCall | None:
    """The operator call that a ``cpu_op`` event's ``args`` describe; ``None`` when they hold no shapes.

    ``list_dtype`` is the dtype of tensors in lists, which profilers do not record.
    """
    shapes = arguments.get("Input Dims", arguments.get("Input dims"))
    if not isinstance(shapes, list):
        return None
    types = _list(arguments.get("Input type", arguments.get("Input Type")))
    strides = _list(arguments.get("Input Strides"))
    constants = _list(arguments.get("Concrete Inputs"))
    values: list[Argument] = []
    for position, shape in enumerate(shapes):
        kind = types[position] if position < len(types) else ""
        stride = strides[position] if position < len(strides) else None
        values.append(_argument(shape, kind, stride, list_dtype))
    first_kind = types[0] if types else ""
    texts = tuple(str(constant) for constant in constants)
    return OpCall(name, tuple(values), texts, has_unknown_list=first_kind == "TensorList" and not values[0])


def shapes_text(call: OpCall) -> str | None:
    """The tensors of a call as a person reads them: ``float32[4,8] float32[8,16]``."""
    parts = []
    for argument in call.arguments:
        if isinstance(argument, Tensor):
            parts.append(f"{argument.dtype}[{','.join(map(str, argument.shape))}]")
        elif argument:
            parts.append(f"{len(argument)} tensors")
    return " ".join(parts) or None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _argument(shape: Any, kind: Any, strides: Any, list_dtype: str | None) -> Argument:
    if kind == "TensorList" or (isinstance(shape, list) and shape and isinstance(shape[0], list)):
        kinds = kind if isinstance(kind, list) else []
        return tuple(
            Tensor(
                tuple(int(size) for size in entry),
                dtype_name(str(kinds[index])) if index < len(kinds) else list_dtype or UNRECORDED_DTYPE,
                _strides(strides[index], entry) if isinstance(strides, list) and index < len(strides) else None,
            )
            for index, entry in enumerate(_list(shape))
            if _is_shape(entry)
        )
    if not isinstance(kind, str) or not kind or kind in _NOT_TENSORS or not _is_shape(shape):
        return None
    return Tensor(tuple(shape), dtype_name(kind), _strides(strides, shape))


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(size, int) and 0 <= size < LARGEST_COUNT for size in value)


LARGEST_COUNT = 2**53
"""No count of a device event is larger; what is, is a damaged number."""

_NOT_TENSORS = {
    "Scalar",
    "ScalarList",
    "GenericList",
    "Device",
    "String",
    "Dict",
    "None",
    "Tuple",
    "Generator",
    "Stream",
}


def _strides(strides: Any, shape: Sequence[int]) -> tuple[int, ...] | None:
    if isinstance(strides, list) and len(strides) == len(shape) and all(isinstance(step, int) for step in strides):
        return tuple(strides)
    return None
