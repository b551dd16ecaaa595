"""Launches of a frozen graph run alone: their weights are constants of the wrapper, some in a library's own format."""

from __future__ import annotations

import runpy
from pathlib import Path

import torch
import torch._inductor.config
from torch import nn

from captured import capture_call
from torchledger.replaying.extract import extract_kernel


def test_every_launch_of_a_frozen_graph_runs_alone(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16)).eval()
    compiled = torch.compile(model)
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        captured = capture_call(tmp_path / "a.ledger", lambda: compiled(torch.randn(2, 3, 8, 8)), builds=True)
    names = {buffer.name for launch in captured.calls for buffer in launch.buffers}
    assert any(name.startswith("_frozen_param") for name in names)
    for launch in captured.calls:
        extracted = extract_kernel(captured.path, launch.launch_id, tmp_path / f"k{launch.order}.py")
        assert runpy.run_path(str(extracted.path))["check"]() is not False
