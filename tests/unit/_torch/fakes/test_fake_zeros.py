"""Zeros of forward derivatives that have no memory, in a plan."""

from __future__ import annotations

import pytest
import torch
from torch.func import jvp, vmap

from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


@pytest.mark.filterwarnings("error::UserWarning")
def test_views_of_tangents_that_are_none_lie_on_the_device_and_hold_nothing() -> None:
    with FakeDevice(HOPPER) as fake:
        zeros = torch.ops.aten._efficientzerotensor([12], device="cuda", dtype=torch.float32)
        views = (zeros.view(3, 4), zeros.as_strided((3, 4), (4, 1)), zeros[None], zeros.reshape(4, 3))
        assert all(fake.tensors.is_our_fake(each) and each._is_zerotensor() for each in views)
    plain = torch.ops.aten._efficientzerotensor([12], dtype=torch.float32).view(3, 4)
    assert type(plain) is torch.Tensor and plain._is_zerotensor(), "as ever after a plan"


def test_forward_derivatives_under_two_maps_lie_on_the_device() -> None:
    with FakeDevice(HOPPER) as fake:
        weight, rows = torch.ones(4, device="cuda"), torch.randn(5, 4, device="cuda")

        def derivatives(row: torch.Tensor) -> torch.Tensor:
            def along(tangent: torch.Tensor) -> torch.Tensor:
                return jvp(lambda at: torch.exp(-at * weight) * weight, (row,), (tangent,))[1].sum()

            return vmap(along)(torch.eye(4, device="cuda"))

        made = vmap(derivatives)(rows)
        assert fake.tensors.is_our_fake(made) and made.shape == (5, 4) and made.device.type == "cuda"
