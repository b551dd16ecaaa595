"""Fake quantization on a device that is not there, as it is called and as it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.ao.quantization import default_per_channel_weight_fake_quant

from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)
ROWS = (6, 4, 3, 3)


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(HOPPER) as made:
        yield made


def _observed(rows: Any, scale: Any, zero: Any) -> Any:
    on, low, high = torch.ones(1, device=rows.device), *torch.zeros(2, 1, device=rows.device)
    return torch.fused_moving_avg_obs_fake_quant(rows, on.long(), on.long(), low, high, scale, zero, 0.1, 0, 255, 0)


CALLS: dict[str, tuple[Callable[..., Any], int, bool]] = {
    "by one scale": (lambda rows, *_: torch.fake_quantize_per_tensor_affine(rows, 0.1, 0, 0, 255), 1, False),
    "by a scale on the device": (
        lambda rows, scale, zero: torch.fake_quantize_per_tensor_affine(rows, scale, zero, 0, 255),
        1,
        False,
    ),
    "by channel": (
        lambda rows, scale, zero: torch.fake_quantize_per_channel_affine(rows, scale, zero, 1, 0, 255),
        4,
        False,
    ),
    "by a learnt scale": (
        lambda rows, scale, zero: torch._fake_quantize_learnable_per_tensor_affine(rows, scale, zero, 0, 255),
        1,
        True,
    ),
    "by learnt scales": (
        lambda rows, scale, zero: torch._fake_quantize_learnable_per_channel_affine(rows, scale, zero, 1, 0, 255),
        4,
        True,
    ),
    "by what is observed": (_observed, 1, False),
}
"""What rounds, how many scales it is given, and whether these are learnt."""


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_of_the_shapes_that_they_have_on_a_cpu(name: str, is_compiled: bool) -> None:
    rounds, scales, is_learnt = CALLS[name]

    def run(device: str, call: Callable[..., Any]) -> list[torch.Tensor]:
        rows = torch.rand(*ROWS, device=device).to(memory_format=torch.channels_last).requires_grad_()
        scale = torch.ones(scales, device=device, requires_grad=is_learnt)
        zero = torch.zeros(scales, device=device, requires_grad=is_learnt)
        made = call(rows, scale, zero if is_learnt else zero.int())
        made.sum().backward()
        return [made, *(each.grad for each in (rows, scale, zero) if each.grad is not None)]

    expected = run("cpu", rounds)
    with FakeDevice(HOPPER) as fake:
        # Nothing is left to the program behind the graph: this would raise.
        call = torch.compile(rounds, backend="aot_eager", fullgraph=True) if is_compiled else rounds
        made = run("cuda", call)
    assert [each.shape for each in made] == [each.shape for each in expected]
    assert [each.stride() for each in made[:2]] == [each.stride() for each in expected[:2]]
    assert all(each.device.type == "cuda" for each in made)
    assert not any(stand_in.asked.startswith("what ") for stand_in in fake.tensors.stand_ins)


def test_activations_are_rounded_that_are_larger_than_what_an_example_may_take(fake: FakeDevice) -> None:
    rows = torch.rand(1 << 28, device="cuda")
    assert torch.fake_quantize_per_tensor_affine(rows, 0.1, 0, 0, 255).shape == rows.shape


def test_a_weight_is_rounded_by_the_module_that_observes_its_channels(fake: FakeDevice) -> None:
    weight = torch.rand(*ROWS, device="cuda", requires_grad=True)
    default_per_channel_weight_fake_quant().cuda()(weight).sum().backward()
    assert weight.grad is not None and weight.grad.shape == ROWS
