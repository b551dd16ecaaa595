"""Pipeline schedules as the lists of actions of each rank, in the order in which torch's own schedules make them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torchledger.errors import PredictError

SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B")


@dataclass(frozen=True)
class Action:
    """Forward or backward of one microbatch in one stage."""

    kind: Literal["forward", "backward"]
    stage: int
    micro_batch: int


def schedule_actions(
    schedule: str, ranks: int, micro_batches: int, *, stages_per_rank: int = 1
) -> tuple[tuple[Action, ...], ...]:
    """Each rank's actions in order. Raises ``PredictError`` for a schedule that is unknown or cannot be.

    >>> [f"{a.kind[0]}{a.micro_batch}" for a in schedule_actions("1F1B", 2, 3)[0]]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    if schedule not in SCHEDULES:
        near = difflib.get_close_matches(schedule, SCHEDULES, n=1, cutoff=0.3)
        raise PredictError(
            f"schedule {schedule!r} is unknown; {'nearest: ' if near else ''}{', '.join(near or SCHEDULES)}."
        )
    if schedule == "GPipe":
        one = [Action("forward", 0, m) for m in range(micro_batches)]
        one += [Action("backward", 0, m) for m in range(micro_batches)]
        return tuple(tuple(Action(a.kind, rank, a.micro_batch) for a in one) for rank in range(ranks))
    if schedule == "1F1B" or stages_per_rank == 1:
        return tuple(tuple(_one_f_one_b(rank, ranks, micro_batches)) for rank in range(ranks))
    rounds = max(1, micro_batches // ranks)
    if micro_batches % rounds:
        raise PredictError(
            f"an interleaved schedule of {ranks} ranks takes a multiple of its rounds in microbatches, and "
            f"{micro_batches} is none of {rounds}; {micro_batches // ranks * ranks} is."
        )
    return tuple(tuple(_interleaved(rank, ranks, micro_batches, stages_per_rank)) for rank in range(ranks))


def _one_f_one_b(rank: int, ranks: int, micro_batches: int) -> Iterator[Action]:
    ahead = min(micro_batches, ranks - rank)
    for m in range(ahead):
        yield Action("forward", rank, m)
    for m in range(micro_batches):
        yield Action("backward", rank, m)
        if ahead + m < micro_batches:
            yield Action("forward", rank, ahead + m)


def _interleaved(rank: int, ranks: int, micro_batches: int, stages: int) -> Iterator[Action]:
    """Rounds of microbatches through each of a rank's stages in turn; torch's ``ScheduleInterleaved1F1B``."""
    of_round = micro_batches // max(1, micro_batches // ranks)
    total = micro_batches * stages
    warmup = min(total, (stages - 1) * of_round + 2 * (ranks - 1 - rank))
    done: dict[tuple[str, int], int] = {}

    def next_of(kind: Literal["forward", "backward"], place: int) -> Action:
        local = place // of_round % stages
        if kind == "backward":
            local = stages - 1 - local
        stage = local * ranks + rank
        micro_batch = done.get((kind, stage), 0)
        done[kind, stage] = micro_batch + 1
        return Action(kind, stage, micro_batch)

    for place in range(warmup):
        yield next_of("forward", place)
    for place in range(total):
        if warmup + place < total:
            yield next_of("forward", warmup + place)
        yield next_of("backward", place)
