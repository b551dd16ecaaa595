"""Results of a compiled backward that autograd drops."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchledger._torch.unasked import unasked_results


class CompiledFunction(torch.autograd.Function):
    """Stands for a compiled graph, whose node has this name."""

    unasked: tuple[int, ...] | None = None

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        """A sum."""
        ctx.count = len(tensors)
        return torch.stack(tensors).sum(0)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Notes what is not asked for."""
        CompiledFunction.unasked = unasked_results()
        return (gradient,) * ctx.count


@pytest.mark.parametrize(("wanted", "dropped"), [("leaf", (0, 2)), ("weight", (1, 2)), ("inner", (0, 2))])
def test_gradients_of_other_inputs_than_those_that_were_asked_for_are_dropped(
    wanted: str, dropped: tuple[int, ...]
) -> None:
    leaf, weight, other = (torch.ones(3, requires_grad=True) for _ in range(3))
    inner = 2 * leaf
    result = CompiledFunction.apply(weight, inner, other).sum()
    torch.autograd.grad(result, {"leaf": leaf, "weight": weight, "inner": inner}[wanted])
    assert CompiledFunction.unasked == dropped


def test_a_whole_backward_drops_nothing_and_outside_of_one_there_is_nothing_to_say() -> None:
    weight = torch.ones(3, requires_grad=True)
    CompiledFunction.apply(weight, torch.ones(3)).sum().backward()
    assert CompiledFunction.unasked == ()
    assert unasked_results() == ()
