"""The price of a world's step: what is said of it beside its numbers."""

from __future__ import annotations

from pathlib import Path

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
