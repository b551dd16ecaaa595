"""Devices by name: shipped models, data sheets, and what is nearest."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from torchledger.device.datasheets import data_sheets, find_data_sheet
from torchledger.errors import PredictError
from torchledger.predicting import devices, find_model, predict, predict_table
from torchledger.predicting.devices import known_devices, nearest_model
from torchledger.predicting.model_file import SHIPPED, load_model, save_model

SHAPE = {"m": 4096, "k": 4096, "n": 4096}
SHEET = """\
names: [Card of our own]
compute_capability: [9, 0]
num_multiprocessors: 66
copy_gb_per_s: 2400
tflops: {float16: 495, bfloat16: 495, float32: 33}
"""


@pytest.mark.parametrize(
    ("asked", "device"),
    [("H200", "NVIDIA H200"), ("nvidia h200", "NVIDIA H200"), ("B200", "B200"), ("MI300X", "Instinct MI300X")],
)
def test_a_device_is_found_by_its_name_or_the_beginning_of_it(asked: str, device: str) -> None:
    assert find_model(asked).device == device


@pytest.mark.parametrize("asked", ["H100", "A100", "GH200"])
def test_a_beginning_of_several_names_is_the_first_of_them(asked: str) -> None:
    assert find_model(asked).device.removeprefix("NVIDIA").replace(" ", "").startswith(asked)


@pytest.mark.parametrize("name", [sheet.device.name for sheet in data_sheets()])
def test_every_data_sheet_answers_and_says_what_it_was_made_of(name: str) -> None:
    model = find_model(name)
    found = predict(model, "linear", SHAPE)
    assert 0 < found.low_us < found.duration_us < found.high_us
    assert model.source


def test_a_transferred_time_follows_the_rates_of_the_device() -> None:
    stream = {"numel": np.array([2**28])}
    h200, pcie = find_model("H200"), find_model("H100 PCIe")
    sheets = find_data_sheet("H200"), find_data_sheet("H100 PCIe")
    bandwidths = [sheet.device.ceilings.copy_gb_per_s for sheet in sheets if sheet and sheet.device.ceilings]
    slower = [float(predict_table(model, "mul", stream).duration_us[0]) for model in (pcie, h200)]
    assert slower[0] / slower[1] == pytest.approx(bandwidths[0] / bandwidths[1], rel=0.15)


def test_a_transferred_interval_is_wider_than_the_one_it_comes_from() -> None:
    own, other = (predict(find_model(name), "linear", SHAPE) for name in ("H200", "H20"))
    assert other.high_us / other.low_us > own.high_us / own.low_us


def test_a_data_sheet_in_a_file_is_a_device(tmp_path: Path) -> None:
    file = tmp_path / "ours.yml"
    file.write_text(SHEET)
    model = find_model(file)
    assert model.device == "Card of our own" and model.machine.num_multiprocessors == 66
    assert predict(model, "linear", SHAPE).duration_us > predict(find_model("H200"), "linear", SHAPE).duration_us


def test_a_data_sheet_that_lacks_a_figure_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "ours.yml"
    file.write_text(SHEET.replace("copy_gb_per_s", "bandwidth"))
    with pytest.raises(PredictError, match=r"ours\.yml is no data sheet"):
        find_model(file)


@pytest.mark.parametrize(("asked", "device"), [("RTX 4090", "GeForce RTX 4090"), ("5090", "GeForce RTX 5090")])
def test_a_device_is_found_by_words_that_no_other_has(asked: str, device: str) -> None:
    assert find_model(asked).device == device


@pytest.mark.parametrize(
    ("asked", "said"),
    [("X", "no device is called"), ("100", "no device is called"), ("80GB", "any of A100.*, H100"), ("", "no device")],
)
def test_letters_inside_a_name_and_words_of_several_are_no_device(asked: str, said: str) -> None:
    with pytest.raises(PredictError, match=said):
        find_model(asked)


def test_a_name_that_nothing_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(PredictError, match=r"no device is called 'RTX 4080'; the nearest known are .*RTX 4090"):
        find_model("RTX 4080")


def test_a_device_does_not_start_from_its_own_model() -> None:
    model = find_model("H200")
    others = [one for one in known_devices() if one.rows and one.name != model.device]
    if others:
        assert nearest_model(model.machine.device).device != model.device


def test_devices_are_listed_once_and_the_measured_ones_first() -> None:
    found = known_devices()
    assert len({one.name for one in found}) == len(found) >= 20
    measured = [one.rows > 0 for one in found]
    assert measured == sorted(measured, reverse=True) and measured[0]
    assert all(one.operators_error_pct is None for one in found if not one.rows)


def test_devices_start_from_a_model_that_its_own_device_taught() -> None:
    """The A100's file holds what was carried to it of fused kernels, to answer alone; others do not take it."""
    one_of_each = {sheet.device.compute_capability: sheet for sheet in data_sheets()}
    for sheet in one_of_each.values():
        start = nearest_model(sheet.device)
        assert any(entry.n_rows for key, entry in start.entries.items() if key.startswith("launch:fused/")), sheet.names


