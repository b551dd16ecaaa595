"""Fused optimizers whose step is compiled, on torch itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from torchledger._torch.optimizers import OptimizerWatch


@pytest.fixture
def heard() -> Iterator[tuple[list[Any], OptimizerWatch]]:
    torch._dynamo.reset()
    torch.compile(nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))  # Dynamo has been asked for something
    steps: list[Any] = []
    faults: list[Exception] = []
    watch = OptimizerWatch(steps.append, faults.append)
    watch.hear_fused()
    yield steps, watch
    watch.undo()
    assert faults == []


def train(optimizer: torch.optim.Optimizer, step: Callable[[], Any], times: int = 1) -> None:
    for _ in range(times):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        step()


def two_groups(**options: Any) -> torch.optim.Optimizer:
    first, second = nn.Linear(4, 4), nn.Linear(4, 2)
    return torch.optim.AdamW([{"params": first.parameters()}, {"params": second.parameters()}], **options)


def test_a_compiled_step_of_a_fused_optimizer_is_heard_once_whatever_groups_it_has(
    heard: tuple[list[Any], OptimizerWatch],
) -> None:
    steps, _ = heard
    optimizers = [two_groups(fused=True), torch.optim.SGD(nn.Linear(4, 4).parameters(), fused=True)]
    for optimizer in optimizers:
        train(optimizer, torch.compile(optimizer.step, backend="eager"), times=3)
    assert steps == [optimizers[0]] * 3 + [optimizers[1]] * 3


def test_an_eager_step_of_a_fused_optimizer_is_heard_by_its_hook_alone(
    heard: tuple[list[Any], OptimizerWatch],
) -> None:
    steps, _ = heard
    optimizer = two_groups(fused=True)
    train(optimizer, optimizer.step, times=2)
    assert steps == [optimizer] * 2


def test_a_group_without_gradients_behind_the_updated_one_does_not_hide_the_step(
    heard: tuple[list[Any], OptimizerWatch],
) -> None:
    steps, _ = heard
    optimizer = two_groups(fused=True)
    step = torch.compile(optimizer.step, backend="eager")
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    step()
    assert steps == [optimizer]


def test_compiled_fused_steps_are_counted_once_nobody_hears_them(heard: tuple[list[Any], OptimizerWatch]) -> None:
    steps, watch = heard
    optimizer = two_groups(fused=True)
    step = torch.compile(optimizer.step, backend="eager")
    train(optimizer, step)
    watch.only_count()
    train(optimizer, step, times=2)
    assert len(steps) == 1 and list(watch.counted.values()) == [2]


def test_the_updates_are_torchs_own_again_afterwards() -> None:
    torch.compile(nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))
    held = sys.modules["torch.optim.adam"]._fused_adam
    watch = OptimizerWatch(lambda _: None, lambda _: None)
    watch.hear_fused()
    assert sys.modules["torch.optim.adam"]._fused_adam is not held
    watch.undo()
    assert sys.modules["torch.optim.adam"]._fused_adam is held
