"""Where a recorded step parts from what a mode heard of another: where a checkpoint stops, in nodes of autograd's."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from torchledger._torch.eager_calls import EagerCall
from torchledger.stepping.aligning import _pairs, have_other_sizes, other_routes, stopped_places
from torchledger.stepping.entries import Entry
from torchledger.work.op_shapes import OpCall, Tensor

NODE = "autograd::engine::evaluate_function: PowBackward0"


def entries(*names: str) -> list[Entry]:
    call = OpCall("aten::mm", (Tensor((4, 4), "float32"),), ("",))
    return [
        Entry("operator", name, place, 0, place, place, around=(NODE,), call=replace(call, name=name))
        for place, name in enumerate(names)
    ]


def heard(*names: str, stops_after: int | None = None) -> list[EagerCall]:
    return [
        EagerCall(OpCall(name, (), ()), "", thread=7, node="PowBackward0", stops=place == stops_after)
        for place, name in enumerate(names)
    ]


def test_what_a_checkpoint_stopped_is_the_one_operator_that_was_recorded_there_and_not_heard() -> None:
    recorded = entries("aten::gelu", "aten::addmm", "aten::mm")
    calls = heard("aten::gelu", "aten::detach", "aten::mm", stops_after=1)
    assert stopped_places(recorded, {0: calls[0], 2: calls[2]}, calls) == {1}


def test_where_two_operators_are_missing_or_nothing_was_stopped_none_is_taken_for_stopped() -> None:
    recorded = entries("aten::gelu", "aten::addmm", "aten::addmm", "aten::mm")
    calls = heard("aten::gelu", "aten::mm", stops_after=0)
    assert stopped_places(recorded, {0: calls[0], 3: calls[1]}, calls) == set()
    calls = heard("aten::gelu", "aten::addmm", "aten::mm")
    assert stopped_places(recorded[1:], {1: calls[1], 2: calls[2]}, calls) == set()


def test_a_node_that_calls_others_while_a_mode_listens_is_named_with_what_it_calls_more() -> None:
    recorded = entries("aten::mm", "aten::zeros", "aten::slice", "aten::copy_")
    calls = heard("aten::mm", "aten::cat")
    assert other_routes(recorded, {0: calls[0]}, calls) == {"PowBackward0": 2}


def test_a_nested_tensor_has_no_size_that_could_be_another() -> None:
    recorded = entries("aten::mm")
    (call,) = heard("aten::mm")
    nested = replace(call, call=OpCall("aten::mm", (Tensor((), "float32"),), ("",)))
    other = replace(call, call=OpCall("aten::mm", (Tensor((9, 4), "float32", (4, 1)),), ("",)))
    assert not have_other_sizes(recorded, {0: nested})
    assert have_other_sizes(recorded, {0: other})


def test_operators_that_one_side_only_lacks_are_missing_and_not_another_route() -> None:
    recorded = entries("aten::mm", "aten::zeros", "aten::slice")
    calls = heard("aten::mm", "aten::zeros")
    assert other_routes(recorded, {0: calls[0], 1: calls[1]}, calls) == {}
    assert other_routes(recorded[:1], {0: calls[0]}, calls) == {}


def test_operators_are_paired_though_a_mode_hears_other_aliases_between_them() -> None:
    names = [f"aten::{name}" for name in ("mm", "add", "exp", "mm", "sum") * 400]
    recorded = [each for place, name in enumerate(names) for each in (name, *["aten::detach"] * (place % 3 == 0))]
    heard = [each for place, name in enumerate(names) for each in (*["aten::empty"] * (place % 2), name)]
    pairs = _pairs(recorded, heard)
    assert [recorded[one] for one, _ in pairs] == names == [heard[two] for _, two in pairs]
    assert all(first < second for first, second in pairwise(pairs)) and len({two for _, two in pairs}) == len(pairs)


@given(
    names=st.lists(st.sampled_from(["aten::mm", "aten::add", "aten::detach", "aten::empty"]), max_size=12),
    data=st.data(),
)
def test_what_is_paired_has_one_name_and_stands_in_order(names: list[str], data: st.DataObject) -> None:
    other = [name for name in names if data.draw(st.booleans())]
    pairs = _pairs(names, other)
    assert all(names[one] == other[two] for one, two in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(pairs))
    if other == names:
        assert len(pairs) == len(names)
