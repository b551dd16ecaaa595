"""A step's record out of a trace of several."""

from __future__ import annotations

from typing import Any

import pytest
from tests.factories import make_launch
from tests.trace_factories import kernel_event, op_event, runtime_event

from torchledger._torch.eager_calls import EagerCall
from torchledger.capturing.conditionals import Loop, Regions
from torchledger.nouns import DeviceEvent, Step, StepCall
from torchledger.stepping.record import Ledgered, StepFacts, record_step
from torchledger.stepping.totals import launches_in
from torchledger.traces.costs import device_events
from torchledger.traces.reading import trace_from_events
from torchledger.work.op_shapes import OpCall, Tensor

SHAPES: dict[str, Any] = {"Input Dims": [[4, 8], [8, 16]], "Input type": ["float", "float"]}
LEDGERED = Ledgered(
    {"forward_0": "forward", "backward_0": "backward"},
    {
        "forward_0": [make_launch(flops=100), make_launch(order=1, flops=20)],
        "backward_0": [make_launch(graph="backward_0", flops=200)],
    },
)


def record(
    events: list[dict[str, Any]], spans: list[tuple[int, int]], **options: Any
) -> tuple[Step, tuple[StepCall, ...]]:
    trace = trace_from_events(events)
    on_device = device_events(trace)
    found = record_step(
        trace,
        spans,
        on_device,
        StepFacts("optimizer", plain_us=(900.0, 1000.0, 1100.0)),
        LEDGERED,
        graph_of=lambda name: name.removeprefix("torchledger::") if name.startswith("torchledger::") else None,
        is_composite=lambda name: False,
        clock="cupti" if on_device else "cpu_profiler",
        **options,
    )
    return found.step, found.calls


def steps(count: int, calls: int = 3) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
    """Steps of 1000 us on a CPU: ``calls`` calls of one graph, each with a kernel of 50 us, and one eager product."""
    events = []
    for number in range(count):
        start = 1000 * number
        for call in range(calls):
            at = start + 60 * call
            events += [
                op_event(name="torchledger::forward_0", cat="user_annotation", ts=at, dur=58),
                op_event(name="graph_0_cpp_fused_relu_0", ts=at + 4, dur=50),
            ]
        events.append(op_event(name="aten::mm", ts=start + 600, dur=10 + number, **SHAPES))
    return events, [(1_000_000 * number, 1_000_000 * (number + 1)) for number in range(count)]


def test_a_graph_that_is_called_twelve_times_counts_twelve_times() -> None:
    step, calls = record(*steps(2, calls=8))
    assert step.graph_calls == {"forward_0": 8}
    assert sum(call.flops or 0 for call in calls) == 8 * 120 + 2 * 4 * 8 * 16
    assert [call.call for call in calls if call.kind == "graph"] == list(range(8))


def test_an_entry_has_one_sample_for_each_recorded_step() -> None:
    _, calls = record(*steps(3))
    product = next(call for call in calls if call.name == "aten::mm")
    assert sorted(product.samples_us) == [10.0, 11.0, 12.0]


def test_busy_and_idle_by_cause_fill_the_step() -> None:
    step, _ = record(*steps(3))
    assert step.busy_us is not None and step.wall_us == 1000.0
    assert step.busy_us + sum(step.idle_us.values()) == pytest.approx(step.wall_us)
    assert step.busy_us == pytest.approx(3 * 50 + 11)


def test_the_steps_length_is_the_median_of_those_without_the_profiler() -> None:
    step, _ = record(*steps(1))
    assert step.duration_us == 1000.0


def test_all_device_time_of_the_step_belongs_to_its_calls() -> None:
    events, spans = [], [(0, 1_000_000), (1_000_000, 2_000_000)]
    for number in range(2):
        at = 1000 * number
        events += [
            op_event(name="aten::mm", ts=at + 10, dur=10, **SHAPES),
            runtime_event(ts=at + 12, dur=2, correlation=2 * number),
            kernel_event(ts=at + 300, dur=40, correlation=2 * number),
            runtime_event(ts=at + 50, dur=2, correlation=2 * number + 1),
            kernel_event(ts=at + 350, dur=60, correlation=2 * number + 1),
        ]
    step, calls = record(events, spans)
    assert step.device_us == pytest.approx(100.0)
    assert step.covered_share == 1.0
    assert sum(sum(call.samples_us) / 2 for call in calls) == pytest.approx(100.0)


def test_a_kernel_whose_launch_was_not_recorded_is_named_and_not_covered() -> None:
    events = [
        op_event(name="aten::mm", ts=10, dur=10, **SHAPES),
        runtime_event(ts=12, dur=2, correlation=1),
        kernel_event(ts=300, dur=75, correlation=1),
        kernel_event(ts=500, dur=25, correlation=99),
    ]
    step, _ = record(events, [(0, 1_000_000)])
    assert step.covered_share == 0.75
    assert sum(step.uncovered_us.values()) == 25.0


