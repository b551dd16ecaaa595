"""Programs that people write and that are no plain model: their books balance too, and every difference is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from captured import capture_call


class ScaledProduct(torch.autograd.Function):
    """A product whose backward the user wrote."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight, gradients[0].T @ x


def test_the_backward_of_a_users_function_is_asked_for_in_the_backward(tmp_path: Path) -> None:
    x, weight = torch.randn(5, 8), torch.randn(8, 8, requires_grad=True)
    x.requires_grad_()
    captured = capture_call(
        tmp_path / "a.ledger",
        lambda: torch.compile(lambda x, weight: ScaledProduct.apply(x.sin(), weight))(x, weight).sum().backward(),
    )
    asked = {graph.direction: sum(part.flops for part in graph.flop_references) for graph in captured.graphs}
    assert asked == {"forward": 640, "backward": 1280}
    assert captured.differences == []
