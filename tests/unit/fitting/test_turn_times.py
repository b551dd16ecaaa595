"""What a direction takes in turns with the other one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from torchledger.errors import PredictError
from torchledger.fitting.turns import Between, Turns, between_turns, fit_turns, turns_over_warm
from torchledger.operators import find_operator
from torchledger.predicting import find_model, predict, predict_table

MODEL = find_model("H200")
MEGABYTE = 1e6


def between(own: float, other: float) -> Between:
    moved, read, between_bytes = (np.array([size * MEGABYTE]) for size in (own, own / 2, other))
    return Between("memory", True, moved, read, 0 * read, between_bytes)


def test_what_the_backward_reads_too_is_told_from_what_it_does_not() -> None:
    own = between_turns(find_operator("gelu"), {"numel": 1 << 20}, "forward", 2.0, "memory")
    assert own is not None
    # x and the result; then the gradient, x again and its gradient.
    assert (own.own_bytes[0], own.read_bytes[0], own.other_bytes[0]) == (2 * 2**21, 2**21, 3 * 2**21)
    assert own.shared_bytes[0] == 2**21
    added = between_turns(find_operator("add"), {"numel": 1 << 20}, "forward", 2.0, "memory")
    assert added is None or added.shared_bytes[0] == 0


def test_an_operator_of_one_direction_has_no_turns() -> None:
    adamw = find_operator("adamw")
    assert between_turns(adamw, {"numel": 1 << 20, "tensors": 4}, "step", 4.0, "memory") is None
    plain = predict(MODEL, "adamw", {"numel": 1 << 20, "tensors": 4}, direction="step", dtype="float32")
    turns = predict(MODEL, "adamw", {"numel": 1 << 20, "tensors": 4}, direction="step", dtype="float32", state="turns")
    assert turns.duration_us == plain.duration_us


def test_costs_of_misses_come_back_where_the_cache_cannot_keep_both() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for number in range(400):
        own = float(np.exp(rng.uniform(0, 4)))
        other = float(np.exp(rng.uniform(0, 6)))
        evicted = own < 45 < other
        warm_us = 2 + own / 5
        later = 0.1 + (0.7 + 0.05 * own if evicted else 0.0)
        rows.append(Turns(f"op{number % 8} forward", between(own, other), warm_us, warm_us + later))
    model = replace(MODEL, extras=fit_turns(rows))
    shift, width = turns_over_warm(model, between(10, 200), np.array([4.0]))
    assert np.exp(shift[0]) == pytest.approx((4 + 0.1 + 0.7 + 0.5) / 4, rel=0.05)
    shift, _ = turns_over_warm(model, between(10, 5), np.array([4.0]))
    assert np.exp(shift[0]) == pytest.approx((4 + 0.1) / 4, rel=0.03)
    assert width[0] < 0.1


def test_a_model_that_does_not_know_says_so() -> None:
    with pytest.raises(PredictError, match="in turns with their other direction"):
        predict(replace(MODEL, extras={}), "gelu", {"numel": 1 << 20}, state="turns")


def test_rows_that_a_large_gradient_drives_out_take_longer() -> None:
    shape = {"tokens": 4096, "dim": 512, "vocab": 100_000}
    warm, turns = (predict(MODEL, "embedding", shape, state=state) for state in ("warm", "turns"))
    assert turns.duration_us > 1.2 * warm.duration_us
    table = predict_table(MODEL, "embedding", {name: np.array([size]) for name, size in shape.items()}, state="turns")
    assert table.duration_us[0] == pytest.approx(turns.duration_us)
