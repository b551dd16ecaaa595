"""Tensors and operator calls as plain shapes: what the cost formulas take."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchledger.work.element_sizes import element_size

_DTYPE_NAMES: Mapping[str, str] = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "at::Half": "float16",
    "__half": "float16",
    "half": "float16",
    "c10::BFloat16": "bfloat16",
    "at::BFloat16": "bfloat16",
    "__nv_bfloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "long long": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "signed char": "int8",
    "char": "int8",
    "unsigned char": "uint8",
    "unsigned short": "uint16",
    "unsigned int": "uint32",
    "unsigned long": "uint64",
    "bool": "bool",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::complex<c10::Half>": "complex32",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::Float8_e8m0fnu": "float8_e8m0fnu",
    "c10::qint8": "qint8",
    "c10::quint8": "quint8",
    "c10::qint32": "qint32",
}

_PROMOTION_ORDER = (
    *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"),
    *("complex32", "complex64", "complex128"),
)

DTYPE_OF_SCALAR_TYPE: Mapping[int, str] = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    8: "complex32",
    9: "complex64",
    10: "complex128",
    11: "bool",
    15: "bfloat16",
    23: "float8_e5m2",
    24: "float8_e4m3fn",
}
"""c10's ``ScalarType`` numbers, as they stand in recorded arguments."""


UNRECORDED_DTYPE = "that list (not recorded)"
"""The dtype of a tensor in a list: profilers record shapes there, no dtypes."""


@dataclass(frozen=True)
class Tensor:
    """A tensor's shape, dtype (by its torch name) and strides in elements (``None``: not recorded).

    ``held_bytes`` is what a sparse tensor holds, its values and their places, ``value_bytes`` what the values alone
    take; ``None`` for any other tensor.

    >>> Tensor((4, 8), "float32").bytes
    128
    """

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None
    held_bytes: int | None = None
    value_bytes: int | None = None

    @property
    def is_sparse(self) -> bool:
        """True for a tensor that holds some of its elements alone."""
        return self.held_bytes is not None

    @property
    def values(self) -> int | None:
        """How many elements a sparse tensor holds; ``None`` where that is unknown, and of any other tensor."""
        return None if self.value_bytes is None or not self.element_size else self.value_bytes // self.element_size

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def element_size(self) -> int | None:
        """Bytes of an element; ``None`` for a dtype that is not known."""
        return element_size(self.dtype)

    @property
    def bytes(self) -> int | None:
        """Bytes at distinct addresses: dimensions of stride 0 (expanded) count once. A sparse tensor's are those that
        it holds."""
        if self.held_bytes is not None:
            return self.held_bytes
        item_size = self.element_size
        if item_size is None:
            return None
        if self.strides is None or len(self.strides) != len(self.shape):
            return self.numel * item_size
        if not self.numel:
            return 0
        extents = (size for size, stride in zip(self.shape, self.strides, strict=True) if stride)
        return math.prod(extents) * item_size

    @property
    def is_scalar(self) -> bool:
        """True for a tensor without dimensions, such as a wrapped Python number."""
        return not self.shape


Argument = Tensor | tuple[Tensor, ...] | None


