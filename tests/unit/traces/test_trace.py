"""Traces are read into columns, whoever wrote them and however they are damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchledger.errors import MeasureError
from torchledger.traces import stream as trace_stream
from torchledger.traces.links import innermost_covering
from torchledger.traces.reading import read_trace, trace_from_events
from torchledger.traces.trace import EventKind
from trace_factories import kernel_event, op_event, runtime_event, small_trace


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_kernel_is_linked_to_its_launch_and_the_innermost_operator(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.json", small_trace()))
    (kernel,) = trace.kernels()
    assert kernel.duration_us == 5.25
    assert kernel.grid == (132, 1, 1)
    assert trace.name(kernel.launch) == "cudaLaunchKernel"
    assert [trace.name(op) for op in trace.op_chain(kernel.row)] == ["aten::mm", "aten::linear"]
    assert trace.arguments(kernel.op)["Input Dims"] == [[4, 8], [8, 16]]


@pytest.mark.parametrize("indent", [None, 1, 2, 4])
@pytest.mark.parametrize("compress", [False, True])
def test_formatting_and_compression_change_nothing(
    tmp_path: Path, indent: int | None, compress: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_stream, "CHUNK_BYTES", 700)
    document = small_trace(copies=20)
    text = json.dumps(document, indent=indent).encode()
    path = tmp_path / ("t.json.gz" if compress else "t.json")
    path.write_bytes(gzip.compress(text) if compress else text)
    trace = read_trace(path)
    assert not trace.problems
    assert sum(kernel.duration_ns for kernel in trace.kernels()) == 20 * 5250
    assert trace.metadata["traceName"] == "small.json"


@settings(max_examples=40)
@given(
    names=st.lists(st.text(min_size=0, max_size=12) | st.sampled_from(['"}, {"', "},\n  {", "]}", "\\"]), max_size=30),
    separators=st.sampled_from([(", ", ": "), (",", ":"), (",\n", ": ")]),
    chunk=st.integers(1, 400),
)
def test_any_cut_of_the_text_reads_the_same_events(names: list[str], separators: tuple[str, str], chunk: int) -> None:
    events = [{"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1.5, "dur": 2} for name in names]
    text = json.dumps({"traceEvents": events, "other": [{"a": 1}, {"b": "]"}]}, separators=separators).encode()
    read: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_stream, "CHUNK_BYTES", chunk)
        import io

        stream = trace_stream.EventStream(io.BytesIO(text), name="text")
        for some in stream:
            read += some
    assert read == events
    assert stream.metadata == {"other": [{"a": 1}, {"b": "]"}]}
    assert not stream.problems


@settings(max_examples=40)
@given(cut=st.integers(120, 4000))
def test_a_cut_off_trace_gives_what_is_whole_and_says_so(cut: int) -> None:
    import io

    text = json.dumps(small_trace(copies=10)).encode()
    events_key = text.index(b"[", text.index(b"traceEvents")) + 1
    cut = min(max(cut, events_key), len(text) - 1)
    whole = json.loads(text)["traceEvents"]
    stream = trace_stream.EventStream(io.BytesIO(text[:cut]), name="text")
    read = [event for events in stream for event in events]
    assert read == whole[: len(read)]
    assert stream.is_truncated
    assert any("ends early" in problem for problem in stream.problems)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"hello", "is not a JSON trace"),
        (b'{"schemaVersion": 1}', "no list named traceEvents"),
        (b'{"schemaVersion": 1, "traceEv', "no list named traceEvents"),
        (b"\x1f\x8bnot really gzip", "not a readable gzip"),
        (gzip.compress(b"\x89PNG....", mtime=0), "is not a JSON trace"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line_that_names_it(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "strange.json"
    path.write_bytes(content)
    with pytest.raises(MeasureError, match=message) as caught:
        read_trace(path)
    assert "strange.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match=r"absent\.json"):
        read_trace(tmp_path / "absent.json")


def test_a_cut_off_gzip_keeps_its_readable_part(tmp_path: Path) -> None:
    import random

    generator = random.Random(0)
    document = small_trace(copies=2000)
    for event in document["traceEvents"]:
        event["name"] += str(generator.random())
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode())[:-5000])
    trace = read_trace(path)
    assert trace.is_truncated
    assert 0 < len(trace.device_rows) < 2000


def test_values_that_strict_json_forbids_are_let_through(tmp_path: Path) -> None:
    text = json.dumps(small_trace()).replace('"cbid": 211', '"cbid": NaN').replace("small.json", "small\t.json")
    trace = read_trace(write(tmp_path / "t.json", text))
    assert len(trace.device_rows) == 1
    assert not trace.problems


def test_one_unreadable_event_costs_only_itself(tmp_path: Path) -> None:
    text = json.dumps(small_trace(copies=3)).replace('"cbid": 211', '"cbid": 2 1', 1)
    trace = read_trace(write(tmp_path / "t.json", text))
    assert len(trace.device_rows) == 3
    assert [(problem.what, problem.events) for problem in trace.problems] == [
        ("events that are not valid JSON are left out", 1)
    ]


def test_negative_and_absent_times_are_left_out_and_counted() -> None:
    events = [kernel_event(dur=-3.0), kernel_event(ts=None), kernel_event(ts="2.5"), kernel_event()]
    trace = trace_from_events(events)
    assert len(trace.device_rows) == 2
    assert {problem.what: problem.events for problem in trace.problems} == {
        "events with a duration below zero are left out": 1,
        "events without a readable time are left out": 1,
    }


def test_begin_and_end_events_become_durations() -> None:
    begin = {"ph": "B", "cat": "cpu_op", "name": "outer", "pid": 1, "tid": 1, "ts": 1, "args": {"External id": 4}}
    end = {"ph": "E", "pid": 1, "tid": 1, "ts": 9.5}
    trace = trace_from_events([begin, end, end, begin])
    assert trace.events.duration_ns.tolist() == [8500]
    assert trace.events.external_id.tolist() == [4]
    assert {problem.what for problem in trace.problems} == {
        "ends of events that never began are left out",
        "events that never end are left out",
    }


def test_a_bare_list_of_events_is_a_trace(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.json", small_trace()["traceEvents"]))
    assert len(trace.device_rows) == 1
    assert not trace.is_truncated


def test_an_unknown_schema_version_is_read_with_a_warning() -> None:
    trace = trace_from_events([kernel_event()], {"schemaVersion": 7})
    assert "schema version 7" in trace.problems[0].what


def test_events_given_in_memory_are_not_changed() -> None:
    events = small_trace()["traceEvents"]
    before = json.dumps(events)
    trace_from_events(events)
    assert json.dumps(events) == before


def test_the_same_correlation_in_two_ranks_goes_to_the_launch_just_before() -> None:
    events = [
        runtime_event(pid=1, ts=10, correlation=5),
        runtime_event(pid=2, ts=100, correlation=5),
        kernel_event(ts=20, correlation=5),
        kernel_event(ts=120, correlation=5),
    ]
    trace = trace_from_events(events)
    assert [kernel.launch for kernel in trace.kernels()] == [0, 1]


def test_an_external_id_that_repeats_the_correlation_names_no_operator() -> None:
    events = [
        op_event(**{"External id": 5}),
        kernel_event(correlation=5, **{"External id": 5}),
        kernel_event(correlation=6, **{"External id": 6}),
    ]
    assert [kernel.op for kernel in trace_from_events(events).kernels()] == [None, None]


def test_an_external_id_links_a_kernel_whose_launch_was_not_recorded() -> None:
    events = [op_event(**{"External id": 5}), kernel_event(correlation=77, **{"External id": 5})]
    assert [kernel.op for kernel in trace_from_events(events).kernels()] == [0]


def test_profilers_of_2021_write_other_categories_and_a_small_external_id() -> None:
    events = [
        op_event(cat="Operator", **{"External id": 5}),
        kernel_event(cat="Kernel", correlation=77, **{"external id": 5}),
        kernel_event(cat="Memcpy", correlation=78),
    ]
    trace = trace_from_events(events)
    assert [(kernel.kind, kernel.op) for kernel in trace.kernels()] == [("kernel", 0), ("memcpy", None)]


def test_operators_before_the_first_event_of_the_file_cover_what_they_launch() -> None:
    covering = innermost_covering(
        np.array([0]), np.array([-50]), np.array([7]), np.array([0]), np.array([-60]), np.array([-40]), np.array([3])
    )
    assert covering.tolist() == [3]


intervals = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 20)), max_size=25)


@given(outer=intervals, inner=intervals)
def test_the_sweep_finds_what_a_search_of_all_pairs_finds(outer: list, inner: list) -> None:
    outer_lane, outer_start, outer_length = (np.array([entry[i] for entry in outer], dtype=np.int64) for i in range(3))
    inner_lane, inner_start, _ = (np.array([entry[i] for entry in inner], dtype=np.int64) for i in range(3))
    outer_end = outer_start + outer_length
    rows = np.arange(len(outer), dtype=np.int64)
    found = innermost_covering(
        inner_lane,
        inner_start,
        rows[:0].copy() if not inner else 1000 + np.arange(len(inner)),
        outer_lane,
        outer_start,
        outer_end,
        rows,
    )
    for index, row in enumerate(found):
        covering = [
            (outer_start[i], -outer_end[i])
            for i in range(len(outer))
            if outer_lane[i] == inner_lane[index] and outer_start[i] <= inner_start[index] <= outer_end[i]
        ]
        assert (row == -1) == (not covering)
        if covering:
            assert (outer_start[row], -outer_end[row]) == max(covering)


def test_neighbours_that_touch_are_not_nested() -> None:
    trace = trace_from_events([op_event(ts=0, dur=10), op_event(ts=10, dur=10), op_event(ts=11, dur=2)])
    assert trace.op_of.tolist() == [-1, -1, 1]


def test_rows_of_a_kind_are_what_the_categories_say() -> None:
    trace = trace_from_events(small_trace()["traceEvents"])
    assert len(trace.rows(EventKind.KERNEL)) == 1
    assert len(trace.rows(EventKind.OP)) == 2


def test_the_ends_of_events_are_added_up_once() -> None:
    trace = trace_from_events([{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "pid": 1, "tid": 1}])
    assert (trace.events.end_ns - trace.events.start_ns).tolist() == [2000]
    assert trace.events.end_ns is trace.events.end_ns


def test_events_of_one_category_can_be_left_out_and_the_others_stay_as_they_are(tmp_path: Path) -> None:
    frame = {"ph": "X", "cat": "python_function", "name": "call", "pid": 1, "tid": 1, "ts": 100, "dur": 5}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [frame, op_event(name="aten::mm", ts=110, dur=10), frame]}))
    assert [read_trace(path).name(row) for row in range(3)] == ["call", "aten::mm", "call"]
    trace = read_trace(path, without="python_function")
    assert len(trace.events) == 1 and trace.name(0) == "aten::mm"
