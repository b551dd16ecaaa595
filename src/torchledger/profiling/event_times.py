"""Where nobody may look into a device's own records: compiled graphs timed as a whole, between two events each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from torchledger.nouns import Breakdown, Ceilings, Cost, DeviceEvent, Launch
from torchledger.traces.summary import summarize
from torchledger.traces.verdict import verdict

CallSpan = tuple[str, int, int]
"""A graph's name, and start and duration of one call in nanoseconds."""


def breakdown_of_calls(
    spans: Sequence[CallSpan],
    launches: Sequence[Launch],
    *,
    n_steps: int,
    plain_us: Sequence[float] = (),
    ceilings: Ceilings | None = None,
) -> Breakdown:
    """Time by graph, on the clock ``cuda_event``: launch gaps inside a call count as the device's time."""
    events = [
        DeviceEvent(
            name=f"{graph}, as a whole",
            kind="kernel",
            category="other",
            start_ns=start,
            duration_ns=duration,
            graph=graph,
            cost=_work_of([launch for launch in launches if launch.graph == graph and launch.category != "nop"]),
        )
        for graph, start, duration in spans
    ]
    breakdown = summarize(events, source="CUDA events around each graph", clock="cuda_event", ceilings=ceilings)
    notes = [
        "each call of a compiled graph was timed between two CUDA events: its gaps count, its kernels are not known"
    ]
    if plain_us:
        notes.append(f"a step takes {median(plain_us) / 1e3:.3f} ms on the host's clock")
    result = replace(breakdown, steps=n_steps, is_partial=True, notes=tuple(notes))
    return replace(result, verdict=verdict(result))


def _work_of(entries: Sequence[Launch]) -> Cost:
    flops = [entry.flops for entry in entries]
    known = [count for count in flops if count is not None]
    reason = "the bytes of a whole graph are no single kernel's"
    if len(known) < len(flops):
        return Cost(reason="not every entry's FLOPs are known")
    return Cost(flops=sum(known), flops_quality="exact", reason=reason, basis="the ledger's entries")