@dataclass(frozen=True)
class OpCall:
    """One call of an operator: its tensor arguments by position, and the text of the other arguments.

    ``arguments[i]`` is ``None`` where the argument is no tensor; then ``constants[i]`` is its value as text
    (``"[1, 1]"``, ``"True"``, ``"0.5"``), ``""`` if that is unknown. ``has_unknown_list`` says that an argument is a
    list of tensors whose shapes are not recorded. ``taken`` is how many elements of a mask are true, where the mask
    takes what ``index`` gives back (``x[mask]``).
    """

    name: str
    arguments: tuple[Argument, ...]
    constants: tuple[str, ...] = ()
    has_unknown_list: bool = False
    taken: int | None = None

    def tensor(self, position: int) -> Tensor | None:
        """The tensor at a position, or ``None``."""
        value = self.arguments[position] if position < len(self.arguments) else None
        return value if isinstance(value, Tensor) else None

    def tensor_list(self, position: int) -> tuple[Tensor, ...]:
        """The list of tensors at a position; empty if there is none."""
        value = self.arguments[position] if position < len(self.arguments) else None
        return value if isinstance(value, tuple) else ()

    def constant(self, position: int) -> str:
        """The text of the argument at a position; ``""`` if unknown."""
        return self.constants[position] if position < len(self.constants) else ""

    def ints(self, position: int) -> tuple[int, ...] | None:
        """An argument that is an int or a list of ints; ``None`` if it is neither."""
        return parse_ints(self.constant(position))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, those in lists too, in order."""
        return tuple(flatten(self.arguments))

    @property
    def base_name(self) -> str:
        """The operator's name without namespace, overload and in-place mark: ``aten::add_.Tensor`` is ``add``."""
        name = self.name.rsplit("::", 1)[-1].split(".", 1)[0]
        return name[:-1] if self.is_inplace else name

    @property
    def is_inplace(self) -> bool:
        """True when the first argument is written (``add_``, ``_foreach_add_``)."""
        name = self.name.rsplit("::", 1)[-1].split(".", 1)[0]
        return name.endswith("_") and not name.endswith("__")


def flatten(arguments: Iterable[Argument]) -> Iterable[Tensor]:
    """All tensors among arguments."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif argument:
            yield from argument


def dtype_name(text: str) -> str:
    """The torch name of a dtype as C++ spells it; the text itself if it is not known.

    >>> dtype_name("c10::BFloat16")
    'bfloat16'
    """
    text = text.removeprefix("const ").removesuffix(" const").strip()
    return _DTYPE_NAMES.get(text, text)


def parse_ints(text: str) -> tuple[int, ...] | None:
    """``"[1, 2]"`` and ``"3"`` as tuples of ints; ``None`` for anything else."""
    text = text.strip()
    if re.fullmatch(r"-?\d+", text):
        return (int(text),)
    if re.fullmatch(r"\[\s*(-?\d+\s*(,\s*-?\d+\s*)*)?\]", text):
        return tuple(int(number) for number in re.findall(r"-?\d+", text))
    return None


def broadcast_shape(shapes: Iterable[Sequence[int]]) -> tuple[int, ...] | None:
    """The shape that NumPy's rules give; ``None`` where they give none.

    >>> broadcast_shape([(4, 1), (8,)]), broadcast_shape([(4, 2), (3,)])
    ((4, 8), None)
    """
    result: list[int] = []
    for shape in shapes:
        result = [1] * (len(shape) - len(result)) + result
        for axis, size in enumerate(reversed(shape), start=1):
            if result[-axis] == 1:
                result[-axis] = size
            elif size not in (1, result[-axis]):
                return None
    return tuple(result)


def promoted_dtype(tensors: Sequence[Tensor]) -> str:
    """The dtype of an arithmetic result: tensors with dimensions decide, unless a scalar is of a higher kind."""
    with_dimensions = [tensor.dtype for tensor in tensors if not tensor.is_scalar]
    scalars = [tensor.dtype for tensor in tensors if tensor.is_scalar]
    best = _highest(with_dimensions) if with_dimensions else _highest(scalars)
    if with_dimensions and scalars:
        highest_scalar = _highest(scalars)
        if _kind(highest_scalar) > _kind(best):
            return "float32" if _kind(highest_scalar) == 2 else highest_scalar
    return best


def _highest(dtypes: Sequence[str]) -> str:
    known = [dtype for dtype in dtypes if dtype in _PROMOTION_ORDER]
    if not known:
        return dtypes[0] if dtypes else "float32"
    best = max(known, key=_PROMOTION_ORDER.index)
    return "float32" if {"float16", "bfloat16"} <= set(known) and best == "bfloat16" else best


def _kind(dtype: str) -> int:
    if dtype.startswith("complex"):
        return 3
    if dtype.startswith(("float", "bfloat")):
        return 2
    return 0 if dtype == "bool" else 1