def only_call(ledgered: Ledgered) -> StepCall:
    """The one call of a recorded step that calls ``forward_0`` and nothing else."""
    trace = trace_from_events([op_event(name="torchledger::forward_0", cat="user_annotation", ts=0, dur=80)])
    (call,) = record_step(
        trace,
        [(0, 100_000)],
        (),
        StepFacts("period"),
        ledgered,
        graph_of=lambda name: "forward_0",
        is_composite=lambda name: False,
        clock="cpu_profiler",
    ).calls
    return call


def test_a_launch_of_a_graph_whose_flops_are_unknown_is_said_and_not_taken_for_none() -> None:
    ledgered = Ledgered({"forward_0": "forward"}, {"forward_0": [make_launch(flops=None), make_launch(flops=5)]})
    call = only_call(ledgered)
    assert call.flops == 5
    assert call.reason is not None and "FLOPs of 1 of its 2 entries are unknown" in call.reason


def test_the_way_of_a_conditional_that_a_call_did_not_take_counts_for_nothing() -> None:
    launches = [
        make_launch(order=place, wrapper_line=10 * place, category="extern", flops=10**place) for place in range(4)
    ]
    ran = [
        DeviceEvent(f"kernel_{place}", "kernel", "gemm", 1000 * place, 10, launch_id=f"forward_0#{place}")
        for place in (0, 2, 3)
    ]
    ledgered = Ledgered(
        {"forward_0": "forward"}, {"forward_0": launches}, ran, {"forward_0": [(((10, 10),), ((20, 20),))]}
    )
    call = only_call(ledgered)
    assert (call.flops, call.launches, call.not_taken, call.times) == (1101, 3, 1, ((1, 0),))
    assert launches_in(call, {"forward_0": 4}) == 3


def test_launches_of_a_loop_count_as_often_as_they_were_made() -> None:
    launches = [
        make_launch(order=place, wrapper_line=10 * place, category="extern", flops=10**place) for place in range(4)
    ]
    ran = [
        DeviceEvent(f"kernel_{place}", "kernel", "gemm", at, 10, launch_id=f"forward_0#{place}")
        for at, place in enumerate((0, 1, 2, 1, 2, 1, 3))
    ]
    loop = Loop(check=((10, 10),), body=((20, 20),))
    call = only_call(Ledgered({"forward_0": "forward"}, {"forward_0": launches}, ran, {"forward_0": [loop]}))
    assert (call.flops, call.launches, call.not_taken, call.repeated) == (1231, 7, 0, 3)
    assert call.times == ((1, 3), (2, 2))
    assert launches_in(call, {"forward_0": 4}) == 7


def test_launches_of_a_region_count_at_each_line_that_calls_it() -> None:
    launches = [
        make_launch(order=place, wrapper_line=line, category="extern", flops=10**place)
        for place, line in enumerate((2, 11, 13))
    ]
    regions = Regions(((10, (1, 3)), (12, (1, 3))))
    call = only_call(Ledgered({"forward_0": "forward"}, {"forward_0": launches}, (), {"forward_0": [regions]}))
    assert (call.flops, call.repeated, call.times) == (112, 1, ((0, 2),))
    assert launches_in(call, {"forward_0": 3}) == 4


def test_a_record_of_no_step_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one step"):
        record([op_event()], [])


def test_a_custom_operator_counts_once_as_it_is_heard_and_its_parts_have_its_line() -> None:
    events = [
        op_event(name="fsdp::all_gather_copy_in", ts=0, dur=30, tid=7),
        op_event(name="aten::slice", ts=2, dur=3, tid=7),
        op_event(name="aten::mm", ts=10, dur=15, tid=7, **SHAPES),
        op_event(name="aten::mm", ts=10, dur=15, tid=8, **SHAPES),
    ]
    heard = [EagerCall(OpCall("fsdp::all_gather_copy_in", ()), "default", 7, sources=("train.py:3",))]
    step, calls = record(events, [(0, 1_000_000)], heard=heard)
    assert (step.operators, step.operators_heard, step.operators_elsewhere) == (1, 1, 1)
    assert [(call.name, call.sources) for call in calls if call.sources] == [
        ("aten::slice", ("train.py:3",)),
        ("aten::mm", ("train.py:3",)),
    ]
    assert [call.flops for call in calls if call.name == "aten::mm"] == [2 * 4 * 8 * 16] * 2


def test_a_collectives_message_is_by_nccl_tests_and_its_bytes_are_what_a_rank_gives_and_gets() -> None:
    written = {"Collective name": "_allgather_base", "In msg nelems": 256, "Out msg nelems": 1024, "Group size": 4}
    events = [
        op_event(name="c10d::_allgather_base_", ts=0, dur=30, tid=7),
        op_event(name="record_param_comms", ts=5, dur=20, tid=7, dtype="Float", **written),
    ]
    _, (call,) = record(events, [(0, 1_000_000)])
    assert (call.message_bytes, call.bytes_moved, call.group_size) == (4096, 5120, 4)


def test_a_collective_of_which_the_trace_says_nothing_has_what_its_operator_was_called_with() -> None:
    call = OpCall("c10d::allreduce_", ((Tensor((1024,), "float32"),),))
    heard = [EagerCall(call, "default", 7, group="0", group_size=2)]
    _, (found,) = record([op_event(name="c10d::allreduce_", ts=0, dur=30, tid=7)], [(0, 1_000_000)], heard=heard)
    assert (found.message_bytes, found.bytes_moved, found.group, found.group_size) == (4096, 8192, "0", 2)


