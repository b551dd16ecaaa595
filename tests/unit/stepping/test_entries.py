"""Which calls of a trace are a step's entries, and what belongs to each."""

from __future__ import annotations

from typing import Any

import pytest
from tests.trace_factories import kernel_event, memcpy_event, op_event, runtime_event

from torchledger.stepping.entries import Entry, read_entries
from torchledger.stepping.marks import PACKAGE_MARK
from torchledger.traces.costs import device_events
from torchledger.traces.reading import trace_from_events

COMPOSITE = {"aten::linear": True, "aten::max": None}
LINEAR_SHAPES: dict[str, Any] = {"Input Dims": [[4, 8], [8, 16]], "Input type": ["float", "float"]}


def graph_of(name: str) -> str | None:
    return name.removeprefix("torchledger::") if name.startswith("torchledger::") else None


def entries_of(events: list[dict[str, Any]], **options: Any) -> list[Entry]:
    trace = trace_from_events(events)
    return read_entries(
        trace,
        (0, 10**9),
        device_events(trace),
        graph_of=graph_of,
        is_composite=lambda name: COMPOSITE.get(name, False),
        **options,
    )


def test_an_operator_that_only_calls_others_is_no_entry_and_its_parts_are() -> None:
    found = entries_of([op_event(name="aten::linear", ts=0, dur=20), op_event(name="aten::mm", ts=2, dur=8)])
    assert [(entry.name, entry.around) for entry in found] == [("aten::mm", ("aten::linear",))]


def test_what_an_operator_calls_inside_is_part_of_it() -> None:
    found = entries_of([op_event(name="aten::add", ts=0, dur=20), op_event(name="aten::empty", ts=2, dur=3)])
    assert [entry.name for entry in found] == ["aten::add"]
    assert found[0].host_work_ns == 20_000


def test_of_an_operator_with_unlike_overloads_the_one_that_was_heard_whole_is_an_entry() -> None:
    events = [op_event(name="aten::max", ts=0, dur=20), op_event(name="aten::maximum", ts=2, dur=3)]
    assert [entry.name for entry in entries_of(events)] == ["aten::maximum"]
    assert [entry.name for entry in entries_of(events, whole=("aten::max",))] == ["aten::max"]


def test_an_overload_that_calls_another_of_its_name_is_known_by_its_parts() -> None:
    events = [
        op_event(name="aten::max", ts=0, dur=20),
        op_event(name="aten::scalar_tensor", ts=1, dur=2),
        op_event(name="aten::max", ts=5, dur=10),
    ]
    found = entries_of(events, whole=("aten::max",))
    assert [(entry.name, entry.part_of) for entry in found] == [("aten::scalar_tensor", None), ("aten::max", None)]


def test_what_autograd_saves_of_a_tensor_before_it_is_overwritten_is_an_operator_of_its_own() -> None:
    saved = {"External id": 2, "Sequence number": 14}
    found = entries_of([op_event(name="aten::mul_", ts=0, dur=20), op_event(name="aten::clone", ts=2, dur=8, **saved)])
    assert [(entry.name, entry.host_work_ns) for entry in found] == [("aten::clone", 8_000), ("aten::mul_", 10_000)]
    inside = [op_event(name="aten::index_put_", ts=0, dur=20), op_event(name="aten::clone", ts=2, dur=8)]
    assert [entry.name for entry in entries_of(inside)] == ["aten::index_put_"]


def test_a_graphs_call_is_one_entry_whose_work_is_that_of_the_kernels_inside() -> None:
    found = entries_of(
        [
            op_event(name="torchledger::forward_0", cat="user_annotation", ts=0, dur=100),
            op_event(name="aten::empty", ts=5, dur=10),
            op_event(name="graph_0_cpp_fused_relu_0", ts=20, dur=30),
            op_event(name="aten::mm", ts=60, dur=15),
        ]
    )
    assert [(entry.kind, entry.name, entry.host_work_ns) for entry in found] == [("graph", "forward_0", 45_000)]


