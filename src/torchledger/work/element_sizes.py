"""How many bytes an element takes, by the dtype's torch name: the one table of it."""

from __future__ import annotations

from collections.abc import Mapping

ELEMENT_SIZES: Mapping[str, int] = {
    **dict.fromkeys(("complex128",), 16),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32", "qint32", "complex32"), 4),
    **dict.fromkeys(("bfloat16", "float16", "int16", "uint16", "bits16"), 2),
    **dict.fromkeys(("bool", "int8", "uint8", "qint8", "quint8", "bits8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    # Torch stores these in whole bytes: a pack of them, or one to a byte.
    **dict.fromkeys(("float4_e2m1fn_x2", "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2"), 1),
    **dict.fromkeys(("int1", "int2", "int3", "int4", "int5", "int6", "int7"), 1),
    **dict.fromkeys(("uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7"), 1),
}
"""Bytes of one element as torch stores it, by torch's name of the dtype."""


def element_size(dtype: str | None) -> int | None:
    """Bytes of one element; ``None`` for a dtype that is not known.

    >>> element_size("bfloat16"), element_size("torch.float64"), element_size("float7")
    (2, 8, None)
    """
    return ELEMENT_SIZES.get(dtype.removeprefix("torch.")) if dtype is not None else None
