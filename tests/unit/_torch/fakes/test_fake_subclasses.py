"""Classes of tensors that a program has of its own, on a device that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from torchledger._torch.eager_calls import EagerCalls
from torchledger._torch.fakes.device import FakeDevice
from torchledger._torch.fakes.tensors import REAL_BYTES
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


class Picture(torch.Tensor):
    """Nothing but a name."""


class Volume(torch.Tensor):
    """Keeps with each result what its first argument knows, all of it at once or piece by piece."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Volume) and isinstance(args[0], Volume):
            result.__dict__.update(args[0].__dict__)
        return result

    def new_empty(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("what computes a shape calls no method of the program's")


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(HOPPER) as made:
        yield made


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("size", [8, REAL_BYTES])
def test_results_are_of_the_class_of_what_they_are_made_of(device: str, size: int, fake: FakeDevice) -> None:
    picture = torch.rand(size, device=device).as_subclass(Picture)
    assert isinstance(picture, Picture) and isinstance((picture * 2).relu().view(2, -1), Picture)
    picture += 1
    assert isinstance(picture, Picture) and isinstance(picture.cuda(), Picture)
    assert not isinstance(picture.as_subclass(torch.Tensor), Picture)


def test_a_class_made_by_hand_needs_a_gradient_if_it_is_asked_to(fake: FakeDevice) -> None:
    rows = torch.rand(4, 4, device="cuda")
    made = torch.Tensor._make_subclass(Picture, rows, True)
    assert isinstance(made, Picture) and made.requires_grad and not rows.requires_grad
    (made * 2).sum().backward()
    assert made.grad is not None and made.grad.shape == (4, 4)


def test_a_class_that_is_called_makes_a_tensor_of_its_own(fake: FakeDevice) -> None:
    for made in (Picture([1.0, 2.0]), Picture(3, REAL_BYTES), Picture(torch.ones(2, 2))):
        assert isinstance(made, Picture) and isinstance(made * 2, Picture)
    assert Picture([1.0, 2.0]).tolist() == [1.0, 2.0]
    assert type(torch.Tensor([1.0])) is torch.Tensor


def test_classes_are_called_as_ever_behind_a_plan() -> None:
    with FakeDevice(HOPPER):
        pass
    assert "__new__" not in vars(torch.Tensor)
    assert type(Picture([1.0])) is Picture and type(torch.Tensor([1.0])) is torch.Tensor


@pytest.mark.parametrize(
    ("bias", "dtype", "kernel"),
    [
        (causal_upper_left, torch.bfloat16, "_scaled_dot_product_cudnn_attention"),
        (causal_lower_right, torch.bfloat16, "_scaled_dot_product_flash_attention"),
        (causal_lower_right, torch.float32, "_efficient_attention_forward"),
    ],
)
def test_a_causal_bias_has_the_kernel_that_it_names_itself(
    bias: Any, dtype: torch.dtype, kernel: str, fake: FakeDevice
) -> None:
    query = torch.randn(2, 4, 16, 64, device="cuda", dtype=dtype, requires_grad=True)
    rows = torch.randn(2, 4, 32, 64, device="cuda", dtype=dtype)
    listener = EagerCalls(lambda: None)
    assert listener.start()
    made = nn.functional.scaled_dot_product_attention(query, rows, rows, attn_mask=bias(16, 32))
    listener.stop()
    made.sum().backward()
    assert kernel in {call.call.name.removeprefix("aten::") for call in listener.calls}
    assert made.shape == query.shape and query.grad is not None


@pytest.mark.parametrize("size", [8, 96])
def test_what_a_program_copies_between_them_leaves_each_on_its_device(size: int, fake: FakeDevice) -> None:
    volume = torch.rand(2, 1, size, size, size).as_subclass(Volume)
    volume.affine = "of a scanner"  # type: ignore[attr-defined]
    there = volume.to("cuda")
    assert there.device == torch.device("cuda:0") and there.affine == "of a scanner"  # type: ignore[attr-defined]
    layer = nn.Sequential(nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4)).cuda()
    made = layer(there)
    made.sum().backward()
    assert isinstance(made, Volume) and made.device.type == "cuda"
    assert all(each.grad is not None for each in layer.parameters())


def test_their_work_is_heard_as_that_of_others(fake: FakeDevice) -> None:
    layer = nn.Linear(8, 16).cuda()
    rows = torch.rand(4, 8, device="cuda")
    heard = {}
    for kind in (torch.Tensor, Picture):
        listener = EagerCalls(lambda: None)
        assert listener.start()
        layer(rows.as_subclass(kind))
        listener.stop()
        assert not listener.faults
        heard[kind] = [call.call.name for call in listener.calls]
    ours, theirs = ([name for name in heard[kind] if name != "aten::alias"] for kind in heard)
    assert ours == theirs
    assert "aten::addmm" in heard[Picture]
