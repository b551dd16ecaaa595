"""A recorded step for other tools: its calls as a table (Parquet, CSV, JSON), or as a Chrome trace."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torchledger.errors import StoreError, UsageError
from torchledger.nouns import Gap, Step, StepCall, Timeline
from torchledger.stepping.totals import call_us, message_of
from torchledger.store import LedgerReader
from torchledger.store.latest import latest
from torchledger.store.output import check_output, output_file, write_output

TRACE_SUFFIXES = (".trace.json", ".trace.json.gz")

Rows = Sequence[Mapping[str, Any]]
_HOST, _DEVICE = 1, 2
"""Processes of the trace."""

_COLOR_NAMES: Mapping[str, str] = {
    "input": "grey",
    "forward": "thread_state_runnable",
    "loss": "yellow",
    "backward": "thread_state_iowait",
    "clipping": "bad",
    "optimizer": "thread_state_running",
    "communication": "terrible",
    "other": "white",
}
"""The viewer's reserved colours; Perfetto colours by name instead, and has the phase as the event's category."""


def export_step(reader: LedgerReader, output: str | PathLike[str], *, force: bool = False) -> list[Path]:
    """Write the ledger's step to ``output``, by its suffix, and return the path written.

    ``.parquet``, ``.csv`` and ``.json`` hold a row per call; ``.trace.json`` and ``.trace.json.gz`` are a Chrome trace
    with threads and streams as rows and phases as categories. Raises ``UsageError`` for another suffix, ``StoreError``
    if the ledger holds no step, or ``output`` exists (without ``force``) or cannot be written.
    """
    path = Path(output)
    check_step_output(path, force=force)
    step = latest(reader, Step)
    if step is None:
        tried = [gap.reason for gap in reader.read(Gap, account="device_time") if gap.where == "profile"]
        why = f"its profile has none: {tried[-1]}" if tried else "record one with `torchledger run --profile`"
        raise StoreError(f"{reader.path} holds no step: {why}.")
    calls = reader.read(StepCall, step=step.name)
    if path.name.endswith(TRACE_SUFFIXES):
        write_trace(path, chrome_trace(step, calls, latest(reader, Timeline)), force=force)
    else:
        write_rows(path, [call_row(call) for call in calls], force=force)
    return [path]


def check_step_output(path: Path, *, force: bool) -> None:
    """Raise ``UsageError`` if the suffix names no format of a step, ``StoreError`` if the file may not be written."""
    if not path.name.endswith(TRACE_SUFFIXES) and path.suffix not in _WRITERS:
        raise UsageError(
            f"{path} names no format of a step. End it in .parquet, .csv or .json for a table of calls, in .trace.json "
            "or .trace.json.gz for a Chrome trace."
        )
    check_output(path, force=force)


def write_trace(path: Path, trace: Mapping[str, Any], *, force: bool) -> None:
    """Write a Chrome trace, compressed where the path ends in ``.gz``."""
    content = json.dumps(trace).encode()
    write_output(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content, force=force)


def write_rows(path: Path, rows: Rows, *, force: bool) -> None:
    """Write rows of calls (``call_row``, with a ``rank`` where they are of several) as a table, by the suffix."""
    _WRITERS[path.suffix](path, rows, force)


def call_row(call: StepCall) -> dict[str, Any]:
    """A call as one flat row; times in microseconds, ``None`` where unknown, shapes and lines as text.

    Bandwidths of a collective are over its time on the device, in which it also waits for other ranks.
    """
    message, us = message_of(call), call_us(call)
    return {
        "step": call.step,
        "order": call.order,
        "kind": call.kind,
        "name": call.name,
        "phase": call.phase,
        "category": call.category,
        "call": call.call,
        "thread": call.thread,
        "streams": " ".join(call.streams) or None,
        "device": call.device,
        "start_us": call.start_us,
        "host_us": call.host_us,
        "duration_us": call_us(call) if call.samples_us else None,
        "samples": len(call.samples_us),
        "kernels": call.kernels,
        "launches": call.launches,
        "shapes": " ".join(str(list(argument.shape)) for argument in call.arguments) or None,
        "dtypes": " ".join(argument.dtype or "?" for argument in call.arguments) or None,
        "tensors": call.tensors,
        "elements": call.elements,
        "module": call.modules[-1] if call.modules else None,
        "source": call.sources[-1] if call.sources else None,
        "flops": call.flops,
        "flops_quality": call.flops_quality,
        "bytes_moved": call.bytes_moved,
        "bytes_quality": call.bytes_quality,
        "reason": call.reason,
        "group": call.group,
        "group_size": call.group_size,
        "message_bytes": call.message_bytes,
        "algorithm_gb_per_s": message.algorithm_gb_per_s(us) if message is not None else None,
        "bus_gb_per_s": message.bus_gb_per_s(us) if message is not None else None,
    }


def chrome_trace(step: Step, calls: Sequence[StepCall], timeline: Timeline | None = None) -> dict[str, Any]:
    """A step in Chrome's trace format: calls by host thread, and device events by stream where ``timeline`` has them.

    Both count from where the step begins on the host. Of a timeline that does not say when its first event began, the
    device's events count from that one.
    """
    events = [name_event(_HOST, None, "process_name", "host: calls of the step, by thread")]
    events += [
        name_event(_HOST, thread, "thread_name", f"thread {thread}") for thread in sorted({c.thread for c in calls})
    ]
    events += [_call_event(call) for call in calls if call.start_us is not None and call.host_us is not None]
    if timeline is not None:
        zero = ", from the first of them" if timeline.origin_ns is None else ""
        title = f"device: kernels and copies, by stream ({timeline.clock}{zero})"
        events.append(name_event(_DEVICE, None, "process_name", title))
        events += [name_event(_DEVICE, lane, "thread_name", name) for lane, name in enumerate(timeline.lanes)]
        events += _device_events(timeline)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "torchledger step": {"name": step.name, "found by": step.found_by, "duration_us": step.duration_us},
    }


def name_event(process: int, thread: int | None, what: str, name: str) -> dict[str, Any]:
    """An event that names a process (``what``: ``process_name``) or a thread of it (``thread_name``)."""
    return {"ph": "M", "pid": process, "tid": thread or 0, "name": what, "args": {"name": name}}


def _call_event(call: StepCall) -> dict[str, Any]:
    facts = {name: value for name, value in call_row(call).items() if value not in (None, "", "unavailable")}
    return slice_event(_HOST, call.thread, call.name, call.phase, call.start_us or 0.0, call.host_us or 0.0, facts)


def _device_events(timeline: Timeline) -> list[dict[str, Any]]:
    found = []
    for place, start_ns in enumerate(timeline.start_ns):
        phase = timeline.phases[timeline.phase[place]] if timeline.phase else ""
        launch = timeline.launch[place]
        facts = {"category": timeline.categories[timeline.category[place]]}
        if launch is not None:
            facts["torchledger launch"] = timeline.launch_ids[launch]
        name, duration_us = timeline.names[timeline.name[place]], timeline.duration_ns[place] / 1e3
        start_us = ((timeline.origin_ns or 0) + start_ns) / 1e3
        found.append(slice_event(_DEVICE, timeline.lane[place], name, phase, start_us, duration_us, facts))
    return found


def slice_event(
    process: int, thread: int, name: str, phase: str, start_us: float, duration_us: float, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """A slice of a trace, in the phase's colour; what is known of it are its ``args``."""
    event = {"ph": "X", "pid": process, "tid": thread, "name": name, "cat": phase or "no phase"}
    event |= {"ts": start_us, "dur": duration_us, "args": dict(facts)}
    return event | ({"cname": _COLOR_NAMES[phase]} if phase in _COLOR_NAMES else {})


def _write_json(path: Path, rows: Rows, force: bool) -> None:
    write_output(path, json.dumps(rows, indent=1).encode(), force=force)


def _write_csv(path: Path, rows: Rows, force: bool) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_output(path, text.getvalue().encode(), force=force)


def _write_parquet(path: Path, rows: Rows, force: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in _columns(rows).items()])
    with output_file(path, force=force) as unfinished:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), unfinished, compression="zstd")


_WRITERS: Mapping[str, Callable[[Path, Rows, bool], None]] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".json": _write_json,
}


def _columns(rows: Rows) -> dict[str, type]:
    """The columns of ``call_row`` with their types, those of a call of which nothing is known included."""
    numbers = {"order", "call", "thread", "samples", "kernels", "launches", "tensors", "elements", "flops"}
    numbers |= {"bytes_moved", "group_size", "message_bytes", "rank"}
    names = [*(["rank"] if rows and "rank" in rows[0] else []), *call_row(StepCall("", 0, "operator", "", "other"))]
    return {name: int if name in numbers else float if name.endswith(("_us", "_per_s")) else str for name in names}
