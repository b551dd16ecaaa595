"""Measuring a device into a folder: here the processor, a few small shapes of it."""

from __future__ import annotations

from pathlib import Path

from torchledger.calibrating.calibrate import read_measured
from torchledger.calibrating.choosing import EVALUATION
from torchledger.calibrating.collecting import DEVICE_FILE, CollectPlan, collect
from torchledger.nouns import Device
from torchledger.store.codec import decode

SWEEP = """\
dtypes: [fp32]
seed: 1
warmup: 1
active: 3
sweeps:
- {operator: mul, group: train, draws: 20, parameters: {numel: {from: 16, to: 6400, draw: log}}}
- {operator: mul, group: held_out, draws: 10, parameters: {numel: {from: 16, to: 6400, draw: log}}}
"""


def test_a_device_is_measured_into_its_record_and_samples_of_both_groups(tmp_path: Path) -> None:
    (tmp_path / "sweep.yml").write_text(SWEEP)
    said: list[str] = []
    plan = CollectPlan(
        device="cpu", budget_s=90, processes=0, with_host=False, scale=0.02, points=14, sweep=tmp_path / "sweep.yml"
    )
    record = collect(tmp_path / "out", plan, progress=lambda done, total, what: said.append(what))
    assert decode(Device, (tmp_path / "out" / DEVICE_FILE).read_bytes()) == record
    assert record.ceilings is not None and record.ceilings.copy_gb_per_s
    samples, launches = read_measured(tmp_path / "out")
    assert {sample.group for sample in samples} == {"train", EVALUATION} and not launches
    assert all(sample.status == "ok" and sample.measured_utc for sample in samples)
    assert said[:2] == ["ceilings", "choosing shapes"]
