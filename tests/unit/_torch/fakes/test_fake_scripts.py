"""TorchScript on a device that is not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from torchledger._torch.eager_calls import EagerCalls
from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(HOPPER) as made:
        yield made


def swish(x: torch.Tensor, slope: float) -> torch.Tensor:
    return x * torch.sigmoid(slope * x)


def twice(x: torch.Tensor) -> torch.Tensor:
    return swish(swish(x, 1.5), 0.5)


def test_a_function_is_heard_operator_by_operator_however_often_it_has_run(fake: FakeDevice) -> None:
    scripted = torch.jit.script(twice)
    for _ in range(3):  # its executor profiles the first call, and optimizes what it saw
        x = torch.randn(8, 16, device="cuda", requires_grad=True)
        listener = EagerCalls(lambda: None)
        assert listener.start()
        scripted(x).sum().backward()
        listener.stop()
        assert x.grad is not None and x.grad.shape == (8, 16)
        assert [each.call.name for each in listener.calls].count("aten::sigmoid") == 2
    assert [(each.asked, each.value) for each in fake.tensors.stand_ins] == [
        ("what torch.jit.script compiles", "operator by operator, nothing fused")
    ]
    assert all(each.source.startswith(__file__) for each in fake.tensors.stand_ins)


def test_a_module_trains(fake: FakeDevice) -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).cuda())
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8, device="cuda")).square().mean().backward()
        optimizer.step()
    assert all(each.grad is not None for each in model.parameters())


def test_fusers_stay_off_whatever_the_program_sets_and_are_as_before_behind_it() -> None:
    before = torch._C._jit_texpr_fuser_enabled(), torch._C._jit_can_fuse_on_gpu()
    with FakeDevice(HOPPER):
        torch._C._jit_set_texpr_fuser_enabled(True)
        torch._C._jit_override_can_fuse_on_gpu(True)
        with torch.jit.fuser("fuser1"):
            assert not torch._C._jit_texpr_fuser_enabled()
        assert not torch._C._jit_can_fuse_on_gpu()
    assert (torch._C._jit_texpr_fuser_enabled(), torch._C._jit_can_fuse_on_gpu()) == before
