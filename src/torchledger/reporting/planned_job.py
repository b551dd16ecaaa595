"""A job of planned ranks: whom each stands for, what its step would take, and the collectives in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torchledger.nouns import Job, PlannedCollective, PlannedStep
from torchledger.reporting.columns import format_us
from torchledger.reporting.document import Block, Facts, Section, Sentence, Table, columns


def collectives_as_plain(collectives: Iterable[PlannedCollective]) -> list[dict[str, Any]]:
    """Collectives of planned ranks for scripts: ``bytes`` and ``us`` are sums over ``count``."""
    return [
        {
            "rank": each.rank,
            "operation": each.operation,
            "group": each.group,
            "group_size": each.group_size,
            "count": each.count,
            "bytes": each.message_bytes,
            "us": each.duration_us,
        }
        for each in collectives
    ]


def planned_sections(job: Job, *, top: int) -> list[Section]:
    """What there is to say of a job whose ranks were planned."""
    notes = [f"{note[0].upper()}{note[1:]}." for note in (*job.notes, *(job.plan.notes if job.plan else ())) if note]
    blocks: tuple[Block, ...] = (Facts(tuple(_facts(job))), *(Sentence(note, "quiet") for note in notes))
    sections = [Section("Job", blocks)]
    if job.plan is not None and job.plan.ranks:
        sections.append(Section("Ranks", (_ranks_table(job.plan),)))
    return [*sections, Section("Collectives of a step", tuple(_collectives(job, top)))]


def _facts(job: Job) -> Iterator[tuple[str, str]]:
    yield "ranks", ranks_in_words(job)
    if job.plan is None:
        yield "step", "planned without its devices, and nothing was measured: `torchledger plan` says what it takes"
        return
    plan = job.plan
    span = f"{format_us(plan.duration_us)} ({format_us(plan.low_us)} to {format_us(plan.high_us)})"
    yield "step", f"{span}, predicted for {plan.device}: nothing was measured"
    yield "communication", f"{format_us(plan.communication_us)}, of which {format_us(plan.exposed_us)} is exposed"
    if plan.bubble_us:
        yield "bubble", f"{format_us(plan.bubble_us)}, the mean over the ranks"


def ranks_in_words(job: Job) -> str:
    """Which ranks were planned, and whom they stand for.

    >>> ranks_in_words(Job("j.job", 8, 0, (), (), (), stands_for={0: 8}))
    '8, of which 1 was planned: rank 0 stands for all 8'
    """
    many = f"{job.world_size:,}" if job.world_size else "unknown"
    if not job.stands_for:
        return f"{many}, planned"
    if len(job.stands_for) == 1:
        ((rank, count),) = job.stands_for.items()
        all_of_them = f"all {count:,}" if count == job.world_size else f"{count:,}"
        return f"{many}, of which 1 was planned" + (f": rank {rank} stands for {all_of_them}" if count > 1 else "")
    if len(job.stands_for) == job.world_size:
        return f"{many}, all of them planned"
    each = set(job.stands_for.values())
    one = f", each standing for {next(iter(each)):,}" if len(each) == 1 and each != {1} else ""
    return f"{many}, of which {len(job.stands_for):,} were planned{one}"


def _ranks_table(plan: PlannedStep) -> Table:
    rows = tuple(
        (
            f"rank {rank.rank}",
            rank.stands_for,
            rank.compute_us,
            rank.exposed_us,
            rank.bubble_us,
            rank.idle_us,
            rank.host_us,
            "" if rank.peak_allocated_bytes is None else rank.peak_allocated_bytes,
        )
        for rank in plan.ranks
    )
    keys = ("rank", "stands_for", "compute_us", "exposed_us", "bubble_us", "idle_us", "host_us", "peak_bytes")
    table = Table(columns(*keys), rows, optional=("peak_bytes",))
    return table if any(rank.bubble_us for rank in plan.ranks) else table.without(("bubble_us",))


def _collectives(job: Job, top: int) -> Iterator[Table | Sentence]:
    if not job.planned:
        yield Sentence("No planned rank has a collective in its step.", "quiet")
        return
    ordered = sorted(job.planned, key=lambda each: (-(each.duration_us or 0.0), -(each.message_bytes or 0)))
    rows = tuple(
        (
            f"rank {each.rank}",
            each.operation,
            each.group_size,
            each.count,
            each.message_bytes,
            each.duration_us,
        )
        for each in ordered[:top]
    )
    keys = ("rank", "operation", "group_size", "calls", "messages_bytes", "price_us")
    yield Table(columns(*keys), rows)
    if len(ordered) > top:
        yield Sentence(f"{len(ordered) - top} kinds more; --top shows them.", "quiet")
