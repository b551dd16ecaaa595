"""Which operators to measure on a new device: those of which a transferred model is least sure, and some at random."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.errors import PredictError
from torchledger.fitting.time_model import TimeModel
from torchledger.operators import find_operator
from torchledger.predicting.operators import predict_table
from torchledger.sampling.points import Plan, Point

SWEEP = Path(__file__).with_name("operators.yml")
"""The shapes among which to choose; ``benchmarks/operators/h200_sweep.py`` writes it."""

EVALUATION = "evaluation"
"""Group of the points that are drawn at random, spread over the whole time, and never learned from."""

_EVALUATION_SHARE = 1 / 7
_RANDOM_SHARE = 0.4
_CANDIDATES = 4
"""Points that are asked about for one that is chosen."""
_LONGEST_US = 4000.0
"""Forward and backward of one shape: longer ones cost the time of several others."""
_FAMILY_POWER = 0.5
"""An operator with four times the candidates gets twice the points."""


def choose_points(model: TimeModel | None, *, count: int, seed: int = 0, sweep: Path = SWEEP) -> Plan:
    """A plan of at most ``count`` points in the order in which to measure them, so that every beginning of it is as
    balanced as the whole.

    Each operator and dtype gets its share; within one, points are drawn by how unsure ``model`` is of them (by its
    intervals), ``_RANDOM_SHARE`` of them by chance alone. One in seven is for judging (group ``EVALUATION``): drawn by
    chance from shapes that are never learned from.
    """
    from torchledger.sampling.sweep import load_sweep

    plan = load_sweep(sweep)
    pick = random.Random(seed)
    train = _of_group(plan.points, "train")
    judged = _of_group(plan.points, "held_out")
    evaluation = _shares(judged, round(count * _EVALUATION_SHARE), pick, model=None)
    chosen = _shares(train, count - len(evaluation), pick, model=model)
    points = [replace(point, group=EVALUATION) for point in evaluation] + chosen
    return replace(plan, points=tuple(_spread(points, pick)))


def _of_group(points: Sequence[Point], group: str) -> dict[tuple[str, str], list[Point]]:
    found: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for point in points:
        if point.group == group:
            found[point.operator, point.dtype].append(point)
    return found


def _shares(
    families: dict[tuple[str, str], list[Point]], count: int, pick: random.Random, *, model: TimeModel | None
) -> list[Point]:
    weights = {key: len(points) ** _FAMILY_POWER for key, points in families.items()}
    total = sum(weights.values())
    chosen = []
    for key, points in sorted(families.items()):
        share = min(len(points), max(2, round(count * weights[key] / total)))
        points = pick.sample(points, min(len(points), _CANDIDATES * share))
        unsure = _uncertainty(model, *key, points) if model is not None else np.ones(len(points))
        chance = _RANDOM_SHARE / len(points) + (1 - _RANDOM_SHARE) * unsure / unsure.sum()
        # Weighted draws without replacement (Efraimidis and Spirakis): the largest of u ** (1 / weight).
        keys = [pick.random() ** (1 / max(float(one), 1e-12)) for one in chance * len(points)]
        chosen += [points[index] for index in np.argsort(keys)[::-1][:share]]
    return chosen


def _uncertainty(model: TimeModel, operator: str, dtype: str, points: Sequence[Point]) -> NDArray[np.float64]:
    """Squares of the half widths of the intervals, as one number a point; 0 where it would take too long."""
    declared = find_operator(operator)
    resolved = [declared.resolve(point.parameters) for point in points]
    names = (*declared.parameters, *declared.defaults)
    columns: dict[str, Any] = {name: np.array([int(shape[name]) for shape in resolved]) for name in names}
    squares, durations = np.zeros(len(points)), np.zeros(len(points))
    for direction in declared.directions:
        try:
            table = predict_table(model, operator, columns, direction=direction, dtype=dtype)
        except PredictError:
            return np.ones(len(points))
        squares += np.log(table.high_us / table.low_us) ** 2
        durations += table.duration_us
    return np.where(durations < _LONGEST_US, squares, 0.0) + 1e-9


def _spread(points: Sequence[Point], pick: random.Random) -> list[Point]:
    """Points so ordered that each family, and each family's evaluation, is spread evenly over the whole."""
    families: dict[tuple[str, str, bool], list[Point]] = defaultdict(list)
    for point in points:
        families[point.operator, point.dtype, point.group == EVALUATION].append(point)
    placed = []
    for family in families.values():
        pick.shuffle(family)
        start = pick.random()
        placed += [((place + start) / len(family), pick.random(), point) for place, point in enumerate(family)]
    return [point for _, _, point in sorted(placed, key=lambda one: one[:2])]
