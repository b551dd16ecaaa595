"""Values that are added up at places, and how many of them follow one another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchledger.nouns import TensorArgument
from torchledger.work.meetings import Meeting, meeting_of

ADDED = (("accumulate", (1,)),)
NAME = "aten::_index_put_impl_"


def tensor(*shape: int) -> TensorArgument:
    return TensorArgument(shape, "float32", None)


@pytest.mark.parametrize(
    ("into", "values", "meeting"),
    [
        ((10, 64), (512, 64), Meeting(1, 10, 512, 64)),
        ((4, 16, 8), (100, 8), Meeting(1, 64, 100, 8, named=2)),
        ((7, 64, 3), (7, 64, 9), Meeting(448, 3, 9, 1)),
        ((5, 12, 32), (5, 40, 32), Meeting(5, 12, 40, 32)),
        ((1000,), (50,), Meeting(1, 1000, 50, 1)),
        ((5, 9, 9, 3), (5, 4, 6, 3), Meeting(5, 81, 24, 3, named=2, spread=2)),
        ((20, 6), (20, 6), Meeting(1, 20, 20, 6)),
    ],
)
def test_where_tensor_and_values_differ_are_the_places(
    into: tuple[int, ...], values: tuple[int, ...], meeting: Meeting
) -> None:
    assert meeting_of(NAME, (tensor(*into), tensor(*values)), ADDED) == meeting


def test_dimensions_that_are_told_are_believed() -> None:
    def along(dims: tuple[int, ...], into: tuple[int, ...], values: tuple[int, ...]) -> Meeting | None:
        return meeting_of(NAME, (tensor(*into), tensor(*values)), (*ADDED, ("indices", dims)))

    assert along((1,), (20, 6), (20, 6)) == Meeting(20, 6, 6, 1)
    assert along((1, 2), (5, 4, 3, 8), (5, 30, 8)) == Meeting(5, 12, 30, 8, named=2)
    assert along((0, 2), (5, 4, 3, 8), (30, 4, 8)) == Meeting(1, 15, 30, 32, named=2)


def test_the_tensors_that_name_places_are_passed_over() -> None:
    places = TensorArgument((512,), "int64", None)
    assert meeting_of("aten::index_put", (tensor(10, 64), places, tensor(512, 64)), ADDED) == Meeting(1, 10, 512, 64)


def test_values_that_are_put_do_not_meet_and_other_operators_add_up_otherwise() -> None:
    rows = (tensor(10, 64), tensor(512, 64))
    assert meeting_of(NAME, rows, (("accumulate", (0,)),)) is None
    assert meeting_of(NAME, rows, None) is None
    assert meeting_of("aten::index_add_", rows, ADDED) is None
    assert meeting_of(NAME, rows[:1], ADDED) is None
    assert meeting_of(NAME, (tensor(0, 64), tensor(0, 64)), ADDED) is None


sizes = st.integers(1, 4096)


@given(sizes, sizes, sizes, sizes)
def test_fewer_places_and_more_values_take_no_fewer_steps(outer: int, places: int, taken: int, width: int) -> None:
    steps = Meeting(outer, places, taken, width).steps
    assert steps >= max(1, taken // places)
    assert Meeting(outer, places + 1, taken, width).steps <= steps <= Meeting(outer, places, taken + 1, width).steps
    assert steps <= Meeting(outer + 1, places, taken, width).steps


def test_the_kernel_follows_from_the_width() -> None:
    kinds = [Meeting(1, 8, 8, width).kind for width in (1, 2, 32, 33)]
    assert kinds == ["of single elements", "of narrow values", "of narrow values", "of values"]
