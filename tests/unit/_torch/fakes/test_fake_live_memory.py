"""What a program has allocated of a device that is not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from torchledger._torch.devices import has_cuda
from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import Device

MADE_UP = Device(name="a made-up device", kind="cuda", compute_capability=(9, 0), total_memory_bytes=1 << 30)
MIB = 1 << 20


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(MADE_UP) as fake:
        fake.tensors.flows.append(fake.memory)
        yield fake


def largest() -> int:
    size = 64
    while True:
        try:
            torch.zeros(size, MIB, dtype=torch.uint8, device="cuda")
            size *= 2
        except torch.cuda.OutOfMemoryError as error:
            assert "CUDA out of memory. Tried to allocate 1.00 GiB." in str(error)
            return size // 2


@pytest.mark.usefixtures("fake")
def test_memory_that_is_taken_and_given_back_is_counted_and_views_are_not() -> None:
    kept = torch.zeros(4, MIB, dtype=torch.uint8, device="cuda")
    freed = kept.t() + 1
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == 8 * MIB
    assert torch.cuda.mem_get_info() == ((1 << 30) - 8 * MIB, 1 << 30)
    del freed
    assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) == (4 * MIB, 8 * MIB)
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 8 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 4 * MIB
    assert not has_cuda(), "no memory of a device that is there"


@pytest.mark.usefixtures("fake")
def test_what_is_moved_and_its_gradients_are_counted() -> None:
    layer = nn.Linear(1024, 1024, bias=False).cuda()
    assert torch.cuda.memory_allocated() == 4 * MIB
    layer(torch.zeros(1, 1024, device="cuda")).sum().backward()
    assert torch.cuda.memory_allocated() == 8 * MIB


def test_memory_runs_out_where_the_program_catches_that(fake: FakeDevice) -> None:
    places: list[str] = []
    fake.memory.on_run_out = places.append
    fake.memory.limit_bytes = 1000 * MIB
    assert largest() == 512
    assert len(places) == 1 and places[0].startswith("test_fake_live_memory.py:")
    assert torch.cuda.memory_allocated() == 0


@pytest.mark.usefixtures("fake")
def test_memory_does_not_run_out_where_nobody_catches_that() -> None:
    assert torch.zeros(4096, MIB, dtype=torch.uint8, device="cuda").shape == (4096, MIB)


@pytest.mark.usefixtures("fake")
def test_a_program_that_tries_the_same_again_and_again_gets_it_in_the_end() -> None:
    failed: list[bool] = []
    while failed.count(False) == 0:
        try:
            torch.zeros(4096, MIB, dtype=torch.uint8, device="cuda")
            failed.append(False)
        except torch.cuda.OutOfMemoryError:
            failed.append(True)
    assert failed == [True, True, False]
