"""Turns of a loop around calls that nothing updates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import nn

from torchledger.nouns import PlannedStep
from torchledger.planning.plan import plan_program

pytestmark = pytest.mark.usefixtures("no_optimizer_stays")

CALLS, TURNS, WIDTH = 5, 40, 64


def planned(program: Callable[[nn.Module], None]) -> PlannedStep:
    def run() -> None:
        with torch.no_grad():
            program(nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)]).cuda())

    return plan_program(run).step


def note_of(step: PlannedStep) -> str:
    return next((note for note in step.notes if note.startswith("a step is one turn")), "")


def test_a_prefill_and_its_decodes_are_a_turn() -> None:
    def program(model: nn.Module) -> None:
        for _ in range(TURNS):
            token = model(torch.randn(8, 16, WIDTH, device="cuda"))[:, -1]
            for _ in range(CALLS):
                token = model(token)

    step = planned(program)
    assert f": {CALLS} calls at test_turns_of_calls.py:" in note_of(step)
    assert step.launches == 4 * (CALLS + 1) + 1


def test_batches_with_little_beside_them_are_steps() -> None:
    def program(model: nn.Module) -> None:
        for _ in range(TURNS):
            total = torch.zeros((), device="cuda")
            for _ in range(CALLS):
                total = total + model(torch.randn(8, WIDTH, device="cuda")).sum()

    assert note_of(planned(program)) == ""


def test_a_sampler_in_a_function_of_its_own_is_a_turn_although_nothing_stands_beside_its_calls() -> None:
    def program(model: nn.Module) -> None:
        def sample() -> torch.Tensor:
            x = torch.randn(8, WIDTH, device="cuda")
            for time in range(CALLS):
                noise = model(x)
                x = x - noise / (time + 1)
            return x

        for _ in range(TURNS):
            sample()

    step = planned(program)
    assert f": {CALLS} calls at test_turns_of_calls.py:" in note_of(step)
    assert step.launches == (4 + 2) * CALLS + 1


def test_turns_that_go_on_from_each_other_are_parts_of_a_turn_of_the_loop_around() -> None:
    """Rounds of drafts and one longer call are turns by themselves until the requests around them are seen."""

    def program(model: nn.Module) -> None:
        def request() -> torch.Tensor:
            token = model(torch.randn(8, 16, WIDTH, device="cuda"))[:, -1]
            for _ in range(3):
                drafted = token
                for _ in range(CALLS):
                    drafted = model(drafted)
                token = model(torch.stack([token, drafted]))[0]
            return token

        for _ in range(TURNS):
            request()

    step = planned(program)
    assert f": {1 + 3 * (CALLS + 1)} calls at test_turns_of_calls.py:" in note_of(step)
    assert step.launches == 1 + 4 + 3 * (4 * (CALLS + 1) + 1)


def test_updates_by_hand_that_go_on_from_each_other_are_steps() -> None:
    def run() -> None:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        weights: Mapping[str, torch.Tensor] = dict(model.named_parameters())

        def epoch(weights: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
            for _ in range(CALLS):
                out = torch.func.functional_call(model, dict(weights), torch.randn(8, WIDTH, device="cuda"))
                gradients = torch.autograd.grad(out.sum(), list(weights.values()))
                pairs = zip(weights.items(), gradients, strict=True)
                weights = {name: (weight - 0.1 * each).detach().requires_grad_() for (name, weight), each in pairs}
            return weights

        for _ in range(TURNS):
            weights = epoch(weights)

    assert note_of(plan_program(run).step) == ""


def test_turns_that_are_not_alike_are_none() -> None:
    def program(model: nn.Module) -> None:
        for turn in range(TURNS):
            token = model(torch.randn(8, 16, WIDTH, device="cuda"))[:, -1]
            for _ in range(2 + turn % 5):
                token = model(token)

    assert note_of(planned(program)) == ""


def test_what_a_function_held_that_was_watched_is_let_go_when_it_returns() -> None:
    def draw(model: nn.Module) -> torch.Tensor:
        held = torch.zeros(1 << 26, device="cuda")
        token = model(torch.randn(8, 16, WIDTH, device="cuda"))[:, -1]
        for _ in range(CALLS):
            token = model(token) + held[0]
        return token

    def program(model: nn.Module) -> None:
        for _ in range(TURNS):
            draw(model)

    peak = planned(program).peak_allocated_bytes
    assert peak is not None and peak < 1.5 * 4 * (1 << 26)


def test_calls_that_keep_gradients_for_an_optimizer_are_a_part_of_its_step() -> None:
    def run() -> None:
        cell = nn.Linear(WIDTH, WIDTH).cuda()
        optimizer = torch.optim.SGD(cell.parameters(), 0.1)
        for _ in range(5):
            total = torch.zeros((), device="cuda")
            for _ in range(12):
                hidden = cell(torch.randn(8, 16, WIDTH, device="cuda"))[:, -1]
                for _ in range(8):
                    hidden = cell(hidden)
                total = total + hidden.sum()
            total.backward()
            optimizer.step()

    step = plan_program(run).step
    assert note_of(step) == "" and step.launches > 2 * 12 * 9


def test_a_functional_decoder_is_said_to_turn_in_the_loop_over_its_tokens_for_its_batch_size() -> None:
    """A function of its own runs the loop over layers, and returns with each token: the generation goes on."""
    loops: list[int] = []

    def program() -> None:
        layers = [torch.randn(WIDTH, WIDTH, device="cuda") for _ in range(4)]

        def forward(x: torch.Tensor) -> torch.Tensor:
            for layer in layers:
                x = torch.relu(x)
                x = x @ layer
            return x

        def generate(x: torch.Tensor, length: int) -> torch.Tensor:
            loops.append(sys._getframe().f_lineno + 1)
            for _ in range(length):
                token = torch.softmax(x, -1)
                x = forward(token)
            return x

        with torch.inference_mode():
            for size in (8, 16, 32):
                x = torch.randn(size, WIDTH, device="cuda")
                generate(x, 600)

    step = plan_program(program).step
    assert note_of(step).startswith(f"a step is one turn of the loop at test_turns_of_calls.py:{loops[0]}: ")
    assert any("that with size = 8 of 8, 16, 32" in note for note in step.notes)
    assert step.launches == 4 * 2 + 1
