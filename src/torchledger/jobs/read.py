"""A job out of its ranks' ledgers: matched, on one clock, with every wait's cause, and what to change first."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from torchledger.books import read_memory
from torchledger.errors import StoreError
from torchledger.jobs.clocks import Alignment, align_clocks
from torchledger.jobs.contention import find_contention
from torchledger.jobs.matching import match_collectives
from torchledger.jobs.planned import plan_of, planned_collectives, stood_for
from torchledger.jobs.waits import COMMUNICATION, COMPUTE, IDLE, RankPieces, explain_waits, pieces_of
from torchledger.nouns import (
    Collective,
    CollectiveMatch,
    DryRun,
    Gap,
    Job,
    PlannedCollective,
    RankActivity,
    RankSummary,
    Step,
    Straggler,
)
from torchledger.store import LedgerReader, open_ledger
from torchledger.store.job import ledgers_of_job, read_head
from torchledger.traces.spans import merge_spans

_WORTH_SAYING = 0.02
_MOST_NAMED = 8


@dataclass(frozen=True)
class RankRecord:
    """What one rank brings to a job: its number, its ledger, its step, its collectives and what it did around them."""

    rank: int
    ledger: str
    step: Step | None = None
    activity: RankActivity | None = None
    collectives: tuple[Collective, ...] = ()
    world_size: int | None = None
    missing: str | None = None
    peak_bytes: int | None = None
    planned: tuple[PlannedCollective, ...] | None = None
    """The collectives of a step that was planned, not recorded."""


def read_job(path: str | PathLike[str]) -> Job:
    """The job in a folder of ranks' ledgers. Raises ``StoreError`` naming the folder if it holds none."""
    return read_job_and_pieces(path)[0]


def read_job_and_pieces(path: str | PathLike[str]) -> tuple[Job, Mapping[int, RankPieces]]:
    """``read_job``, and what each rank did from moment to moment, on the job's clock."""
    records = [_read_rank(rank, ledger) for rank, ledger in ledgers_of_job(path).items()]
    job, pieces = _assemble(records, str(path))
    head = read_head(path)
    code = head.get("exit_code")
    if type(code) is int and code:
        job = replace(job, notes=(f"the program ended with exit code {code}", *job.notes))
    planned = [record.rank for record in records if record.planned is not None]
    if planned:
        job = _with_plan(job, planned, head)
    return job, pieces


def _with_plan(job: Job, ranks: Sequence[int], head: Mapping[str, object]) -> Job:
    """A job of planned ranks with what its ``job.json`` says of them."""
    plan, stands_for = plan_of(head), stood_for(head)
    if not stands_for and len(ranks) == 1 and job.world_size is not None:
        stands_for = {ranks[0]: job.world_size}
    priced = () if plan is None else tuple(each for each in plan.collectives if each.rank in ranks)
    return replace(
        job,
        plan=plan,
        planned=priced or job.planned,
        stands_for={rank: stands_for[rank] for rank in ranks if rank in stands_for},
    )


def job_of_ranks(records: Sequence[RankRecord], *, path: str) -> Job:
    """The job that these ranks' records are of; ranks without a recorded step are named in its notes."""
    return _assemble(records, path)[0]


def _assemble(records: Sequence[RankRecord], path: str) -> tuple[Job, Mapping[int, RankPieces]]:
    notes = [f"rank {record.rank}: {record.missing}" for record in records if record.missing is not None]
    present = [record for record in records if record.activity is not None]
    world_size = max((record.world_size or 0 for record in records), default=0) or None
    planned = [record for record in records if record.planned is not None]
    if world_size is not None and len(records) < world_size and not planned:
        absent = sorted(set(range(world_size)) - {record.rank for record in records})
        named = ", ".join(map(str, absent[:_MOST_NAMED])) + (", ..." if len(absent) > _MOST_NAMED else "")
        notes.append(f"{len(records)} of {world_size} ranks left a ledger here; there is none of rank {named}")
    if planned and not present:
        asked = tuple(each for record in planned for each in record.planned or ())
        return Job(path, world_size, 0, (), (), (), notes=tuple(notes), planned=asked), {}
    if not present:
        empty = Job(path, world_size, 0, (), (), (), notes=(*notes, "no rank recorded a step with a collective"))
        return empty, {}
    steps = max(len(record.activity.step_start_ns) for record in present if record.activity is not None)
    wall_ns = max(record.activity.wall_ns for record in present if record.activity is not None)
    matched = match_collectives({each.rank: each.collectives for each in present}, step_ns=wall_ns / steps)
    ranks = [record.rank for record in present]
    hosts = {each.rank: each.activity.host for each in present if each.activity is not None}
    on_device = {each.rank: each.activity.clock == "cupti" for each in present if each.activity is not None}
    alignment = align_clocks(matched.collectives, ranks, hosts, on_device=on_device)
    if not alignment.is_consistent:
        notes.append(
            "the ranks' collectives contradict each other in time: they were matched wrongly, or clocks jumped"
        )
    origin = min(each.activity.start_ns + alignment.offset_ns[each.rank] for each in present if each.activity)
    shifts = {rank: alignment.offset_ns[rank] - origin for rank in ranks}
    matches = [_match(members, shifts, on_device) for members in matched.collectives]
    known = [match for match in matches if match is not None]
    pieces = {each.rank: pieces_of(each.activity, shifts[each.rank]) for each in present if each.activity is not None}
    explained, stragglers = explain_waits(known, pieces, step_us=wall_ns / steps / 1e3, steps=steps)
    unmatched = Counter(matched.unmatched)
    if len(known) < len(matches):
        unmatched["when it ran was not recorded"] += len(matches) - len(known)
    is_pipeline = is_of_stages(explained)
    summaries = tuple(
        _summary(each, explained, pieces[each.rank], alignment, is_pipeline=is_pipeline) for each in present
    )
    job = Job(
        path=path,
        world_size=world_size,
        steps=steps,
        ranks=summaries,
        collectives=tuple(explained),
        stragglers=tuple(each for each in stragglers if _is_beyond_clocks(each, alignment)),
        unmatched=dict(unmatched),
        contention=tuple(
            find_contention(
                {each.rank: each.collectives for each in present if on_device[each.rank]},
                {rank: own for rank, own in pieces.items() if on_device[rank]},
                shifts,
                steps=steps,
            )
        ),
        notes=(*notes, *matched.notes),
    )
    return replace(job, advice=advice_of(job)), pieces


