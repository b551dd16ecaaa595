"""Limits on what may change from one run to another: ``launches > +0`` fails a comparison that launches more."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchledger.errors import UsageError
from torchledger.nouns import RunDiff

UNITS: Mapping[str, str] = {
    "launches": "launches",
    "bytes": "bytes",
    "flops": "FLOPs",
    "graphs": "graphs",
    "time": "us",
    "predicted": "us",
}
"""What can be limited, and its unit: ``time`` is the device's in one step, ``predicted`` a step's on another device."""

_ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_LIMIT = re.compile(r"\s*(?P<name>[^\s<>=!+\-\d]*)\s*(?P<order>[<>=!]*)\s*(?P<change>.*?)\s*", re.DOTALL)
_CHANGE = re.compile(r"(?P<value>[+-]?\d+(\.\d+)?([eE][+-]?\d+)?)\s*(?P<percent>%?)")


@dataclass(frozen=True)
class Limit:
    """Fails where the change of ``name`` is beyond ``value``, by ``order``: in its unit, or in percent of the first."""

    text: str
    name: str
    order: str
    value: float
    is_percent: bool


@dataclass(frozen=True)
class Quantity:
    """One sum of either run; ``None`` where it is not known."""

    name: str
    first: float | None
    second: float | None

    @property
    def delta(self) -> float | None:
        """The second run's less the first's."""
        return None if self.first is None or self.second is None else self.second - self.first

    @property
    def delta_pct(self) -> float | None:
        """The change in percent of the first run's; ``None`` where that is zero and the second's is not."""
        if self.delta is None or self.first is None:
            return None
        if not self.first:
            return 0.0 if not self.delta else None
        return 100 * self.delta / self.first


@dataclass(frozen=True)
class Verdict:
    """One limit, and whether it holds; ``None``: what it asks for is not known, which does not pass."""

    limit: Limit
    quantity: Quantity
    holds: bool | None


def parse_limit(text: str) -> Limit:
    """``"bytes > +2%"`` as a limit. Raises ``UsageError`` for anything that is none.

    >>> parse_limit("launches > +0")
    Limit(text='launches > +0', name='launches', order='>', value=0.0, is_percent=False)
    """
    parts = _LIMIT.fullmatch(text)
    assert parts is not None  # every part may be empty
    name, order, change = parts["name"], parts["order"], parts["change"]
    if name not in UNITS:
        near = difflib.get_close_matches(name.lower(), UNITS, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        called = f"there is no quantity {name!r}" if name else "it names no quantity"
        raise _refused(text, f"{called}. {hint}There are {', '.join(UNITS)}.")
    if order not in _ORDERS:
        instead = f", not {found!r}" if (found := order or change) else ""
        raise _refused(text, f"behind {name} comes >, >=, < or <={instead}.")
    if (number := _CHANGE.fullmatch(change)) is None:
        what = f"{change!r} is no change" if change else f"a change is missing behind {order}"
        raise _refused(text, f"{what}: a number of {UNITS[name]}, without its unit, or of percent with %.")
    return Limit(text.strip(), name, order, float(number["value"]), bool(number["percent"]))


def _refused(text: str, reason: str) -> UsageError:
    example = "Write one as 'bytes > +2%', which fails where bytes rise by more."
    return UsageError(f"{text!r} is no limit: {reason} {example}")


def quantities(diff: RunDiff) -> dict[str, Quantity]:
    """The sums of both runs in a comparison: of one step where both ledgers hold one, else of each graph once."""
    sides = [(group.first, group.second) for group in diff.groups]
    eager = [(change.first, change.second) for change in diff.eager]
    found = {
        "launches": [sum(len(side.launches) * side.calls for side in run) for run in zip(*sides, strict=True)],
        "graphs": [sum(name is not None for name in run) for run in zip(*diff.graphs, strict=True)],
    }
    made = {name: Quantity(name, *(counts or (0, 0))) for name, counts in found.items()}
    for name, field in (("bytes", "bytes_moved"), ("flops", "flops")):
        runs = [[getattr(side, field) for side in run] for run in zip(*sides, *eager, strict=True)]
        made[name] = Quantity(name, *(_known(run) for run in runs)) if runs else Quantity(name, 0, 0)
    times = [None if ns is None else ns / 1e3 for ns in (diff.first_ns, diff.second_ns)]
    return made | {"time": Quantity("time", *times)}


def check_limits(limits: Iterable[Limit], known: Mapping[str, Quantity]) -> list[Verdict]:
    """Whether each limit holds. What is not known holds nothing."""
    return [_verdict(limit, known.get(limit.name, Quantity(limit.name, None, None))) for limit in limits]


def _verdict(limit: Limit, quantity: Quantity) -> Verdict:
    change = quantity.delta_pct if limit.is_percent else quantity.delta
    if limit.is_percent and change is None and quantity.delta is not None:
        change = float("inf")  # from nothing to something: beyond every share of nothing
    return Verdict(limit, quantity, None if change is None else not _ORDERS[limit.order](change, limit.value))


def _known(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
