"""Programs that a recording has broken on a GPU: they end as they do without it, and their steps are recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchledger
from torchledger.nouns import Step, StepCall
from torchledger.profiling.profile import attach
from torchledger.store import open_ledger

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


def _trained(step: Callable[[nn.Module], torch.Tensor], path: Path | None) -> list[float]:
    torch.manual_seed(3)
    model = nn.Linear(32, 12).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []

    def train() -> None:
        for _ in range(12):
            loss = step(model)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss))

    if path is None:
        train()
    else:
        with torchledger.capture(path) as run:
            attach(run, {"warmup": 2, "timed": 2, "repeats": 2})
            train()
    return losses


def _alignment(model: nn.Module) -> torch.Tensor:
    scores = model(torch.ones(20, 4, 32, device="cuda")).log_softmax(-1)
    targets = torch.arange(1, 9, device="cuda").reshape(4, 2)
    return F.ctc_loss(scores, targets, torch.full((4,), 20), torch.full((4,), 2))


def _sparse(model: nn.Module) -> torch.Tensor:
    values = model(torch.ones(64, 32, device="cuda"))
    return torch.sparse.mm(torch.eye(64, device="cuda").to_sparse_csr(), values).square().mean()


def _volume(model: nn.Module) -> torch.Tensor:
    block = model(torch.ones(2, 4, 6, 6, 32, device="cuda"))
    return F.conv3d(block, torch.ones(4, 4, 3, 3, 3, device="cuda")).mean()


@pytest.mark.parametrize("step", [_alignment, _sparse, _volume])
def test_a_program_computes_the_same_while_it_is_recorded(
    tmp_path: Path, step: Callable[[nn.Module], torch.Tensor]
) -> None:
    alone = _trained(step, None)
    assert _trained(step, tmp_path / "a.ledger") == pytest.approx(alone, rel=1e-4)
    with open_ledger(tmp_path / "a.ledger") as ledger:
        (record,), calls = ledger.read(Step), ledger.read(StepCall)
    assert record.clock == "cupti" and (record.device_us or 0) > 0
    assert any(call.kernels for call in calls)


def test_replays_of_a_graph_that_the_program_captured_go_on_while_it_is_recorded(tmp_path: Path) -> None:
    layer, given = nn.Linear(64, 64).cuda(), torch.ones(8, 64, device="cuda")
    weight = nn.Parameter(torch.ones(8, 64, device="cuda"))
    optimizer = torch.optim.SGD([weight], 0.1)
    with torchledger.capture(tmp_path / "a.ledger") as run, torch.no_grad():
        attach(run, {"warmup": 2, "timed": 2, "repeats": 2})
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            layer(given)
        torch.cuda.current_stream().wait_stream(side)
        for number in range(14):
            if number == 5:  # while steps are heard
                with torch.cuda.graph(graph):
                    found = layer(given)
            if number >= 5:
                given.fill_(float(number))
                graph.replay()
                assert torch.allclose(found, layer(given), rtol=1e-3, atol=1e-4)
            with torch.enable_grad():
                (weight * weight).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    with open_ledger(tmp_path / "a.ledger") as ledger:
        assert list(ledger.read(StepCall))
