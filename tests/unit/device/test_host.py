"""Hosts: kept under their names, found by a part of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from synthetic import write_ledger
from torchledger.device import host as hosts
from torchledger.device.describe import describe_cpu
from torchledger.errors import MeasureError, PredictError
from torchledger.nouns import Host
from torchledger.store import LedgerWriter, open_ledger


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHLEDGER_CACHE", str(tmp_path))
    return tmp_path


def _host(name: str = "Epyc 9", device: str = "NVIDIA H200") -> Host:
    return Host(name, device, num_cores=16, graph_call_us=40.0, fused_launch_us=4.0)


def test_what_was_stored_is_known_again_for_that_device_alone() -> None:
    host = _host(describe_cpu().name)
    hosts.store_host(host)
    assert hosts.known_host("NVIDIA H200") == host
    assert hosts.known_host("NVIDIA H100") is None


def test_a_host_is_found_by_a_part_of_its_name() -> None:
    hosts.store_host(_host())
    hosts.store_host(_host("Xeon 8"))
    assert hosts.find_host("xeon") == _host("Xeon 8")


def test_a_host_of_a_file_needs_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = hosts.store_host(_host())
    file = tmp_path / "elsewhere.json"
    kept.rename(file)
    assert hosts.find_host(str(file)) == _host()


@pytest.mark.parametrize(("name", "said"), [("sparc", "no host is called"), ("h200", "several hosts match")])
def test_no_host_and_several_are_named(name: str, said: str) -> None:
    hosts.store_host(_host())
    hosts.store_host(_host("Xeon 8"))
    with pytest.raises(PredictError, match=f"{said}.*Epyc 9.*Xeon 8"):
        hosts.find_host(name)


def test_a_damaged_file_is_as_good_as_none() -> None:
    hosts.store_host(_host(describe_cpu().name)).write_text("{")
    assert hosts.known_host("NVIDIA H200") is None


def test_a_ledger_of_another_host_takes_no_costs(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "gpt.ledger", launches=3)
    with pytest.raises(MeasureError, match=r"not recorded on this host \(Epyc 9\)"):
        hosts.put_host_into(path, _host())


def test_costs_of_the_host_of_a_ledger_are_read_back(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "gpt.ledger", launches=3)
    with open_ledger(path) as reader:
        run = reader.run()
    with LedgerWriter(path, append=True) as writer:
        writer.add(dataclasses.replace(run, devices=(describe_cpu(),)), replace=True)
    host = _host(describe_cpu().name)
    hosts.put_host_into(path, host)
    with open_ledger(path) as reader:
        assert reader.run().host == host


@pytest.mark.parametrize("cost", ["-1.0", "1e300"])
def test_a_cost_that_no_host_has_is_no_host(tmp_path: Path, cost: str) -> None:
    (tmp_path / "h.json").write_text(f'{{"name": "a", "device": "b", "operator_us": {cost}}}')
    with pytest.raises(PredictError, match="holds no host"):
        hosts.find_host(str(tmp_path / "h.json"))


@pytest.mark.parametrize("factor", [0.0, -1.0, 1e9])
def test_no_step_takes_nothing_or_a_thousand_times_its_parts(factor: float) -> None:
    with pytest.raises(ValueError, match="in_step"):
        Host("Epyc 9", "NVIDIA H200", in_step=factor)
