"""How far a set of samples is, and what it cost: computed from when each point was finished."""

from __future__ import annotations

import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchledger.nouns import Sample
from torchledger.sampling.collection import failures_of, read_adaptive
from torchledger.sampling.points import PLAN_FILE, load_plan
from torchledger.sampling.sets import load_set

LONGEST_INTERVAL_S = 60.0
"""Between two finished groups; what is longer is a pause (an interruption, another session), not a point's cost."""

_CURVE_POINTS = 200


@dataclass(frozen=True)
class OperatorProgress:
    """One operator in one dtype: its points (shapes) and labels (a point has one for each direction), and their cost.

    ``directions`` and ``statuses`` count labels.

    ``planned`` is ``None`` without a plan, ``wall_s`` where nothing says when points were finished. ``device_s`` sums
    the timed iterations alone. ``shortest_us`` and ``longest_us`` are medians of single labels, ``spread`` is the
    median over the labels of interquartile range over median.
    """

    operator: str
    dtype: str
    planned: int | None
    finished: int
    labels: int
    directions: Mapping[str, int]
    statuses: Mapping[str, int]
    wall_s: float | None
    device_s: float
    shortest_us: float | None
    longest_us: float | None
    spread: float | None


@dataclass(frozen=True)
class SetProgress:
    """A whole set.

    ``wall_s`` adds the times between finished groups, whichever worker finished them, without pauses of over a minute,
    which ``pauses`` counts; ``curve`` holds (such seconds, points finished by then). ``points_per_s`` and
    ``device_within_s`` (of ``device_s``, the seconds of timed iterations) leave out the first group, whose beginning
    nothing tells. ``rounds`` are those of adaptive workers: points, device minutes, error in percent on shapes not
    measured before.
    """

    devices: tuple[str, ...]
    versions: Mapping[str, str]
    planned: int | None
    finished: int
    labels: int
    statuses: Mapping[str, int]
    operators: tuple[OperatorProgress, ...]
    wall_s: float | None = None
    device_s: float = 0.0
    device_within_s: float = 0.0
    points_per_s: float | None = None
    pauses: int = 0
    curve: tuple[tuple[float, int], ...] = ()
    failures: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    rounds: tuple[Mapping[str, float], ...] = ()

    @property
    def remaining_s(self) -> float | None:
        """Seconds for the points that are planned and not finished, at the speed so far; ``None`` if unknown."""
        if self.planned is None or self.points_per_s is None:
            return None
        return max(0, self.planned - self.finished) / self.points_per_s


def set_progress(path: str | os.PathLike[str], samples: Sequence[Sample] | None = None) -> SetProgress:
    """What a data folder, a Parquet file or the guide's CSV files hold, how far that is, and what it cost.

    ``samples`` are what ``load_set`` read of it, if that is at hand.

    Raises ``SampleError`` naming the path if it is none of these.
    """
    path = Path(path)
    planned: Counter[tuple[str, str]] | None = None
    rounds: list[Mapping[str, float]] = []
    if path.is_dir():
        if (path / PLAN_FILE).exists():
            planned = Counter((point.operator, point.dtype) for point in load_plan(path).points)
        rounds = [each for report in read_adaptive(path) for each in report.get("rounds", ())]
    return progress_of(load_set(path) if samples is None else samples, planned, rounds)


def progress_of(
    samples: Sequence[Sample],
    planned: Mapping[tuple[str, str], int] | None = None,
    rounds: Sequence[Mapping[str, Any]] = (),
) -> SetProgress:
    """The same of samples at hand; ``planned`` counts points by operator and dtype."""
    finished_at: dict[str, float] = {}
    for sample in samples:
        if sample.measured_utc is not None:
            finished_at[sample.point_id] = max(sample.measured_utc, finished_at.get(sample.point_id, 0.0))
    cost, curve, pauses, first_group = _cost_of_points(finished_at)
    groups: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.operator, sample.dtype].append(sample)
    for key in planned or ():
        groups.setdefault(key, [])
    wall_s = sum(cost.values()) if cost else None
    finished = len({sample.point_id for sample in samples})
    return SetProgress(
        devices=tuple(dict.fromkeys(sample.device for sample in samples)),
        versions=samples[0].versions if samples else {},
        planned=None if planned is None else sum(planned.values()),
        finished=finished,
        labels=len(samples),
        statuses=dict(Counter(sample.status for sample in samples)),
        operators=tuple(
            _operator(key, group, None if planned is None else planned.get(key, 0), cost)
            for key, group in sorted(groups.items())
        ),
        wall_s=wall_s,
        device_s=_timed_s(samples),
        device_within_s=_timed_s([sample for sample in samples if sample.point_id in cost]),
        points_per_s=(len(finished_at) - first_group) / wall_s if wall_s else None,
        pauses=pauses,
        curve=curve,
        failures=failures_of(list(samples)),
        groups=dict(Counter(sample.group for sample in samples if sample.group is not None)),
        rounds=tuple(rounds),
    )


def _operator(
    key: tuple[str, str], samples: Sequence[Sample], planned: int | None, cost: Mapping[str, float]
) -> OperatorProgress:
    points = {sample.point_id for sample in samples}
    medians = [statistics.median(sample.times_us) for sample in samples if sample.times_us]
    spreads = [_spread(sample.times_us) for sample in samples if len(sample.times_us) >= 4]
    timed = [cost[point] for point in points if point in cost]
    return OperatorProgress(
        operator=key[0],
        dtype=key[1],
        planned=planned,
        finished=len(points),
        labels=len(samples),
        directions=dict(Counter(sample.direction for sample in samples)),
        statuses=dict(Counter(sample.status for sample in samples)),
        wall_s=sum(timed) if timed else None,
        device_s=_timed_s(samples),
        shortest_us=min(medians, default=None),
        longest_us=max(medians, default=None),
        spread=statistics.median(spreads) if spreads else None,
    )


def _timed_s(samples: Sequence[Sample]) -> float:
    return sum(sum(sample.times_us) for sample in samples) / 1e6


def _spread(times_us: Sequence[float]) -> float:
    low, middle, high = statistics.quantiles(times_us, n=4)
    return (high - low) / middle if middle else 0.0


def _cost_of_points(
    finished_at: Mapping[str, float],
) -> tuple[dict[str, float], tuple[tuple[float, int], ...], int, int]:
    """Seconds of each point, the curve, the number of pauses, and how many points the first group has.

    A group of points is finished at one moment; what passed since the one before is shared equally among them.
    """
    moments: dict[float, list[str]] = defaultdict(list)
    for point, utc in finished_at.items():
        moments[utc].append(point)
    cost: dict[str, float] = {}
    curve: list[tuple[float, int]] = []
    elapsed, count, pauses, first_group = 0.0, 0, 0, 0
    before: float | None = None
    for utc, points in sorted(moments.items()):
        interval = 0.0 if before is None else utc - before
        if interval > LONGEST_INTERVAL_S:
            interval, pauses = 0.0, pauses + 1
        if before is None:
            first_group = len(points)
        else:
            cost.update(dict.fromkeys(points, interval / len(points)))
        elapsed, count, before = elapsed + interval, count + len(points), utc
        curve.append((round(elapsed, 3), count))
    step = max(1, len(curve) // _CURVE_POINTS)
    return cost, tuple([*curve[::step], *curve[-1:]] if step > 1 else curve), pauses, first_group
