"""Collectives that the recorded step lacks: local SGD averages parameters every so many steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch import nn

from torchledger.nouns import Device, DryRun, MadeGroup, RareCollective, Step, WorldSpec
from torchledger.planning import step_hearing
from torchledger.planning.dry_run import run_without_device
from torchledger.planning.fabric import shipped_fabrics
from torchledger.planning.rare_collectives import rare_note
from torchledger.store import open_ledger

GPU = Device(name="a made-up device", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


def _outcome(path: Path, every: int, in_each: Callable[[torch.Tensor], object] = lambda loss: None) -> DryRun:
    def program() -> None:
        dist.init_process_group("nccl")
        layer = nn.Linear(8, 8).cuda()
        for parameter in layer.parameters():
            dist.broadcast(parameter.data, 0)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        for step in range(1, 200):
            loss = layer(torch.zeros(4, 8, device="cuda")).sum()
            loss.backward()
            in_each(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
            if step % every == 0:
                for parameter in layer.parameters():
                    dist.all_reduce(parameter.data)

    return run_without_device(program, path / "plan.ledger", GPU, force=True, world=WorldSpec(0, 2)).dry_run


def test_what_rarer_steps_exchange_is_looked_for_behind_a_step_without_a_collective(tmp_path: Path) -> None:
    found = _outcome(tmp_path, 12)
    assert [(each.operation, each.message_bytes) for each in found.rare] == [
        ("all_reduce", 8 * 8 * 4),
        ("all_reduce", 8 * 4),
    ]
    assert {(each.count, each.steps) for each in found.rare} == {(found.optimizer_steps // 12,) * 2} != {(0, 0)}
    assert all(each.source.startswith(__file__) and each.group_size == 2 for each in found.rare)


def test_what_a_step_has_itself_is_not_rarer(tmp_path: Path) -> None:
    assert _outcome(tmp_path, 1).rare == ()


def test_a_metric_that_each_step_sums_hides_no_average_of_parameters(tmp_path: Path) -> None:
    found = _outcome(tmp_path, 12, dist.all_reduce).rare
    assert [(each.operation, each.message_bytes) for each in found] == [("all_reduce", 256), ("all_reduce", 32)]


def _average(tensors: Iterable[torch.Tensor], group: dist.ProcessGroup | None) -> None:
    """As programs have one function for all that they average."""
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)


@pytest.mark.parametrize("within_nodes", [True, False])
def test_one_function_that_averages_all_of_a_program_hides_no_rarer_average(within_nodes: bool, tmp_path: Path) -> None:
    """Gradients within a node each step and parameters of all ranks every so many, or a metric and parameters."""

    def program() -> None:
        dist.init_process_group("nccl")
        near = dist.new_group([0, 1]) if within_nodes else None
        layer = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        for step in range(1, 200):
            loss = layer(torch.zeros(4, 8, device="cuda")).sum()
            loss.backward()
            gradients = [each.grad for each in layer.parameters() if each.grad is not None]
            _average(gradients if within_nodes else [loss.detach()], near)
            optimizer.step()
            optimizer.zero_grad()
            if step % 12 == 0:
                _average([parameter.data for parameter in layer.parameters()], None)

    found = run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 4)).dry_run.rare
    assert [(each.message_bytes, each.group_size) for each in found] == [(8 * 8 * 4, 4), (8 * 4, 4)]
    assert all(each.count == each.steps > 0 for each in found)


def test_what_other_groups_exchange_only_while_a_program_warms_up_is_not_rarer(tmp_path: Path) -> None:
    def program() -> None:
        dist.init_process_group("nccl")
        near = dist.new_group([0, 1])
        layer = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        for step in range(100):
            layer(torch.zeros(4, 8, device="cuda")).sum().backward()
            _average([each.grad for each in layer.parameters() if each.grad is not None], None if step < 2 else near)
            optimizer.step()
            optimizer.zero_grad()

    assert run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 4)).dry_run.rare == ()


def test_a_collective_of_one_rank_is_none(tmp_path: Path) -> None:
    alone: list[dist.ProcessGroup] = []

    def in_each(loss: torch.Tensor) -> None:
        alone[1:] = [dist.new_group([0])] if not alone else []
        dist.all_reduce(loss, group=dist.new_group([0]))

    found = _outcome(tmp_path, 12, in_each).rare
    assert [each.message_bytes for each in found] == [256, 32]


def test_a_program_without_an_optimizer_is_told_what_it_exchanges_between_its_calls(tmp_path: Path) -> None:
    def program() -> None:
        dist.init_process_group("nccl")
        layer, weights = nn.Linear(8, 8).cuda(), torch.zeros(64, device="cuda")
        for _ in range(40):
            dist.broadcast(weights, 0)
            with torch.no_grad():
                for _ in range(20):
                    layer(torch.zeros(4, 8, device="cuda"))

    found = run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2)).dry_run
    assert [(each.operation, each.message_bytes, each.count, each.steps) for each in found.rare] == [
        ("broadcast", 256, 1, 1)
    ]
    assert found.optimizer_steps == 0 and found.calls > 10
    said = rare_note(found, None)
    assert said is not None and said.endswith(f"in 1 of the {found.calls} calls behind it that ran")


def test_what_is_small_beside_the_steps_own_messages_is_not_told() -> None:
    rare = (RareCollective("all_reduce", "/home/me/train.py:13", "0", 8, 4_000),)
    dry_run = DryRun("H200", groups=(MadeGroup("0", tuple(range(8))),), rare=rare, optimizer_steps=11)
    assert rare_note(dry_run, None, exchanged=1_000_000) is None
    said = rare_note(dry_run, None, exchanged=4)
    assert said == (
        "rarer steps exchange more than this one, which is not in the price: all_reduce 1 time over 8 ranks "
        "(0.004 MB, train.py:13) in 1 of the 11 steps of optimizers that ran"
    )
    assert rare_note(DryRun("H200", optimizer_steps=3), None, exchanged=4) is None


def test_a_note_says_what_rarer_steps_did_and_what_it_takes() -> None:
    rare = (
        RareCollective("all_reduce", "/home/me/train.py:13", "0", 8, 4_000_000, 2, 1),
        RareCollective("all_reduce", "/home/me/train.py:13", "0", 8, 400_000, 2, 1),
    )
    dry_run = DryRun("H200", groups=(MadeGroup("0", tuple(range(8))),), rare=rare, optimizer_steps=11)
    said = rare_note(dry_run, shipped_fabrics()["h200"])
    assert said is not None and said.startswith(
        "no collective between ranks in this step; rarer steps are not in the price: all_reduce 4 times over 8 ranks "
        "(8.8 MB, train.py:13) in 1 of the 11 steps of optimizers that ran, where that takes about 0."
    )


def test_where_no_step_with_a_collective_came_that_is_said() -> None:
    said = rare_note(DryRun("H200", optimizer_steps=67), None)
    assert said is not None and said.endswith("and none that has one came in the 67 steps of optimizers that ran")


@pytest.mark.usefixtures("no_optimizer_stays")
@pytest.mark.parametrize("in_each", [lambda loss: None, dist.all_reduce])
def test_a_program_that_exchanges_little_is_looked_on_for_longer_than_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_each: Callable[[torch.Tensor], object]
) -> None:
    monkeypatch.setattr("torchledger.planning.later_steps._MOST", 0)
    monkeypatch.setattr(step_hearing, "_LOOKED_ON_S", 0.0)
    monkeypatch.setattr(step_hearing, "_LOOKED_ON_SHARE", 0.0)
    assert _outcome(tmp_path, 40, in_each).rare
    monkeypatch.setattr(step_hearing, "_LITTLE_BYTES", 0)
    assert not _outcome(tmp_path, 40, in_each).rare


@pytest.mark.usefixtures("no_optimizer_stays")
@pytest.mark.parametrize("every", [1, 3])
def test_a_turn_in_which_one_optimizer_steps_more_often_than_another_is_noted(every: int, tmp_path: Path) -> None:
    """DiLoCo: parameters are averaged by an optimizer of their own every so many steps."""

    def program() -> None:
        dist.init_process_group("nccl")
        weight = nn.Parameter(torch.zeros(8, 8, device="cuda"))
        kept = nn.Parameter(weight.detach().clone())
        inner, outer = torch.optim.AdamW([weight]), torch.optim.SGD([kept], 0.7)
        for step in range(1, 200):
            (weight @ torch.zeros(8, 8, device="cuda")).sum().backward()
            inner.step()
            inner.zero_grad()
            if step % every == 0:
                kept.grad = kept.detach() - weight.detach()
                dist.all_reduce(kept.grad)
                outer.step()

    run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2))
    with open_ledger(tmp_path / "plan.ledger") as ledger:
        (step,) = ledger.read(Step)
    said = [note for note in step.notes if note.startswith("what is priced is a turn in which optimizers make")]
    assert [note.split("make ")[1].split(":")[0] for note in said] == (["4 steps"] if every == 3 else [])