def test_a_shipped_model_is_read_once() -> None:
    assert find_model("H200") is find_model("H200")


def test_a_model_that_is_filled_up_answers_with_its_own_entries_first() -> None:
    (path,) = SHIPPED.glob("*A100*")
    own = load_model(path)
    key = next(key for key in own.entries if key.startswith("linear/"))
    filled = devices._filled(replace(own, entries={key: own.entries[key]}))
    assert filled.entries[key] is own.entries[key]
    assert set(filled.entries) >= set(nearest_model(own.machine.device).entries) > {key}


def test_a_file_of_two_data_sheets_is_refused_with_their_names(tmp_path: Path) -> None:
    file = tmp_path / "ours.yml"
    one = SHEET.replace("\n", "\n  ").rstrip()
    file.write_text(f"- {one}\n- {one.replace('Card of our own', 'Another')}\n")
    with pytest.raises(PredictError, match=r"holds 2 data sheets \(Card of our own, Another\)"):
        find_model(file)


def test_a_sheet_with_bfloat16_alone_compares_by_that(tmp_path: Path) -> None:
    file = tmp_path / "ours.yml"
    file.write_text(SHEET)
    both = find_model(file).machine.flops_per_us
    file.write_text(SHEET.replace("float16: 495, bfloat16", "bfloat16"))
    assert find_model(file).machine.flops_per_us == pytest.approx(dict(both))


def test_a_transferred_time_says_where_it_was_learned() -> None:
    assert "transferred from NVIDIA H200" in predict(find_model("MI300X"), "linear", SHAPE).model
    assert "transferred" not in predict(find_model("H200"), "linear", SHAPE).model


def test_elements_that_a_device_cannot_multiply_are_said_or_refused() -> None:
    found = predict(find_model("T4"), "linear", SHAPE)
    assert found.range == "extrapolated" and "no tensor cores for bfloat16" in (found.note or "")
    assert predict(find_model("T4"), "linear", SHAPE, dtype="fp16").range == "inside"
    with pytest.raises(PredictError, match=r"on compute capability 8\.9 and later; .*A100.* has 8\.0"):
        predict(find_model("A100"), "linear_fp8", SHAPE, dtype="float8_e4m3fn")


def test_what_lacks_the_networks_of_the_model_beside_it_is_written_whole(tmp_path: Path) -> None:
    shipped = find_model("H200")
    bare_key, other_key = "launch:fused/reduction", "launch:fused/pointwise"
    entry = shipped.entries[bare_key]
    assert entry.blend.networks is not None
    bare = replace(entry, blend=replace(entry.blend, networks=None, networks_inside=0.0, networks_outside=0.0))
    path = tmp_path / "beside.tlmodel"
    entries = {bare_key: bare, other_key: shipped.entries[other_key]}
    save_model(replace(shipped, entries=entries), path, beside="NVIDIA_H200")
    kept = load_model(path).entries
    assert kept[bare_key].blend.networks is None
    assert kept[other_key].blend.networks is not None
    with zipfile.ZipFile(path) as archive:
        size = {name: archive.getinfo(f"entries/{name}.npz").file_size for name in entries}
    assert size[bare_key] > 10 * size[other_key], "what the other one has is not written again"
