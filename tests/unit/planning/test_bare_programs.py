"""Programs that call no module, no compiled graph and no optimizer."""

from __future__ import annotations

import pytest
import torch

from torchledger.errors import PlanError
from torchledger.planning.plan import plan_program

pytestmark = pytest.mark.usefixtures("no_optimizer_stays")

TURNS = 40


def test_a_model_of_plain_tensors_that_is_updated_by_hand_has_a_step() -> None:
    def program() -> None:
        weights = [torch.randn(16, 16, device="cuda", requires_grad=True) for _ in range(3)]
        for _ in range(TURNS):
            x = torch.randn(4, 16, device="cuda")
            for weight in weights:
                x = torch.tanh(x @ weight)
            for weight in weights:
                weight.grad = None
            x.sum().backward()
            with torch.no_grad():
                for weight in weights:
                    weight -= 0.1 * weight.grad  # type: ignore[operator]

    step = plan_program(program).step
    # A random batch, three products and their tanh, their sum; ones, three of tanh and five products, as the first
    # layer's input needs no gradient, backwards; three updates of two operators.
    assert step.launches == 1 + 6 + 1 + 1 + 3 + 5 + 6


def test_a_search_through_a_bank_piece_by_piece_is_a_step() -> None:
    def program() -> None:
        bank = torch.randn(1024, 16, device="cuda")
        for _ in range(TURNS):
            query = torch.randn(8, 16, device="cuda")
            best = torch.full((8, 4), -1.0, device="cuda")
            for piece in bank.split(256):
                scores = query @ piece.t()
                best = torch.cat([best, scores], 1).topk(4).values

    step = plan_program(program).step
    assert sum("a step is one turn of the loop" in note for note in step.notes) == 1
    assert step.launches >= 2 + 4 * 3


def test_products_that_inference_mode_leaves_whole_are_counted() -> None:
    made = 0

    def program() -> None:
        nonlocal made
        weights = [torch.randn(8, 8, device="cuda") for _ in range(10)]
        made = 0
        with torch.inference_mode():
            for _ in range(1000):
                x = torch.randn(4, 8, device="cuda")
                for weight in weights:
                    x = torch.nn.functional.linear(x, weight)
                made += 1

    assert plan_program(program).step.launches == 11
    assert made < 1000


def test_what_a_program_makes_before_its_model_is_no_step() -> None:
    def train() -> None:
        model = torch.nn.Linear(16, 16).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(TURNS):
            model(torch.randn(4, 16, device="cuda")).sum().backward()
            optimizer.step()

    def program() -> None:
        for _ in range(TURNS):
            torch.randn(16, 16, device="cuda") @ torch.randn(16, 16, device="cuda")
        train()

    assert plan_program(program).step.launches == plan_program(train).step.launches


@pytest.mark.parametrize(("turns", "runs"), [(0, 1), (1, 1), (2, 2)])
def test_a_program_without_a_step_runs_again_only_where_a_line_of_it_has_repeated(turns: int, runs: int) -> None:
    ran = []

    def program() -> None:
        ran.append(1)
        for _ in range(turns):
            torch.zeros(16, device="cuda").exp()

    with pytest.raises(PlanError, match="no step was recorded"):
        plan_program(program)
    assert len(ran) == runs


def test_where_no_lines_repeat_the_error_says_what_was_looked_for() -> None:
    def program() -> None:
        first = torch.randn(16, 16, device="cuda")
        (first @ first).sum()

    with pytest.raises(PlanError, match=r"calls no nn\.Module, compiled function or optimizer"):
        plan_program(program)
