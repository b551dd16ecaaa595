"""Scripts that cannot be planned as they are: one sentence, with the line and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from synthetic import write_ledger
from torchledger.errors import LoneRankError, PlanError, TorchledgerError, UsageError
from torchledger.nouns import Device, WorldSpec
from torchledger.planning.dry_run import run_without_device, script_program
from torchledger.planning.plan import plan_program

GPU = Device(name="a made-up device", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)
SPAWNS = """
import torch, torch.multiprocessing as mp
def work(rank, width):
    layer = torch.nn.Linear(width, width).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(3):
        layer(torch.zeros(4, width, device=f"cuda:{rank}")).sum().backward()
        optimizer.step(); optimizer.zero_grad()
mp.spawn(work, args=(8,), nprocs=2)
"""

STARTS = (
    SPAWNS.partition("mp.spawn")[0]
    + """
processes = [mp.Process(target=work, args=(rank, 8)) for rank in range(2)]
for process in processes:
    process.start()
for process in processes:
    process.join()
"""
)


def plan(text: str, folder: Path, *arguments: str, world: WorldSpec | None = None) -> None:
    script = folder / "train.py"
    script.write_text(text)
    run_without_device(script_program(str(script), arguments), folder / "plan.ledger", GPU, world=world)


READS = "import torch\ntorch.rand(2, device='cuda').sum().item()"
WRITES = (
    "leaf = torch.nn.Parameter(torch.ones(2, device='cuda'))\n"
    "values = [torch.ones(2, device='cuda')]\n"
    "torch._foreach_copy_([leaf], values)"
)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("import no_such_tracker", PlanError, r"needs the module 'no_such_tracker' at .*train.py:1: install it here"),
        (
            "import torch\ntorch.load('/no/such.pt')",
            PlanError,
            r"reads /no/such.pt at .*train.py:2, which is not there",
        ),
        (
            "import socket\ntry:\n    raise socket.gaierror(-2, 'Name or service not known')\n"
            "except OSError as error:\n    raise RuntimeError('no data') from error",
            PlanError,
            r"fetches something over the network at .*train.py:5 .* have it on disk before",
        ),
        ("import ctypes\nctypes.CDLL('libmine.so.9')", PlanError, r"extension for CUDA at .*:2 \(`ctypes.CDLL"),
        ("raise ValueError('bad rate')", PlanError, r"train.py:1: ValueError: bad rate. No value .* it may fail so"),
        ("raise ValueError('no rate!')", PlanError, r"train.py:1: ValueError: no rate! No value .* it may fail so"),
        (f"{READS}\nraise ValueError('no rate!')", PlanError, r"train.py:3: .* no rate! If that comes of a value"),
        (f"{READS}\n{WRITES}", PlanError, r"train.py:5: RuntimeError: a leaf .* it may fail so on the device, too"),
        (
            "try:\n    {}['width']\nexcept KeyError as error:\n    raise RuntimeError('stage 0 failed:') from error",
            PlanError,
            r"train.py:4: RuntimeError: stage 0 failed, of KeyError: 'width'. No value",
        ),
        ("for each in range(3)\n    pass", PlanError, r"train.py:1 is not Python"),
        ("import os\nos.environ['LOCAL_RANK']", PlanError, r"train.py:2 which of how many ranks it is: .*--world N"),
        (
            "import torch.distributed as dist\ndist.init_process_group('nccl')",
            PlanError,
            r"train.py:2 which of how many ranks it is",
        ),
        (
            "import torch.distributed as dist\n"
            "dist.init_process_group('nccl', init_method='tcp://localhost:0', world_size=1, rank=0)",
            LoneRankError,
            r"train.py:2 which of how many ranks it is: .* which may be 1",
        ),
        ("import argparse\nargparse.ArgumentParser().parse_args()", UsageError, "did not take its arguments"),
        ("raise SystemExit('set DATA')", PlanError, r"ended itself \(set DATA\) before"),
        (
            "import torch\ntorch.nn.Linear(8, 8).to('cuda:1')",
            PlanError,
            r"tensor on cuda:1 at .*train.py:2, and the plan has 1 device on a node, .* --world 2\.",
        ),
        (
            "import torch\nrows = [torch.ones(n, 8, device='cuda') for n in (2, 3)]\n"
            "torch.nested.nested_tensor(rows, layout=torch.jagged)",
            PlanError,
            r"nested tensor of jagged layout at .*train.py:3, .* Plan the script with all rows in one plain tensor",
        ),
        (SPAWNS, UsageError, r"starts 2 processes, and the plan has 1 on a node. .* --world 2"),
        (STARTS, UsageError, r"starts 2 processes, and the plan has 1 on a node. .* --world 2"),
    ],
)
def test_a_script_is_told_the_line_and_what_to_do(
    text: str, kind: type[TorchledgerError], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(kind, match=said):
        plan(text, tmp_path, "--unknown")


@pytest.mark.parametrize("script", [SPAWNS, STARTS, STARTS.rpartition("for")[0]])
def test_the_rank_that_a_script_spawns_runs_in_its_place(script: str, tmp_path: Path) -> None:
    plan(script, tmp_path, world=WorldSpec(1, 2, 2))
    assert (tmp_path / "plan.ledger").exists()


def test_processes_that_are_no_ranks_are_started(tmp_path: Path) -> None:
    script = (
        "import multiprocessing, os, pathlib\n"
        "def work(folder):\n    pathlib.Path(folder, 'done').touch()\n"
        f"process = multiprocessing.get_context('fork').Process(target=work, args=({str(tmp_path)!r},))\n"
        "process.start(); process.join()\n"
    )
    with pytest.raises(PlanError, match="no step"):
        plan(script, tmp_path)
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize("text", ["raise ValueError('bad rate')", "import torch\ntorch.zeros(2, device='cuda').sum()"])
def test_a_plan_that_fails_leaves_no_ledger_and_replaces_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    earlier = write_ledger(tmp_path / "earlier.ledger", launches=1).read_bytes()
    for name, is_replaced in (("new", False), ("earlier", True)):
        with pytest.raises(PlanError):
            plan_program(
                script_program(str(tmp_path / "train.py"), ()),
                output=tmp_path / f"{name}.ledger",
                force=is_replaced,
            )
    assert (tmp_path / "earlier.ledger").read_bytes() == earlier
    assert sorted(path.name for path in tmp_path.iterdir()) == ["earlier.ledger", "train.py"]
