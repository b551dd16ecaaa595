"""Choosing the next shapes where a model of the times so far is least sure.

Each round measures some points drawn at random and some that a committee of models disagrees on most. The random ones
are predicted before they are measured: their error says, without bias, how good the model is by now. Until there are
enough samples to learn from, the order is the plan's.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy

from torchledger.nouns import Sample
from torchledger.operators import Operator, find_operator
from torchledger.sampling.points import Point
from torchledger.work.element_sizes import ELEMENT_SIZES

Committee = Callable[[Sequence[Point]], Any]
"""Points to an array of predicted logs of microseconds, all directions together: (members, points)."""

FitCommittee = Callable[[Mapping[str, Sequence[Sample]]], Committee | None]

FIRST_SAMPLES = 48
"""Points of one operator and dtype before its times are learnt from."""

_MEMBERS = 4


@dataclass(frozen=True)
class Round:
    """How good the model was after so much: mean absolute percentage error on random points not measured before."""

    points_measured: int
    device_minutes: float
    error_pct: float


class AdaptiveOrder:
    """Hands out groups of points; told what was measured by the mapping that it shares with the worker."""

    def __init__(
        self,
        *,
        until_error_pct: float | None = None,
        round_size: int = 64,
        seed: int = 0,
        fit: FitCommittee | None = None,
    ) -> None:
        self.until_error_pct = until_error_pct
        self.round_size = round_size
        self.rounds: list[Round] = []
        self._fit = fit or fit_committee
        self._random = random.Random(seed)

    def groups(
        self,
        waiting: Sequence[Point],
        ids: Mapping[int, str],
        measured: Mapping[str, Sequence[Sample]],
        group_size: int,
    ) -> Iterator[list[Point]]:
        """Groups of the waiting points until all are measured or the error is reached twice in a row."""
        left = list(waiting)
        self._random.shuffle(left)
        started = time.monotonic()
        committee: Committee | None = None
        while left:
            control, left = left[: self.round_size // 2], left[self.round_size // 2 :]
            chosen = self._least_sure(committee, left)
            taken = set(map(id, chosen))
            left = [point for point in left if id(point) not in taken]
            predicted = None if committee is None else numpy.median(committee(control), axis=0)
            for start in range(0, len(both := [*control, *chosen]), group_size):
                yield both[start : start + group_size]
            if predicted is not None:
                error = _error_pct(predicted, control, ids, measured)
                if error is not None:
                    minutes = (time.monotonic() - started) / 60
                    self.rounds.append(Round(len(measured), round(minutes, 3), round(error, 3)))
                    if self._is_good_enough():
                        return
            committee = self._fit(measured)

    def report(self) -> list[dict[str, float]]:
        """The rounds in plain form."""
        return [asdict(item) for item in self.rounds]

    def _is_good_enough(self) -> bool:
        if self.until_error_pct is None or len(self.rounds) < 2:
            return False
        return all(item.error_pct <= self.until_error_pct for item in self.rounds[-2:])

    def _least_sure(self, committee: Committee | None, left: Sequence[Point]) -> list[Point]:
        count = min(self.round_size - self.round_size // 2, len(left))
        if committee is None:
            return list(left[:count])
        # A committee asked about everything left would cost more than measuring; a random thousand will do.
        candidates = left if len(left) <= 1000 else self._random.sample(list(left), 1000)
        spread = numpy.nan_to_num(numpy.std(committee(candidates), axis=0), nan=numpy.inf)
        return [candidates[index] for index in numpy.argsort(-spread, kind="stable")[:count]]


def fit_committee(measured: Mapping[str, Sequence[Sample]]) -> Committee | None:
    """A few small tree ensembles per operator and dtype, each on a resampled part of the points; ``None`` until some
    operator has enough of them. They learn log time over a roofline guess, from logs of parameters and work."""
    from sklearn.ensemble import ExtraTreesRegressor

    rows: dict[tuple[str, str], list[Sequence[Sample]]] = defaultdict(list)
    for samples in measured.values():
        if samples and all(sample.times_us for sample in samples):
            rows[samples[0].operator, samples[0].dtype].append(samples)
    members: dict[tuple[str, str], list[Any]] = {}
    for key, group in rows.items():
        if len(group) < FIRST_SAMPLES:
            continue
        operator = find_operator(key[0])
        features, guess = _features(operator, [s[0].parameters for s in group], key[1])
        total = numpy.log([sum(statistics.median(s.times_us) for s in samples) for samples in group])
        source = numpy.random.default_rng(0)
        members[key] = []
        for seed in range(_MEMBERS):
            picked = source.integers(0, len(group), len(group))
            trees = ExtraTreesRegressor(20, min_samples_leaf=2, random_state=seed, n_jobs=1)
            members[key].append(trees.fit(features[picked], (total - guess)[picked]))
    if not members:
        return None

    def committee(points: Sequence[Point]) -> Any:
        # Of an operator that is not learnt yet nothing is known: its points are asked for first, and not judged.
        predictions = numpy.full((_MEMBERS, len(points)), numpy.nan)
        by_key: dict[tuple[str, str], list[int]] = defaultdict(list)
        for index, point in enumerate(points):
            by_key[point.operator, point.dtype].append(index)
        for key, indices in by_key.items():
            if key in members:
                asked = [points[index].parameters for index in indices]
                features, guess = _features(find_operator(key[0]), asked, key[1])
                for row, trees in enumerate(members[key]):
                    predictions[row, indices] = trees.predict(features) + guess
        return predictions

    return committee


def _features(operator: Operator, shapes: Sequence[Mapping[str, Any]], dtype: str) -> tuple[Any, Any]:
    names = [*operator.parameters, *operator.defaults]
    columns = {n: numpy.array([s.get(n, operator.defaults.get(n)) for s in shapes], dtype=numpy.int64) for n in names}
    p = operator.resolve(columns)
    scale: Any = numpy.zeros(len(shapes))
    for direction in operator.directions:
        for work in operator.work(p, direction, ELEMENT_SIZES[dtype]):
            # A guess of the time in microseconds on a present-day accelerator; only its shape matters.
            scale = scale + numpy.maximum(work.flops / 5e8, work.bytes_moved / 3e6) + 2.0
    logs = [numpy.log1p(numpy.asarray(column, dtype=float)) for column in columns.values()]
    alignments = [numpy.gcd(column, 64) for column in columns.values()]
    guess = numpy.log(scale)
    return numpy.column_stack([*logs, *alignments, guess]), guess


def _error_pct(
    predicted: Any, control: Sequence[Point], ids: Mapping[int, str], measured: Mapping[str, Sequence[Sample]]
) -> float | None:
    errors = []
    for log_us, point in zip(predicted, control, strict=True):
        samples = measured.get(ids[id(point)])
        if samples and all(sample.times_us for sample in samples) and numpy.isfinite(log_us):
            total = sum(statistics.median(sample.times_us) for sample in samples)
            errors.append(abs(float(numpy.exp(log_us)) / total - 1) * 100)
    return statistics.fmean(errors) if errors else None
