"""Warm and swept times of operators."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from torchledger.cli import cli
from torchledger.errors import PredictError
from torchledger.fitting.timing_states import KNOTS_US, TimedTwice, fit_states, swept_over_warm
from torchledger.predicting import find_model, predict, predict_table

MODEL = find_model("H200")
SMALL, LARGE = {"numel": 1 << 20}, {"numel": 1 << 28}


def test_a_short_kernel_is_slower_after_a_sweep_and_a_long_one_hardly() -> None:
    slower = [
        predict(MODEL, "gelu", shape, state="swept").duration_us / predict(MODEL, "gelu", shape).duration_us
        for shape in (SMALL, LARGE)
    ]
    assert slower[0] > 1.1 > 1.02 > slower[1] >= 1.0


def test_a_prediction_says_its_state_and_swept_ones_are_less_sure() -> None:
    warm, swept = predict(MODEL, "gelu", SMALL), predict(MODEL, "gelu", SMALL, state="swept")
    assert (warm.state, swept.state) == ("warm", "swept")
    assert swept.high_us / swept.duration_us > warm.high_us / warm.duration_us


def test_a_table_of_swept_times_agrees_with_single_ones() -> None:
    table = predict_table(MODEL, "gelu", {"numel": np.array([1 << 20, 1 << 28])}, state="swept")
    single = [predict(MODEL, "gelu", shape, state="swept").duration_us for shape in (SMALL, LARGE)]
    assert table.duration_us == pytest.approx(single, rel=1e-5)  # sums over members round by how many rows there are


def test_a_model_without_swept_times_refuses_in_a_sentence() -> None:
    without = replace(MODEL, extras={})
    with pytest.raises(PredictError, match="after the cache was swept"):
        predict(without, "gelu", SMALL, state="swept")


def test_what_was_measured_in_both_states_comes_back_at_its_duration() -> None:
    rows = [TimedTwice("memory", us, 1.5 * us if us < 20 else us) for us in KNOTS_US for _ in range(50)]
    model = replace(MODEL, extras=fit_states(rows))
    shift, width = swept_over_warm(model, "memory", np.array([3.0, 300.0]))
    assert shift == pytest.approx([math.log(1.5), 0.0], abs=0.03)
    assert (width >= 0).all()


def test_the_command_takes_a_state_and_says_which_is_meant() -> None:
    found = CliRunner().invoke(cli, ["predict", "gelu", "numel=1048576", "--state", "swept"])
    assert "Swept: after other work has swept the cache." in found.output
    assert "Warm: just after" in CliRunner().invoke(cli, ["predict", "gelu", "numel=1048576"]).output
    plain = CliRunner().invoke(cli, ["predict", "gelu", "numel=1048576", "--json"])
    assert {each["state"] for each in json.loads(plain.output)} == {"warm"}


def test_an_encoder_is_priced_warm() -> None:
    sizes = ["layers=2", "hidden=1024", "heads=16", "length=512", "batch=2"]
    found = CliRunner().invoke(cli, ["predict", "encoder", *sizes, "--state", "swept"])
    assert "leave --state out" in str(found.exception)
