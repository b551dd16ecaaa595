"""Times of a host, taken in rounds: each round times every kind of work once, so that a slow moment is one round.

Nothing here imports torch: a fake clock drives it in tests.
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

_FENCE = 1.5
"""Tukey's: what lies so many times the distance between the quartiles beyond them is an outlier."""

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
    """A figure over rounds: its median, and half of what nine of ten rounds span."""

    median: float
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
    """Microseconds of each kind of work in each round: the median of ``bursts`` runs.

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
            times[name].append(_median_us(works[name], bursts, wait, clock_ns))
    return {name: tuple(found) for name, found in times.items()}


def _median_us(work: Work, bursts: int, wait: Callable[[], None], clock_ns: Callable[[], int]) -> float:
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
    return statistics.median(taken)


def kept_rounds(times: Mapping[str, Sequence[float]]) -> tuple[int, ...]:
    """The rounds that are not slower as a whole than the others, by Tukey's fence; at least three quarters of them.

    How slow a round is, is the median over kinds of its time beside the median of that kind: one kind that is slow
    alone does not make a slow round, and no kind's level counts.

    >>> kept_rounds({"a": [1.0, 1.1, 0.9, 1.0, 1.0, 5.0], "b": [9.0, 9.1, 9.2, 9.0, 8.9, 40.0]})
    (0, 1, 2, 3, 4)
    """
    usual = {name: statistics.median(found) for name, found in times.items()}
    count = min(map(len, times.values()))
    slowness = [
        statistics.median(found[number] / usual[name] for name, found in times.items() if usual[name])
        for number in range(count)
    ]
    lower, upper = quantile(slowness, 0.25), quantile(slowness, 0.75)
    fence = upper + _FENCE * (upper - lower)
    return tuple(number for number, slow in enumerate(slowness) if slow <= fence)


def settle(values: Sequence[float]) -> Settled:
    """The median of a figure over rounds, and its spread.

    >>> settle([4.0, 5.0, 6.0])
    Settled(median=5.0, spread=0.9)
    """
    half = (quantile(values, _HIGH) - quantile(values, _LOW)) / 2
    return Settled(statistics.median(values), round(half, 6))


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which a ``share`` of the values lies, between neighbours in proportion.

    >>> quantile([1.0, 2.0, 4.0], 0.75)
    3.0
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
