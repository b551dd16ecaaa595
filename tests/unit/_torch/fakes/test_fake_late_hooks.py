"""Hooks of DDP's gradients that begin after many steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from torchledger.nouns import Collective, Device, Step, StepCall, WorldSpec
from torchledger.planning.dry_run import run_without_device
from torchledger.store import open_ledger

GPU = Device(name="a made-up device", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)
WIDTH = 256


def planned(
    folder: Path, state: Callable[[], Any], hook: Callable[..., Any], **options: Any
) -> tuple[Step, list[StepCall], list[Collective]]:
    """A step of DDP whose gradients go through a hook, in a world of four ranks."""

    def program() -> None:
        dist.init_process_group("nccl")
        inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).cuda()
        layers = DistributedDataParallel(inner, **options)
        layers.register_comm_hook(state(), hook)
        optimizer = torch.optim.SGD(layers.parameters(), 0.1)
        for _ in range(12):
            layers(torch.zeros(4, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    folder.mkdir(exist_ok=True)
    run_without_device(program, folder / "plan.ledger", GPU, world=WorldSpec(0, 4))
    with open_ledger(folder / "plan.ledger") as ledger:
        return ledger.read(Step)[0], list(ledger.read(StepCall)), list(ledger.read(Collective))


@pytest.mark.parametrize("first", [2, 1000])
def test_a_hook_that_begins_late_is_planned_as_it_is_from_then_on_and_that_is_said(tmp_path: Path, first: int) -> None:
    step, calls, collectives = planned(
        tmp_path, lambda: PowerSGDState(None, 4, start_powerSGD_iter=first, min_compression_rate=1), powerSGD_hook
    )
    assert sum(f"powerSGD_hook begins after {first:,} steps" in note for note in step.notes) == 1
    assert max(each.message_bytes or 0 for each in collectives) < WIDTH * WIDTH * 4 / 8
    assert not any(call.kind == "copy" for call in calls), "what it draws in its first step it keeps"


def test_a_hook_of_a_static_graph_begins_once_its_buckets_are_made_anew(tmp_path: Path) -> None:
    def state() -> PowerSGDState:
        return PowerSGDState(None, 4, start_powerSGD_iter=50, min_compression_rate=1)

    size = 2 * WIDTH * WIDTH * 4 / 2**20
    step, _, collectives = planned(tmp_path, state, powerSGD_hook, static_graph=True, bucket_cap_mb=size / 2)
    assert any("powerSGD_hook begins after 50 steps" in note for note in step.notes)
    assert max(each.message_bytes or 0 for each in collectives) < WIDTH * WIDTH * 4 / 8


def test_gradients_of_local_steps_are_reduced_over_their_own_group(tmp_path: Path) -> None:
    def state() -> PostLocalSGDState:
        group, _ = dist.new_subgroups(2)
        return PostLocalSGDState(None, group, start_localSGD_iter=100)

    step, _, collectives = planned(tmp_path, state, post_localSGD_hook)
    assert {each.ranks for each in collectives} == {(0, 1)}
    assert any("begins after 100 steps (start_localSGD_iter)" in note for note in step.notes)


def test_hooks_that_begin_at_once_stay_as_they_are(tmp_path: Path) -> None:
    step, _, collectives = planned(tmp_path, lambda: None, allreduce_hook)
    assert [each.message_bytes for each in collectives] == [2 * (WIDTH + 1) * WIDTH * 4]
    assert not any("begins after" in note for note in step.notes)
    state = PowerSGDState(None, 4, start_powerSGD_iter=10)
    state.iter = 20
    step, _, _ = planned(tmp_path / "resumed", lambda: state, powerSGD_hook)
    assert state.start_powerSGD_iter == 10
    assert not any("begins after" in note for note in step.notes)
