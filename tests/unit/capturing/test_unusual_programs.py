"""Programs that people write and that are no plain model: their books balance too, and every difference is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torchledger
from captured import capture_call
from torchledger.reporting.overview import remarks
from torchledger.reporting.summary import summarize_ledger


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


def notes_of(path: Path) -> tuple[str, ...]:
    with torchledger.open_ledger(path) as reader:
        return reader.run().notes


def test_code_that_dynamo_left_to_run_eagerly_is_named_with_the_reason(tmp_path: Path) -> None:
    def broken(x: Tensor) -> Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    capture_call(tmp_path / "a.ledger", lambda: torch.compile(broken)(torch.ones(3)))
    (note,) = notes_of(tmp_path / "a.ledger")
    assert re.fullmatch(r"torch\.compile compiled 2 of 2 frames; .* no entries here: .*graph_break.* \(once\)", note)


def test_a_model_that_dynamo_refuses_whole_is_not_called_uncompiled_by_its_user(tmp_path: Path) -> None:
    recurrent = torch.compile(torch.nn.GRU(4, 4))
    captured = capture_call(tmp_path / "a.ledger", lambda: recurrent(torch.ones(2, 3, 4)))
    assert captured.graphs == []
    (note,) = notes_of(tmp_path / "a.ledger")
    assert note.startswith("torch.compile compiled 0 of 1 frame;")
    with torchledger.open_ledger(tmp_path / "a.ledger") as reader:
        assert not any("is torch.compile called?" in text for text in remarks(summarize_ledger(reader)))


def test_a_program_without_graph_breaks_has_no_note_about_them(tmp_path: Path) -> None:
    capture_call(tmp_path / "a.ledger", lambda: torch.compile(torch.sin)(torch.ones(3)))
    assert notes_of(tmp_path / "a.ledger") == ()
