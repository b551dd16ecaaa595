"""Operators' times carried from a device to another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from torchledger.device.datasheets import find_data_sheet
from torchledger.fitting.correcting import correct_model
from torchledger.fitting.time_model import TimeModel
from torchledger.fitting.transfer import transfer_model
from torchledger.predicting import find_model, load_model, predict_table, save_model

LARGE, SMALL = {"numel": np.array([2**28])}, {"numel": np.array([2**14])}
PRODUCT = {"m": np.array([8192]), "k": np.array([8192]), "n": np.array([8192])}


def carried(model: TimeModel, **rates: float) -> TimeModel:
    """The model on a device that differs in its rates alone."""
    return replace(transfer_model(model, model.machine.device), machine=replace(model.machine, **rates))


@pytest.fixture(scope="module")
def source() -> TimeModel:
    return find_model("H200")


def ratio(model: TimeModel, other: TimeModel, operator: str, sizes: dict[str, np.ndarray]) -> float:
    one, two = (predict_table(each, operator, sizes).duration_us[0] for each in (model, other))
    return float(two / one)


def test_a_device_that_is_alike_takes_as_long(source: TimeModel) -> None:
    same = carried(source)
    for operator, sizes in (("mul", LARGE), ("mul", SMALL), ("linear", PRODUCT)):
        assert ratio(source, same, operator, sizes) == pytest.approx(1.0)


def test_half_the_bandwidth_doubles_what_waits_for_memory_and_nothing_else(source: TimeModel) -> None:
    half = carried(source, bytes_per_us=source.machine.bytes_per_us / 2)
    assert ratio(source, half, "mul", LARGE) == pytest.approx(2.0, rel=0.15)
    assert ratio(source, half, "mul", SMALL) == pytest.approx(1.0, abs=0.05)
    assert ratio(source, half, "linear", PRODUCT) == pytest.approx(1.0, abs=0.05)


def test_fewer_multiprocessors_lengthen_what_does_not_wait_for_memory(source: TimeModel) -> None:
    device = replace(source.machine.device, num_multiprocessors=66)
    fewer = replace(carried(source), machine=replace(source.machine, device=device))
    assert ratio(source, fewer, "linear", PRODUCT) == pytest.approx(2.0, rel=0.05)


def test_what_a_device_draws_stays_with_it() -> None:
    known = find_model("H100")
    assert known.machine.own_power is not None
    assert transfer_model(known, known.machine.device).machine.own_power == known.machine.own_power
    other = replace(known.machine.device, name="NVIDIA H100 of another kind")
    assert transfer_model(known, other).machine.own_power is None


def test_there_and_back_is_the_same(source: TimeModel) -> None:
    half = carried(source, bytes_per_us=source.machine.bytes_per_us / 2)
    back = replace(transfer_model(half, source.machine.device), machine=source.machine)
    for operator, sizes in (("mul", SMALL), ("linear", PRODUCT)):
        assert ratio(source, back, operator, sizes) == pytest.approx(1.0, abs=0.03)


def test_the_device_that_times_come_from_is_kept_in_the_file(source: TimeModel, tmp_path: Path) -> None:
    half = carried(source, bytes_per_us=source.machine.bytes_per_us / 2)
    save_model(half, tmp_path / "half.tlmodel", beside="NVIDIA_H200")
    read = load_model(tmp_path / "half.tlmodel")
    assert read.entries["mul/forward"].origins == half.entries["mul/forward"].origins
    assert read.entries["mul/forward"].origins[0].machine == source.machine
    assert not read.entries["launch:fused/pointwise"].origins
    assert ratio(half, read, "mul", LARGE) == pytest.approx(1.0)


def test_a_model_without_corrections_left_is_the_carried_one(source: TimeModel) -> None:
    half = carried(source, bytes_per_us=source.machine.bytes_per_us / 2)
    same, left_out = correct_model(half, [], jobs=1)
    assert not left_out and ratio(half, same, "mul", LARGE) == pytest.approx(1.0)


def test_a_model_that_was_carried_is_carried_on_from_the_device_that_it_is_of() -> None:
    """To another generation a time keeps its distance from the baseline: a product's rate goes with the peak."""
    own = find_model("H100")
    sheet = find_data_sheet("B200")
    assert sheet is not None and own.entries["linear/forward"].origins
    other = transfer_model(own, sheet.device)
    peaks = other.machine.peak("bfloat16") / own.machine.peak("bfloat16")
    assert 1 / ratio(own, other, "linear", PRODUCT) == pytest.approx(peaks, rel=0.1)