def _is_beyond_clocks(straggler: Straggler, alignment: Alignment) -> bool:
    """False for a delay that the clocks of those who wait and of the one who is late could make up."""
    errors = [alignment.error_ns.get(rank) for rank in (straggler.rank, *straggler.waiters)]
    return straggler.cost_us * 1e3 > max((error for error in errors if error is not None), default=0)


def _read_rank(rank: int, path: Path) -> RankRecord:
    try:
        with open_ledger(path) as ledger:
            run = ledger.run()
            steps = ledger.read(Step)
            activities = ledger.read(RankActivity)
            still = "" if run.status != "running" else "; its process runs, or was killed before it ended its ledger"
            gaps = [gap.reason for gap in ledger.read(Gap) if (gap.account, gap.where) == ("device_time", "profile")]
            if not activities:
                is_planned = bool(ledger.read(DryRun))
                if steps and is_planned:
                    asked = planned_collectives(rank, ledger.read(Collective))
                    return RankRecord(rank, path.name, world_size=run.world_size, planned=asked)
                missing = "its recorded step has no collective" if steps else "its ledger holds no recorded step"
                missing = f"{gaps[-1] if gaps else missing}{still}"
                return RankRecord(rank, path.name, world_size=run.world_size, missing=missing)
            activity = activities[-1]
            return RankRecord(
                rank,
                path.name,
                step=next((step for step in steps if step.name == activity.step), None),
                activity=activity,
                collectives=tuple(ledger.read(Collective, step=activity.step)),
                world_size=run.world_size,
                peak_bytes=_peak_bytes(ledger, activity.step),
            )
    except StoreError as error:
        return RankRecord(rank, path.name, missing=str(error).rstrip("."))


def _peak_bytes(ledger: LedgerReader, step: str) -> int | None:
    """The most that is allocated at once in a rank's step; ``None`` where its storages were not watched."""
    memory = read_memory(ledger, step)
    return None if memory is None else memory.peak_allocated_bytes


def _match(
    members: Mapping[int, Collective], shifts: Mapping[int, int], on_device: Mapping[int, bool]
) -> CollectiveMatch | None:
    """One collective over its ranks; ``None`` where some rank's times are not known."""
    ranks = tuple(sorted(members))
    arrived, ended = [], []
    for rank in ranks:
        each = members[rank]
        if each.ended_ns is None or each.started_ns is None or each.issued_ns is None:
            return None
        # A device arrives when its kernel begins; a backend on the host's threads, when the host has asked.
        moment = each.started_ns if on_device[rank] else each.issued_ns
        arrived.append(moment + shifts[rank])
        ended.append(each.ended_ns + shifts[rank])
    some = members[ranks[0]]
    sizes = [each.message_bytes for each in members.values() if each.message_bytes is not None]
    is_pair = some.operation in ("send", "recv")
    return CollectiveMatch(
        index=some.index,
        operation="send" if is_pair else some.operation,
        group=some.group,
        group_size=2 if is_pair else some.group_size,
        ranks=ranks,
        arrived_ns=tuple(arrived),
        ended_ns=tuple(ended),
        message_bytes=max(sizes) if sizes else None,
        dtype=some.dtype,
        algorithm=some.algorithm,
        launched_by=next((each.launched_by for each in members.values() if each.launched_by), None),
        source=next((each.source for each in members.values() if each.source), None),
    )


