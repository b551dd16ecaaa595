"""What a copy makes of a tensor: in which dtype, and in which order its dimensions lie.

Enters: the tensor that is copied and what the call was asked for. Leaves: the copy as a tensor, and its bytes.
"""

from __future__ import annotations

import math

from torchledger.nouns import TensorArgument
from torchledger.work.element_sizes import element_size
from torchledger.work.op_shapes import DTYPE_OF_SCALAR_TYPE
from torchledger.work.settings import Settings, setting
from torchledger.work.tensor_layouts import row_major

CHANNELS_LAST = frozenset((2, 3))
"""``torch.channels_last`` and ``channels_last_3d`` among memory formats, as a profiler numbers them."""

_USUAL = {"bfloat16": "float32", "float16": "float32", "float32": "bfloat16"}
"""What a tensor is cast into where nobody wrote it down: between the precisions of training."""


def copy_of(given: TensorArgument, settings: Settings | None) -> TensorArgument:
    """The result of ``clone`` or ``_to_copy`` of a tensor; its strides are ``None`` where it keeps the tensor's own.

    >>> made = copy_of(TensorArgument((2, 3, 4, 4), "float32"), (("memory_format", (2,)), ("dtype", (15,))))
    >>> made.dtype, made.stride
    ('bfloat16', (48, 1, 12, 3))
    """
    dtype, how = setting(settings, "dtype"), setting(settings, "memory_format")
    made = given.dtype
    if dtype:
        made = DTYPE_OF_SCALAR_TYPE.get(dtype[0], made or "") or None
    if how is None or how[0] not in CHANNELS_LAST or len(given.shape) < _PICTURE:
        return TensorArgument(given.shape, made, None)
    count, channels, *sides = given.shape
    lying = row_major((count, *sides, channels))
    return TensorArgument(given.shape, made, (lying[0], lying[-1], *lying[1:-1]))


_PICTURE = 4


def cast_target(given: TensorArgument, settings: Settings | None) -> str | None:
    """The dtype that ``_to_copy`` makes of a tensor, where it is not the usual one of its own; ``None`` otherwise."""
    made = copy_of(given, settings).dtype
    halves = ("bfloat16", "float16")
    usual = _USUAL.get(given.dtype or "")
    is_usual = made in (usual, given.dtype) or (given.dtype == "float32" and made in halves)
    return None if is_usual else made


def cast_bytes(given: TensorArgument, settings: Settings | None) -> int | None:
    """Bytes that ``_to_copy`` reads and writes; where its target is unknown, those of the usual one. ``None`` for a
    dtype that has none."""
    is_told = setting(settings, "dtype") is not None
    target = copy_of(given, settings).dtype if is_told else _USUAL.get(given.dtype or "")
    sizes = element_size(given.dtype), element_size(target)
    return None if sizes[0] is None or sizes[1] is None else math.prod(given.shape) * (sizes[0] + sizes[1])
