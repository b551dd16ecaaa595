"""A job of planned ranks: their collectives, which have no times, and what was kept of the price of their step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from torchledger.nouns import Collective, PlannedCollective, PlannedStep
from torchledger.store.codec import FieldError, decode, encode
from torchledger.store.job import read_head, write_head

Number = TypeVar("Number", int, float)

_PLAN, _STANDS_FOR = "plan", "stands_for"


def keep_plan(folder: Path, step: PlannedStep) -> None:
    """Write the price of a job's step into its ``job.json``. Raises ``StoreError`` where that cannot be."""
    write_head(folder, {**read_head(folder), _PLAN: json.loads(encode(step))})


def plan_of(head: Mapping[str, object]) -> PlannedStep | None:
    """The price that ``keep_plan`` wrote; ``None`` where there is none that can be read."""
    if _PLAN not in head:
        return None
    try:
        return decode(PlannedStep, json.dumps(head[_PLAN]))
    except (FieldError, ValueError, RecursionError):
        return None


def stood_for(head: Mapping[str, object]) -> Mapping[int, int]:
    """How many ranks each recorded one stands for, as ``job.json`` says."""
    found = head.get(_STANDS_FOR)
    if not isinstance(found, dict):
        return {}
    return {int(rank): len(ranks) for rank, ranks in found.items() if str(rank).isdecimal() and isinstance(ranks, list)}


def planned_collectives(rank: int, collectives: Iterable[Collective]) -> tuple[PlannedCollective, ...]:
    """The collectives of one rank's planned step, those alike together, without prices."""
    return alike_collectives(
        PlannedCollective(rank, each.operation, each.group, each.group_size, 1, each.message_bytes)
        for each in collectives
    )


def alike_collectives(collectives: Iterable[PlannedCollective]) -> tuple[PlannedCollective, ...]:
    """Those of one rank, operation and group as one, in the order in which they are first asked for.

    A sum of which a part is unknown is unknown.
    """
    found: dict[tuple[int, str, str | None, int | None], PlannedCollective] = {}
    for each in collectives:
        key = (each.rank, each.operation, each.group, each.group_size)
        before = found.get(key)
        found[key] = (
            each
            if before is None
            else replace(
                before,
                count=before.count + each.count,
                message_bytes=_sum(before.message_bytes, each.message_bytes),
                duration_us=_sum(before.duration_us, each.duration_us),
            )
        )
    return tuple(found.values())


def _sum(one: Number | None, other: Number | None) -> Number | None:
    return None if one is None or other is None else one + other
