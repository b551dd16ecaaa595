"""FLOPs of a step that nothing compiles, counted while a mode watches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import torchledger


def test_lengths_on_the_host_are_lists_while_a_step_is_counted_and_tensors_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[type] = []
    original = torch.ctc_loss

    def heard(*args: Any, **kwargs: Any) -> Any:
        given.append(type(args[2]))
        return original(*args, **kwargs)

    monkeypatch.setattr(torch, "ctc_loss", heard)
    scores = torch.randn(10, 4, 6).log_softmax(-1)
    lengths = torch.full((4,), 10), torch.full((4,), 3)

    def step() -> torch.Tensor:
        return F.ctc_loss(scores, torch.ones(4, 3, dtype=torch.long), *lengths)

    before = step()
    with torchledger.capture(tmp_path / "a.ledger") as run:
        run.count_eager(step)
    assert torch.equal(step(), before)
    assert given == [torch.Tensor, list, torch.Tensor]


def test_a_step_that_calls_a_class_of_tensors_is_counted(tmp_path: Path) -> None:
    class Named(torch.Tensor):
        """A class that a program calls to make a tensor of it."""

    layer = torch.nn.Linear(8, 8)
    with torchledger.capture(tmp_path / "a.ledger") as run:
        count = run.count_eager(lambda: layer(Named(2, 8).zero_()))
    assert sum(count.flops_by_op.values()) == 2 * 2 * 8 * 8
