"""No trace, however strange, ends in anything but a report or one line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchledger.errors import MeasureError
from torchledger.reporting.terminal import render
from torchledger.reporting.time_breakdown import breakdown_as_plain, breakdown_document
from torchledger.traces import stream as trace_stream
from torchledger.traces.breakdown import breakdown_of_trace
from torchledger.traces.reading import read_trace, trace_from_events
from trace_factories import kernel_event, small_trace

anything: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
numbers: Any = st.integers(-10, 1000) | st.floats(0, 1e6) | st.just("12.5")
categories = st.sampled_from(
    ["kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cpu_op", "user_annotation", "python_function", "Kernel"]
)
names = st.sampled_from(
    ["aten::mm", "aten::_foreach_add_", "triton_red_fused_x_0", "nn.Module: A_0", "cudaLaunchKernel", "ProfilerStep#1"]
)
argument_names = st.sampled_from(
    [
        *("correlation", "External id", "Sequence number", "Fwd thread id", "Python id", "grid", "block", "stream"),
        *("device", "bytes", "Input Dims", "Input type", "Input Strides", "Concrete Inputs", "kernel_flop", "dtype"),
        *("In msg nelems", "Out msg nelems", "registers per thread", "graph node id", "kernel_num_gb"),
    ]
)
events = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from(["X", "X", "X", "X", "B", "E", "M", "i", "s"]),
        "cat": categories | anything,
        "name": names | anything,
        "pid": st.integers(0, 2) | anything,
        "tid": st.integers(0, 2) | anything,
        "ts": numbers | anything,
        "dur": numbers | anything,
        "args": st.dictionaries(argument_names, numbers | anything, max_size=8) | anything,
    },
)


@settings(max_examples=200)
@given(
    st.lists(events, max_size=12), st.dictionaries(st.sampled_from(["deviceProperties", "distributedInfo"]), anything)
)
def test_fields_of_any_type_give_a_report_or_one_line(some: list[dict[str, Any]], metadata: dict[str, Any]) -> None:
    try:
        breakdown = breakdown_of_trace(trace_from_events([*some, kernel_event()], metadata))
    except MeasureError:
        return
    assert render(breakdown_document(breakdown))
    assert breakdown_as_plain(breakdown)["busy_share"] is None or breakdown.busy_us <= breakdown.wall_us


def test_a_byte_order_mark_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(small_trace()).encode())
    trace = read_trace(path)
    assert len(trace.device_rows) == 1
    assert not trace.is_truncated


def test_a_file_of_several_gzip_members_is_one_trace(tmp_path: Path) -> None:
    text = json.dumps(small_trace(copies=50)).encode()
    path = tmp_path / "t.json.gz"
    path.write_bytes(b"".join(gzip.compress(text[start : start + 999]) for start in range(0, len(text), 999)))
    assert len(read_trace(path).device_rows) == 50


def test_an_event_longer_than_a_piece_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    long = kernel_event(name="x" * (5 * trace_stream.CHUNK_BYTES))
    path.write_text(json.dumps({"traceEvents": [kernel_event(), long, kernel_event()]}))
    assert len(read_trace(path).device_rows) == 3


def test_objects_in_lists_of_arguments_are_no_boundaries(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    nested = [kernel_event(stack=[{"frame": i} for i in range(50)]) for _ in range(3000)]
    path.write_text(json.dumps({"traceEvents": nested}))
    trace = read_trace(path)
    assert len(trace.device_rows) == 3000
    assert not trace.problems


def write_trace(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_words_that_look_like_the_start_of_events_are_tried_a_few_times(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path / "a.json", '{"note": ["' + r"\"traceEvents\": [" * 100_000 + '"' + ', "traceEvents":[' * 100_000
    )
    with pytest.raises(MeasureError, match="no list named traceEvents"):
        read_trace(path)


def test_an_event_without_end_is_refused_at_its_limit(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json", '{"traceEvents": [{"ph": "X", "name": "' + "a" * (40 << 20))
    with pytest.raises(MeasureError, match="16 MB without the end of an event"):
        read_trace(path)


def test_a_text_of_faults_is_no_trace(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json", '{"traceEvents": [' + ',{"a":[' * 200_000)
    with pytest.raises(MeasureError, match="cannot be read in more than"):
        read_trace(path)


def test_a_compressed_trace_that_holds_many_times_its_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_stream, "_SMALL_BYTES", 1 << 20)
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (8 << 20)))
    with pytest.raises(MeasureError, match="more than 200 times its size"):
        read_trace(path)


@pytest.mark.parametrize("number", ["9" * 400, "9" * 5_000, "1e999", "-" + "9" * 30])
@pytest.mark.parametrize("field", ["ts", "dur", "pid", "tid"])
def test_a_number_beyond_all_bounds_leaves_its_event_out_or_names_its_lane(
    tmp_path: Path, field: str, number: str
) -> None:
    event = json.dumps({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.0, "dur": 1.0, field: 0})
    event = event.replace(f'"{field}": 0', f'"{field}": {number}')
    trace = read_trace(write_trace(tmp_path / "a.json", f'{{"traceEvents": [{event}]}}'))
    assert len(trace.events.name) + sum(problem.events or 0 for problem in trace.problems) == 1


def test_more_lanes_than_any_program_has_are_refused() -> None:
    events = [kernel_event(tid=number) for number in range(10_001)]
    with pytest.raises(MeasureError, match="more than 10,000 threads and streams"):
        trace_from_events(events)
