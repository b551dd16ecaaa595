"""What a calibration makes of measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.factories import make_sample

from torchledger.calibrating.calibrate import calibrate, learn, read_measured
from torchledger.calibrating.choosing import EVALUATION
from torchledger.calibrating.collecting import OPERATORS
from torchledger.errors import MeasureError, PredictError, SampleError
from torchledger.fitting.transfer import transfer_model
from torchledger.nouns import Ceilings, Device, Sample
from torchledger.predicting import find_model, predict_table

CARD = Device(
    name="Card",
    kind="cuda",
    compute_capability=(9, 0),
    num_multiprocessors=66,
    ceilings=Ceilings(copy_gb_per_s=2000.0, tflops_per_s={"bfloat16": 400.0, "float16": 400.0, "float32": 30.0}),
)


def samples(group: str | None, count: int, seed: int, *, factor: float) -> list[Sample]:
    model = transfer_model(find_model("H200"), CARD)
    numels = (2 ** np.random.default_rng(seed).uniform(16, 28, count)).astype(int)
    times = factor * predict_table(model, "add", {"numel": numels}).duration_us
    made = make_sample("", None, "add", dtype="bfloat16", device="Card", group=group)
    return [
        replace(made, point_id=f"{seed}-{place}", parameters={"numel": int(numel)}, times_us=(float(us),))
        for place, (numel, us) in enumerate(zip(numels, times, strict=True))
    ]


def test_the_error_of_a_calibration_is_of_shapes_that_it_did_not_learn_from() -> None:
    start = transfer_model(find_model("H200"), CARD)
    learned = samples("train", 20, 0, factor=1.2)
    model, errors, within = learn(start, [*learned, *samples(EVALUATION, 10, 1, factor=1.2)], [], jobs=1)
    assert errors["add"] == model.operators_error_pct and errors["add"] < 6
    assert within == 1.0 and model.n_rows == 20
    odd, errors, _ = learn(start, [*learned, *samples(EVALUATION, 10, 1, factor=2.4)], [], jobs=1)
    assert odd.operators_error_pct == pytest.approx(50, abs=6)


def test_a_calibrated_model_says_what_it_started_from() -> None:
    start = transfer_model(find_model("H200"), CARD)
    model, _, _ = learn(start, samples("train", 5, 0, factor=1.2), [], jobs=1)
    assert model.source == "calibrated, starting from NVIDIA H200" and model.device == "Card"
    assert model.operators_error_pct is None


def test_a_folder_in_which_nothing_was_measured_is_refused(tmp_path: Path) -> None:
    (tmp_path / OPERATORS).mkdir()
    with pytest.raises(SampleError, match="no folder of samples"):
        read_measured(tmp_path)


def test_what_is_asked_wrongly_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="torch knows no device 'tpu'"):
        calibrate(tmp_path / "mine.tlmodel", device="tpu", keep=tmp_path / "kept")
    with pytest.raises(PredictError, match="no device is called 'Bogus'"):
        calibrate(tmp_path / "mine.tlmodel", device="cpu", base="Bogus", keep=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
