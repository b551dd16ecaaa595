"""Where a recorded step parts from what a mode heard of another: where a checkpoint stops, in nodes of autograd's."""

from __future__ import annotations

from dataclasses import replace

from torchledger._torch.eager_calls import EagerCall
from torchledger.stepping.aligning import have_other_sizes, other_routes, stopped_places
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
