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
    moved, read, both = (np.array([size * MEGABYTE]) for size in (own, own / 2, own + other))
    return Between("memory", True, moved, read, 0 * read, both, 0 * read, 0 * read)


def test_what_the_backward_reads_too_is_told_from_what_it_does_not() -> None:
    own = between_turns(find_operator("gelu"), {"numel": 1 << 20}, "forward", 2.0, "memory")
    assert own is not None
    # x and the result; then the gradient, x again and its gradient.
    assert (own.own_bytes[0], own.read_bytes[0]) == (2 * 2**21, 2**21)
    assert (own.shared_bytes[0], own.both_bytes[0]) == (2**21, 4 * 2**21)
    assert (own.own_left_bytes[0], own.other_left_bytes[0]) == (2**21, 2**21)
    added = between_turns(find_operator("add"), {"numel": 1 << 20}, "forward", 2.0, "memory")
    assert added is None or added.shared_bytes[0] == 0


def test_a_backward_that_reads_the_result_does_not_touch_what_the_forward_read() -> None:
    shape = {"rows": 4096, "dim": 1024}
    forward, backward = (
        between_turns(find_operator("softmax"), shape, direction, 2.0, "memory")
        for direction in ("forward", "backward")
    )
    assert forward is not None and backward is not None
    assert (forward.shared_bytes[0], backward.shared_bytes[0]) == (0, 4096 * 1024 * 2)


def test_a_norm_that_follows_sums_over_rows_takes_less_time_and_they_take_more() -> None:
    shape = {"rows": 8192, "dim": 6400}
    shifts = {}
    for direction in ("forward", "backward"):
        warm, turns = (
            predict(MODEL, "rms_norm", shape, direction=direction, state=state) for state in ("warm", "turns")
        )
        shifts[direction] = turns.duration_us - warm.duration_us
    assert shifts["forward"] < 0 < shifts["backward"]
    # The last kernel of the backward only reads.
    own = between_turns(find_operator("rms_norm"), shape, "backward", 2.0, "memory")
    assert own is not None and own.own_left_bytes[0] < 1e6 < own.other_left_bytes[0]


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
        evicted = own < 45 < own + other
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


def test_an_operator_that_is_answered_by_a_general_one_has_its_own_other_direction() -> None:
    # The general addition has no backward, the residual's joins two gradients: 69 MB together, 34 alone.
    shape = {"b": 5, "l": 273, "dim": 4352}
    warm, turns = (predict(MODEL, "guide.res_add", shape, dtype="float16", state=state) for state in ("warm", "turns"))
    assert turns.duration_us > 1.3 * warm.duration_us
