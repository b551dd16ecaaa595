"""How many of numbers without values lie in a range."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)
BOUNDS = (0, 2_000, 10_000, 50_000)


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(HOPPER) as made:
        yield made


def parts(words: torch.Tensor) -> list[int]:
    """How many words lie in each of the ranges that follow one another."""
    masks = [(words >= low) & (words < high) for low, high in itertools.pairwise(BOUNDS)]
    counts = [mask.nonzero().shape[0] for mask in masks]
    assert counts == [words[mask].shape[0] for mask in masks] == [words.masked_select(mask).numel() for mask in masks]
    return counts


def drawn_in_place(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.long, device="cuda").random_(0, 50_000)


@pytest.mark.parametrize(
    "draws",
    [
        lambda size: torch.randint(50_000, (size,), device="cuda"),
        lambda size: torch.randint(0, 50_000, (2, size // 2 + 1), device="cuda").view(-1)[:size],
        lambda size: torch.randint_like(torch.zeros(size, device="cuda"), 0, 50_000).long(),
        drawn_in_place,
    ],
)
def test_numbers_that_are_drawn_are_spread_evenly_between_their_bounds(draws: Any, fake: FakeDevice) -> None:
    counts = parts(draws(2_240))
    assert sum(counts) == 2_240
    assert counts == pytest.approx([2_240 * share for share in (0.04, 0.16, 0.8)], abs=1)
    assert any(each.value.endswith("of numbers spread evenly from 0 to 49,999") for each in fake.tensors.stand_ins)


@pytest.mark.parametrize("size", [100, 30_001])
def test_numbers_of_the_host_are_spread_as_they_are_there(size: int, fake: FakeDevice) -> None:
    words = torch.arange(size) % 10 * 3_000  # none in the second half, a tenth in the first range
    counts = parts(words.reshape(1, -1).cuda()[0])
    assert sum(counts) == size and counts == pytest.approx([0.1 * size, 0.3 * size, 0.6 * size], rel=0.02)
    target = torch.empty(size, dtype=torch.long, device="cuda")
    target.copy_(words)
    assert parts(target) == counts


def test_of_numbers_that_nobody_knows_the_first_range_takes_all(fake: FakeDevice) -> None:
    words = torch.randn(64, 9, device="cuda").argsort(1)[:, 0]
    assert parts(words) == [64, 0, 0]
    assert (words > 3).nonzero().shape == (64, 1)
    assert (words.float() >= 3).nonzero().shape == (64, 1)


def test_what_is_written_to_is_not_spread_as_before(fake: FakeDevice) -> None:
    words = torch.randint(50_000, (64,), device="cuda")
    words.mul_(2)
    assert (words < 25_000).nonzero().shape == (64, 1)


def test_an_adaptive_softmax_trains(fake: FakeDevice) -> None:
    layer = nn.AdaptiveLogSoftmaxWithLoss(16, 50_000, [2_000, 10_000], device="cuda")
    rows = torch.randn(2_240, 16, device="cuda", requires_grad=True)
    loss = layer(rows, torch.randint(50_000, (2_240,), device="cuda")).loss
    loss.backward()
    assert rows.grad is not None and all(each.grad is not None for each in layer.parameters())
