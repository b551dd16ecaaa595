"""Profilers that a planned program starts itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import Device

MADE_UP = Device(name="a made-up device", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


@pytest.mark.parametrize("activities", [[ProfilerActivity.CUDA], [ProfilerActivity.CPU, ProfilerActivity.CUDA]])
def test_a_profiler_that_is_asked_for_the_device_hears_the_host(
    activities: list[ProfilerActivity], capfd: pytest.CaptureFixture[str]
) -> None:
    with FakeDevice(MADE_UP):
        layer = nn.Linear(8, 8).cuda()
        with profile(activities=activities) as heard:
            layer(torch.ones(2, 8, device="cuda"))
        assert "aten::linear" in heard.key_averages().table(sort_by="cuda_time_total")
    assert "Failed to record CUDA event" not in capfd.readouterr().err


def test_ranges_and_the_begin_of_other_profilers_do_nothing() -> None:
    with FakeDevice(MADE_UP):
        torch.cuda.profiler.start()
        with torch.autograd.profiler.emit_nvtx():
            assert torch.ones(2, device="cuda").sum().device.type == "cuda"
        torch.cuda.profiler.stop()
        assert torch.cuda.cudart().cudaHostRegister(0, 0, 0) == 0
    assert torch.autograd.profiler.emit_nvtx().enabled


def test_a_profiler_that_the_program_leaves_open_ends_with_the_device() -> None:
    with FakeDevice(MADE_UP):
        left_open = profile(activities=[ProfilerActivity.CPU])
        left_open.start()
        assert torch.autograd._profiler_enabled()
    assert not torch.autograd._profiler_enabled()
