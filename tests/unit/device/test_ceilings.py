"""Ceilings: measured, kept, found again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from synthetic import write_ledger
from torchledger.cli import cli
from torchledger.device.ceilings import (
    ceilings_path,
    known_ceilings,
    measure_ceilings,
    product_rate,
    put_ceilings_into,
    store_ceilings,
)
from torchledger.device.describe import describe_cpu
from torchledger.errors import MeasureError
from torchledger.nouns import Ceilings, Device
from torchledger.reporting.ceilings import above_ceilings
from torchledger.store import LedgerWriter, open_ledger


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHLEDGER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_nothing_is_known_before_it_was_measured() -> None:
    assert known_ceilings(describe_cpu()) is None
    assert known_ceilings(None) is None


def test_what_was_stored_is_known_again() -> None:
    ceilings = Ceilings(copy_gb_per_s=12.5, tflops_per_s={"float32": 0.2}, timer_resolution_us=0.05)
    store_ceilings(describe_cpu(), ceilings)
    assert known_ceilings(describe_cpu()) == ceilings


def test_the_record_goes_before_the_cache() -> None:
    device = Device("NVIDIA H200", "cuda", ceilings=Ceilings(copy_gb_per_s=1.0))
    store_ceilings(device, Ceilings(copy_gb_per_s=2.0))
    assert known_ceilings(device) == Ceilings(copy_gb_per_s=1.0)


def test_a_damaged_file_is_as_good_as_none(cache: Path) -> None:
    device = Device("NVIDIA H200", "cuda")
    cache.mkdir()
    ceilings_path(device).write_text("{")
    assert known_ceilings(device) is None


def test_a_share_above_the_ceiling_of_flops_is_not_laid_to_a_cache() -> None:
    rows = [
        ("convolution", 2.91, "compute"),
        ("copy", 1.4, "memory"),
        ("product", 1.04, "compute"),
        ("sum", None, None),
    ]
    of_flops, of_bytes = above_ceilings(rows)
    assert of_flops.startswith("1 above the measured FLOP/s (convolution 291.0 %)") and "no cache does this" in of_flops
    assert of_bytes.startswith("1 above the measured bandwidth (copy 140.0 %)") and "come from a cache" in of_bytes


def test_tf32_counts_only_where_it_is_allowed() -> None:
    ceilings = Ceilings(tflops_per_s={"float32": 50.0, "tf32": 400.0})
    assert product_rate(ceilings, "float32") == 50.0
    assert product_rate(ceilings, "float32", allow_tf32=True) == 400.0
    assert product_rate(ceilings, "float8_e4m3fn") is None
    assert product_rate(None, "float32") is None


def test_the_cpu_has_every_figure_but_that_of_graphs() -> None:
    ceilings = measure_ceilings("cpu", scale=0.05, budget_s=5)
    assert ceilings.copy_gb_per_s and ceilings.copy_gb_per_s > 0
    assert set(ceilings.tflops_per_s) >= {"float32", "float64", "bfloat16"}
    assert all(rate > 0 for rate in ceilings.tflops_per_s.values())
    assert ceilings.launch_overhead_us and ceilings.timer_resolution_us
    assert ceilings.graph_launch_overhead_us is None


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(MeasureError, match="meta cannot be measured"):
        measure_ceilings("meta")


def test_ceilings_of_another_machine_do_not_go_into_a_ledger(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "gpt.ledger", launches=3)
    with pytest.raises(MeasureError, match="on the machine that wrote it"):
        put_ceilings_into(path, {"0": (Device("another", "cpu"), Ceilings())})


def test_doctor_prints_stores_and_writes_into_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_ledger(tmp_path / "gpt.ledger", launches=3)
    with open_ledger(path) as reader:
        run = reader.run()
    with LedgerWriter(path, append=True) as writer:
        writer.add(dataclasses.replace(run, devices=(describe_cpu(),)), replace=True)
    monkeypatch.setattr("torchledger.device.ceilings.CPU_DTYPES", ("float32",))
    arguments = ["doctor", str(path), "--device", "cpu", "--budget", "0.1", "--json"]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    (device,) = json.loads(result.stdout)["devices"]
    assert device["kind"] == "cpu" and device["ceilings"]["copy_gb_per_s"] > 0
    with open_ledger(path) as reader:
        assert reader.run().devices[0].ceilings == known_ceilings(describe_cpu())
