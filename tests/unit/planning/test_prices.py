"""Prices of a transformer's pieces."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchledger.device.datasheets import find_data_sheet
from torchledger.errors import PredictError
from torchledger.planning.prices import ModelPrices
from torchledger.planning.transformer import Piece
from torchledger.predicting.devices import find_model
from torchledger.predicting.power import StepWork

SHEET = """
names: [Card of our own]
num_multiprocessors: 66
copy_gb_per_s: 2400
tflops: {float16: 495.0, bfloat16: 495.0, float32: 33.0}
reached:
  source: a friend
  copy_gb_per_s: 1200
  tflops: {bfloat16: 200.0}
  attention_tflops: {forward: 100.0}
"""
PRODUCT = Piece("linear", {"m": 8192, "k": 8192, "n": 8192})
ATTENTION = Piece("sdpa", {"b": 1, "h": 64, "l": 4096, "d": 128, "h_kv": 8, "l_kv": 4096, "causal": 1})


def test_what_others_measured_of_a_device_stands_in_place_of_a_share_of_its_data_sheet(tmp_path: Path) -> None:
    file = tmp_path / "ours.yml"
    file.write_text(SHEET)
    model = find_model(file)
    assert (model.machine.bytes_per_us, model.machine.flops_per_us["bfloat16"]) == (1.2e6, 2e8)
    assert model.machine.flops_per_us["float32"] < 33e6
    prices = ModelPrices(model)
    assert 2 * 8192**3 / prices.price(PRODUCT).duration_us == pytest.approx(2e8, rel=0.1)
    flops = 4 * 64 * 4096**2 * 128 / 2
    assert flops / prices.price(ATTENTION).duration_us == pytest.approx(1e8, rel=0.02)


def test_measured_rates_say_who_measured_them(tmp_path: Path) -> None:
    sheet = find_data_sheet("B200")
    assert sheet is not None and sheet.reached is not None and sheet.reached.source
    file = tmp_path / "ours.yml"
    file.write_text(SHEET.replace("  source: a friend\n", ""))
    with pytest.raises(PredictError, match="source"):
        find_model(file)


def test_products_of_steps_without_rest_take_longer_and_beside_idle_time_as_is_usual() -> None:
    prices = ModelPrices(find_model("H200"))
    work = prices.price(PRODUCT).work
    assert work.product_flops == 2 * 8192**3
    busy_us = prices.sustained_us(work, work, work.total_us)
    idle_us = prices.sustained_us(work, work, 3 * work.total_us)
    assert 0.1 * work.products_us < busy_us < 0.4 * work.products_us
    assert 0 < idle_us < 0.05 * work.products_us
    assert prices.sustained_us(StepWork(others_us=5.0), work, work.total_us) == 0.0


def test_what_products_draw_is_known_of_half_precision_alone() -> None:
    assert ModelPrices(find_model("H200"), "float32").price(PRODUCT).work.product_flops == 0.0