def test_kernels_that_a_package_has_ranges_around_are_entries_after_what_they_call() -> None:
    package = op_event(name=PACKAGE_MARK, cat="user_annotation", ts=0, dur=100)
    inside = [
        op_event(name="aoti_torch_cpu_addmm_out", ts=10, dur=30),
        op_event(name="aten::copy_", ts=12, dur=8),
        op_event(name="graph_0_cpp_fused_relu_0", ts=50, dur=20),
    ]
    found = entries_of([package, *inside])
    expected = [("aten::copy_", 8_000), ("aoti_torch_cpu_addmm_out", 20_000), ("cpp_fused_relu_0", 20_000)]
    assert [(entry.name, entry.host_work_ns) for entry in found] == expected
    assert [entry.name for entry in entries_of(inside)] == ["aten::copy_"]


def test_each_call_of_a_graph_is_an_entry() -> None:
    marks = [
        op_event(name="torchledger::forward_0", cat="user_annotation", ts=100 * call, dur=50) for call in range(12)
    ]
    assert [entry.name for entry in entries_of(marks)] == ["forward_0"] * 12


def test_a_kernel_belongs_to_the_entry_that_launched_it() -> None:
    found = entries_of(
        [
            op_event(name="aten::mm", ts=0, dur=10, **LINEAR_SHAPES),
            runtime_event(ts=4, dur=2, correlation=1),
            kernel_event(ts=50, dur=5, correlation=1),
        ]
    )
    assert [(entry.name, entry.device_ns) for entry in found] == [("aten::mm", 5000)]
    assert found[0].cost.flops == 2 * 4 * 8 * 16


def test_a_kernel_launched_outside_every_operator_makes_an_entry_of_its_own() -> None:
    found = entries_of([runtime_event(ts=4, dur=2, correlation=1), kernel_event(ts=50, dur=5, correlation=1)])
    assert [(entry.kind, entry.name, entry.device_ns) for entry in found] == [("operator", "gemm", 5000)]


def test_every_launched_nanosecond_belongs_to_exactly_one_entry() -> None:
    events = [
        op_event(name="torchledger::forward_0", cat="user_annotation", ts=0, dur=20),
        op_event(name="aten::linear", ts=30, dur=30),
        op_event(name="aten::mm", ts=31, dur=20, **LINEAR_SHAPES),
    ]
    for number, moment in enumerate((3, 8, 33, 40, 57, 90)):
        events += [
            runtime_event(ts=moment, dur=1, correlation=number),
            kernel_event(ts=200 + 10 * number, dur=number + 1, correlation=number),
        ]
    found = entries_of(events)
    assert sum(entry.device_ns for entry in found) == 1000 * sum(range(1, 7))
    rows = [event.row for entry in found for event in entry.events]
    assert len(rows) == len(set(rows)) == 6


def test_a_copy_between_host_and_device_says_so_and_how_many_bytes() -> None:
    found = entries_of(
        [
            op_event(name="aten::_to_copy", ts=0, dur=10),
            runtime_event(name="cudaMemcpyAsync", ts=4, dur=2, correlation=12),
            memcpy_event(ts=20),
        ]
    )
    assert [(entry.kind, entry.cost.bytes_moved) for entry in found] == [("copy", 4096)]


def test_a_wait_for_the_device_is_an_entry_beside_the_operator_that_waits() -> None:
    found = entries_of(
        [
            op_event(name="aten::_local_scalar_dense", ts=0, dur=30),
            runtime_event(name="cudaStreamSynchronize", ts=5, dur=20, correlation=3),
        ]
    )
    assert [(entry.kind, entry.name) for entry in found] == [
        ("operator", "aten::_local_scalar_dense"),
        ("synchronization", "cudaStreamSynchronize"),
    ]


def test_a_collective_carries_its_message_size_and_group() -> None:
    parameters = {
        "Collective name": "allreduce",
        "In msg nelems": 1024,
        "Out msg nelems": 1024,
        "Group size": 2,
        "dtype": "Float",
    }
    found = entries_of(
        [
            op_event(name="c10d::allreduce_", ts=0, dur=30),
            op_event(name="record_param_comms", ts=5, dur=20, **parameters),
        ]
    )
    assert [(entry.kind, entry.name) for entry in found] == [("collective", "c10d::allreduce_")]
    assert found[0].facts["Group size"] == "2"
    assert found[0].cost.bytes_moved is not None


def test_what_autograds_engine_calls_is_backward() -> None:
    found = entries_of(
        [
            op_event(name="autograd::engine::evaluate_function: MmBackward0", ts=0, dur=30),
            op_event(name="MmBackward0", ts=1, dur=28),
            op_event(name="aten::mm", ts=2, dur=10),
        ]
    )
    assert [(entry.name, entry.is_backward) for entry in found] == [("aten::mm", True)]


