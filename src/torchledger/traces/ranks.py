"""Traces of several ranks of one job, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

from torchledger.nouns import Breakdown
from torchledger.traces.breakdown import import_trace
from torchledger.traces.stream import Progress

_SPREAD_WORTH_SAYING = 0.05


def import_ranks(paths: Sequence[str | PathLike[str]], *, progress: Progress | None = None) -> list[Breakdown]:
    """The breakdown of each trace, in the order of their ranks; errors as ``import_trace``."""
    breakdowns = [import_trace(path, progress=progress)[0] for path in paths]
    return sorted(breakdowns, key=lambda breakdown: -1 if breakdown.rank is None else breakdown.rank)


def collective_us(breakdown: Breakdown) -> float:
    """Time in kernels that communicate; a rank that arrives early spends it waiting for the others."""
    return sum(row.total_us for row in breakdown.categories if row.name == "collective")


def compare_ranks(breakdowns: Sequence[Breakdown]) -> tuple[str, ...]:
    """What differs between ranks, each claim with its number; empty for fewer than two."""
    if len(breakdowns) < 2:
        return ()
    sentences = []
    work = {rank_name(b): b.device_us - collective_us(b) for b in breakdowns}
    slowest, quickest = max(work, key=lambda name: work[name]), min(work, key=lambda name: work[name])
    spread = work[slowest] - work[quickest]
    if work[slowest] and spread > _SPREAD_WORTH_SAYING * work[slowest]:
        sentences.append(
            f"{slowest} computes for {work[slowest] / 1e3:.2f} ms, {quickest} for {work[quickest] / 1e3:.2f} ms: "
            f"the work is uneven by {spread / work[slowest]:.0%}."
        )
    waits = {rank_name(b): collective_us(b) for b in breakdowns}
    most, least = max(waits, key=lambda name: waits[name]), min(waits, key=lambda name: waits[name])
    if waits[most] and waits[most] - waits[least] > _SPREAD_WORTH_SAYING * waits[most]:
        sentences.append(
            f"{most} is in collectives for {waits[most] / 1e3:.2f} ms, {least} for {waits[least] / 1e3:.2f} ms: "
            f"the others wait for {least}, so look there first."
        )
    if not sentences:
        sentences.append(f"All {len(breakdowns)} ranks agree within {_SPREAD_WORTH_SAYING:.0%}.")
    ranks = [b.rank for b in breakdowns if b.rank is not None]
    if len(set(ranks)) < len(ranks):
        sentences.append("Some traces are of the same rank: are they of one run?")
    return tuple(sentences)


def rank_name(breakdown: Breakdown) -> str:
    """``"rank 3"``, or the trace's name where it does not tell its rank."""
    return breakdown.source if breakdown.rank is None else f"rank {breakdown.rank}"
