"""What changed outside compiled graphs between two steps: eager operators, collectives and copies by name and line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from torchledger.nouns import StepCall
from torchledger.nouns.run_diff import EagerChange, EagerSide
from torchledger.stepping.totals import StepTotals, call_us

Key = tuple[str, str]


def eager_changes(first: StepTotals, second: StepTotals) -> tuple[EagerChange, ...]:
    """The eager calls of two steps, grouped by name and source line; the largest change of time comes first.

    Two programs seldom have their lines at the same place: calls of one name whose line only one step knows are paired
    in their order.
    """
    one, other = _groups(first.calls), _groups(second.calls)
    pairs: list[tuple[Key | None, Key | None]] = [(key, key) for key in one if key in other]
    left_one, left_other = _by_name(key for key in one if key not in other), _by_name(k for k in other if k not in one)
    for name in dict.fromkeys((*left_one, *left_other)):
        here, there = left_one[name], left_other[name]
        pairs += zip(here, there, strict=False)
        pairs += [(key, None) for key in here[len(there) :]]
        pairs += [(None, key) for key in there[len(here) :]]
    changes = [
        EagerChange(
            name=(key_one or key_other or ("", ""))[0],
            first=_side(one[key_one]) if key_one is not None else EagerSide(),
            second=_side(other[key_other]) if key_other is not None else EagerSide(),
        )
        for key_one, key_other in pairs
    ]
    return tuple(sorted(changes, key=lambda change: -abs(change.delta_ns or 0)))


def _groups(calls: Iterable[StepCall]) -> dict[Key, list[StepCall]]:
    found: dict[Key, list[StepCall]] = defaultdict(list)
    for call in calls:
        if call.kind in ("operator", "collective", "copy"):
            found[call.name, call.sources[-1] if call.sources else ""].append(call)
    return dict(found)


def _by_name(keys: Iterable[Key]) -> dict[str, list[Key]]:
    found: dict[str, list[Key]] = defaultdict(list)
    for key in keys:
        found[key[0]].append(key)
    return found


def _side(calls: Sequence[StepCall]) -> EagerSide:
    timed = [call for call in calls if call.samples_us]
    flops, moved = [call.flops for call in calls], [call.bytes_moved for call in calls]
    return EagerSide(
        calls=len(calls),
        time_ns=round(sum(map(call_us, timed)) * 1e3) if timed else None,
        bytes_moved=None if None in moved else sum(count or 0 for count in moved),
        flops=None if None in flops else sum(count or 0 for count in flops),
        source=calls[0].sources[-1] if calls[0].sources else None,
        phase=calls[0].phase,
    )
