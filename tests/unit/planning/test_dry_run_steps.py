"""Where the steps of programs that run without their device end, and what is said of what is around them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from torchledger.errors import PlanError
from torchledger.nouns import Device, Step, StepCall
from torchledger.planning.dry_run import DryRunOutcome, run_without_device
from torchledger.store import open_ledger

H200 = Device(name="NVIDIA H200", kind="cuda", compute_capability=(9, 0), total_memory_bytes=141 * 10**9)


def read(outcome: DryRunOutcome) -> tuple[Step, list[StepCall]]:
    with open_ledger(outcome.path) as reader:
        (step,) = reader.read(Step)
        return step, list(reader.read(StepCall))


def updated_in_backward(model: nn.Module) -> None:
    """Each parameter has an optimizer, which steps once its gradient is there."""
    optimizers = {parameter: torch.optim.SGD([parameter], 0.1) for parameter in model.parameters()}

    def update(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)


@pytest.mark.parametrize("layers", [2, 15])
def test_a_step_whose_optimizers_step_inside_its_backward_ends_with_the_last_of_them(
    tmp_path: Path, layers: int
) -> None:
    def program() -> None:
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers))).cuda()
        updated_in_backward(model)
        for _ in range(6):
            model(torch.randn(4, 8, device="cuda")).sum().backward()

    step, calls = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    assert step.found_by == "optimizer"
    assert sum(each.phase == "optimizer" and each.name == "aten::_foreach_add_" for each in calls) == 2 * layers
    assert sum(each.phase == "forward" and each.name == "aten::addmm" for each in calls) == layers
    assert [kind.calls for kind in step.kinds] == [{"SGD.step": 2 * layers}]


def test_an_optimizer_that_steps_behind_such_a_backward_belongs_to_the_step(tmp_path: Path) -> None:
    def program() -> None:
        body, head = nn.Linear(8, 8).cuda(), nn.Linear(8, 2).cuda()
        updated_in_backward(body)
        optimizer = torch.optim.Adam(head.parameters())
        for _ in range(6):
            head(body(torch.randn(4, 8, device="cuda"))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    step, calls = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    assert {kind.calls["SGD.step"] for kind in step.kinds} == {2}
    assert {kind.calls["Adam.step"] for kind in step.kinds} == {1}
    assert sum(each.name == "aten::addmm" for each in calls) == 2


def test_a_program_that_calls_no_module_behind_such_a_backward_is_told_how_to_end_its_steps(tmp_path: Path) -> None:
    def program() -> None:
        weight = nn.Parameter(torch.zeros(8, 8, device="cuda"))
        optimizer = torch.optim.SGD([weight], 0.1)
        weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
        for _ in range(6):
            (torch.randn(4, 8, device="cuda") @ weight).sum().backward()

    with pytest.raises(PlanError, match=r"call torchledger\.step\(\) there"):
        run_without_device(program, tmp_path / "plan.ledger", H200)


def learning(rollout: int, updates: int, turns: int = 3) -> Callable[[], None]:
    """Each turn acts without gradients ``rollout`` times, and updates its network so many times."""

    def program() -> None:
        network = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda()
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        for _ in range(turns):
            state = torch.randn(4, 8, device="cuda")
            with torch.no_grad():
                for _ in range(rollout):
                    state = network(state)
            for _ in range(updates):
                network(state).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    return program


def test_work_between_the_steps_of_an_optimizer_is_said_not_to_be_in_the_price(tmp_path: Path) -> None:
    step, calls = read(run_without_device(learning(40, 6), tmp_path / "plan.ledger", H200))
    assert sum(each.name == "aten::addmm" for each in calls) == 1
    assert [note for note in step.notes if "not in the price: for each of its steps the program calls" in note]


def test_work_that_did_not_come_again_is_said_to_have_come_before_the_first_step(tmp_path: Path) -> None:
    step, _ = read(run_without_device(learning(40, 9, turns=1), tmp_path / "plan.ledger", H200))
    assert [note for note in step.notes if "none as long came again" in note]


@pytest.mark.parametrize(("rollout", "updates"), [(0, 4), (40, 1)])
def test_a_step_that_holds_all_of_its_turn_is_said_to_lack_nothing(tmp_path: Path, rollout: int, updates: int) -> None:
    step, _ = read(run_without_device(learning(rollout, updates, turns=6), tmp_path / "plan.ledger", H200))
    assert not [note for note in step.notes if "outside the recorded step" in note]
