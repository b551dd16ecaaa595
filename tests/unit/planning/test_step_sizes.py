"""Whether steps compute as much as the one that is priced."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from torchledger.planning.plan import plan_program
from torchledger.planning.step_sizes import StepSizes

pytestmark = pytest.mark.usefixtures("no_optimizer_stays")


def steps_of(sizes: Sequence[tuple[int, int]]) -> StepSizes:
    """Steps of so many calls that make so many elements each, the second of which is recorded."""
    steps = StepSizes()
    for place, (calls, elements) in enumerate(sizes):
        steps.model_called()
        for _ in range(calls):
            steps.called(None, (), {}, torch.empty(elements))
        steps.optimizer_begins()
        steps.optimizer_stepped()
        if place == 1:
            steps.hearing_ended()
    return steps


def test_steps_of_one_size_are_no_news() -> None:
    steps = steps_of([(5, 100), (5, 100), (5, 105)])
    assert not steps.may_differ and steps.note() is None


def test_what_a_sparse_tensor_does_not_hold_counts_for_nothing() -> None:
    steps = steps_of([(5, 100), (5, 100)])
    for made in (torch.eye(1000).to_sparse(), torch.eye(1000).to_sparse_csr()):
        steps.model_called()
        for each in (*[torch.empty(100)] * 5, made):
            steps.called(None, (), {}, each)
        steps.optimizer_begins()
        steps.optimizer_stepped()
    assert not steps.may_differ and steps.note() is None


def test_the_note_says_how_far_others_are_and_what_they_are_in_the_mean() -> None:
    note = steps_of([(5, 100), (5, 100), (5, 400)]).note()
    assert note is not None and "the 2 seen make 1.00 to 4.00 times" in note and "2.50 in the mean" in note


def test_steps_with_an_evaluation_before_them_are_not_among_them() -> None:
    assert not steps_of([(50, 100), (5, 100), (5, 100)]).may_differ


def test_what_another_thread_computes_meanwhile_is_no_part_of_a_step() -> None:
    steps = StepSizes()
    for served in (0, 1000, 0):
        steps.model_called()
        steps.called(None, (), {}, torch.empty(100))
        serving = threading.Thread(target=steps.called, args=(None, (), {}, torch.empty(served)))
        serving.start()
        serving.join()
        steps.optimizer_begins()
        steps.optimizer_stepped()
        steps.hearing_ended()
    assert not steps.may_differ and steps.note() is None


def test_a_first_step_that_warms_up_is_no_news_but_a_reason_to_look_on() -> None:
    steps = steps_of([(5, 300), (5, 100), (5, 100)])
    assert steps.may_differ and steps.note() is None


def test_nothing_is_said_before_a_step_is_recorded() -> None:
    assert steps_of([(5, 100)]).note() is None


@pytest.mark.parametrize("sizes", [(16, 64), (64, 16)])
def test_a_plan_says_that_batches_differ_whichever_of_them_it_has_recorded(sizes: tuple[int, int]) -> None:
    def program() -> None:
        model = nn.Linear(32, 32).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for turn in range(40):
            optimizer.zero_grad()
            model(torch.randn(sizes[turn % 2], 32, device="cuda")).sum().backward()
            optimizer.step()

    assert any(note.startswith("steps differ in size") for note in plan_program(program).step.notes)
