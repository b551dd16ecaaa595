"""The closed form against generated kernels that are really run, address by address."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from schedules import examine_kernels
from tracked_kernels import SCALAR, compare, examine

functional = torch.nn.functional


def trained(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_()


def rotary(x, angles):
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


def causal_attention(q, k, v):
    scores = q @ k.transpose(-1, -2) / 4
    scores = scores.masked_fill(torch.ones(12, 12, dtype=torch.bool).triu(1), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 12, 48)


def lstm_cell(gates, cell):
    i, f, g, o = gates.chunk(4, 1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell)


def key_cache(cache, new):
    cache[:, 3:5] = new
    return cache.sum(1)


def loss_of_tokens(table, tokens):
    hidden = table[tokens]
    return functional.cross_entropy(functional.rms_norm(hidden, (24,)), tokens % 24)


FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "gelu and layer norm": (lambda x: functional.layer_norm(functional.gelu(x), (48,)), (trained(20, 48),)),
    "batch norm, relu and max pool": (
        lambda x, w, b: functional.max_pool2d(functional.batch_norm(x, None, None, w, b, True).relu(), 3, 2, 1),
        (trained(2, 6, 11, 13), trained(6), trained(6)),
    ),
    "average pools": (
        lambda x: functional.adaptive_avg_pool2d(functional.avg_pool2d(x, 3, 2, 1), (3, 2)),
        (trained(2, 3, 14, 15),),
    ),
    "group norm of channels last": (
        lambda x: functional.group_norm(x, 2).relu(),
        (torch.randn(2, 8, 5, 7).to(memory_format=torch.channels_last).requires_grad_(),),
    ),
    "causal attention": (causal_attention, (trained(2, 3, 12, 16), trained(2, 3, 12, 16), trained(2, 3, 12, 16))),
    "rotary embedding": (rotary, (trained(2, 3, 10, 16), torch.randn(10, 16))),
    "an LSTM cell": (lstm_cell, (trained(7, 32), trained(7, 8))),
    "a loss over gathered rows": (loss_of_tokens, (trained(30, 24), torch.randint(24, (18,)))),
    "writing into a key cache": (key_cache, (torch.randn(2, 9, 16), torch.randn(2, 2, 16))),
    "concatenations of slices": (
        lambda x, y: torch.cat([x[:, 1:5], y[::2], (x * 2)[:, :3]], 1).softmax(1),
        (trained(6, 8), trained(12, 5)),
    ),
    "reflected and constant padding": (
        lambda x: functional.pad(functional.pad(x, (2, 1, 1, 2), mode="reflect").sin(), (1, 0, 2, 1)),
        (trained(2, 3, 8, 9),),
    ),
    "bilinear and nearest resizing": (
        lambda x: functional.interpolate(
            functional.interpolate(x, size=(11, 7), mode="bilinear"), scale_factor=2, mode="nearest"
        ),
        (trained(1, 2, 6, 5),),
    ),
    "rolls, flips and diagonals": (
        lambda x: (x.roll((2, 3), (0, 1)) + x.flip(0)).tril() * x.diagonal()[:, None],
        (trained(9, 9),),
    ),
    "overlapping windows": (
        lambda x: (x.unfold(1, 5, 2) * torch.hann_window(5)).sum(-1) + x[:, ::2][:, :14] + x[:, 3:17],
        (trained(3, 31),),
    ),
    "pixel shuffle": (lambda x: functional.pixel_shuffle(x, 2).cos(), (trained(2, 8, 3, 5),)),
    "extremes and variances": (
        lambda x: x.var(1, keepdim=True) * x + x.amax(0) + x.argmin(1, keepdim=True),
        (trained(13, 17),),
    ),
    "stacked and expanded parts": (
        lambda x, y: torch.stack([x.expand(5, 4, 3)[:, 1], y, y * 2], 2).sum((0, 2)),
        (trained(5, 1, 3), trained(5, 3)),
    ),
    "a mixed-precision dropout": (
        lambda x: functional.dropout(x.to(torch.bfloat16), 0.3).float() + x.mean(),
        (trained(16, 10),),
    ),
    "scattered sums": (
        lambda x, rows: torch.zeros(6, 4).index_add(0, rows, x) + x.sum(),
        (trained(12, 4), torch.randint(6, (12,))),
    ),
    "a transposed convolution's shape work": (
        lambda x: x.permute(0, 2, 3, 1).reshape(2, 5, 2, 2, 6).transpose(2, 3).flatten(1) * 2,
        (trained(2, 6, 5, 4),),
    ),
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """For each function: per kernel and argument, what the closed form says and what was seen."""
    examined = {
        label: examine_kernels(function, *inputs, examine=examine, **SCALAR)
        for label, (function, inputs) in FUNCTIONS.items()
    }
    comparisons, refused = compare(examined, tmp_path_factory.mktemp("tracked"))
    assert not refused
    return comparisons


@pytest.mark.slow
@pytest.mark.parametrize("label", FUNCTIONS)
def test_traffic_is_what_the_kernel_was_seen_to_touch(compared, label):
    assert compared[label]
    for comparison in compared[label]:
        assert comparison.holds, comparison
