"""What is read of the logs of a public speedrun, and how a plan is held against them."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = "import torch\nimport torch.distributed as dist\ndist.init_process_group('nccl')\n"
LOG = f"""{"=" * 100}
{SCRIPT}{"=" * 100}
Running pytorch 2.5.0+cu124 compiled for CUDA 12.4
|   0  NVIDIA H100 80GB HBM3          Off |   00000000:19:00.0 Off |                    0 |
|   1  NVIDIA H100 80GB HBM3          Off |   00000000:3B:00.0 Off |                    0 |
{"=" * 100}
step:1/20 train_loss:10.9 train_time:250ms step_avg:nanms
step:20/20 val_loss:3.3 train_time:1400ms step_avg:140.00ms
"""


@pytest.fixture
def script() -> ModuleType:
    return importlib.import_module("benchmarks.public.public_records")


def test_a_record_is_the_script_that_its_log_begins_with_and_the_last_step_that_it_tells(
    script: ModuleType, tmp_path: Path
) -> None:
    folder = tmp_path / "records" / "track_1_short"
    for name, text in (("first", LOG), ("without_a_script", LOG.replace("import torch", "#"))):
        (folder / name).mkdir(parents=True)
        (folder / name / "log.txt").write_text(text)
    (found,) = script.records(tmp_path)
    assert found == script.Record("first", SCRIPT, 140.0, ("NVIDIA H100",) * 2, "2.5.0+cu124")


def test_a_plan_is_held_against_the_measured_step(script: ModuleType) -> None:
    record = script.Record("first", SCRIPT, 100.0, ("NVIDIA H100",) * 8, "2.5.0")
    near, far = (script.Row(record, ms, 0.9 * ms, 1.1 * ms, 1.0, "compute") for ms in (95.0, 80.0))
    assert near.error == pytest.approx(-0.05) and near.holds and not far.holds
    assert script.summary([near, far]).startswith("2 records: the step errs by 12.5% in the mean, 12.5% in the median")
