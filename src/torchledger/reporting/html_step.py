"""What the page shows of a recorded step: its verdict, its phases, and every call as a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchledger.nouns import Phase, StepCall
from torchledger.reporting.step import PHASE_WORDS, how_found, verdict_of_step
from torchledger.stepping.totals import PHASES, StepTotals, Work, call_us, launches_in, stale_graphs

MOST_CALLS = 20_000
"""Calls of a step on the page; what is beyond is counted."""


def recorded_step(
    totals: StepTotals | None,
    launches_of: Mapping[str, int],
    *,
    place: Callable[[object], int],
    words: Callable[[str], str],
    shorten: Callable[[str], str],
) -> dict[str, Any] | None:
    """The step as plain data; ``None`` where the ledger holds none.

    Times are of one step, in microseconds; what is unknown is ``None``. ``launches_of`` counts each graph's launches,
    ``place`` puts a text among the page's texts, ``words`` makes a sentence harmless, ``shorten`` a source line short.
    """
    if totals is None:
        return None
    step = totals.step
    shown = [call for call in totals.calls if call.kind != "synchronization"]
    return {
        "verdict": [words(line) for line in verdict_of_step(totals)],
        "found_by": how_found(step),
        "duration_us": step.duration_us,
        "device_us": step.device_us,
        "covered_share": step.covered_share,
        "on_cpu": step.clock == "cpu_profiler",
        "clock": words(step.clock),
        "graph_calls": {words(graph): count for graph, count in step.graph_calls.items()},
        "stale": [words(graph) for graph in stale_graphs(step, launches_of)],
        "phases": [_phase(phase, totals.by_phase[phase]) for phase in PHASES if phase in totals.by_phase],
        "total": _sums(totals.whole),
        "notes": [words(note) for note in step.notes],
        "calls": [_row(call, launches_of, place, shorten) for call in shown[:MOST_CALLS]],
        "left_out": max(0, len(shown) - MOST_CALLS),
    }


def _phase(phase: Phase, work: Work) -> dict[str, Any]:
    return {"phase": phase, "name": PHASE_WORDS[phase], **_sums(work)}


def _sums(work: Work) -> dict[str, Any]:
    return {
        "calls": work.calls,
        "launches": work.launches,
        "us": work.device_us,
        "flops": work.flops,
        "bytes": work.bytes_moved,
        "unknown_us": work.unknown_us,
    }


def _row(
    call: StepCall, launches_of: Mapping[str, int], place: Callable[[object], int], shorten: Callable[[str], str]
) -> list[Any]:
    """One call: kind, name, phase, category, line, module, time, FLOPs, bytes, launches, thread, start, host time."""
    return [
        place(call.kind),
        place(call.name),
        place(call.phase),
        place(call.category or ("graph" if call.kind == "graph" else "other")),
        place(shorten(call.sources[-1]) if call.sources else None),
        place(call.modules[-1] if call.modules else None),
        round(call_us(call), 3) if call.samples_us else None,
        call.flops,
        call.bytes_moved,
        launches_in(call, launches_of),
        call.thread,
        None if call.start_us is None else round(call.start_us, 3),
        None if call.host_us is None else round(call.host_us, 3),
        place(call.reason),
    ]
