"""Four processes on one machine, as a user starts them: one rank sleeps, and the job says which, where and how long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import run_cli

from torchledger.jobs.read import read_job
from torchledger.nouns import Profile
from torchledger.store import open_ledger

SLEEP_MS = 150
SCRIPT = f"""
import os, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        return self.layer(x).relu()


net = DistributedDataParallel(Net())
compiled = torch.compile(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
inputs = torch.randn(8, 16)
for _ in range(20):
    loss = compiled(inputs).sum()
    if dist.get_rank() == 2:
        time.sleep({SLEEP_MS / 1e3})
    loss.backward()
    optimizer.step()
dist.barrier()
if dist.get_rank() == 3:
    os._exit(0)
dist.destroy_process_group()
"""
PARAMETERS = 16 * 16 + 16


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    (folder / "train.py").write_text(SCRIPT)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "train.py")
    result = run_cli(folder, "run", "--profile", "-o", "j.job", *launcher)  # j.ledger names the same job
    assert result.returncode == 0, result.stderr
    assert "j.job" in result.stderr
    return folder


@pytest.fixture(scope="module")
def shown(job: Path) -> dict[str, Any]:
    result = run_cli(job, "show", "j.job", "--json")
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_launchers_own_ledger_is_not_there_and_each_ranks_is(job: Path) -> None:
    assert not list(job.glob("*.ledger"))
    assert sorted(path.name for path in (job / "j.job").glob("*.ledger")) == [f"rank{rank}.ledger" for rank in range(4)]


def test_a_rank_that_ends_without_a_word_has_left_what_it_recorded(job: Path) -> None:
    found = read_job(job / "j.job")
    assert [rank.rank for rank in found.ranks] == [0, 1, 2, 3]
    with open_ledger(job / "j.job" / "rank3.ledger") as ledger:
        assert ledger.run().status == "running" and ledger.count(Profile)


def test_collectives_of_every_step_are_those_of_the_reducer(shown: dict[str, Any]) -> None:
    steps = shown["collectives"]
    assert len(steps) == 3
    for collectives in steps:
        assert {each["operation"] for each in collectives} == {"all_reduce"}
        assert {each["group_size"] for each in collectives} == {4}
        assert sum(each["bytes"] for each in collectives) == 4 * PARAMETERS


def test_the_rank_that_sleeps_is_named_with_its_line_and_its_cost(shown: dict[str, Any]) -> None:
    straggler = shown["stragglers"][0]
    assert straggler["rank"] == 2
    assert "train.py:26" in straggler["where"]
    assert straggler["cost_us"] == pytest.approx(SLEEP_MS * 1e3, rel=0.1)


def test_every_wait_has_a_cause_and_the_sums_fill_each_ranks_step(job: Path) -> None:
    found = read_job(job / "j.job")
    assert not found.unmatched
    assert all(match.cause for match in found.collectives if max(match.waited_us) > 1000)
    for rank in found.ranks:
        assert rank.compute_us + rank.exposed_us + rank.idle_us == pytest.approx(rank.wall_us)
