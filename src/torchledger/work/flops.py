"""FLOPs by kind of work, from sizes alone: the one place for these formulas.

One multiply-add is 2 FLOPs; a bias adds none; attention counts every pair of a query and a key that it is given. Sizes
are ints; every formula takes integer arrays as well, for many shapes at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

Size = Any
"""An int, or an integer array."""


def matmul_flops(rows: Size, inner: Size, columns: Size, batch: Size = 1) -> Size:
    """FLOPs of ``batch`` products ``(rows, inner) @ (inner, columns)``.

    >>> matmul_flops(2, 3, 4)
    48
    """
    return 2 * batch * rows * inner * columns


def distance_flops(left_shape: Sequence[Size], right_shape: Sequence[Size]) -> Size:
    """FLOPs of the distances between two sets of points by one product, as ``cdist`` has it for more than 25 of them:
    each point's coordinates with its square and a one beside them.

    >>> distance_flops((30, 3), (40, 3)) == matmul_flops(30, 3 + 2, 40)
    True
    """
    return matmul_flops(left_shape[-2], left_shape[-1] + 2, right_shape[-2], math.prod(left_shape[:-2]))


def grouped_matmul_flops(left_shape: Sequence[Size], right_shape: Sequence[Size]) -> Size:
    """FLOPs of products by groups: the groups share out the rows, the inner side or the columns, or are a batch.

    >>> grouped_matmul_flops((10, 3), (2, 3, 4)), grouped_matmul_flops((2, 5, 3), (3, 8))
    (240, 240)
    """
    rows, inner = left_shape[-2:]
    batch = left_shape[0] if len(left_shape) == len(right_shape) == 3 else 1
    return matmul_flops(rows, inner, right_shape[-1], batch)


def convolution_flops(
    input_shape: Sequence[Size], weight_shape: Sequence[Size], output_shape: Sequence[Size], *, transposed: bool = False
) -> Size:
    """FLOPs of a convolution of any rank, grouped or not: each output position takes every weight once.

    A transposed convolution does the products of the forward one that it transposes: every weight once per input
    position. The same number is that of either gradient.

    >>> convolution_flops((1, 2, 8), (4, 2, 3), (1, 4, 6))
    288
    """
    positions = math.prod((input_shape if transposed else output_shape)[2:])
    return 2 * input_shape[0] * positions * math.prod(weight_shape)


def convolution_backward_flops(
    gradient_shape: Sequence[Size],
    input_shape: Sequence[Size],
    weight_shape: Sequence[Size],
    *,
    transposed: bool = False,
    wants_input: bool = True,
    wants_weight: bool = True,
) -> Size:
    """FLOPs of the wanted gradients, each as much as the forward; ``gradient_shape`` is the shape of its output."""
    one = convolution_flops(input_shape, weight_shape, gradient_shape, transposed=transposed)
    return one * (wants_input + wants_weight)


def attention_flops(heads: Size, pairs: Size, head_size: Size, value_size: Size) -> Size:
    """FLOPs of scores and of their product with the values; ``heads`` are query heads of the whole batch, ``pairs`` the
    pairs of query and key in one head.

    >>> attention_flops(1, 4 * 4, 8, 8)
    512
    """
    return 2 * heads * pairs * (head_size + value_size)


def attention_backward_flops(heads: Size, pairs: Size, head_size: Size, value_size: Size) -> Size:
    """FLOPs of the backward's five products: scores again, their gradient, and those of query, key and value."""
    return 2 * heads * pairs * (3 * head_size + 2 * value_size)


def encoder_flops(shape: Sequence[Size], keys: Size, width: Size, weight_shapes: Iterable[Sequence[Size]]) -> Size:
    """FLOPs of an encoder layer in one call: every weight matrix once for each row of ``shape`` (batch, length, width),
    and attention over ``keys``; whatever the heads, their sizes add up to ``width``.

    >>> encoder_flops((2, 4, 8), 4, 8, [(24, 8), (24,), (8, 8)])
    5120
    """
    batch, length = shape[0], shape[1]
    products = [matmul_flops(batch * length, *weight) for weight in weight_shapes if len(weight) == 2]
    return sum(products) + attention_flops(batch, length * keys, width, width)


def recurrent_flops(rows: Size, weight_shapes: Iterable[Sequence[Size]]) -> Size:
    """FLOPs of a recurrent layer: every weight matrix once for each of ``rows`` (steps times batch); biases have none.

    Its backward does twice as many, the gradients of weights and of rows.

    >>> recurrent_flops(10, [(48, 8), (48, 12), (48,)])
    19200
    """
    return sum(matmul_flops(rows, *shape) for shape in weight_shapes if len(shape) == 2)


def trilinear_flops(shapes: Sequence[Sequence[Size]], expanded: Sequence[Sequence[int]]) -> Size:
    """FLOPs of a summed product of three tensors (``torch.nn.Bilinear``): a multiply-add for each of its elements.

    ``expanded`` are the dimensions that each of the three is given before it is multiplied.

    >>> trilinear_flops([(6, 10), (7, 10, 12), (6, 12)], [(1, 3), (0,), (1, 2)])
    10080
    """
    return 2 * math.prod(trilinear_sizes(shapes, expanded).values())


def trilinear_sizes(shapes: Sequence[Sequence[Size]], expanded: Sequence[Sequence[int]]) -> dict[int, Size]:
    """The sizes of the product's dimensions, before it is summed."""
    sizes: dict[int, Size] = {}
    for shape, absent in zip(shapes, expanded, strict=True):
        places = [place for place in range(len(shape) + len(absent)) if place not in absent]
        sizes.update(zip(places, shape, strict=True))
    return sizes