def _summary(
    record: RankRecord,
    matches: Sequence[CollectiveMatch],
    pieces: RankPieces,
    alignment: Alignment,
    *,
    is_pipeline: bool,
) -> RankSummary:
    assert record.activity is not None
    activity, rank = record.activity, record.rank
    steps = len(activity.step_start_ns) * 1e3
    by_kind: Counter[int] = Counter()
    idle: Counter[str] = Counter()
    for kind, label, ns in zip(activity.kind, activity.label, activity.piece_ns, strict=True):
        by_kind[kind] += ns
        if kind == IDLE:
            idle[activity.labels[label]] += ns
    exposed = [
        (start, end)
        for start, end, place in zip(pieces.start_ns, pieces.end_ns, pieces.places, strict=True)
        if place.kind == COMMUNICATION
    ]
    own = [match for match in matches if rank in match.ranks]
    waits = merge_spans([_wait_of(match, rank) for match in own])
    pairs = merge_spans([_span_of(match, rank) for match in own if match.operation == "send" and is_pipeline])
    error = alignment.error_ns[rank]
    return RankSummary(
        rank=rank,
        ledger=record.ledger,
        wall_us=activity.wall_ns / steps,
        compute_us=by_kind[COMPUTE] / steps,
        exposed_us=by_kind[COMMUNICATION] / steps,
        idle_us=by_kind[IDLE] / steps,
        communication_us=activity.communication_ns / steps,
        hidden_us=max(0, activity.communication_ns - by_kind[COMMUNICATION]) / steps,
        waiting_us=sum(end - start for start, end in waits) / steps,
        bubble_us=_shared(exposed, pairs) / steps,
        peak_bytes=record.peak_bytes,
        plain_us=record.step.duration_us if record.step is not None else None,
        clock_offset_us=alignment.offset_ns[rank] / 1e3,
        clock_error_us=None if error is None else error / 1e3,
        idle_by_cause_us={cause: ns / steps for cause, ns in idle.most_common()},
    )


def is_of_stages(matches: Sequence[CollectiveMatch]) -> bool:
    """Whether sends and receives may be a pipeline's: no rank has more partners than the stages before and behind it.

    A pipeline whose stages lie on ranks in turns has its first and last rank for neighbours too.
    """
    partners: defaultdict[int, set[int]] = defaultdict(set)
    for match in matches:
        if match.operation == "send":
            for rank in match.ranks:
                partners[rank].update(match.ranks)
    return all(len(found - {rank}) <= 2 for rank, found in partners.items())


def _wait_of(match: CollectiveMatch, rank: int) -> tuple[int, int]:
    at = match.ranks.index(rank)
    return match.arrived_ns[at], min(max(match.arrived_ns), match.ended_ns[at])


def _span_of(match: CollectiveMatch, rank: int) -> tuple[int, int]:
    at = match.ranks.index(rank)
    return match.arrived_ns[at], match.ended_ns[at]


def _shared(left: Sequence[tuple[int, int]], right: Sequence[tuple[int, int]]) -> int:
    """How long two sets of spans, each in order and without overlap, hold at the same time."""
    total = at = 0
    for start, end in left:
        while at < len(right) and right[at][1] <= start:
            at += 1
        place = at
        while place < len(right) and right[place][0] < end:
            total += min(right[place][1], end) - max(right[place][0], start)
            place += 1
    return total


def advice_of(job: Job) -> str | None:
    """One sentence: what to change first, and what it is worth in a step; ``None`` without a rank."""
    if not job.ranks or not job.wall_us:
        return None
    wall = statistics.median(rank.wall_us for rank in job.ranks)
    options: list[tuple[float, str]] = []
    if job.stragglers:
        options.append((job.stragglers[0].cost_us, _of_straggler(job.stragglers[0])))
    bubble = statistics.mean(rank.bubble_us for rank in job.ranks)
    options.append((bubble, "the pipeline's bubble: more microbatches, or a schedule that interleaves"))
    exposed = statistics.mean(max(0.0, rank.exposed_us - rank.bubble_us - rank.waiting_us) for rank in job.ranks)
    options.append((exposed, f"communication that nothing hides{_most_exposed(job)}: overlap it, or send less"))
    for cause in {cause for rank in job.ranks for cause in rank.idle_by_cause_us}:
        us = statistics.median(rank.idle_by_cause_us.get(cause, 0.0) for rank in job.ranks)
        options.append((us, f"the ranks' idle time: {cause}"))
    worth, what = max(options)
    if worth < _WORTH_SAYING * wall:
        return f"Nothing between the ranks costs more than {_WORTH_SAYING:.0%} of a step: look at what each computes."
    of = f"{worth / 1e3:.1f} ms of the median rank's step of {wall / 1e3:.1f} ms ({worth / wall:.0%})"
    return f"Change first {what}; that is {of}."


def _of_straggler(straggler: Straggler) -> str:
    waiters = f"rank {straggler.waiters[0]} waits" if len(straggler.waiters) == 1 else "the others wait"
    return f"what {waiters} for on rank {straggler.rank}, {straggler.where}"


def _most_exposed(job: Job) -> str:
    moving: Counter[str] = Counter()
    for match in job.collectives:
        moving[match.operation] += round(match.moving_us)
    return f" (mostly {moving.most_common(1)[0][0]})" if moving else ""
