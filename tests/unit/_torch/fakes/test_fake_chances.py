"""How much of a mask is true where random numbers, or a number that marks the rest, tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)

ROWS, COLUMNS = 8, 100


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(HOPPER) as device:
        yield device


def chosen(share: float = 0.15) -> torch.Tensor:
    return torch.rand(ROWS, COLUMNS, device="cuda") < share


def words() -> torch.Tensor:
    return torch.randint(5, 1000, (ROWS, COLUMNS), device="cuda")


def half() -> torch.Tensor:
    mask = torch.ones(ROWS, COLUMNS, dtype=torch.bool)
    mask[:, COLUMNS // 2 :] = False
    return mask.to("cuda")


def by_bernoulli() -> torch.Tensor:
    chances = torch.full((ROWS, COLUMNS), 0.15, device="cuda")
    chances.masked_fill_(words() == 0, value=0.0)
    return torch.bernoulli(chances).bool()


def by_labels() -> torch.Tensor:
    labels = words()
    labels[~chosen()] = -100
    return labels != -100


@pytest.mark.parametrize(
    ("mask", "count"),
    [
        (lambda: chosen() & half(), 60),
        (lambda: chosen() & (words() != 0), 120),
        (lambda: chosen() & chosen(0.5), 60),
        (lambda: chosen().logical_not(), 680),
        (lambda: chosen().logical_and_(half()), 60),
        (lambda: chosen() | chosen(0.5), 520),
        (lambda: chosen().logical_or_(chosen(0.5)), 520),
        (by_bernoulli, 120),
        (lambda: torch.rand(ROWS, COLUMNS, device="cuda") < torch.full((ROWS, COLUMNS), 0.15, device="cuda"), 120),
        (lambda: torch.empty(ROWS, COLUMNS, device="cuda").bernoulli_(0.15) == 1, None),
        (lambda: torch.where(chosen(), words(), -100) != -100, 120),
        (lambda: words().masked_fill(chosen(), -1) == -1, 120),
        (lambda: words().masked_fill_(chosen(), -1)[:, 1:] == -1, 119),
        (by_labels, 120),
    ],
)
def test_a_mask_takes_what_chance_leaves_of_it(
    fake: FakeDevice, mask: Callable[[], torch.Tensor], count: int | None
) -> None:
    taken = mask().nonzero().shape[0]
    assert taken == (ROWS * COLUMNS if count is None else count)


@pytest.mark.parametrize(
    "mask",
    [
        lambda: torch.where(chosen(), words(), -100) != -99,
        lambda: torch.where(words() > 7, words(), -100) != -100,
        lambda: torch.bernoulli(torch.full((ROWS, COLUMNS), 0.15, device="cuda").mul_(words() / 2)).bool(),
        lambda: (words().masked_fill_(chosen(), -1).add_(words())) == -1,
    ],
)
def test_of_what_nobody_knows_all_is_taken(fake: FakeDevice, mask: Callable[[], torch.Tensor]) -> None:
    assert mask().nonzero().shape[0] == ROWS * COLUMNS
