"""Times of the parts of work: found again from calls that obey them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from torchledger.fitting.algorithm_costs import algorithm_cost, fit_algorithms, parts_of_row
from torchledger.work.algorithm_calls import Parts


def _rows(count: int, *, noise: float = 0.0) -> list[dict[str, Any]]:
    random = np.random.default_rng(3)
    rows = []
    for _ in range(count):
        batch, size = (int(each) for each in random.integers(2, 64, 2) * (1, 12))
        us = 8.0 + 1.5 * size + 2.0 * batch * size**3 / 1e6
        arguments = [[[batch, size, size], "float32", [size**2, size, 1]]]
        us *= math.exp(noise * random.normal())
        rows.append({"name": "aten::linalg_cholesky_ex", "us": us, "arguments": arguments, "settings": {}})
    return rows


def test_what_each_part_takes_is_found_again() -> None:
    rows = _rows(60)
    costs = fit_algorithms(rows)
    for row in rows:
        parts = parts_of_row(row)
        assert parts is not None
        cost = algorithm_cost(row["name"], parts, costs)
        assert cost is not None and cost.duration_us(parts) == pytest.approx(row["us"], rel=0.05)
        assert min(cost.us) >= 0


def test_noise_widens_the_interval_and_few_calls_do_too() -> None:
    spreads = [
        fit_algorithms(rows)["aten::linalg_cholesky_ex, many parts spread"]
        for rows in (_rows(60), _rows(60, noise=0.5), _rows(8, noise=0.5))
    ]
    assert spreads == sorted(spreads)


def test_a_way_that_nobody_learned_is_like_the_others_and_too_few_calls_teach_nothing() -> None:
    costs = fit_algorithms(_rows(20))
    one = Parts("one", (1, 100, 1.0, 0.04, 1))
    many = Parts("many", one.amounts)
    found = algorithm_cost("aten::linalg_cholesky_ex", one, costs)
    assert found is not None and found == algorithm_cost("aten::linalg_cholesky_ex", many, costs)
    assert fit_algorithms(_rows(4)) == {}
    assert algorithm_cost("aten::linalg_qr", one, costs) is None
