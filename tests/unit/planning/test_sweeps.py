"""Steps that stand in a loop over sizes, of which one is priced."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from torchledger.nouns import PlannedStep
from torchledger.planning.plan import plan_program

pytestmark = pytest.mark.usefixtures("no_optimizer_stays")

TURNS = 40


def sweeps_of(step: PlannedStep) -> list[str]:
    return [note for note in step.notes if note.startswith("the step is of one turn")]


def trained(sizes: Sequence[object]) -> PlannedStep:
    def program() -> None:
        model = nn.Linear(32, 32).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for size in sizes:  # noqa: B007
            for _ in range(TURNS):
                optimizer.zero_grad()
                model(torch.randn(4, 32, device="cuda")).sum().backward()
                optimizer.step()

    return plan_program(program).step


def test_the_first_of_several_sizes_is_said_to_be_priced() -> None:
    (note,) = sweeps_of(trained([8, 16, 64]))
    assert "that with size = 8 of 8, 16, 64;" in note


@pytest.mark.parametrize("counted", [[0, 1, 2], [8], [1e-3, 1e-4], ["train", "val"], range(1, 5)])
def test_turns_that_are_counted_or_named_are_of_no_sizes(counted: Sequence[object]) -> None:
    assert sweeps_of(trained(counted)) == []


def test_calls_in_a_function_that_is_given_a_size_are_of_the_loop_around_it() -> None:
    def bench(made: nn.Module, size: int) -> None:
        for _ in range(TURNS):
            made(torch.randn(size, 32, device="cuda"))

    def program() -> None:
        made = nn.Linear(32, 32).cuda()
        with torch.no_grad():
            for size in (4, 16):
                bench(made, size)

    (note,) = sweeps_of(plan_program(program).step)
    assert "that with size = 4 of 4, 16;" in note


def test_a_loop_over_sizes_that_makes_the_step_itself_is_no_loop_around_it() -> None:
    def program() -> None:
        model = nn.Linear(32, 32).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(TURNS):
            for size in (8, 16):
                optimizer.zero_grad()
                model(torch.randn(size, 32, device="cuda")).sum().backward()
                optimizer.step()

    assert sweeps_of(plan_program(program).step) == []
