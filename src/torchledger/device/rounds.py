"""Times of a host, taken in rounds: each round times every kind of work once, so that a slow moment is one round.

A host whose cores others share is slow for a part of the time, and steps pay for that part: so a figure is a mean over
rounds, and not the median, which would be one of the two. Nothing here imports torch: a fake clock drives it in tests.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WARM_RUNS = 3
"""Runs of a kind that come before those that are timed, in each round."""

_MOST = 3.0
"""No time counts for more than so many times the median: what shares a core makes it slower by two or three, and what
takes longer yet is something that ran once."""

_LOW, _HIGH = 0.05, 0.95
"""Between these quantiles of the rounds lie nine of ten: what a prediction's interval covers too."""


@dataclass(frozen=True)
class Work:
    """One kind of work: ``run`` is timed on what ``prepare`` made just before, on an idle device if it ``waits``."""

    run: Callable[[Any], Any]
    prepare: Callable[[], Any] = lambda: None
    waits: bool = True


def plain_work() -> None:
    """A piece of plain Python, some 0.2 ms: how long it takes says how fast the host is just then."""
    kept: dict[int, list[object]] = {}
    for number in range(2000):
        kept[number & 63] = [number, str(number)]


@dataclass(frozen=True)
class Settled:
    """A figure over rounds: its mean, and half of what nine of ten rounds span."""

    mean: float
    spread: float


def time_rounds(
    works: Mapping[str, Work],
    *,
    rounds: int,
    bursts: int,
    wait: Callable[[], None] = lambda: None,
    pause: Callable[[], None] = lambda: None,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, tuple[float, ...]]:
    """Microseconds of each kind of work in each round: the mean of ``bursts`` runs (``usual``).

    A round begins with another kind than the one before, so that what disturbs at equal intervals does not always meet
    the same one. ``wait`` is for the device, ``pause`` lies between rounds.
    """
    names = list(works)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        if number:
            pause()
        begin = number % len(names)
        for name in (*names[begin:], *names[:begin]):
            times[name].append(_usual_us(works[name], bursts, wait, clock_ns))
    return {name: tuple(found) for name, found in times.items()}


def _usual_us(work: Work, bursts: int, wait: Callable[[], None], clock_ns: Callable[[], int]) -> float:
    for _ in range(WARM_RUNS):
        work.run(work.prepare())
    taken = []
    for _ in range(bursts):
        given = work.prepare()
        if work.waits:
            wait()
        begin = clock_ns()
        work.run(given)
        taken.append((clock_ns() - begin) / 1e3)
    wait()
    return usual(taken)


def usual(values: Sequence[float]) -> float:
    """The mean, to which no value counts for more than three times the median.

    >>> usual([1.0, 1.0, 1.0, 2.0, 2.0, 500.0])
    1.9166666666666667
    """
    most = _MOST * statistics.median(values)
    return statistics.fmean(min(value, most) for value in values)


def settle(values: Sequence[float]) -> Settled:
    """The mean of a figure over rounds (``usual``), and its spread.

    >>> settle([4.0, 5.0, 6.0])
    Settled(mean=5.0, spread=0.9)
    """
    half = (quantile(values, _HIGH) - quantile(values, _LOW)) / 2
    return Settled(usual(values), round(half, 6))


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which a ``share`` of the values lies, between neighbours in proportion.

    >>> quantile([1.0, 2.0, 4.0], 0.75)
    3.0
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
