"""Rounds of several optimizers, and the turns of a loop that they take."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchledger.nouns import PlannedStep
from torchledger.planning.plan import plan_program

pytestmark = pytest.mark.usefixtures("no_optimizer_stays")

TURNS = 40


def pair() -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
    models: list[nn.Module] = [nn.Linear(16, 16).cuda() for _ in range(2)]
    return models, [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 16, device="cuda")).sum().backward()
    optimizer.step()


def notes_of(step: PlannedStep) -> list[str]:
    return [note for note in step.notes if note.startswith("a step is one round")]


def test_tasks_that_take_turns_at_one_line_are_a_step_of_two_turns() -> None:
    def program() -> None:
        models, optimizers = pair()
        for turn in range(TURNS):
            train(models[turn % 2], optimizers[turn % 2])

    (note,) = notes_of(plan_program(program).step)
    assert "one round of 2 optimizers' steps, which takes 2 turns of the loop at test_optimizer_rounds.py:" in note


def test_branches_that_take_turns_are_a_step_of_two_turns() -> None:
    def program() -> None:
        models, optimizers = pair()
        for turn in range(TURNS):
            optimizers[turn % 2].zero_grad()
            models[turn % 2](torch.randn(4, 16, device="cuda")).sum().backward()
            if turn % 2:
                optimizers[1].step()
            else:
                optimizers[0].step()

    assert len(notes_of(plan_program(program).step)) == 1


@pytest.mark.parametrize("critics", [2, 5])
def test_several_steps_of_one_to_one_of_another_are_a_turn_of_the_outer_loop(critics: int) -> None:
    def program() -> None:
        (first, second), (one, other) = pair()
        for _ in range(TURNS):
            for _ in range(critics):
                train(first, one)
            train(second, other)

    (note,) = notes_of(plan_program(program).step)
    assert f"one round of {critics + 1} optimizers' steps: one turn of the loop at test_optimizer_rounds.py:" in note
    assert f"makes {critics};" in note


def test_a_step_in_some_turns_alone_is_a_round_of_as_many_turns() -> None:
    def program() -> None:
        (first, second), (one, other) = pair()
        for turn in range(TURNS):
            train(first, one)
            if turn % 4 == 3:
                train(second, other)

    (note,) = notes_of(plan_program(program).step)
    assert "one round of 5 optimizers' steps, which takes 4 turns of the loop" in note


def test_two_updates_of_one_turn_need_no_note() -> None:
    def program() -> None:
        (first, second), (one, other) = pair()
        for _ in range(TURNS):
            train(first, one)
            train(second, other)

    assert notes_of(plan_program(program).step) == []


def test_optimizers_that_step_in_a_loop_of_their_own_need_no_note() -> None:
    def program() -> None:
        (first, second), optimizers = pair()
        for _ in range(TURNS):
            second(first(torch.randn(4, 16, device="cuda"))).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    assert notes_of(plan_program(program).step) == []
