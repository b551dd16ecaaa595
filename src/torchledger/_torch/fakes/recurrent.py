"""Recurrent layers and packed sequences on a device that is not there: what cuDNN's operators would make.

After ``aten/src/ATen/native/cudnn/RNN.cpp`` and ``PackedSequence.cpp`` of torch 2.11. What cuDNN keeps for a backward
was measured (cuDNN 9.19 on an H100; LSTM, GRU and plain layers of five sizes in float32 and float16, equal but for up
to 256 bytes); its workspace, which lives as long as a call, follows no rule that is known and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_LSTM, _GRU = 2, 3
_KEPT = {_LSTM: 5, _GRU: 6}
"""Values of each hidden unit that are kept for each row of a sequence; plain layers keep one."""

_WITH_BIASES = 4
"""Weights of a layer and direction that has biases, at least."""


def _flatten(
    weights: Sequence[Any],
    per_layer: int,
    input_size: int,
    mode: int,
    hidden_size: int,
    proj_size: int,
    layers: int,
    batch_first: bool,
    bidirectional: bool,
) -> Any:
    """All weights in one buffer, of which each becomes a view."""
    flat = _buffer(weights, per_layer)
    for weight, part in zip(weights, _parts(flat, weights), strict=True):
        weight.set_(part)
    return flat


def _layers(
    rows: Any,
    weights: Sequence[Any],
    per_layer: int,
    flat: Any,
    hx: Any,
    cx: Any,
    mode: int,
    hidden_size: int,
    proj_size: int,
    layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: Any,
) -> tuple[Any, ...]:
    """Output, last states, what a backward needs and the buffer of the weights. Sequences come first in memory."""
    directions = 2 if bidirectional else 1
    size = proj_size or hidden_size
    is_turned = batch_first and not batch_sizes
    shape = (rows.shape[1], rows.shape[0]) if is_turned else tuple(rows.shape[:-1])
    output = rows.new_empty((*shape, directions * size))
    kept = _KEPT.get(mode, 1) * hidden_size + (hidden_size + proj_size if proj_size else 0)
    values = math.prod(shape) * directions * (layers * kept + (layers - 1) * size) if train else 0
    return (
        output.transpose(0, 1) if is_turned else output,
        hx.new_empty((layers * directions, hx.shape[1], size)),
        rows.new_empty(0) if cx is None else cx.new_empty(cx.shape),
        rows.new_empty(values * rows.element_size(), dtype=torch.uint8),
        _buffer(weights, per_layer) if flat is None else flat,
    )


def _layers_backward(
    rows: Any,
    weights: Sequence[Any],
    per_layer: int,
    flat: Any,
    hx: Any,
    cx: Any,
    output: Any,
    grad_output: Any,
    grad_hy: Any,
    grad_cy: Any,
    *others: Any,
) -> tuple[Any, Any, Any, list[Any]]:
    """Gradients of rows and first states, whether they are asked for or not, and of the weights, in one buffer."""
    if grad_output is None and grad_hy is None and grad_cy is None:
        return None, None, None, [None] * len(weights)
    made: list[Any] = []
    if others[-1][3]:
        made = _parts(_buffer(weights, per_layer), weights)
    return torch.empty_like(rows), torch.empty_like(hx), None if cx is None else torch.empty_like(cx), made


def _buffer(weights: Sequence[Any], per_layer: int) -> Any:
    """Memory for all weights, with room for two biases of each layer and direction even where there are none."""
    biases = 2 * sum(each.shape[0] for each in weights[::per_layer]) if per_layer < _WITH_BIASES else 0
    return weights[0].new_empty(sum(weight.numel() for weight in weights) + biases)


def _parts(flat: Any, weights: Sequence[Any]) -> list[Any]:
    """The part of each weight in a buffer, one after another."""
    sizes = [weight.numel() for weight in weights]
    parts = flat[: sum(sizes)].split(sizes)
    return [part.view(weight.shape) for part, weight in zip(parts, weights, strict=True)]


def _pack(padded: Any, lengths: Any, batch_first: bool) -> tuple[Any, Any]:
    """The rows of sequences one beside the other, and how many there are at each place.

    Lengths without values are taken to be whole. Raises ``ValueError`` for what the operator does not take.
    """
    steps, batch = (padded.shape[1], padded.shape[0]) if batch_first else padded.shape[:2]
    longest = [steps] * batch if isinstance(lengths, FakeTensor) else lengths.tolist()
    if len(longest) != batch or min(longest, default=1) < 1 or max(longest, default=0) > steps:
        raise ValueError(f"pack_padded_sequence: lengths {longest[:8]} of {batch} sequences of up to {steps} rows")
    at_each = [sum(length > step for length in longest) for step in range(max(longest, default=0))]
    return padded.new_empty((sum(longest), *padded.shape[2:])), torch.tensor(at_each)


_ATEN = torch.ops.aten
RECURRENT: Mapping[Any, Callable[..., Any]] = {
    _ATEN._cudnn_rnn_flatten_weight.default: _flatten,
    _ATEN._cudnn_rnn.default: _layers,
    _ATEN._cudnn_rnn_backward.default: _layers_backward,
    _ATEN._pack_padded_sequence.default: _pack,
}
"""Operators that torch has no meta functions for, or wrong ones, and what makes their results."""
