"""A job as data and as a document: the ranks, the collectives between them, who waits for whom, what to change."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torchledger.nouns import CollectiveMatch, Job, RankSummary
from torchledger.printable import counted, ended
from torchledger.reporting.columns import format_share, format_us
from torchledger.reporting.document import Document, Facts, Section, Sentence, Table, columns
from torchledger.reporting.plan import plan_as_plain
from torchledger.reporting.planned_job import collectives_as_plain, planned_sections
from torchledger.work.collectives import Message

_LITTLE_WAITING = 0.01
_MOST_RANKS = 16


def job_as_plain(job: Job) -> dict[str, Any]:
    """What ``show --json`` prints of a job. ``collectives`` holds one list for each recorded step, in which collectives
    alike stand together: ``bytes`` and times are sums over ``count``. Keys are stable."""
    return {
        "job": job.path,
        "world_size": job.world_size,
        "steps": job.steps,
        "wall_us": job.wall_us,
        "exposed_us": job.exposed_us,
        "advice": job.advice,
        "ranks": [asdict(rank) for rank in job.ranks],
        "collectives": [[_as_plain(members) for members in _alike(job, index).values()] for index in _indices(job)],
        "stragglers": [asdict(straggler) for straggler in job.stragglers],
        "waits": [
            {
                "step": match.index,
                "operation": match.operation,
                "group": match.group,
                "last": match.last,
                "waited_us": dict(zip(map(str, match.ranks), match.waited_us, strict=True)),
                "cause": match.cause,
                "cause_rank": match.cause_rank,
                "cause_us": match.cause_us,
            }
            for match in job.collectives
            if match.cause is not None
        ],
        "contention": [asdict(each) for each in job.contention],
        "unmatched": dict(job.unmatched),
        "notes": list(job.notes),
        "planned": collectives_as_plain(job.planned),
        "stands_for": {str(rank): count for rank, count in job.stands_for.items()},
        "plan": None if job.plan is None else plan_as_plain(job.plan),
    }


def _indices(job: Job) -> list[int]:
    return sorted({match.index for match in job.collectives})


def _alike(job: Job, index: int | None = None) -> Mapping[tuple[Any, ...], list[CollectiveMatch]]:
    """Collectives of a step (of all) that share operation, group and size."""
    groups: dict[tuple[Any, ...], list[CollectiveMatch]] = defaultdict(list)
    for match in job.collectives:
        if index is None or match.index == index:
            key = (match.operation, match.group, match.ranks, match.message_bytes, match.dtype)
            groups[key].append(match)
    return groups


def _as_plain(members: Sequence[CollectiveMatch]) -> dict[str, Any]:
    some = members[0]
    moving = sum(match.moving_us for match in members)
    sizes = [match.message_bytes for match in members]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    message = Message(_kind(some), total, some.group_size) if total else None
    return {
        "operation": some.operation,
        "group": some.group,
        "group_size": some.group_size,
        "ranks": list(some.ranks),
        "dtype": some.dtype,
        "message_bytes": some.message_bytes,
        "bytes": total,
        "count": len(members),
        "duration_us": sum(match.in_collective_us for match in members),
        "waiting_us": sum(statistics.mean(match.waited_us) for match in members),
        "moving_us": moving,
        "algorithm": some.algorithm,
        "algorithm_gb_per_s": None if message is None else message.algorithm_gb_per_s(moving),
        "bus_gb_per_s": None if message is None else message.bus_gb_per_s(moving),
        "launched_by": list(dict.fromkeys(match.launched_by for match in members if match.launched_by)),
        "sources": list(dict.fromkeys(match.source for match in members if match.source)),
    }


def _kind(match: CollectiveMatch) -> str:
    return "p2p" if match.operation in ("send", "recv") else match.operation


def job_document(job: Job, *, top: int = 10) -> Document:
    """The job in sections: what to change first, the ranks, the stragglers, the collectives."""
    if not job.ranks and (job.stands_for or job.planned or job.plan is not None):
        return Document(tuple(planned_sections(job, top=top)))
    sentences = [Sentence(job.advice)] if job.advice else []
    sentences += [Sentence(f"{note[0].upper()}{note[1:]}.", "quiet") for note in job.notes if note]
    sentences += [
        Sentence(f"{count} calls of collectives were not matched: {ended(reason)}", "bad")
        for reason, count in job.unmatched.items()
    ]
    sections = (
        Section("Job", (_facts(job), *sentences)),
        Section("Ranks", (_ranks_table(job),) if job.ranks else ()),
        _stragglers_section(job, top),
        _collectives_section(job, top),
        _contention_section(job, top),
    )
    return Document(tuple(section for section in sections if section.blocks))


def _facts(job: Job) -> Facts:
    rows = [("ranks", f"{len(job.ranks)} with a recorded step" + (f" of {job.world_size}" if job.world_size else ""))]
    if job.ranks and job.wall_us:
        plain = [rank.plain_us for rank in job.ranks if rank.plain_us is not None]
        under = f"{format_us(job.wall_us)} under the profiler"
        rows.append(("step", f"{format_us(max(plain))} without the profiler, {under}" if plain else under))
        rows.append(("recorded", counted(job.steps, "step")))
        exposed = job.exposed_us or 0.0
        hidden = statistics.mean(rank.hidden_us for rank in job.ranks)
        waiting = statistics.mean(rank.waiting_us for rank in job.ranks)
        rows.append(
            (
                "communication",
                f"{format_us(exposed)} exposed ({format_share(exposed / job.wall_us)} of the step), "
                f"{format_us(hidden)} hidden behind compute; {format_us(waiting)} of it waiting for others",
            )
        )
        errors = [rank.clock_error_us for rank in job.ranks[1:]]
        known = [error for error in errors if error is not None]
        if errors:
            worst = f"within {format_us(max(known))}" if len(known) == len(errors) else "not of all ranks"
            rows.append(("clocks", f"aligned by the collectives and by the clock that ranks of a host share, {worst}"))
    return Facts(tuple(rows))


_RANK_COLUMNS = (
    "rank",
    "wall_us",
    "compute_us",
    "exposed_us",
    "idle_us",
    "hidden_us",
    "waiting_us",
    "bubble_us",
    "peak_bytes",
    "idle_cause",
)


def _ranks_table(job: Job) -> Table:
    shown = ranks_to_show(job)
    rows = [_rank_row(rank, f"rank {rank.rank}") for rank in shown]
    if len(shown) < len(job.ranks):
        rows.append((f"({len(job.ranks) - len(shown)} others)", *[""] * (len(_RANK_COLUMNS) - 1)))
    return Table(columns(*_RANK_COLUMNS), tuple(rows), optional=("bubble_us", "peak_bytes"))


def ranks_to_show(job: Job) -> list[RankSummary]:
    """All ranks where they are few; of many the slowest by compute and those around the median."""
    if len(job.ranks) <= _MOST_RANKS:
        return list(job.ranks)
    ordered = sorted(job.ranks, key=lambda rank: rank.exposed_us)
    middle = len(ordered) // 2
    return [*ordered[: _MOST_RANKS // 2], *ordered[middle - _MOST_RANKS // 4 : middle + _MOST_RANKS // 4]]


def _rank_row(rank: RankSummary, name: str) -> tuple[Any, ...]:
    cause = next(iter(rank.idle_by_cause_us), "")
    return (
        name,
        rank.wall_us,
        rank.compute_us,
        rank.exposed_us,
        rank.idle_us,
        rank.hidden_us,
        rank.waiting_us,
        rank.bubble_us or "",
        "" if rank.peak_bytes is None else rank.peak_bytes,
        cause,
    )


def _stragglers_section(job: Job, top: int) -> Section:
    if not job.stragglers:
        waiting_us = max((rank.waiting_us for rank in job.ranks), default=0.0)
        wall_us = max((rank.wall_us for rank in job.ranks), default=0.0)
        said = "No place of a rank's own work keeps the others waiting for more than 1 % of a step."
        if waiting_us > _LITTLE_WAITING * wall_us:
            said += (
                f" Ranks wait for up to {format_us(waiting_us)} of a step all the same: for others that were still in "
                "communication, or late in another place each time."
            )
        return Section("Stragglers", (Sentence(said, "quiet"),) if job.ranks else ())
    rows = tuple((f"rank {each.rank}", each.cost_us, each.steps, each.where) for each in job.stragglers[:top])
    return Section("Stragglers", (Table(columns("rank", "cost_us", "recorded_steps", "late_at"), rows),))


def _collectives_section(job: Job, top: int) -> Section:
    if not job.collectives or not job.steps:
        return Section("Collectives of a step", ())
    groups = sorted(_alike(job).values(), key=lambda members: -sum(match.in_collective_us for match in members))
    rows = []
    for members in groups[:top]:
        plain = _as_plain(members)
        rows.append(
            (
                plain["operation"],
                plain["group_size"],
                round(len(members) / job.steps, 2),
                plain["message_bytes"],
                plain["duration_us"] / job.steps,
                plain["waiting_us"] / job.steps,
                plain["bus_gb_per_s"] or "",
                ", ".join(plain["launched_by"][:2]),
            )
        )
    table = Table(
        columns(
            "operation",
            "group_size",
            "calls",
            "message_bytes",
            "in_collective_us",
            "waiting_us",
            "bus_gb_per_s",
            "launched_by",
        ),
        tuple(rows),
        optional=("bus_gb_per_s", "launched_by"),
    )
    left = len(groups) - len(rows)
    rest = (Sentence(f"{left} kinds more; --top shows them.", "quiet"),) if left > 0 else ()
    return Section("Collectives of a step", (table, *rest))


def _contention_section(job: Job, top: int) -> Section:
    rows = tuple(
        (each.entry, each.launches_beside, each.alone_us, each.beside_us, each.cost_us)
        for each in job.contention[:top]
        if each.cost_us > 0
    )
    if not rows:
        return Section("Kernels beside collectives", ())
    keys = ("entry_beside", "launches_beside", "alone_us", "beside_us", "slower_us")
    return Section("Kernels beside collectives", (Table(columns(*keys), rows),))
