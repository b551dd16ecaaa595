"""Adaptive order: every point once, errors told, stopping when good enough."""

from __future__ import annotations

import math

from torchledger.nouns import Sample
from torchledger.sampling.adaptive import AdaptiveOrder, fit_committee
from torchledger.sampling.points import Point


def run(order: AdaptiveOrder, count: int, us, group_size: int = 8):
    points = [Point("linear", {"m": m, "k": 64, "n": 64, "bias": 0}, "float32") for m in range(1, count + 1)]
    ids = {id(point): str(point.parameters["m"]) for point in points}
    measured: dict[str, list[Sample]] = {}
    asked = []
    for group in order.groups(points, ids, measured, group_size):
        assert len(group) <= group_size
        for point in group:
            asked.append(point.parameters["m"])
            name = ids[id(point)]
            time = (us(point.parameters["m"]),)
            fields = ("linear", point.parameters, "forward", "float32", "test")
            measured[name] = [Sample(name, *fields, times_us=time)]
    return asked, measured


def test_every_point_is_measured_once():
    asked, _ = run(AdaptiveOrder(round_size=32), 300, lambda m: 5 + 0.1 * m)
    assert sorted(asked) == list(range(1, 301))


def test_it_stops_when_new_shapes_are_predicted_well_enough():
    order = AdaptiveOrder(until_error_pct=5.0, round_size=64)
    asked, _ = run(order, 2000, lambda m: 5 + 0.01 * m)
    assert len(asked) < 2000
    assert all(item.error_pct <= 5.0 for item in order.rounds[-2:])
    assert order.report()[-1]["points_measured"] == len(asked)


def test_it_goes_where_the_committee_is_least_sure():
    def step(m):
        return 5.0 if m < 1000 else 50.0 * (1.5 + math.sin(m))

    asked, _ = run(AdaptiveOrder(round_size=64), 2000, step)
    first = asked[: len(asked) // 4]
    assert sum(m >= 1000 for m in first) > 0.6 * len(first)


def test_nothing_is_learnt_from_too_little():
    assert fit_committee({}) is None
