"""How the tensors of an element-wise operator lie beside one another, which decides how its kernel reads them.

PyTorch's element-wise kernels read several elements at once where all tensors are dense and alike ("dense"); they work
out each element's address where one is repeated ("broadcast") or has gaps ("padded"); and where the tensors' fastest
dimensions differ ("across"), neighbouring threads read from different lines of memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from torchledger.nouns import TensorArgument
from torchledger.work.op_shapes import broadcast_shape

Layout = Literal["dense", "broadcast", "padded", "across"]

_Strides = tuple[int, ...]


def layout_of(tensors: Sequence[TensorArgument]) -> Layout | None:
    """How tensors lie beside one another; ``None`` where a stride is unknown or the shapes are not broadcast.

    >>> rows, columns = TensorArgument((64, 32), "float32", (32, 1)), TensorArgument((64, 32), "float32", (1, 64))
    >>> layout_of([rows, rows]), layout_of([columns, columns]), layout_of([rows, columns])
    ('dense', 'dense', 'across')
    >>> layout_of([rows, TensorArgument((64, 1), "float32", (1, 1))])
    'broadcast'
    """
    shape = broadcast_shape([each.shape for each in tensors])
    if shape is None or any(each.shape and each.stride is None for each in tensors):
        return None
    dims = [dim for dim, size in enumerate(shape) if size > 1]
    if not dims:
        return "dense"
    strides = [_strides_over(each, shape) for each in tensors]
    # What is repeated along some dimension does not say in which order the others are read.
    whole = [each for each in strides if all(each[dim] for dim in dims)]
    fastest = {min(dims, key=lambda dim, of=each: (of[dim], -dim)) for each in whole}  # type: ignore[misc]
    if len(fastest) > 1:
        return "across"
    if len(whole) < len(strides):
        return "broadcast"
    return "dense" if len(set(strides)) == 1 and is_dense(strides[0], shape) else "padded"


def _strides_over(tensor: TensorArgument, shape: tuple[int, ...]) -> _Strides:
    """Strides by the dimensions of ``shape``, 0 where the tensor is repeated or the dimension has one element."""
    missing = len(shape) - len(tensor.shape)
    own = zip(tensor.shape, tensor.stride or (), shape[missing:], strict=False)
    return (*(0,) * missing, *(stride if size == wanted > 1 else 0 for size, stride, wanted in own))


def is_dense(strides: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """True if the elements fill one block without holes or overlap, in whatever order of dimensions.

    >>> is_dense((1, 4), (4, 2)), is_dense((8, 1), (2, 4))
    (True, False)
    """
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def row_major(shape: tuple[int, ...]) -> _Strides:
    """Strides of a dense tensor whose last dimension is the fastest.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def channels_last(shape: tuple[int, ...]) -> _Strides:
    """Strides of dense pictures or volumes whose channels lie side by side.

    >>> channels_last((2, 3, 4, 5))
    (60, 1, 15, 3)
    """
    _, channels, *sides = shape
    return (math.prod(shape[1:]), 1, *(channels * each for each in row_major(tuple(sides))))


def lies_as(shape: tuple[int, ...], stride: _Strides, other: _Strides) -> bool:
    """Whether two strides are the same of all dimensions that have more than one element.

    >>> lies_as((2, 1, 4), (4, 9, 1), (4, 4, 1))
    True
    """
    return all(size == 1 or have == want for size, have, want in zip(shape, stride, other, strict=True))


def is_contiguous(tensor: TensorArgument) -> bool:
    """Whether a tensor's elements lie behind one another in the order of its dimensions, as far as is known.

    >>> is_contiguous(TensorArgument((2, 1, 4), "float32", (4, 9, 1)))
    True
    """
    behind = row_major(tensor.shape)
    return lies_as(tensor.shape, tensor.stride or behind, behind)
