"""Autograd functions for operators whose backward is not that of one torch call.

They are made on first use, because declaring one needs torch.
"""

from __future__ import annotations

import functools
from typing import Any


def fork(x: Any) -> tuple[Any, Any]:
    """x twice; the backward adds the two gradients, as autograd does where a residual branches off."""
    first, second = _fork_function().apply(x)
    return first, second


def parallel_cross_entropy(logits: Any, targets: Any) -> Any:
    """Cross entropy in the steps that a vocabulary-parallel loss takes (Megatron-LM, arXiv 1909.08053, section 3),
    without the reductions over ranks."""
    return _parallel_cross_entropy_function().apply(logits, targets)


@functools.cache
def _fork_function() -> Any:
    import torch

    class Fork(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x), x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            first, second = gradients
            return first + second

    return Fork


@functools.cache
def _parallel_cross_entropy_function() -> Any:
    import torch

    class ParallelCrossEntropy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: Any, targets: Any) -> Any:
            shifted = logits - logits.amax(-1, keepdim=True)
            picked = shifted.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
            exponentials = shifted.exp_()
            total = exponentials.sum(-1, keepdim=True)
            probabilities = exponentials.div_(total)
            ctx.save_for_backward(probabilities, targets)
            return total.squeeze(-1).log() - picked

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            (gradient,) = gradients
            probabilities, targets = ctx.saved_tensors
            scaled = probabilities * gradient.unsqueeze(-1)
            return scaled.scatter_add_(-1, targets.unsqueeze(-1), -gradient.unsqueeze(-1)), None

    return ParallelCrossEntropy
