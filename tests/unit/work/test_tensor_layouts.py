"""How tensors of an element-wise operator lie beside one another."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from torchledger.nouns import TensorArgument
from torchledger.work.tensor_layouts import broadcast_shape, layout_of, row_major

SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


def tensor(shape: tuple[int, ...], stride: tuple[int, ...] | None = None) -> TensorArgument:
    return TensorArgument(shape, "float32", row_major(shape) if stride is None else stride)


@given(shape=SHAPES, count=st.integers(1, 3), data=st.data())
def test_dense_tensors_that_are_alike_are_dense_in_any_order_of_their_dimensions(
    shape: tuple[int, ...], count: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    strides = dict(zip(order, row_major(tuple(shape[dim] for dim in order)), strict=True))
    alike = tensor(shape, tuple(strides[dim] for dim in range(len(shape))))
    assert layout_of([alike] * count) == "dense"


@given(shape=SHAPES)
def test_the_order_of_the_tensors_does_not_matter(shape: tuple[int, ...]) -> None:
    tensors = [tensor(shape), tensor(shape[-1:]), tensor(shape, tuple(2 * each for each in row_major(shape)))]
    assert len({layout_of(some) for some in (tensors, tensors[::-1], tensors[1:] + tensors[:1])}) == 1


def test_what_is_repeated_has_gaps_or_lies_across_is_told() -> None:
    rows = tensor((8, 4))
    assert layout_of([rows, tensor((4,))]) == "broadcast"
    assert layout_of([rows, tensor((8, 1))]) == "broadcast"
    assert layout_of([rows, tensor((8, 4), (0, 1))]) == "broadcast"
    assert layout_of([rows, tensor((8, 4), (8, 1))]) == "padded"
    assert layout_of([tensor((8, 4), (4, 2))]) == "padded"
    assert layout_of([rows, tensor((8, 4), (1, 8))]) == "across"
    assert layout_of([tensor((1, 1)), tensor(())]) == "dense"


def test_nothing_is_said_of_shapes_that_do_not_fit_or_of_unknown_strides() -> None:
    assert layout_of([tensor((8, 4)), tensor((3,))]) is None
    assert layout_of([TensorArgument((8, 4), "float32", None)]) is None


@given(shape=SHAPES, keep=st.lists(st.booleans(), min_size=4, max_size=4))
def test_a_shape_with_ones_is_broadcast_to_the_whole(shape: tuple[int, ...], keep: list[bool]) -> None:
    some = tuple(size if kept else 1 for size, kept in zip(shape, keep, strict=False))
    assert broadcast_shape([some, shape]) == shape
    assert row_major(shape)[-1] == 1 and row_major(shape)[0] * shape[0] == math.prod(shape)
