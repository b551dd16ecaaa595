"""Transferred models and the corrections that a device's own measurements teach them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.factories import make_device, make_sample
from tests.launch_times import product

from torchledger.device.datasheets import find_data_sheet
from torchledger.errors import FitError
from torchledger.fitting.correcting import correct_model, error_pct
from torchledger.fitting.time_model import TimeModel
from torchledger.fitting.transfer import transfer_machine, transfer_model
from torchledger.nouns import Ceilings, Launch, Sample
from torchledger.predicting import find_model, load_model, predict_table, save_model
from torchledger.predicting.launches import predict_launches
from torchledger.store.launch_file import MeasuredLaunch

SLOWER = 1.3
"""How much longer the made-up device takes than its data sheet lets one expect."""


@cache
def transferred() -> TimeModel:
    sheet = find_data_sheet("H20")
    assert sheet is not None
    return transfer_model(find_model("H200"), sheet.device)


def samples(count: int, seed: int) -> list[Sample]:
    """Elementwise products on the made-up device."""
    numels = 2 ** np.random.default_rng(seed).uniform(16, 28, count)
    found = []
    for index, numel in enumerate(numels.astype(int)):
        answer = predict_table(transferred(), "mul", {"numel": numel})
        sample = make_sample(f"{seed}-{index}", None, "mul", parameters={"numel": int(numel)}, dtype="bfloat16")
        found.append(replace(sample, device="H20", times_us=(SLOWER * float(answer.duration_us[0]),)))
    return found


@pytest.mark.parametrize("count", [2, 6, 40])
def test_few_rows_correct_what_is_off_everywhere(count: int) -> None:
    judged = samples(30, seed=1)
    before, _, _ = error_pct(transferred(), judged)
    model, left_out = correct_model(transferred(), samples(count, seed=0), jobs=1)
    after, by_operator, _ = error_pct(model, judged)
    assert not left_out and before is not None and after is not None
    assert after < 0.7 * before and by_operator == {"mul": after}


def test_entries_without_rows_keep_their_answer_and_their_wider_interval() -> None:
    model, _ = correct_model(transferred(), samples(12, seed=0), jobs=1)
    ask = {"rows": np.array([4096]), "dim": np.array([1024])}
    one, other = (predict_table(each, "softmax", ask) for each in (transferred(), model))
    assert (one.duration_us, one.low_us) == (other.duration_us, other.low_us)


def test_products_that_were_rounded_correct_what_is_said_of_rounded_products_alone() -> None:
    def wide(size: int) -> Launch:
        launch = product(size, 1024, 512)
        buffers = tuple(replace(each, dtype="float32") for each in launch.buffers)
        return replace(launch, buffers=buffers)

    launches = [wide(size) for size in (256, 512, 1024, 2048)]
    before = predict_launches(transferred(), launches, allow_tf32=True)
    measured = [
        MeasuredLaunch(launch, (SLOWER * said.duration_us,), f"program-{number}")
        for number, (launch, said) in enumerate(zip(launches, before, strict=True))
    ]
    model, left_out = correct_model(transferred(), [], rounded=measured, jobs=1)
    after = predict_launches(model, launches, allow_tf32=True)
    assert not left_out
    assert all(one.duration_us < new.duration_us for one, new in zip(before, after, strict=True))
    exact = [predict_launches(each, launches) for each in (transferred(), model)]
    assert [one.duration_us for one in exact[0]] == [one.duration_us for one in exact[1]]


def test_an_operator_that_the_model_never_learned_is_said_to_be_left_out() -> None:
    bare = replace(transferred(), entries={})
    _, left_out = correct_model(bare, samples(12, seed=0), jobs=1)
    assert "no entry" in left_out[0].reason


def test_a_corrected_model_answers_the_same_out_of_its_file(tmp_path: Path) -> None:
    model, _ = correct_model(transferred(), samples(40, seed=0), jobs=1)
    entries = {"mul/forward": model.entries["mul/forward"]}
    model = replace(model, entries=entries, source="calibrated", operators_error_pct=1.5)
    save_model(model, tmp_path / "own.tlmodel")
    loaded = load_model(tmp_path / "own.tlmodel")
    ask = {"numel": np.array([10_000, 10_000_000])}
    assert (predict_table(loaded, "mul", ask).duration_us == predict_table(model, "mul", ask).duration_us).all()
    assert (loaded.source, loaded.operators_error_pct, loaded.n_rows) == ("calibrated", 1.5, 40)


def test_measured_ceilings_are_rates_and_a_vendors_are_reached_as_far_as_elsewhere() -> None:
    base = find_model("H200").machine
    measured = make_device(name="Own", ceilings=Ceilings(copy_gb_per_s=1000.0, tflops_per_s={"bfloat16": 100.0}))
    machine = transfer_machine(base, measured)
    assert (machine.bytes_per_us, machine.flops_per_us["bfloat16"]) == (1e6, 1e8)
    sheet = find_data_sheet("H200")
    assert sheet is not None
    same = transfer_machine(base, sheet.device)
    assert same.bytes_per_us == pytest.approx(base.bytes_per_us)
    assert same.flops_per_us["float16"] == pytest.approx(base.flops_per_us["float16"])


def test_a_device_of_which_nothing_is_known_is_refused_with_what_to_do() -> None:
    with pytest.raises(FitError, match="torchledger calibrate"):
        transfer_machine(find_model("H200").machine, make_device(name="Unheard of"))


def test_a_model_made_beside_a_shipped_one_is_small_and_answers_as_it_does_alone(tmp_path: Path) -> None:
    model, _ = correct_model(transferred(), samples(40, seed=0), jobs=1)
    alone = save_model(model, tmp_path / "alone.tlmodel")
    beside = save_model(model, tmp_path / "beside.tlmodel", beside="NVIDIA_H200")
    assert beside < alone / 20
    ask = {"numel": np.array([10_000, 10_000_000])}
    times = [predict_table(load_model(tmp_path / f"{name}.tlmodel"), "mul", ask) for name in ("alone", "beside")]
    assert (times[0].duration_us == times[1].duration_us).all() and (times[0].low_us == times[1].low_us).all()
