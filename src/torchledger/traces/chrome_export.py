"""A trace with more written into its device events: FLOPs, bytes, source lines, whatever is known of them.

The events pass through as they are; facts are added to ``args`` under names that are not taken there, so nothing that a
viewer or another tool reads is changed.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import IO, Any

from torchledger.errors import MeasureError, StoreError
from torchledger.nouns import DeviceEvent, Profile
from torchledger.roofline import achieved_gb_per_s, achieved_tflops_per_s
from torchledger.store import LedgerReader
from torchledger.store.latest import latest
from torchledger.store.output import check_output, output_file
from torchledger.traces.stream import dump_event, open_events

_LONGEST_FILE_NAME = 255  # bytes, on the file systems of Linux and macOS

FactsByRow = Mapping[int, Mapping[str, Any]]
"""Row of a device event in ``Trace.events`` to the facts that its ``args`` shall carry."""


def facts_of(event: DeviceEvent) -> dict[str, Any]:
    """What a device event's ``args`` shall say of it; unknown values are left out."""
    cost = event.cost
    facts: dict[str, Any] = {
        "torchledger launch": event.launch_id,
        "category": event.category,
        "operator": event.op,
        "shapes": event.shapes,
        "graph": event.graph,
        "module": event.modules[-1] if event.modules else None,
        "source line": event.sources[-1] if event.sources else None,
        "FLOPs": cost.flops,
        "FLOPs quality": cost.flops_quality if cost.flops is not None else None,
        "bytes": cost.bytes_moved,
        "bytes quality": cost.bytes_quality if cost.bytes_moved is not None else None,
        "TFLOP/s": achieved_tflops_per_s(cost.flops or None, event.duration_us),
        "GB/s": achieved_gb_per_s(cost.bytes_moved, event.duration_us),
        "unknown because": cost.reason,
    }
    return {name: value for name, value in facts.items() if value is not None}


def facts_by_row(events: Iterable[DeviceEvent]) -> dict[int, dict[str, Any]]:
    """``facts_of`` each event that has a row in its trace."""
    return {event.row: facts_of(event) for event in events if event.row is not None}


def annotate_trace(
    source: str | PathLike[str], destination: str | PathLike[str], facts: FactsByRow, *, force: bool = False
) -> int:
    """Write ``source`` again with ``facts`` in its device events; returns how many events received some.

    ``facts`` are by the row that ``read_trace(source)`` gives an event. An argument that exists keeps its value; a fact
    of that name is written as ``torchledger <name>``. A destination that ends in ``.gz`` is compressed.

    Raises ``MeasureError`` if the source is no trace and ``StoreError`` if the destination exists or cannot be written.
    """
    target = Path(destination)
    check_output(target, force=force)
    if target.exists() and target.samefile(source):
        raise StoreError(f"{target} is the trace that is read. Choose another name.")
    stream = open_events(Path(source))
    rows = _RowCounter()
    with (
        output_file(target, force=force) as unfinished,
        open_for_writing(unfinished, compress=target.suffix == ".gz") as file,
    ):
        file.write(b'{"traceEvents": [')
        separator = b"\n"
        for events in stream:
            rows.add(events, facts)
            for event in events:
                file.write(separator + dump_event(event))
                separator = b",\n"
        file.write(b"\n]")
        for name, value in stream.metadata.items():
            file.write(b",\n" + dump_event(name) + b": " + dump_event(value))
        file.write(b"}\n")
    return rows.annotated


def open_for_writing(path: Path, *, compress: bool) -> IO[bytes]:
    """A file for a trace's text, compressed or not."""
    return gzip.open(path, "wb", compresslevel=4) if compress else path.open("wb")  # type: ignore[return-value]


class _RowCounter:
    """Finds an event's row as ``read_trace`` numbers it."""

    def __init__(self) -> None:
        self._next = 0
        self.annotated = 0

    def add(self, events: Sequence[dict[str, Any]], facts: FactsByRow) -> None:
        for event in events:
            if event.get("ph") in ("B", "E"):
                raise MeasureError("this trace has B and E events, whose rows cannot be told while it is copied.")
            if event.get("ph") != "X" or not _is_counted(event):
                continue
            row, self._next = self._next, self._next + 1
            if row in facts:
                arguments = event.setdefault("args", {})
                if isinstance(arguments, dict):
                    for name, value in facts[row].items():
                        arguments[name if name not in arguments else f"torchledger {name}"] = value
                    self.annotated += 1


def _is_counted(event: Mapping[str, Any]) -> bool:
    """False for events that ``read_trace`` leaves out."""
    try:
        start, duration = float(event.get("ts", "nan")), float(event.get("dur", 0))
    except (TypeError, ValueError, OverflowError):
        return False
    return start == start and duration >= 0 and abs(start) != float("inf") and duration != float("inf")


def export_chrome(reader: LedgerReader, output: str | PathLike[str], *, force: bool = False) -> list[Path]:
    """Write the trace of a profiled ledger, its kernel events carrying the ledger's facts; returns the path written.

    Raises ``MeasureError`` if the ledger was not profiled or its trace is gone, ``StoreError`` if ``output`` exists.
    """
    annotate_trace(trace_beside(reader), output, {}, force=force)
    return [Path(output)]


def trace_beside(reader: LedgerReader) -> Path:
    """The trace of a ledger's profile. Raises ``MeasureError`` if the ledger was not profiled or its trace is gone."""
    profile = latest(reader, Profile)
    if profile is None or profile.trace is None:
        raise MeasureError(f"{reader.path} holds no profile. Record one with `torchledger run --profile`.")
    name = profile.trace
    if name != os.path.basename(name) or "\0" in name or not 0 < len(name) <= _LONGEST_FILE_NAME:
        raise MeasureError(f"{reader.path} names {name!r} as its trace, which is no file beside it. Profile again.")
    source = reader.path.with_name(name)
    if not source.is_file():
        raise MeasureError(f"{source} is gone: the trace stands beside its ledger. Profile again to have one.")
    return source
