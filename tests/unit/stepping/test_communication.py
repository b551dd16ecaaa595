"""A rank's collectives out of a trace, and what it did around them."""

from __future__ import annotations

from typing import Any

from tests.trace_factories import kernel_event, op_event, runtime_event

from torchledger._torch.eager_calls import EagerCall
from torchledger.nouns import Collective
from torchledger.stepping.activity import device_activity, host_activity
from torchledger.stepping.communication import read_collectives
from torchledger.stepping.entries import read_entries
from torchledger.traces.costs import device_events
from torchledger.traces.reading import trace_from_events
from torchledger.traces.trace import Trace
from torchledger.work.op_shapes import OpCall, Tensor

SPAN = [(0, 1_000_000)]
LIST: dict[str, Any] = {"Input Dims": [[[1024]], []], "Input type": ["TensorList", ""]}
FLOATS: dict[str, Any] = {"Input Dims": [[1024]], "Input type": ["float"]}


def gloo_events() -> list[dict[str, Any]]:
    """An all_reduce that is asked for at 100 us and runs from 150 to 400 us; operators before and beside it."""
    return [
        op_event(name="aten::mm", ts=10, dur=80),
        op_event(name="c10d::allreduce_", ts=100, dur=10, **LIST),
        op_event(name="gloo:all_reduce", cat="user_annotation", tid=9, ts=150, dur=250, **FLOATS),
        op_event(name="aten::add", ts=120, dur=100),
    ]


def nccl_events() -> list[dict[str, Any]]:
    facts: dict[str, Any] = {
        "Collective name": "_allgather_base",
        "In msg nelems": 512,
        "Out msg nelems": 1024,
        "dtype": "BFloat16",
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "Seq": 12,
    }
    return [
        op_event(name="c10d::_allgather_base_", ts=100, dur=30),
        op_event(name="record_param_comms", ts=102, dur=26, **facts),
        runtime_event(ts=110, correlation=1),
        kernel_event(name="ncclDevKernel_AllGather_RING_LL", ts=200, dur=300, correlation=1, stream=20),
        op_event(name="aten::mm", ts=140, dur=20),
        runtime_event(ts=145, correlation=2),
        kernel_event(ts=250, dur=100, correlation=2),
    ]


def collectives(trace: Trace, **options: Any) -> list[Collective]:
    return read_collectives(trace, SPAN, device_events(trace), step="step_0", **options)


def test_a_collective_of_gloo_runs_when_its_own_thread_says_so() -> None:
    (found,) = collectives(trace_from_events(gloo_events()))
    assert found.operation == "all_reduce"
    assert found.ended_ns is not None and found.started_ns is not None
    assert (found.started_ns - found.issued_ns, found.ended_ns - found.issued_ns) == (50_000, 300_000)
    assert (found.message_bytes, found.dtype) == (4096, "float32")


def test_its_group_is_the_one_that_was_heard_in_another_step() -> None:
    call = OpCall("c10d::allreduce_", ((Tensor((1024,), "float32"),),))
    heard = EagerCall(call, "", 1, group="5", group_size=8, sources=("train.py:7",))
    (found,) = collectives(trace_from_events(gloo_events()), heard=[heard])
    assert (found.group, found.source) == ("5", "train.py:7")


def test_a_reduce_scatter_that_gloo_runs_as_an_all_reduce_is_found() -> None:
    events = [
        op_event(
            name="c10d::_reduce_scatter_base_",
            ts=100,
            **{"Input Dims": [[512], [1024]], "Input type": ["float", "float"]},
        ),
        op_event(name="gloo:all_reduce", cat="user_annotation", tid=9, ts=150, dur=250, **FLOATS),
    ]
    (found,) = collectives(trace_from_events(events))
    assert (found.operation, found.message_bytes, found.duration_us) == ("reduce_scatter", 4096, 250)


def test_a_collective_of_nccl_has_what_nccl_wrote_of_it() -> None:
    (found,) = collectives(trace_from_events(nccl_events()))
    assert (found.operation, found.message_bytes, found.sequence) == ("all_gather", 2048, 12)
    assert (found.group, found.group_size, found.ranks) == ("0", 2, (0, 1))
    assert found.duration_us == 300 and found.stream == "0/20"


def test_pieces_of_a_device_fill_the_step_and_split_what_compute_hides() -> None:
    trace = trace_from_events(nccl_events())
    found = device_activity(trace, SPAN, device_events(trace), step="step_0", clock="cupti")
    by_kind = [sum(ns for ns, kind in zip(found.piece_ns, found.kind, strict=True) if kind == each) for each in (0, 1)]
    assert by_kind == [100_000, 200_000]
    assert sum(found.piece_ns) == found.wall_ns
    assert found.communication_ns == 300_000


def test_pieces_of_a_main_thread_fill_the_step_and_split_what_operators_hide() -> None:
    trace = trace_from_events(gloo_events())
    entries = read_entries(trace, SPAN[0], (), graph_of=lambda name: None, is_composite=lambda name: False)
    found = host_activity(trace, SPAN, entries, collectives(trace), step="step_0", clock="cpu_profiler")
    by_kind = [sum(ns for ns, kind in zip(found.piece_ns, found.kind, strict=True) if kind == each) for each in (0, 1)]
    assert by_kind == [180_000, 300_000 - 100_000]
    assert sum(found.piece_ns) == found.wall_ns == 1_000_000
