"""Lazy modules on a device that is not there get their parameters there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import getattr_static

import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin

from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(HOPPER) as made:
        yield made


def lazy_network() -> nn.Sequential:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))


def made_there() -> nn.Sequential:
    with torch.device("cuda"):
        return lazy_network()


MOVES: dict[str, Callable[[], nn.Sequential]] = {
    "to": lambda: lazy_network().to("cuda"),
    "cuda": lambda: lazy_network().cuda(),
    "made there": made_there,
    "there and back and there": lambda: lazy_network().cuda().cpu().to(torch.device("cuda", 0)),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES.keys())
def test_lazy_modules_make_their_parameters_on_the_device(move: Callable[[], nn.Sequential], fake: FakeDevice) -> None:
    network = move()
    before = list(network.parameters())
    assert all(isinstance(each, nn.parameter.UninitializedParameter) and each.device.type == "cuda" for each in before)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for _ in range(2):
        network(torch.zeros(5, 3, 8, 8, device="cuda")).sum().backward()
        optimizer.step()
    tensors = [*network.parameters(), *network.buffers()]
    assert all(fake.tensors.is_our_fake(each) and each.device.type == "cuda" for each in tensors)
    assert all(isinstance(each, nn.Parameter) and each.grad is not None for each in network.parameters())
    assert network[0].weight.shape == (4, 3, 3, 3) and network[3].weight.shape == (2, 144)
    assert network[1].running_mean.shape == (4,) and all(map(lambda a, b: a is b, before, network.parameters()))


def test_lazy_parameters_keep_the_dtype_that_they_were_cast_to(fake: FakeDevice) -> None:
    for layer in (nn.LazyLinear(2).cuda().half(), nn.LazyLinear(2).to("cuda", torch.float16), nn.LazyLinear(2).half()):
        layer = layer.cuda()
        layer(torch.zeros(5, 3, device="cuda", dtype=torch.float16))
        assert layer.weight.dtype is torch.float16 and layer.weight.device.type == "cuda"


def test_lazy_modules_of_the_host_stay_there(fake: FakeDevice) -> None:
    layer = nn.LazyLinear(2).cuda().cpu()
    layer(torch.zeros(5, 3))
    assert layer.weight.shape == (2, 3) and layer.weight.device.type == "cpu"


def test_lazy_tensors_are_as_ever_after_a_plan() -> None:
    before = [getattr_static(UninitializedTensorMixin, name) for name in ("__torch_function__", "materialize")]
    with FakeDevice(HOPPER):
        pass
    assert before == [getattr_static(UninitializedTensorMixin, name) for name in ("__torch_function__", "materialize")]
    assert nn.LazyLinear(2)(torch.zeros(5, 3)).shape == (5, 2)
