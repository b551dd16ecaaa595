"""A device that nobody has heard of goes from its measurements to predictions: what it is, the data say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from factories import make_device
from launch_times import make_launch_set
from synthetic import write_ledger
from times import make_linear_samples
from torchledger.cli import cli
from torchledger.nouns import Ceilings, Device
from torchledger.predicting import load_model
from torchledger.sampling.dataset import write_samples
from torchledger.store import open_ledger
from torchledger.store.launch_file import write_launches

NAME = "Nobody's Accelerator 78"
SCRIPT = """
import torch

device = torch.cuda.get_device_properties(0)
assert (device.name, device.multi_processor_count, device.L2_cache_size) == ("Nobody's Accelerator 78", 78, 24 << 20)
weight = torch.zeros(4096, 4096, dtype=torch.bfloat16, device="cuda", requires_grad=True)
inputs = torch.zeros(4096, 4096, dtype=torch.bfloat16, device="cuda")
optimizer = torch.optim.SGD([weight], lr=0.1)
while True:
    (inputs @ weight).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CEILINGS = Ceilings(copy_gb_per_s=3000.0, tflops_per_s={"bfloat16": 500.0})


def _device(compute_capability: tuple[int, int]) -> Device:
    return make_device(
        name=NAME,
        kind="cuda",
        compute_capability=compute_capability,
        num_multiprocessors=78,
        clock_rate_mhz=1410.0,
        memory_clock_rate_mhz=1215.0,
        memory_bus_width_bits=4096,
        l2_cache_bytes=24 * 2**20,
        total_memory_bytes=20 * 10**9,
        power_limit_w=210.0,
        ceilings=CEILINGS,
    )


def _run(*arguments: object, exit_code: int = 0) -> str:
    result = CliRunner().invoke(cli, [str(each) for each in arguments])
    assert result.exit_code == exit_code, result.output
    return result.stdout


@pytest.fixture(scope="module", params=[pytest.param((8, 6), marks=pytest.mark.slow), (9, 0)], ids=["8.6", "9.0"])
def device(request: pytest.FixtureRequest) -> Device:
    return _device(request.param)


@pytest.fixture(scope="module")
def data(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_samples(folder / "samples.parquet", make_linear_samples(60, device=NAME), {NAME: device})
    write_launches(folder / "programs.launches", replace(make_launch_set(40), device=NAME, record=device))
    write_ledger(folder / "step.ledger")
    return folder


@pytest.fixture(scope="module")
def model(data: Path) -> Path:
    path = data / "made_up.tlmodel"
    told = json.loads(
        _run("fit", data / "samples.parquet", data / "programs.launches", "-o", path, "--jobs", 1, "--json")
    )
    assert {"linear/forward", "launch:fused/pointwise"} <= {entry["entry"] for entry in told["entries"]}
    return path


def test_the_model_carries_the_record_and_says_what_it_borrowed(model: Path, device: Device) -> None:
    found = load_model(model)
    assert found.machine.device == device and found.total_memory_bytes == device.total_memory_bytes
    assert found.machine.has_tile_baseline == (device.compute_capability == (9, 0))
    assert bool(found.notes) != found.machine.has_tile_baseline


def test_operators_and_steps_are_predicted(model: Path, data: Path) -> None:
    said = json.loads(_run("predict", "linear", "m=1024", "k=1024", "n=1024", "--device", model, "--json"))
    forward = next(each for each in said if "forward" in each["subject"])
    # The made-up device takes 4 us and 500 TFLOP/s.
    assert forward["duration_us"] == pytest.approx(4 + 2 * 1024**3 / 5e8, rel=0.15)
    assert forward["device"] == NAME
    step = json.loads(_run("predict-step", data / "step.ledger", "--device", model, "--json"))
    assert step["step"]["duration_us"] > 0 and step["step"]["device"] == NAME


def test_a_plan_tells_a_script_of_the_device_and_prices_its_step(model: Path, device: Device, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    said = json.loads(_run("plan", "--device", model, "-o", tmp_path / "plan.ledger", "--json", script))
    # Two products, larger than those that the model has learned of, and little else.
    assert 0.7 < said["step"]["device_us"] / (2 * (4 + 2 * 4096**3 / 5e8)) < 2
    with open_ledger(tmp_path / "plan.ledger") as reader:
        assert reader.run().devices == (device,)


def test_the_gates_judge_by_the_ceilings_that_the_data_carry(data: Path, device: Device, tmp_path: Path) -> None:
    samples = make_linear_samples(20, device=NAME)
    impossible = replace(samples[0], point_id="too quick", times_us=(0.001,))
    write_samples(tmp_path / "samples.parquet", [*samples, impossible], {NAME: device})
    judged = json.loads(_run("samples", "check", tmp_path / "samples.parquet", "--json", exit_code=3))
    assert (judged["ceilings"], judged["quarantined"]) == ("measured", 1)


def test_constants_are_fitted_and_travel_inside_the_model(data: Path, device: Device, tmp_path: Path) -> None:
    constants, model = tmp_path / "mine.json", tmp_path / "mine.tlmodel"
    told = json.loads(_run("fit-constants", data / "programs.launches", "-o", constants, "--json"))
    assert told["device"] == NAME and told["groups"]
    _run("fit", data / "programs.launches", "--constants", constants, "-o", model, "--jobs", 1)
    machine = load_model(model).machine
    assert machine.own_constants is not None and machine.own_constants.name == "mine"
    assert machine.own_constants.reference.device == device
    assert machine.has_tile_baseline and machine.network_files.products is None
