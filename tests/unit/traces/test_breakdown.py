"""Sums are exact, busy time is a union, and a verdict's claims carry their numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from public_data import public_trace, public_traces
from torchledger.errors import MeasureError
from torchledger.nouns import Breakdown, Ceilings, Cost, DeviceEvent
from torchledger.store.codec import decode, encode
from torchledger.traces.breakdown import breakdown_of_trace, import_trace
from torchledger.traces.idle import AFTER_SYNCHRONIZATION, BETWEEN_KERNELS, HOST_LATE, QUEUED, UNKNOWN, busy_time
from torchledger.traces.reading import read_trace, trace_from_events
from torchledger.traces.summary import summarize
from trace_factories import kernel_event, memcpy_event, op_event, runtime_event


def make_event(**changes) -> DeviceEvent:
    fields = {"name": "k", "kind": "kernel", "category": "gemm", "start_ns": 0, "duration_ns": 1000, "device": 0}
    return DeviceEvent(**(fields | changes))


spans = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50)), min_size=1, max_size=20)


@given(spans)
def test_busy_time_is_the_union_of_intervals(some: list[tuple[int, int]]) -> None:
    start = np.array([begin for begin, _ in some], dtype=np.int64)
    end = start + np.array([length for _, length in some], dtype=np.int64)
    busy = busy_time(0, start, end, np.arange(len(some), dtype=np.int64))
    covered = {moment for begin, length in some for moment in range(begin, begin + length)}
    assert busy.busy == len(covered)
    assert busy.busy <= busy.end - busy.start
    assert all(end[before] == gap for before, gap in zip(busy.before, busy.gap_start, strict=True))
    assert all(start[after] == gap for after, gap in zip(busy.after, busy.gap_end, strict=True))


@given(spans, st.integers(1, 3))
def test_every_table_adds_up_to_the_device_time(some: list[tuple[int, int]], kinds: int) -> None:
    events = [
        make_event(start_ns=begin, duration_ns=length, name=f"k{length % kinds}", op=None if length % 2 else "aten::x")
        for begin, length in some
    ]
    breakdown = summarize(events, source="test", clock="trace")
    for table in (breakdown.categories, breakdown.ops, breakdown.kernels, breakdown.streams):
        assert round(sum(row.total_us for row in table) * 1e3) == sum(length for _, length in some)
        assert sum(row.calls for row in table) == len(some)
    assert round(breakdown.device_us * 1e3) == sum(length for _, length in some)
    assert breakdown.busy_share is None or breakdown.busy_share <= 1


def test_rates_divide_work_by_the_time_of_the_events_that_have_it() -> None:
    known = make_event(cost=Cost(flops=2_000_000, bytes_moved=1_000, flops_quality="exact", bytes_quality="exact"))
    unknown = make_event(cost=Cost(reason="no shapes"))
    (row,) = summarize([known, unknown], source="test", clock="trace").kernels
    assert row.achieved_tflops_per_s == pytest.approx(2.0)
    assert row.achieved_gb_per_s == pytest.approx(1.0)
    assert row.known_us == 1.0
    assert row.reasons == {"no shapes": 1.0}


def test_a_helper_without_flops_does_not_hide_that_a_products_are_unknown() -> None:
    helper = make_event(cost=Cost(flops=0, flops_quality="exact", reason="helper"))
    product = make_event(cost=Cost(reason="no shapes"))
    (row,) = summarize([helper, product], source="test", clock="trace").categories
    assert row.flops is None
    assert row.flops_quality == "unavailable"


def test_without_measured_ceilings_there_is_no_roofline() -> None:
    cost = Cost(flops=2_000_000, bytes_moved=1_000, flops_quality="exact", bytes_quality="exact")
    event = make_event(cost=cost, shapes="float32[2,2]")
    (row,) = summarize([event], source="test", clock="trace").kernels
    assert row.roofline_fraction is None
    ceilings = Ceilings(copy_gb_per_s=1000.0, tflops_per_s={"float32": 4.0})
    (row,) = summarize([event], source="test", clock="trace", ceilings=ceilings).kernels
    assert row.roofline_fraction == pytest.approx(0.5)
    assert row.bound == "compute"


def test_a_breakdown_survives_storage() -> None:
    breakdown = summarize([make_event(), make_event(start_ns=5000)], source="test", clock="trace")
    assert decode(Breakdown, encode(breakdown)) == breakdown


def step(*, gap_cause: str) -> list[dict]:
    """Two kernels with a pause between them, for one reason."""
    first = [runtime_event(ts=0, dur=1, correlation=1), kernel_event(ts=5, dur=10, correlation=1)]
    if gap_cause == HOST_LATE:
        return [
            *first,
            op_event(name="aten::slow", ts=2, dur=300),
            runtime_event(ts=200, dur=1, correlation=2),
            kernel_event(ts=205, correlation=2),
        ]
    if gap_cause == AFTER_SYNCHRONIZATION:
        return [
            *first,
            runtime_event(name="cudaStreamSynchronize", ts=2, dur=15, correlation=3),
            runtime_event(ts=200, dur=1, correlation=2),
            kernel_event(ts=205, correlation=2),
        ]
    if gap_cause == QUEUED:
        return [*first, runtime_event(ts=4, dur=1, correlation=2), kernel_event(ts=205, correlation=2)]
    if gap_cause == BETWEEN_KERNELS:
        return [*first, runtime_event(ts=4, dur=1, correlation=2), kernel_event(ts=16, correlation=2)]
    return [*first, kernel_event(ts=205, correlation=99)]


@pytest.mark.parametrize("cause", [HOST_LATE, AFTER_SYNCHRONIZATION, QUEUED, BETWEEN_KERNELS, UNKNOWN])
def test_a_pause_has_its_cause(cause: str) -> None:
    breakdown = breakdown_of_trace(trace_from_events(step(gap_cause=cause)))
    assert list(breakdown.idle_causes) == [cause]
    assert breakdown.idle_causes[cause] == pytest.approx(breakdown.idle_us)


def test_what_the_host_did_meanwhile_is_named() -> None:
    breakdown = breakdown_of_trace(trace_from_events(step(gap_cause=HOST_LATE)))
    assert breakdown.gaps[0].host == "aten::slow"
    assert any("aten::slow" in sentence for sentence in breakdown.verdict)


def test_each_claim_of_the_verdict_carries_a_number() -> None:
    breakdown = breakdown_of_trace(trace_from_events(step(gap_cause=HOST_LATE)))
    assert breakdown.verdict
    assert all(re.search(r"\d", sentence) for sentence in breakdown.verdict)


def test_a_trace_without_kernels_says_how_to_record_one() -> None:
    with pytest.raises(MeasureError, match="holds no kernel"):
        breakdown_of_trace(trace_from_events([op_event()]))


def test_a_clock_that_jumped_keeps_its_time_and_leaves_the_wall() -> None:
    events = [*step(gap_cause=BETWEEN_KERNELS), kernel_event(ts=9e12, dur=7, correlation=50)]
    breakdown = breakdown_of_trace(trace_from_events(events))
    assert breakdown.kernel_us == 10 + 5.25 + 7
    assert breakdown.wall_us < 100
    assert any("clock jumped" in problem for problem in breakdown.problems)


def test_kernels_before_their_launch_are_reported() -> None:
    events = [runtime_event(ts=100, correlation=1), kernel_event(ts=50, correlation=1)]
    breakdown = breakdown_of_trace(trace_from_events(events))
    assert any("before the call that launches them" in problem for problem in breakdown.problems)


def test_two_devices_have_a_wall_each() -> None:
    events = [kernel_event(ts=0, dur=10, device=0), kernel_event(ts=0, dur=20, device=1)]
    breakdown = breakdown_of_trace(trace_from_events(events))
    assert breakdown.wall_us == breakdown.busy_us == 30


def test_python_frames_give_modules_and_lines() -> None:
    frames = [
        {"ph": "X", "cat": "python_function", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 50, "args": {}}
        for ts, name in ((1, "model.py(12): forward"), (2, "nn.Module: Linear_0"), (3, "torch/nn/functional.py(5): f"))
    ]
    events = [*frames, runtime_event(ts=10, correlation=1), kernel_event(ts=20, correlation=1)]
    breakdown = breakdown_of_trace(trace_from_events(events))
    assert [row.name for row in breakdown.modules] == ["Linear_0"]
    assert [row.name for row in breakdown.lines] == ["model.py(12): forward"]


def test_copies_are_apart_from_kernels() -> None:
    breakdown = breakdown_of_trace(trace_from_events([kernel_event(), memcpy_event(ts=300)]))
    assert (breakdown.kernel_us, breakdown.copy_us, breakdown.device_us) == (5.25, 2.0, 7.25)


@pytest.mark.parametrize("name", public_traces())
def test_public_traces_add_up_and_are_explained(name: str) -> None:
    path = public_trace(name)
    trace = read_trace(path)
    breakdown, events = import_trace(path)
    kernel_rows = [event for event in events if event.kind == "kernel"]
    durations = {row: int(trace.events.duration_ns[row]) for row in trace.device_rows.tolist()}
    assert sum(durations.values()) == sum(event.duration_ns for event in events)
    assert round(breakdown.kernel_us * 1e3) == sum(event.duration_ns for event in kernel_rows)
    explained = sum(event.duration_ns for event in kernel_rows if event.cost.is_known or event.cost.reason)
    assert explained == sum(event.duration_ns for event in kernel_rows)
    assert breakdown.busy_share <= 1
    if name != "hta_alexnet.json.gz":
        assert breakdown.known_kernel_us >= 0.95 * breakdown.kernel_us
    assert breakdown.verdict


def test_launches_whose_kernels_were_lost_are_counted_and_the_report_is_partial() -> None:
    launches = [runtime_event(correlation=index, ts=100 + index) for index in range(4)]
    whole = breakdown_of_trace(trace_from_events([launches[0], kernel_event(correlation=0)]))
    cut = breakdown_of_trace(trace_from_events([*launches, kernel_event(correlation=0)]))
    assert not whole.is_partial
    assert cut.is_partial
    assert "3 of 4 launches have no kernel" in cut.problems[0]


def test_launches_that_a_cuda_graph_recorded_are_not_lost() -> None:
    events = [runtime_event(name="cudaStreamBeginCapture"), runtime_event(correlation=5), kernel_event(correlation=9)]
    breakdown = breakdown_of_trace(trace_from_events(events))
    assert not breakdown.is_partial
    assert "CUDA graphs" in breakdown.problems[0]


def test_a_trace_cut_off_before_its_kernels_says_that_its_times_are_the_hosts(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    events = json.dumps([op_event(), op_event(ts=200)])[1:-1]
    path.write_text(f'{{"deviceProperties": [{{"id": 0, "name": "GPU"}}], "traceEvents": [{events}, {{"ph": "X", "ca')
    breakdown, _ = import_trace(path)
    assert breakdown.is_partial
    assert any("times of the host" in problem for problem in breakdown.problems)


def test_ranks_in_one_file_are_named() -> None:
    breakdown = breakdown_of_trace(trace_from_events([kernel_event(), kernel_event(pid=1000, ts=300)]))
    assert any("several processes" in problem for problem in breakdown.problems)
