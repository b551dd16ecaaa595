"""How operators go along dimensions: which ways there are, and what threads do one after the other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchledger.nouns import TensorArgument
from torchledger.work.tensor_layouts import row_major
from torchledger.work.walks import Walk, family_of_walk, steps_of, walk_of


def dense(*shape: int) -> list[TensorArgument]:
    return [TensorArgument(shape, "float32", row_major(shape))]


def turned(*shape: int) -> list[TensorArgument]:
    """A matrix whose first dimension is the fastest."""
    return [TensorArgument(shape, "float32", (1, shape[0]))]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.data(), st.sampled_from(["sum", "_softmax", "cumsum"]))
def test_a_walk_covers_all_elements(shape: list[int], data: st.DataObject, name: str) -> None:
    dim = data.draw(st.integers(0, len(shape) - 1))
    walk = walk_of(f"aten::{name}", dense(*shape), (("dim", (dim,)),))
    assert walk is not None
    assert walk.outer * walk.size * walk.inner == math.prod(shape)
    assert walk.size == shape[dim]
    assert steps_of(f"aten::{name}", walk) >= 0


def test_reductions_go_by_how_a_tensor_lies_and_scans_by_its_dimensions() -> None:
    along_first = (("dim", (0,)),)
    for name, way in (("sum", "inner"), ("cumsum", "outer"), ("_log_softmax", "outer")):
        walk = walk_of(f"aten::{name}", turned(64, 128), along_first)
        assert walk is not None and walk.way == way, name


def test_a_reduction_that_was_given_no_dimension_goes_over_all_and_one_that_was_not_recorded_is_unknown() -> None:
    whole = walk_of("aten::sum", dense(8, 16), ())
    assert whole is not None and whole.way == "whole"
    assert walk_of("aten::sum", dense(8, 16), None) is None
    assert walk_of("aten::cumsum", dense(8, 16), ()) is None
    assert walk_of("aten::sum", dense(8, 0), (("dim", (0,)),)) is None
    assert walk_of("aten::sum", dense(8, 16), (("dim", (4,)),)) is None


def test_several_dimensions_are_walked_together() -> None:
    walk = walk_of("aten::mean", dense(4, 8, 6, 5), (("dim", (0, 2, 3)),))
    assert walk == Walk(8, 120, 1)
    assert walk_of("aten::mean", dense(4, 8, 6, 5), (("dim", (0, 2)),)) == Walk(8, 24, 5)


def test_few_columns_are_thin() -> None:
    walk = walk_of("aten::amax", dense(100, 3), (("dim", (0,)),))
    assert walk is not None and walk.way == "thin"


def test_one_thread_of_many_walks_down_a_column() -> None:
    """A scan or softmax down tall columns takes as many steps as there are rows, whatever the width."""
    assert steps_of("aten::cumsum", Walk(1, 100_000, 64)) == 100_000
    assert steps_of("aten::_softmax", Walk(1, 100_000, 512)) == 100_000
    assert steps_of("aten::_softmax", Walk(1, 100_000, 16)) < 10_000  # threads share a column
    assert steps_of("aten::cumsum", Walk(1, 2**27, 1)) == 0  # all blocks together


@pytest.mark.parametrize(("walk", "least", "most"), [
    (Walk(1, 784, 248), 49, 60),  # a thread adds up 196 elements, four at once
    (Walk(1, 10**8, 1), 1, 100),  # blocks share the only result
    (Walk(580_704, 32, 1), 200, 400),  # one wave of blocks after the other
    (Walk(64, 64, 1), 1, 5),
])  # fmt: skip
def test_reductions_share_long_results_among_threads(walk: Walk, least: int, most: int) -> None:
    assert least <= steps_of("aten::sum", walk) <= most


def test_what_has_no_dimension_is_of_no_family() -> None:
    named = {name: family_of_walk(f"aten::{name}") for name in ("mm", "add", "native_layer_norm", "mse_loss")}
    assert set(named.values()) == {None}
    assert family_of_walk("aten::linalg_vector_norm") == "reduction"
    assert family_of_walk("aten::topk") == "selection"
    assert (family_of_walk("aten::gather"), family_of_walk("aten::flip")) == ("place", "move")
