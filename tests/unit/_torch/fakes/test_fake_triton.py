"""Triton without its device."""

from __future__ import annotations

import pytest
import torch

from torchledger._torch.fakes.device import properties_of
from torchledger._torch.fakes.triton import _Utilities
from torchledger.device.datasheets import device_of_name


@pytest.mark.parametrize(
    ("name", "shared"), [("NVIDIA H200", 232448), ("NVIDIA A100-SXM4-80GB", 166912), ("Tesla T4", 65536)]
)
def test_libraries_of_kernels_are_told_how_much_shared_memory_a_block_has(
    monkeypatch: pytest.MonkeyPatch, name: str, shared: int
) -> None:
    device = device_of_name(name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties_of(device))
    told = _Utilities().get_device_properties(0)
    assert told["multiprocessor_count"] == device.num_multiprocessors
    assert told["warpSize"] == 32
    assert told["max_shared_mem"] == shared
