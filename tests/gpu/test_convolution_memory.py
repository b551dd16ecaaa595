"""The memory of a step on a GPU: what the ledger adds up beside what the caching allocator counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import torchledger
from torchledger.books import read_memory
from torchledger.nouns import Step
from torchledger.profiling.profile import attach
from torchledger.store import open_ledger

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_workspaces_of_convolutions_are_part_of_the_peak(tmp_path: Path, is_compiled: bool) -> None:
    layers = [nn.Conv1d(96, 192, 3, padding=1), nn.ReLU(), nn.Conv1d(192, 96, 3, padding=1)]
    model: nn.Module = nn.Sequential(*layers).to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = torch.compile(model) if is_compiled else model
    with torchledger.capture(tmp_path / "a.ledger") as run:
        attach(run, {"warmup": 2, "timed": 2, "repeats": 2})
        for _ in range(12):
            given = torch.randn(16, 96, 4096, device="cuda", dtype=torch.bfloat16)
            step(given).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    with open_ledger(tmp_path / "a.ledger") as ledger:
        totals = read_memory(ledger, ledger.read(Step)[0].name)
    assert totals is not None and totals.memory.measured_peak_bytes is not None
    spaces = [each for each in totals.storages if each.name == "cuDNN workspace"]
    assert len(spaces) >= 4 and all(each.born == each.freed for each in spaces)
    # Other tests of this process may have left something there.
    expected = totals.peak_allocated_bytes + (totals.memory.unseen_before_bytes or 0)
    assert expected == pytest.approx(totals.memory.measured_peak_bytes, rel=0.05)
