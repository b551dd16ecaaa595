"""One rank of a world that runs without its device. Nothing here compiles."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchledger.nouns import Collective, Device, WorldSpec
from torchledger.planning.dry_run import run_without_device
from torchledger.store import open_ledger

GPU = Device(name="a made-up device", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


def test_a_reducer_that_looks_for_unused_parameters_tells_the_others_which_were_used(tmp_path: Path) -> None:
    def program() -> None:
        dist.init_process_group("nccl")
        layers = DistributedDataParallel(nn.Linear(8, 8).cuda(), find_unused_parameters=True)
        optimizer = torch.optim.SGD(layers.parameters(), 0.1)
        for _ in range(8):
            layers(torch.zeros(4, 8, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2))
    with open_ledger(tmp_path / "plan.ledger") as ledger:
        found = [(each.operation, each.message_bytes) for each in ledger.read(Collective)]
    used, gradients = 2 * 4, (8 * 8 + 8) * 4
    assert sorted(found) == [("all_reduce", used), ("all_reduce", gradients)]


def test_an_operator_of_others_that_arrives_whole_is_taken_apart(tmp_path: Path) -> None:
    """As those do that distributed tensors call, which have left autograd behind."""
    seen: list[torch.device] = []

    def program() -> None:
        with torch._C._AutoDispatchBelowAutograd():
            seen.append(torch.zeros(4, dtype=torch.uint8).to("cuda").device)
        layer = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        for _ in range(8):
            layer(torch.zeros(4, 8, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    run_without_device(program, tmp_path / "plan.ledger", GPU)
    assert [device.type for device in seen] == ["cuda"]
