"""Ranks' traces in one: a process for each rank, on one clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torchledger.errors import StoreError
from torchledger.store.output import check_output, output_file
from torchledger.traces.chrome_export import open_for_writing
from torchledger.traces.stream import EventStream, dump_event, open_events

_PER_RANK = 1 << 40
"""Numbers that a rank's flows may have, which stay below what JSON's readers hold exactly for 8,192 ranks."""

_KEPT = ("schemaVersion", "displayTimeUnit")


def merge_traces(
    traces: Mapping[int, Path],
    offsets_us: Mapping[int, float],
    destination: str | PathLike[str],
    *,
    force: bool = False,
) -> None:
    """Write the traces of ranks as one: what a rank's processes and devices did are threads of one process.

    ``offsets_us`` is what to add to each rank's clock, in microseconds. A destination that ends in ``.gz`` is
    compressed. Raises ``MeasureError`` if a source is no trace, ``StoreError`` if the destination exists (without
    ``force``), is one of the sources, or cannot be written.
    """
    target = Path(destination)
    check_output(target, force=force)
    if target.exists() and any(target.samefile(path) for path in traces.values()):
        raise StoreError(f"{target} is a trace that is read. Choose another name.")
    bases = {rank: _base_ns(path) for rank, path in traces.items()}
    first = next(iter(bases.values()), 0)
    kept: dict[str, Any] = {}
    with (
        output_file(target, force=force) as unfinished,
        open_for_writing(unfinished, compress=target.suffix == ".gz") as file,
    ):
        file.write(b'{"traceEvents": [')
        separator = b"\n"
        for rank, path in traces.items():
            stream = open_events(path)
            shift_us = offsets_us.get(rank, 0.0) + (bases[rank] - first) / 1e3
            for event in _of_rank(rank, stream, shift_us):
                file.write(separator + dump_event(event))
                separator = b",\n"
            kept = kept or {name: stream.metadata[name] for name in _KEPT if name in stream.metadata}
        file.write(b"\n]")
        for name, value in {**kept, "baseTimeNanoseconds": first}.items():
            file.write(b",\n" + dump_event(name) + b": " + dump_event(value))
        file.write(b"}\n")


def _base_ns(path: Path) -> int:
    """What a trace's times count from: it stands behind the events."""
    stream = open_events(path)
    for _ in stream:
        pass
    base = stream.metadata.get("baseTimeNanoseconds")
    return base if type(base) is int else 0


def _of_rank(rank: int, stream: EventStream, shift_us: float) -> Iterator[dict[str, Any]]:
    """A rank's events as those of one process; threads of its processes keep their names."""
    threads: dict[tuple[str, str], int] = {}
    named: set[int] = set()
    yield {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
    for events in stream:
        for event in events:
            if event.get("ph") == "M" and str(event.get("name", "")).startswith("process"):
                continue
            key = str(event.get("pid")), str(event.get("tid"))
            event |= {"pid": rank, "tid": threads.setdefault(key, len(threads) + 1)}
            if event.get("ph") == "M" and event.get("name") == "thread_name":
                named.add(event["tid"])
            if type(event.get("ts")) in (int, float):
                event["ts"] += shift_us
            if type(event.get("id")) is int:
                event["id"] += rank * _PER_RANK
            elif "id" in event:
                event["id"] = f"{rank}.{event['id']}"
            yield event
    for (process, thread), number in threads.items():
        if number not in named:
            name = thread if process == thread else f"{process} {thread}"
            yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": {"name": name}}