@pytest.mark.parametrize("inside", [0, 1])
def test_only_calls_that_start_in_the_window_count(inside: int) -> None:
    trace = trace_from_events([op_event(ts=100, dur=5), op_event(ts=200 if inside else 5000, dur=5)])
    found = read_entries(trace, (0, 1_000_000), (), graph_of=graph_of, is_composite=lambda name: False)
    assert len(found) == 1 + inside


def test_the_parts_of_a_custom_operator_that_was_heard_whole_name_it() -> None:
    found = entries_of(
        [
            op_event(name="fsdp::all_gather_copy_in", ts=0, dur=30),
            op_event(name="aten::slice", ts=2, dur=3),
            op_event(name="aten::_foreach_copy_", ts=10, dur=15),
            op_event(name="aten::add", ts=40, dur=5),
        ],
        whole=("fsdp::all_gather_copy_in",),
    )
    assert [entry.part_of and entry.part_of[1] for entry in found] == [*["fsdp::all_gather_copy_in"] * 2, None]


def test_an_operator_on_nested_tensors_is_heard_whole_and_known_by_its_parts() -> None:
    nested: dict[str, Any] = {"Input Dims": [[], []], "Input type": ["", ""]}
    found = entries_of(
        [
            op_event(name="aten::linear", ts=0, dur=30, **nested),
            op_event(name="aten::clone", ts=2, dur=3),
            op_event(name="aten::mm", ts=10, dur=15),
            op_event(name="aten::linear", ts=40, dur=20, **LINEAR_SHAPES),
            op_event(name="aten::mm", ts=45, dur=10),
        ],
        whole=("aten::linear",),
        nested=("aten::linear",),
    )
    assert [(entry.name, entry.part_of and entry.part_of[1]) for entry in found] == [
        ("aten::clone", "aten::linear"),
        ("aten::mm", "aten::linear"),
        ("aten::mm", None),
    ]


def test_an_operator_on_distributed_tensors_is_known_by_its_collectives_and_the_one_on_the_shard() -> None:
    shard: dict[str, Any] = LINEAR_SHAPES | {"Input Dims": [[2, 8], [8, 16]]}
    found = entries_of(
        [
            op_event(name="aten::mm", ts=0, dur=90, **LINEAR_SHAPES),
            op_event(name="PythonSubclass", ts=5, dur=80),
            op_event(name="_c10d_functional::all_reduce", ts=10, dur=20),
            op_event(name="c10d::allreduce_", ts=12, dur=15),
            op_event(name="_c10d_functional::wait_tensor", ts=40, dur=5),
            op_event(name="aten::mm", ts=60, dur=10, **shard),
        ],
        whole=("aten::mm",),
    )
    assert [(entry.kind, entry.name) for entry in found] == [
        ("collective", "_c10d_functional::all_reduce"),
        ("collective", "_c10d_functional::wait_tensor"),
        ("operator", "aten::mm"),
    ]
    assert found[2].call is not None and found[2].call.tensors[0].shape == (2, 8)
    assert all(entry.part_of is None for entry in found)


def test_a_custom_operator_that_only_allocates_inside_is_an_entry_itself() -> None:
    found = entries_of([op_event(name="mine::scale", ts=0, dur=30), op_event(name="aten::empty_like", ts=2, dur=3)])
    assert [(entry.name, entry.host_work_ns) for entry in found] == [("mine::scale", 30_000)]


@pytest.mark.parametrize("counted", [False, True])
def test_an_operator_of_the_programs_own_is_known_by_its_parts_unless_it_has_a_formula(counted: bool) -> None:
    events = [
        op_event(name="mine::project", ts=0, dur=50),
        op_event(name="GeneratedBackwardFor_mine_project_default", ts=2, dur=40),
        op_event(name="aten::mm", ts=10, dur=20, **LINEAR_SHAPES),
    ]
    found = entries_of(events, whole={"mine::project"}, counted={"mine::project"} if counted else ())
    assert [entry.name for entry in found] == ["mine::project" if counted else "aten::mm"]
    assert [entry.part_of and entry.part_of[1] for entry in found] == [None if counted else "mine::project"]
