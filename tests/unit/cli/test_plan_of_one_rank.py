"""Scripts that make a process group of themselves alone, without a launcher."""

from __future__ import annotations

import json
from pathlib import Path

from tests.command_line import run_cli

SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl", init_method="tcp://localhost:0", world_size=1, rank=0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.rand(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_a_script_that_is_its_only_rank_is_planned_as_a_world_of_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = run_cli(tmp_path, "plan", "--device", "H200", "--json", "train.py")
    assert done.returncode == 0, done.stderr
    assert "makes a process group of one rank: planned with --world 1" in done.stderr
    assert json.loads(done.stdout)["ranks"] == 1
