"""A job for other tools: its ranks' ledgers in one export, on one clock, with what lies between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torchledger.errors import MeasureError, StoreError, UsageError
from torchledger.jobs.read import read_job, read_job_and_pieces
from torchledger.jobs.waits import COMMUNICATION, COMPUTE, RankPieces
from torchledger.nouns import CollectiveMatch, Graph, Job, RankSummary, Step, StepCall, Straggler
from torchledger.stepping.export import (
    TRACE_SUFFIXES,
    call_row,
    check_step_output,
    name_event,
    slice_event,
    write_rows,
    write_trace,
)
from torchledger.store import open_ledger
from torchledger.store.inductor_json import export_inductor_json
from torchledger.store.job import ledgers_of_job
from torchledger.store.latest import latest
from torchledger.store.parquet import Records, export_parquet_of_ranks
from torchledger.traces.chrome_export import trace_beside
from torchledger.traces.merge import merge_traces


def export_job(path: str | PathLike[str], target: Path, *, format: str, force: bool = False) -> list[Path]:
    """Write all ranks of a job in one of the formats of a ledger, and return the paths of what was written.

    ``parquet``: one table for each kind of record over all ranks, and tables of the job (``job_ranks``,
    ``job_collectives``, ``job_stragglers``). ``chrome``: the ranks' traces in one, a process for each. ``step``: the
    calls of all ranks as a table, or what they did and their collectives as a trace. ``inductor-json``: a folder for
    each rank. Raises ``StoreError`` for what is no job, holds nothing to export, or may not be replaced, ``UsageError``
    for a target that the format does not write, ``MeasureError`` where a rank's trace is gone.
    """
    writers: Mapping[str, Callable[[Path, Path, bool], list[Path]]] = {
        "parquet": _parquet,
        "chrome": _chrome,
        "step": _step,
        "inductor-json": _inductor_json,
    }
    return writers[format](Path(path), target, force)


def _parquet(path: Path, folder: Path, force: bool) -> list[Path]:
    job = read_job(path)
    between = [
        Records("job_ranks", RankSummary, job.ranks),
        Records("job_collectives", CollectiveMatch, job.collectives, ("last", "waited_us", "moving_us")),
        Records("job_stragglers", Straggler, job.stragglers),
    ]
    return export_parquet_of_ranks(ledgers_of_job(path), between, folder, force=force)


def _chrome(path: Path, output: Path, force: bool) -> list[Path]:
    offsets = {rank.rank: rank.clock_offset_us for rank in read_job(path).ranks}
    traces = {}
    for rank in offsets:
        with open_ledger(ledgers_of_job(path)[rank]) as reader:
            try:
                traces[rank] = trace_beside(reader)
            except MeasureError as error:
                raise MeasureError(f"{error} Or draw the job out of its ledgers: -o NAME.trace.json.") from error
    if not traces:
        raise MeasureError(f"no rank of {path} holds a profile. Record one with `torchledger run --profile`.")
    merge_traces(traces, offsets, output, force=force)
    return [output]


def _step(path: Path, output: Path, force: bool) -> list[Path]:
    check_step_output(output, force=force)
    if output.name.endswith(TRACE_SUFFIXES):
        write_trace(output, job_trace(*read_job_and_pieces(path)), force=force)
        return [output]
    rows: list[dict[str, Any]] = []
    for rank, ledger in ledgers_of_job(path).items():
        with open_ledger(ledger) as reader:
            step = latest(reader, Step)
            calls = [] if step is None else reader.read(StepCall, step=step.name)
        rows += [{"rank": rank, **call_row(call)} for call in calls]
    if not rows:
        raise StoreError(f"no rank of {path} holds a step. Record one with `torchledger run --profile`.")
    write_rows(output, rows, force=force)
    return [output]


def _inductor_json(path: Path, folder: Path, force: bool) -> list[Path]:
    if folder.suffix == ".json":
        raise UsageError(f"{folder} is one file, and a job has several ranks: name a folder, with a folder for each.")
    written: list[Path] = []
    targets = {rank: folder / f"rank{rank}" for rank in ledgers_of_job(path)}
    existing = [target for target in targets.values() if target.exists()]
    if existing and not force:
        raise StoreError(f"{existing[0]} exists. Choose another folder, or pass --force to replace it.")
    for rank, ledger in ledgers_of_job(path).items():
        with open_ledger(ledger) as reader:
            if reader.count(Graph):
                written += export_inductor_json(reader, targets[rank], force=force)
    if not written:
        raise StoreError(f"no rank of {path} holds a compiled graph to export: `torchledger show {path}` says why.")
    return written


def job_trace(job: Job, pieces: Mapping[int, RankPieces]) -> dict[str, Any]:
    """A job in Chrome's trace format: a process for each rank with what it did and its collectives, on one clock.

    Arrows lead from the rank that came last to a collective to those that waited for it. Times count from the first
    rank's beginning.
    """
    events: list[dict[str, Any]] = []
    for rank, own in pieces.items():
        events.append(name_event(rank, None, "process_name", f"rank {rank}"))
        events.append(name_event(rank, 0, "thread_name", "compute, exposed communication, idle"))
        events += [
            slice_event(rank, 0, place.label, _kind(place.kind), start / 1e3, (end - start) / 1e3, {"at": place.source})
            for start, end, place in zip(own.start_ns, own.end_ns, own.places, strict=True)
        ]
    lanes: dict[int, list[int]] = {rank: [] for rank in pieces}
    for number, match in enumerate(job.collectives):
        events += _match_events(match, number, lanes)
    for rank, ends in lanes.items():
        for lane in range(1, len(ends) + 1):
            events.append(name_event(rank, lane, "thread_name", f"collectives {lane}"))
    return {"traceEvents": events, "displayTimeUnit": "ms", "torchledger job": {"path": job.path, "steps": job.steps}}


def _kind(kind: int) -> str:
    return {COMPUTE: "compute", COMMUNICATION: "communication"}.get(kind, "idle")


def _match_events(match: CollectiveMatch, number: int, lanes: Mapping[int, list[int]]) -> Iterator[dict[str, Any]]:
    came, last = max(match.arrived_ns), match.last
    threads: dict[int, int] = {}
    for place, rank in enumerate(match.ranks):
        if rank not in lanes:
            continue
        arrived, ended = match.arrived_ns[place], match.ended_ns[place]
        threads[rank] = _free_lane(lanes[rank], arrived, ended)
        facts = {
            "number": number,
            "bytes": match.message_bytes,
            "dtype": match.dtype,
            "group": match.group,
            "ranks": list(match.ranks),
            "waited_us": match.waited_us[place],
            "last": last,
            "cause": match.cause,
            "cause_rank": match.cause_rank,
            "launched_by": match.launched_by,
            "source": match.source,
        }
        known = {name: value for name, value in facts.items() if value is not None}
        name = match.operation
        yield slice_event(rank, threads[rank], name, "communication", arrived / 1e3, (ended - arrived) / 1e3, known)
    for waiter, waited in zip(match.ranks, match.waited_us, strict=True):
        if waiter != last and waited > 0 and waiter in threads and last in threads:
            arrow = {"name": "waited for", "cat": "waiting", "id": f"{number}.{waiter}", "ts": came / 1e3}
            yield {"ph": "s", "pid": last, "tid": threads[last], **arrow}
            yield {"ph": "f", "bp": "e", "pid": waiter, "tid": threads[waiter], **arrow}


def _free_lane(ends: list[int], start: int, end: int) -> int:
    """The first thread on which nothing runs any more; ``ends`` holds each one's last end. Threads count from 1."""
    for lane, last in enumerate(ends):
        if last <= start:
            ends[lane] = end
            return lane + 1
    ends.append(end)
    return len(ends)
