"""Gradients that autograd adds in place once nobody listens."""

from __future__ import annotations

from typing import Any

from torchledger._torch.storages import StorageLife
from torchledger.memory.gradient_sums import summed_in_place


def life(**changes: Any) -> StorageLife:
    return StorageLife(**{"nbytes": 100, "device": "cpu"} | changes)


def test_the_sum_of_two_gradients_is_the_one_that_ends_and_not_a_third() -> None:
    first = life(born=1, born_in=1, freed=5, freed_in=3, uses=(3,))
    second = life(born=2, born_in=2, freed=6, freed_in=3, uses=(3,))
    total = life(born=3, born_in=3, freed=9, freed_in=7, uses=(5, 7), owner="gradient", name="weight")
    found = summed_in_place([first, second, total], {3})
    assert found == [
        life(born=1, born_in=1, freed=9, freed_in=7, uses=(3, 5, 7), owner="gradient", name="weight"),
        second,
    ]


def test_a_sum_of_sums_stays_in_the_first_gradient() -> None:
    first = life(born=1, born_in=1, freed=5, freed_in=3, uses=(3,))
    others = [life(born=2, born_in=2, freed=6, freed_in=3, uses=(3,)), life(born=7, born_in=4, freed=20, uses=(5,))]
    totals = [life(born=4, born_in=3, freed=9, freed_in=5, uses=(5,)), life(born=8, born_in=5, freed=30, freed_in=9)]
    found = summed_in_place([first, *others, *totals], {3, 5})
    assert [(each.born, each.freed) for each in found] == [(1, 30), (2, 6), (7, 20)]


def test_a_sum_whose_operands_stay_is_a_storage_of_its_own() -> None:
    lives = [life(uses=(3,)), life(born=2, born_in=2, uses=(3,)), life(born=3, born_in=3)]
    assert summed_in_place(lives, {3}) == lives
    assert summed_in_place(lives, set()) == lives
