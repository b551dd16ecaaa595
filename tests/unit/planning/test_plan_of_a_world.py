"""The price of a world's step: what is said of it beside its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchledger.planning.plan import plan_world
from torchledger.planning.world import Script

SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
weight = torch.nn.Parameter(torch.zeros(256, 256, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=1.0)
for _ in range(6):
    batch = torch.zeros(64, 256).cuda()
    (batch @ weight).sum().backward()
    dist.all_reduce(weight.grad)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_copies_between_host_and_device_are_said_as_of_one_process(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    step = plan_world(Script(str(script)), 2).step
    (copied,) = [note for note in step.notes if note.startswith("copies between host and device")]
    assert copied.startswith(f"copies between host and device (1, {64 * 256 * 4:,} bytes)")
    assert not any("one after another" in note for note in step.notes)


def test_a_mesh_that_the_script_does_not_make_is_noted(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    notes = plan_world(Script(str(script)), 4, mesh="dp=2,tp=2").step.notes
    assert "no group of the script has the ranks of dp=2, tp=2 in --mesh: the plan is of the script's groups" in notes


def test_collectives_of_tensors_on_the_host_are_noted(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = SCRIPT.replace("optimizer = ", 'on_host = dist.new_group(backend="gloo")\noptimizer = ')
    script.write_text(
        text.replace(
            "    optimizer.step()\n", "    dist.all_reduce(torch.zeros(2), group=on_host)\n    optimizer.step()\n"
        )
    )
    notes = plan_world(Script(str(script)), 2).step.notes
    (said,) = [note for note in notes if note.startswith("collectives of tensors on the host")]
    assert said.startswith("collectives of tensors on the host (1 of 8 bytes, train.py:13)")
