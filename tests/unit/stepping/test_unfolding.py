"""Operators of a trace whose parts a dispatch mode heard in their place."""

from __future__ import annotations

from typing import Any

from tests.trace_factories import op_event

from torchledger.stepping.entries import read_entries, recorded_operators
from torchledger.stepping.unfolding import Recorded, parts_heard
from torchledger.traces.reading import trace_from_events
from torchledger.work.op_shapes import OpCall, Tensor


def call(name: str, *shapes: tuple[int, ...]) -> OpCall:
    return OpCall(f"aten::{name}", tuple(Tensor(shape, "float32", None) for shape in shapes))


def tree(row: int, name: str, *children: Recorded, shape: tuple[int, ...] = (4,)) -> Recorded:
    return Recorded(row, f"aten::{name}", call(name, shape), children)


def test_of_an_operator_that_is_mapped_the_part_with_the_sizes_that_were_heard_is_taken() -> None:
    mapped = tree(0, "mul", tree(1, "mul", tree(2, "unsqueeze", shape=(64, 4)), tree(3, "mul", shape=(64, 4))))
    heard = [call("unsqueeze", (64, 4)), call("mul", (64, 4))]
    assert parts_heard([mapped], heard) == {0: {2, 3}}
    assert parts_heard([tree(0, "mul", tree(1, "mul", shape=(64, 4)))], [call("mul", (64, 4))]) == {0: {1}}


def test_a_product_of_nested_tensors_is_the_outer_one_of_which_a_profiler_knows_no_shape() -> None:
    inner = tree(2, "matmul", tree(3, "bmm"))
    outer = Recorded(1, "aten::matmul", OpCall("aten::matmul", (None, None)), (inner,))
    assert parts_heard([tree(0, "attention", outer)], [call("matmul", (), ())]) == {0: {1}}


def test_an_operator_that_was_heard_as_it_was_recorded_stays_whole() -> None:
    recorded = [
        tree(0, "abs", tree(1, "abs")),
        tree(2, "sum", tree(3, "as_strided"), tree(4, "fill_")),
        tree(5, "add_"),
    ]
    assert parts_heard(recorded, [call("abs", (4,)), call("sum", (4,)), call("add", (4,))]) == {}


def test_what_stands_for_zeros_is_written_out_before_the_operator_that_is_given_it() -> None:
    product = tree(2, "mm", tree(3, "zeros"), tree(4, "expand"), tree(5, "clone"))
    heard = [call("t", (4,)), call("zeros"), call("expand", ()), call("mm", (4,)), call("view", (4,))]
    assert parts_heard([tree(1, "t"), product, tree(6, "view")], heard) == {2: {2, 3, 4}}


def test_the_conjugate_of_a_tensor_is_written_out_before_the_operator_that_is_given_it() -> None:
    recorded = [tree(0, "sgn"), tree(1, "mul", tree(2, "clone")), tree(3, "abs")]
    heard = [call(name, (4,)) for name in ("sgn", "clone", "mul", "abs")]
    assert parts_heard(recorded, heard) == {1: {1, 2}}


def test_what_hooks_of_saved_tensors_call_is_heard_around_the_operator_that_saves_them() -> None:
    packed = tree(3, "to", tree(4, "_to_copy", tree(5, "copy_"))), tree(6, "to", tree(7, "_to_copy"))
    norm = tree(0, "native_layer_norm", tree(1, "empty"), tree(2, "detach"), *packed)
    product = tree(8, "linear", tree(9, "t"), tree(10, "addmm", tree(11, "_to_copy"), tree(12, "expand")))
    heard = [
        call(name, (4,)) for name in ("native_layer_norm", "_to_copy", "_to_copy", "t", "_to_copy", "addmm", "relu")
    ]
    assert parts_heard([norm, product, tree(13, "relu")], heard) == {0: {0, 4, 7}, 8: {9, 10, 11}}


def test_what_an_operator_calls_itself_is_not_taken_for_the_next_that_was_heard() -> None:
    recorded = [tree(0, "mean", tree(1, "sum")), tree(2, "sum"), tree(3, "exp")]
    heard = [call(name, (4,)) for name in ("mean", "sum", "exp")]
    assert parts_heard(recorded, heard) == {}


def test_an_operator_that_was_not_heard_leaves_those_behind_it_in_step() -> None:
    recorded = [tree(0, "neg"), tree(1, "mul", tree(2, "view"), tree(3, "mul")), tree(4, "exp")]
    heard = [call("view", (4,)), call("mul", (4,)), call("exp", (4,)), call("neg", (4,))]
    assert parts_heard(recorded, heard) == {1: {2, 3}}


def test_an_operator_that_its_parts_stand_for_is_not_taken_for_the_next_of_its_name() -> None:
    parts = tree(1, "_to_copy", tree(2, "zeros"), shape=(4,)), tree(3, "exp")
    recorded = [tree(0, "add", *parts), tree(4, "add_"), tree(5, "mul")]
    assert parts_heard(recorded, [call(name, (4,)) for name in ("_to_copy", "exp", "add", "mul")]) == {0: {1, 3}}
    both = [call(name, (4,)) for name in ("_to_copy", "exp", "add", "add", "mul")]
    assert parts_heard(recorded, both) == {0: {0, 1, 3}}


def test_parts_that_were_heard_are_the_entries_and_what_ran_before_them_is_theirs_alone() -> None:
    shapes: dict[str, Any] = {"Input Dims": [[4]], "Input type": ["float"]}
    events = [
        op_event(name="aten::mm", ts=0, dur=100, **shapes),
        op_event(name="aten::zeros", ts=10, dur=10, **shapes),
        op_event(name="aten::clone", ts=30, dur=10, **shapes),
        op_event(name="aten::add", ts=200, dur=10, **shapes),
    ]
    trace = trace_from_events(events)
    options: dict[str, Any] = {"graph_of": lambda name: None}
    (roots,) = recorded_operators(trace, (0, 10**6), **options).values()
    parts = parts_heard(roots, [call("zeros", (4,)), call("mm", (4,)), call("add", (4,))])
    found = read_entries(trace, (0, 10**6), (), is_composite=lambda name: False, parts=parts, **options)
    assert [(entry.name, entry.host_work_ns) for entry in sorted(found, key=lambda entry: entry.row)] == [
        ("aten::mm", 80_000),
        ("aten::zeros", 10_000),
        ("aten::add", 10_000),
    ]
