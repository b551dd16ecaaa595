"""Two jobs -> what changed between them, and on which rank."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from torchledger.comparing.run_diff import diff_ledgers
from torchledger.errors import MeasureError, StoreError
from torchledger.jobs.traces import read_ranks
from torchledger.nouns import CollectiveMatch, Job, RankSummary
from torchledger.nouns.job_diff import (
    CollectiveChange,
    CollectiveTotals,
    JobDiff,
    PartChange,
    RankChange,
    StragglerChange,
)
from torchledger.store.job import is_job, ledgers_of_job


def diff_job_folders(
    first: str | PathLike[str],
    second: str | PathLike[str],
    *,
    progress: Callable[[int, int, str], None] | None = None,
) -> JobDiff:
    """``diff_jobs`` of two folders of ranks' ledgers or traces, with launches of the rank whose compute changed most.

    ``progress`` is told steps done, their number, and what is done next. Raises ``StoreError`` for a folder that is no
    job, ``MeasureError`` for a trace that cannot be read.
    """
    tell = progress or (lambda done, total, what: None)
    tell(0, 3, "reading the first")
    one = read_ranks(first)
    tell(1, 3, "reading the second")
    other = read_ranks(second)
    tell(2, 3, "aligning launches")
    found = diff_jobs(one, other)
    if is_job(first) and is_job(second):
        found = _with_launches(found, ledgers_of_job(first), ledgers_of_job(second))
    tell(3, 3, "aligned")
    return found


def diff_jobs(first: Job, second: Job) -> JobDiff:
    """What two jobs' steps, collectives and stragglers differ by; launches are not looked at."""
    one, other = ({rank.rank: rank for rank in job.ranks} for job in (first, second))
    ranks = tuple(RankChange(rank, one.get(rank), other.get(rank)) for rank in sorted({*one, *other}))
    notes = [f"{name}: {note}" for name, job in (("first", first), ("second", second)) for note in job.notes]
    planned = dict.fromkeys(job.path for job in (first, second) if job.planned or job.plan is not None)
    notes += [
        f"nothing of {path} was measured, as it is a plan: `torchledger show {path}` has its price and its collectives"
        for path in planned
    ]
    alone = [each.rank for each in ranks if each.first is None or each.second is None]
    if alone:
        notes.append(f"only one of the jobs holds a step of rank {', '.join(map(str, alone))}")
    return JobDiff(
        first=first.path,
        second=second.path,
        ranks=ranks,
        parts=_parts(ranks),
        collectives=_collectives(first, second),
        stragglers=_stragglers(first, second),
        notes=tuple(notes),
    )


def _parts(ranks: Sequence[RankChange]) -> tuple[PartChange, ...]:
    changes: dict[str, dict[int, float]] = defaultdict(dict)
    for each in ranks:
        if each.first is None or each.second is None:
            continue
        before, after = _parts_of(each.first), _parts_of(each.second)
        for part in {*before, *after}:
            changes[part][each.rank] = after.get(part, 0.0) - before.get(part, 0.0)
    common = sum(each.first is not None and each.second is not None for each in ranks)
    found = []
    for part, by_rank in changes.items():
        rank = max(by_rank, key=lambda each: abs(by_rank[each]))
        others = [us for each, us in by_rank.items() if each != rank] + [0.0] * (common - len(by_rank))
        spread = (min(others), max(others)) if others else None
        found.append(PartChange(part, rank, by_rank[rank], spread))
    return tuple(sorted(found, key=lambda each: -abs(each.delta_us)))


def _parts_of(rank: RankSummary) -> dict[str, float]:
    idle = {f"idle: {cause}": us for cause, us in rank.idle_by_cause_us.items()}
    return {"compute": rank.compute_us, "exposed communication": rank.exposed_us, **idle}


def _collectives(first: Job, second: Job) -> tuple[CollectiveChange, ...]:
    one, other = _alike(first), _alike(second)
    found = [
        CollectiveChange(
            some.operation,
            some.group_size,
            some.dtype,
            some.message_bytes,
            _totals(one.get(key, ()), first.steps),
            _totals(other.get(key, ()), second.steps),
        )
        for key, (some, *_) in {**other, **one}.items()
    ]
    return tuple(sorted(found, key=lambda each: -abs(each.second.in_collective_us - each.first.in_collective_us)))


def _alike(job: Job) -> Mapping[Hashable, list[CollectiveMatch]]:
    groups: dict[Hashable, list[CollectiveMatch]] = defaultdict(list)
    for match in job.collectives:
        groups[match.operation, match.group_size, match.dtype, match.message_bytes].append(match)
    return groups


def _totals(members: Sequence[CollectiveMatch], steps: int) -> CollectiveTotals:
    if not members:
        return CollectiveTotals()
    size = members[0].message_bytes
    return CollectiveTotals(
        count=len(members) / steps,
        bytes=None if size is None else size * len(members) / steps,
        in_collective_us=sum(match.in_collective_us for match in members) / steps,
        waiting_us=sum(statistics.mean(match.waited_us) for match in members) / steps,
    )


def _stragglers(first: Job, second: Job) -> tuple[StragglerChange, ...]:
    one, other = ({(each.rank, each.where): each.cost_us for each in job.stragglers} for job in (first, second))
    found = [StragglerChange(*key, one.get(key, 0.0), other.get(key, 0.0)) for key in {**one, **other}]
    return tuple(sorted(found, key=lambda each: -abs(each.second_us - each.first_us)))


def _with_launches(diff: JobDiff, first: Mapping[int, Path], second: Mapping[int, Path]) -> JobDiff:
    """With the launches of the rank whose compute changed most; a note where there is nothing to compare."""
    deltas = {each.rank: each.delta("compute_us") or 0.0 for each in diff.ranks}
    common = [rank for rank in first if rank in second]
    if not common:
        return diff
    rank = max(common, key=lambda each: abs(deltas.get(each, 0.0)))
    try:
        return replace(diff, launches_rank=rank, launches=diff_ledgers(first[rank], second[rank]))
    except (MeasureError, StoreError) as error:
        return replace(diff, notes=(*diff.notes, f"launches of rank {rank} are not compared: {error}".rstrip(".")))
