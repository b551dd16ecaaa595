"""Products of groups of rows are one kernel where a device has it, and a product for each group anywhere else."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from torchledger._torch.eager_calls import EagerCalls
from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)
AMPERE = Device(name="an Ampere", kind="cuda", compute_capability=(8, 0), num_multiprocessors=108)


def _heard(device: Device, dtype: torch.dtype) -> tuple[Counter[str], torch.Tensor, torch.Tensor]:
    """What is heard of eight experts' product and its backward by name, and the gradients."""
    with FakeDevice(device):
        rows = torch.rand(512, 64, device="cuda", dtype=dtype, requires_grad=True)
        weights = torch.rand(8, 64, 30 * 8, device="cuda", dtype=dtype, requires_grad=True)
        ends = torch.arange(1, 9, device="cuda", dtype=torch.int32) * 64
        heard = EagerCalls(lambda: None)
        assert heard.start()
        made = torch.nn.functional.grouped_mm(rows, weights, offs=ends)
        (made * made).sum().backward()
        assert heard.stop() and not heard.faults
    assert made.shape == (512, 240) and rows.grad is not None and weights.grad is not None
    return Counter(call.call.name for call in heard.calls), rows.grad, weights.grad


@pytest.mark.parametrize("device, dtype", [(HOPPER, torch.float32), (HOPPER, torch.float16), (AMPERE, torch.bfloat16)])
def test_a_device_without_the_kernel_makes_a_product_for_each_group(device: Device, dtype: torch.dtype) -> None:
    names, of_rows, of_weights = _heard(device, dtype)

    assert names["aten::mm"] == 3 * 8 and not names["aten::_grouped_mm"]
    assert names["aten::_to_copy"] == 3  # the groups' ends, for which the host waits
    assert of_rows.shape == (512, 64) and of_weights.shape == (8, 64, 240)


def test_a_device_with_the_kernel_makes_one_call_of_all_groups() -> None:
    names, of_rows, of_weights = _heard(HOPPER, torch.bfloat16)

    assert names["aten::_grouped_mm"] == 3 and not names["aten::mm"]
    assert of_rows.shape == (512, 64) and of_weights.shape == (8, 64, 240)


def test_batches_alike_are_one_product() -> None:
    with FakeDevice(HOPPER):
        left = torch.rand(4, 32, 64, device="cuda")
        made = torch.nn.functional.grouped_mm(left, torch.rand(4, 64, 16, device="cuda"))

    assert made.shape == (4, 32, 16)
