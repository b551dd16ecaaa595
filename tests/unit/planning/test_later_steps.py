"""What steps behind the recorded one do otherwise, which its price lacks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.factories import make_step_call
from torch import nn

from torchledger.nouns import PlannedStep, RarerStep
from torchledger.planning.later_steps import LaterSteps
from torchledger.planning.plan import plan_program

pytestmark = pytest.mark.usefixtures("no_optimizer_stays")


def planned(beside: Callable[[int, nn.Module], object], *, turns: int = 30) -> PlannedStep:
    """The plan of a program that trains, and does something ``beside`` in each turn."""

    def program() -> None:
        model = nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for turn in range(turns):
            optimizer.zero_grad()
            model(torch.randn(64 + turn, 64, device="cuda")).sum().backward()
            optimizer.step()
            beside(turn, model)

    return plan_program(program).step


def refresh() -> None:
    matrix = torch.zeros(4096, 4096, device="cuda")
    for _ in range(8):
        matrix = matrix @ matrix


def test_what_each_fifth_step_does_beside_is_priced_and_said_and_the_step_stays_the_usual_one() -> None:
    step = planned(lambda turn, model: refresh() if turn % 5 == 0 else None)
    usual = planned(lambda turn, model: None)
    (rarer,) = step.rarer
    assert rarer.every == 5 and rarer.operator == "aten::mm" and str(rarer.source).startswith("test_later_steps.py:")
    assert step.duration_us == pytest.approx(usual.duration_us, rel=0.05)
    assert step.mean_us == pytest.approx(step.duration_us + rarer.more_us / 5)
    assert step.notes[0].startswith("every 5th step also does aten::mm and the like (test_later_steps.py:")


def test_steps_whose_work_grows_are_told_in_one_sentence() -> None:
    def solve(turn: int) -> None:
        matrix = torch.zeros(4096, 4096, device="cuda")
        for _ in range(turn):
            matrix = matrix @ matrix

    step = planned(lambda turn, model: solve(turn))
    assert len(step.rarer) > 3 and step.notes[0].count("aten::mm") == 1
    assert step.notes[0].startswith("steps do more from one to the next (aten::mm and the like, test_later_steps.py:")
    assert "and later ones may take more" in step.notes[0]


def test_an_evaluation_in_inference_mode_between_steps_is_said_with_the_line_that_asks_for_it() -> None:
    @torch.inference_mode()
    def evaluate(model: nn.Module) -> None:
        for _ in range(50):
            model(torch.randn(8192, 64, device="cuda"))

    step = planned(lambda turn, model: evaluate(model) if turn % 8 == 7 else None)
    assert step.rarer[0].every == 8 and step.rarer[0].more_us > 0


def test_steps_that_something_free_tells_apart_are_of_one_kind() -> None:
    def beside(turn: int, model: nn.Module) -> None:
        if turn % 4 == 0:
            refresh()
        if turn % 8 == 0:
            model.weight.detach().view(-1)  # type: ignore[operator,union-attr]

    (rarer,) = planned(beside).rarer
    assert rarer.every == 4


def test_what_was_seen_once_is_said_to_have_been() -> None:
    step = planned(lambda turn, model: refresh() if turn == 9 else None, turns=14)
    assert step.rarer[0].every is None and step.notes[0].startswith("a step of ")


def test_steps_of_other_sizes_that_make_the_same_calls_are_no_rarer_ones() -> None:
    assert planned(lambda turn, model: None).rarer == ()


def test_what_hardly_changes_the_mean_is_not_said() -> None:
    assert planned(lambda turn, model: torch.zeros(8, device="cuda") if turn == 9 else None).rarer == ()


def test_a_recorded_step_that_does_more_than_the_others_is_said_to() -> None:
    step = planned(lambda turn, model: refresh() if turn < 6 else None)
    (rarer,) = step.rarer
    assert rarer.more_us < 0 and "seen do without aten::mm" in step.notes[0]


@pytest.mark.parametrize(
    ("places", "every"), [((4, 10), 6), ((4,), None), ((1, 2, 3), None), ((4, 10, 15), None), ((9, 11), None)]
)
def test_a_period_is_known_of_steps_that_come_evenly_all_the_time(places: tuple[int, ...], every: int | None) -> None:
    assert RarerStep(places, 16).every == every


def test_calls_that_stand_in_the_recorded_step_alone_are_lacked() -> None:
    def step_of(later: LaterSteps, count: int) -> None:
        later.step_begins()
        for _ in range(count):
            later.graph_begins("graph", ())

    later = LaterSteps(lambda: False, lambda compiled: str(compiled))
    step_of(later, 2)
    later.recorded()
    for count in (2, 2, 1):
        step_of(later, count)
        later.step_ended()
    recorded = [make_step_call(order=order, kind="graph", name="graph") for order in range(2)]
    as_calls = lambda called: [make_step_call(kind="graph", name=each) for each in called]  # noqa: E731
    (rarer,) = later.rarer(recorded, as_calls)
    assert rarer.places == (3,) and rarer.seen == 4 and rarer.calls == () and len(rarer.lacks) == 1