def test_a_forward_that_is_called_again_in_the_backward_names_the_node_that_asked() -> None:
    events = [
        op_event(name="torchledger::forward_0", cat="user_annotation", ts=0, dur=50),
        op_event(name="autograd::engine::evaluate_function: CompiledFunctionBackward", ts=100, dur=200),
        op_event(name="torchledger::forward_0", cat="user_annotation", ts=110, dur=50),
        op_event(name="torchledger::backward_0", cat="user_annotation", ts=170, dur=50),
    ]
    _, calls = record(events, [(0, 1_000_000)])
    assert [call.recomputed_for for call in calls] == [None, "CompiledFunctionBackward", None]


def test_what_makes_a_tensor_tells_the_sizes_of_its_step_too() -> None:
    def made(rows: int, start: int) -> dict[str, Any]:
        asked = {"Input Dims": [[]], "Input type": ["ScalarList"], "Concrete Inputs": [f"[{rows}, 8]"]}
        return op_event(name="aten::randn", ts=start + 10, dur=10, **asked)

    heard = [EagerCall(OpCall("aten::randn", (None,), ("[6, 8]",)), "", thread=1)]
    spans = [(1_000_000 * place, 1_000_000 * (place + 1)) for place in range(3)]
    for sizes, is_other in (((4, 4, 6), False), ((4, 4, 5), True)):
        events = [made(rows, 1000 * place) for place, rows in enumerate(sizes)]
        step, (call,) = record(events, spans, heard=heard)
        assert step.is_heard_at_other_sizes is is_other
        assert is_other or call.bytes_moved == 6 * 8 * 4


def test_of_steps_of_many_sizes_the_one_like_what_was_heard_is_read_and_none_is_given_the_work_of_another() -> None:
    def product(rows: int, start: int) -> dict[str, Any]:
        shapes = {"Input Dims": [[rows, 8], [8, 16]], "Input type": ["float", "float"]}
        return op_event(name="aten::mm", ts=start + 10, dur=10, **shapes)

    def hear(rows: int) -> list[EagerCall]:
        tensors = (Tensor((rows, 8), "float32", None), Tensor((8, 16), "float32", None))
        return [EagerCall(OpCall("aten::mm", tensors), "", thread=1)]

    events = [product(rows, 1000 * place) for place, rows in enumerate((4, 4, 6))]
    spans = [(1_000_000 * place, 1_000_000 * (place + 1)) for place in range(3)]
    step, (call,) = record(events, spans, heard=hear(6))
    assert (step.is_heard_at_other_sizes, call.flops) == (False, 2 * 6 * 8 * 16)
    step, (call,) = record(events, spans, heard=hear(9))
    assert (step.is_heard_at_other_sizes, call.flops) == (True, 2 * 4 * 8 * 16)


def test_a_step_that_does_what_was_heard_has_a_reference_even_where_others_do_more() -> None:
    shapes = {"Input Dims": [[4, 8], [8, 16]], "Input type": ["float", "float"]}
    logged = {"Input Dims": [[4, 16]], "Input type": ["float"]}
    spans = [(1_000_000 * place, 1_000_000 * (place + 1)) for place in range(3)]

    def hear(*names: str) -> list[EagerCall]:
        return [EagerCall(OpCall(name, ()), "", thread=1) for name in names]

    def products(*steps: int) -> list[dict[str, Any]]:
        made = [op_event(name="aten::mm", ts=1000 * place + 10, dur=10, **shapes) for place in range(3)]
        return made + [op_event(name="aten::sum", ts=1000 * place + 30, dur=10, **logged) for place in steps]

    heard_and_known = ((["aten::mm"], True), (["aten::mm", "aten::sum"], False), (["aten::add"], False))
    for names, has_reference in heard_and_known:
        step, _ = record(products(2), spans, heard=hear(*names))
        assert step.operators_by_step == (1, 1, 2)
        assert step.has_unlike_steps is not has_reference
    for names in (["aten::mm"], ["aten::mm", "aten::sum"]):
        step, calls = record(products(1)[:2] + products(1)[3:], spans[:2], heard=hear(*names))
        assert (step.operators_by_step, step.has_unlike_steps) == ((1, 2), False)
        assert [call.name for call in calls] == names


def test_what_held_up_one_of_three_steps_is_no_part_of_the_step() -> None:
    events, spans = steps(3)
    held_up = op_event(name="aten::mm", ts=3000, dur=60_000, **SHAPES)
    step, _ = record([*events, held_up], [*spans[:2], (2_000_000, 90_000_000)])
    assert step.wall_us == 1000.0
    assert step.busy_us is not None and step.busy_us + sum(step.idle_us.values()) == pytest.approx(1000.0)


def test_of_two_steps_busy_and_idle_time_are_the_mean() -> None:
    step, _ = record(*steps(2))
    assert step.wall_us == 1000.0 and step.busy_us == pytest.approx(3 * 50 + 10.5)
