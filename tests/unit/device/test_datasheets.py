"""Devices of which only the name is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchledger.device.datasheets import (
    data_sheets,
    datasheet_ceilings,
    device_of_name,
    find_data_sheet,
    read_data_sheets,
)
from torchledger.errors import PredictError


@pytest.mark.parametrize(
    ("name", "multiprocessors"),
    [("NVIDIA A100-SXM4-80GB", 108), ("GH200120GB", 132), ("NVIDIA H100 PCIe", 114), ("NVIDIA A10", 72)],
)
def test_a_device_is_found_by_its_whole_name_with_or_without_its_maker(name: str, multiprocessors: int) -> None:
    device = device_of_name(name)
    assert (device.name, device.num_multiprocessors) == (name, multiprocessors)
    assert device.ceilings is None


@pytest.mark.parametrize("name", ["NVIDIA H100 CNX", "A100", "H200 with another cooler", "AMD EPYC"])
def test_a_name_that_only_resembles_one_is_an_unknown_device(name: str) -> None:
    device = device_of_name(name)
    assert device.kind == "unknown" and device.num_multiprocessors is None and device.total_memory_bytes is None
    assert datasheet_ceilings(name) is None


def test_every_data_sheet_says_where_it_is_from_and_is_complete() -> None:
    for sheet in data_sheets():
        assert sheet.source
        assert all(find_data_sheet(name) is sheet for name in sheet.names)
        facts = {name for name, value in vars(sheet.device).items() if value is not None}
        needed = {"num_multiprocessors", "total_memory_bytes", "l2_cache_bytes", "clock_rate_mhz", "power_limit_w"}
        assert needed <= facts
        assert sheet.device.ceilings is not None and sheet.device.ceilings.method == "datasheet"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("names: [], num_multiprocessors: 1, copy_gb_per_s: 1, tflops: {}", "`names`"),
        ("names: [A], num_multiprocessors: 0, copy_gb_per_s: 1, tflops: {}", "`num_multiprocessors`: must be above"),
        ("names: [A], num_multiprocessors: 1, copy_gb_per_s: .inf, tflops: {}", "`copy_gb_per_s`: must be above"),
        ("names: [A], num_multiprocessors: 1, copy_gb_per_s: 1, tflops: {float16: -2}", "`tflops.float16`"),
        ("names: [A], num_multiprocessors: 1, copy_gb_per_s: 1, tflops: {fp16: 2}", "fp16 is no name of torch's"),
        ("names: [A], num_multiprocessors: 1, copy_gb_per_s: 1, tflops: {float32: 2}", "neither float16 nor bfloat16"),
        ("names: [A], num_multiprocessors: 1, copy_gbps: 1, tflops: {float16: 2}", "the nearest is `copy_gb_per_s`"),
        (
            "names: [A], num_multiprocessors: 1, copy_gb_per_s: 1, tflops: {float16: 2}, reached: {tflop: {}}",
            "unknown key `reached.tflop`, the nearest is `reached.tflops`",
        ),
    ],
)
def test_a_figure_that_no_device_has_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "card.yml").write_text(f"{{{text}}}")
    with pytest.raises(PredictError, match=f"card.yml is no data sheet: .*{said}"):
        read_data_sheets(tmp_path / "card.yml")
