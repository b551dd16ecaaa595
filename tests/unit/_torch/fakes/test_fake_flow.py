"""What models compute in a part of a program is told from what else it makes there."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from torchledger._torch.captured_work import CapturedWork
from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(HOPPER) as made:
        yield made


class Program:
    """A network, what it keeps, and data."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).cuda()
        self.average = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).cuda()
        self.data = torch.randn(64, 8, device="cuda")
        self.kept = torch.zeros(4, 64, 8, device="cuda")
        self.best = torch.zeros((), device="cuda")
        self.order = torch.arange(64, device="cuda")

    @torch.no_grad()
    def acts(self) -> None:
        for each in self.kept:
            each.copy_(self.net(self.data))

    @torch.no_grad()
    def evaluates(self) -> None:
        """As people do with an average of their parameters, and the order of an epoch drawn behind it."""
        before = [each.clone() for each in self.net.parameters()]
        for one, other in zip(self.net.parameters(), self.average.parameters(), strict=True):
            one.copy_(other)
        self.best = torch.maximum(self.best, self.net(self.data).mean())
        for one, other in zip(self.net.parameters(), before, strict=True):
            one.copy_(other)
        self.order = torch.randperm(64, device="cuda")

    def trains(self) -> None:
        self.net(self.data[self.order]).sum().backward()
        self.best = torch.maximum(self.best, self.best)

    def learns(self) -> None:
        self.net(self.kept.flatten(0, 1)[self.order]).sum().backward()

    def asks(self) -> None:
        self.teacher = torch.no_grad()(self.average)(self.data).softmax(-1)

    def follows_a_teacher(self) -> None:
        (self.net(self.data) * self.teacher).sum().backward()


PARTS: dict[str, tuple[Callable[[Program], None], Callable[[Program], None], bool]] = {
    "a rollout that is kept in place": (Program.acts, Program.learns, True),
    "a teacher": (Program.asks, Program.follows_a_teacher, True),
    "an evaluation": (Program.evaluates, Program.trains, False),
    "an evaluation of what is learned from old data": (Program.evaluates, Program.learns, False),
}


@pytest.mark.parametrize("name", PARTS)
def test_what_a_model_computed_is_used_where_it_is_read(fake: FakeDevice, name: str) -> None:
    before, behind, is_used = PARTS[name]
    program = Program()
    flow = fake.tensors.follow()
    before(program)
    assert not flow.is_used
    flow.behind()
    behind(program)
    assert flow.is_used is is_used
    flow.end()
    assert not fake.tensors.flows


def test_memory_that_is_written_anew_behind_holds_nothing_computed_before(fake: FakeDevice) -> None:
    known = nn.Parameter(torch.randn(64, device="cuda"))
    gathered, part = torch.empty(64, device="cuda"), known.detach()
    flow = fake.tensors.follow([known])
    gathered.copy_(part)
    flow.behind()
    gathered.copy_(part)
    gathered.sum()
    assert not flow.is_used
    flow.end()


def test_what_a_graph_makes_before_is_computed(fake: FakeDevice) -> None:
    flow = fake.tensors.follow()
    made, data = torch.randn(8, device="cuda"), torch.randn(8, device="cuda")
    flow.graph_called(flow.graph_begins(None, [data]), [made])
    flow.behind()
    flow.graph_called(flow.graph_begins(None, [data]), [torch.randn(8, device="cuda")])
    assert not flow.is_used
    flow.graph_called(flow.graph_begins(None, [made]), [])
    assert flow.is_used


@pytest.mark.parametrize("is_captured", [False, True])
def test_what_a_graph_is_given_and_frees_is_not_held_by_who_follows(fake: FakeDevice, is_captured: bool) -> None:
    """What a forward saved is freed in the middle of its backward: who holds it would find more alive than there is."""
    flow = CapturedWork(lambda: False) if is_captured else fake.tensors.follow()
    given = [torch.ops.aten.ones.default([8], device=torch.device("cuda"))]
    if isinstance(flow, CapturedWork):
        flow.called(torch.ops.aten.ones.default, ([8],), {}, given[0])
    alive, begun = weakref.ref(given[0]), flow.graph_begins(None, given)
    given.clear()
    gc.collect()
    assert alive() is None
    flow.graph_called(begun, [])
