"""Where torch's count is too high, the ledger keeps it and says so."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import torchledger
from captured import read


def test_the_backward_of_a_grouped_convolution_is_marked_an_upper_bound(tmp_path: Path) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3),
        nn.Conv2d(8, 8, 3, groups=4),
        nn.ConvTranspose2d(8, 4, 3),
        nn.ConvTranspose2d(4, 4, 3, groups=2),
    )
    compiled = torch.compile(model)
    with torchledger.capture(tmp_path / "a.ledger"):
        compiled(torch.randn(2, 4, 9, 9)).sum().backward()
    captured = read(tmp_path / "a.ledger")
    backward = [launch for launch in captured.launches if "aten.convolution_backward" in launch.flops_by_op]
    assert [launch.flops_quality for launch in backward] == ["upper_bound", "exact", "upper_bound", "exact"]
