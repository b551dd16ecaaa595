"""A GPU whose profiler belongs to the program: graphs are timed by CUDA events, and the program keeps its own trace."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import torchledger
from torchledger.nouns import Breakdown, Gap
from torchledger.profiling.profile import attach
from torchledger.store import open_ledger

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


@pytest.mark.parametrize("starts_before", [True, False])
def test_graphs_are_timed_by_events_and_the_programs_own_profile_is_whole(tmp_path: Path, starts_before: bool) -> None:
    torch._dynamo.reset()
    inputs = torch.randn(512, 512, device="cuda")
    with torchledger.capture(tmp_path / "a.ledger") as run:
        attach(run, {"warmup": 1, "timed": 1, "repeats": 2})
        model = torch.compile(nn.Sequential(nn.Linear(512, 512), nn.GELU()).cuda())
        own = torch.profiler.profile()
        for index in range(9):
            if index == (1 if starts_before else 4):
                own.start()
            model(inputs).sum().backward()
        torch.cuda.synchronize()
        own.stop()
    assert any("triton_" in event.name for event in own.events())
    with open_ledger(tmp_path / "a.ledger") as ledger:
        (breakdown,), (gap,) = ledger.read(Breakdown), ledger.read(Gap)
    assert breakdown.clock == "cuda_event"
    assert {row.name: row.calls for row in breakdown.graphs} == {"forward_0": 2, "backward_0": 2}
    assert 0 < breakdown.busy_us <= breakdown.wall_us
    assert "by CUDA events" in gap.reason
