"""Chains of two to seven steps on one tensor: pointwise functions, reductions, norms, softmax, gathers, products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torchledger.sampling.drawing import VOCABULARIES, Draw, Function, activate, functional, rms_norm, rotate, rotate_by

Step = Callable[[Any, Mapping[str, Any]], Any]


def draw_chain(draw: Draw) -> Function:
    """Two to seven steps on a tensor [batch, length, width]."""
    width = draw.width()
    batch, length = draw.tokens(width)
    source: Step
    if draw.chance(0.15):
        vocabulary = draw.choose(VOCABULARIES)
        ids, table = draw.add((batch, length), "ids", high=vocabulary), draw.add((vocabulary, width), "weight")
        source = lambda _, t: functional().embedding(t[ids], t[table])  # noqa: E731
    else:
        first = draw.add((batch, length, width))
        source = lambda _, t: t[first]  # noqa: E731
    steps: list[Step] = [source]
    shape = [batch, length, width]
    for _ in range(draw.size(2, 7)):
        steps.append(_step(draw, shape))
    if draw.chance(0.2):
        steps.append(_ending(draw, shape))

    def run(**t: Any) -> Any:
        x = None
        for step in steps:
            x = step(x, t)
        return x

    return run


def _step(draw: Draw, shape: list[int]) -> Step:
    kind = draw.choose(
        ("activation", "vector", "residual", "gate", "norm", "softmax", "cat", "permute", "mask", "dropout", "scale",
         "rotate", "slice", "statistics", "linear", "scan", "pick"),
        weights=(5, 3, 3, 2, 3.5, 1.2, 0.8, 1.2, 0.7, 0.8, 1, 0.6, 0.6, 1, 1.2, 0.3, 0.4),
    )  # fmt: skip
    return _STEPS[kind](draw, shape)


def _activation(draw: Draw, shape: list[int]) -> Step:
    name = draw.choose(
        ("gelu", "gelu_tanh", "relu", "silu", "sigmoid", "tanh", "softplus", "hardswish", "leaky_relu", "elu", "square")
    )
    return lambda x, t: activate(name, x)


def _vector(draw: Draw, shape: list[int]) -> Step:
    vector, adds = draw.add((shape[-1],), "weight"), draw.chance(0.6)
    return (lambda x, t: x + t[vector]) if adds else (lambda x, t: x * t[vector])


def _residual(draw: Draw, shape: list[int]) -> Step:
    other = draw.add(tuple(shape))
    return lambda x, t: x + t[other]


def _gate(draw: Draw, shape: list[int]) -> Step:
    other, name = draw.add(tuple(shape)), draw.choose(("silu", "gelu", "sigmoid", "relu"))
    return lambda x, t: activate(name, t[other]) * x


def _norm(draw: Draw, shape: list[int]) -> Step:
    width = shape[-1]
    weight = draw.add((width,), "weight")
    if draw.chance(0.5):
        bias = draw.add((width,), "weight") if draw.chance(0.8) else None
        return lambda x, t: functional().layer_norm(x, (width,), t[weight], t[bias] if bias else None)
    return lambda x, t: rms_norm(x, t[weight])


def _softmax(draw: Draw, shape: list[int]) -> Step:
    scale, logarithm, wide = draw.choose((1.0, 0.125)), draw.chance(0.25), draw.chance(0.4)

    def run(x: Any, t: Mapping[str, Any]) -> Any:
        y = x.float() if wide else x
        y = functional().log_softmax(y * scale, -1) if logarithm else functional().softmax(y * scale, -1)
        return y.to(x.dtype)

    return run


def _cat(draw: Draw, shape: list[int]) -> Step:
    import operator

    share, axis = draw.choose((1, 2)), draw.choose((1, 2))
    other_shape = list(shape)
    other_shape[axis] = max(1, shape[axis] // share)
    other = draw.add(tuple(other_shape))
    if math.prod(shape) + math.prod(other_shape) > draw.largest:
        return lambda x, t: operator.add(x, 1.0)
    shape[axis] += other_shape[axis]

    def run(x: Any, t: Mapping[str, Any]) -> Any:
        import torch

        return torch.cat((x, t[other]), axis)

    return run


def _permute(draw: Draw, shape: list[int]) -> Step:
    if draw.chance(0.5) or shape[-1] % 8:
        shape[1], shape[2] = shape[2], shape[1]
        contiguous = draw.chance(0.7)
        return lambda x, t: x.transpose(1, 2).contiguous() if contiguous else x.transpose(1, 2)
    heads = draw.choose([h for h in (2, 4, 8, 16) if shape[-1] % h == 0])
    size = list(shape)

    def run(x: Any, t: Mapping[str, Any]) -> Any:
        split = x.reshape(size[0], size[1], heads, size[2] // heads).transpose(1, 2).contiguous()
        return split.transpose(1, 2).reshape(size)

    return run


def _mask(draw: Draw, shape: list[int]) -> Step:
    value, length, width = draw.choose((0.0, -1e4)), shape[1], shape[2]

    def run(x: Any, t: Mapping[str, Any]) -> Any:
        import torch

        rows, columns = torch.arange(length, device=x.device), torch.arange(width, device=x.device)
        return torch.where(columns[None] <= rows[:, None], x, value)

    return run


def _dropout(draw: Draw, shape: list[int]) -> Step:
    return lambda x, t: functional().dropout(x, 0.1, training=True)


def _scale(draw: Draw, shape: list[int]) -> Step:
    factor, wide = draw.choose((0.5, 2.0, 1.7)), draw.chance(0.5)
    return lambda x, t: (x.float() * factor).to(x.dtype) if wide else x * factor


def _rotate(draw: Draw, shape: list[int]) -> Step:
    if shape[-1] % 2:
        return lambda x, t: x + 1.0
    angles, computed = draw.add((shape[1], shape[-1]), "buffer"), draw.chance(0.4)
    if computed:
        return lambda x, t: rotate_by(x, t[angles])
    return lambda x, t: rotate(x, t[angles], t[angles])


def _slice(draw: Draw, shape: list[int]) -> Step:
    if draw.chance(0.5) and shape[-1] % 2 == 0 and shape[-1] > 16:
        shape[-1] //= 2

        def halve(x: Any, t: Mapping[str, Any]) -> Any:
            left, right = x.chunk(2, dim=-1)
            return left * right.sigmoid()

        return halve
    return lambda x, t: x.roll(1, 1)


def _statistics(draw: Draw, shape: list[int]) -> Step:
    axis = draw.choose((0, 1, 2, (0, 1)))
    return lambda x, t: x - x.mean(axis, keepdim=True)


def _scan(draw: Draw, shape: list[int]) -> Step:
    axis = draw.choose((1, 2))
    return lambda x, t: x.cumsum(axis) * (1.0 / shape[axis])


def _pick(draw: Draw, shape: list[int]) -> Step:
    """Rows by number, some of them many times: their gradient is summed by atomics."""
    ids = draw.add((shape[1],), "ids", high=max(1, shape[1] // draw.choose((1, 4, 64))))
    return lambda x, t: x[:, t[ids]]


def _linear(draw: Draw, shape: list[int]) -> Step:
    width = draw.width(64, 4096)
    if shape[0] * shape[1] * width > draw.largest:
        width = 64
    weight = draw.add((width, shape[-1]), "weight")
    bias = draw.add((width,), "weight") if draw.chance(0.5) else None
    shape[-1] = width
    return lambda x, t: functional().linear(x, t[weight], t[bias] if bias else None)


def _ending(draw: Draw, shape: list[int]) -> Step:
    batch, length, width = shape
    kind = draw.choose(("cross_entropy", "mean", "sum_rows", "pool"), weights=(3, 1, 1, 1))
    if kind == "cross_entropy":
        ids = draw.add((batch * length,), "ids", high=width)
        return lambda x, t: functional().cross_entropy(x.reshape(batch * length, width).float(), t[ids])
    if kind == "mean":
        return lambda x, t: x.mean()
    axis = draw.choose((0, 1, 2))
    return lambda x, t: x.float().sum(axis) if kind == "sum_rows" else x.amax(axis)


_STEPS: Mapping[str, Callable[[Draw, list[int]], Step]] = {
    "activation": _activation,
    "vector": _vector,
    "residual": _residual,
    "gate": _gate,
    "norm": _norm,
    "softmax": _softmax,
    "cat": _cat,
    "permute": _permute,
    "mask": _mask,
    "dropout": _dropout,
    "scale": _scale,
    "rotate": _rotate,
    "slice": _slice,
    "statistics": _statistics,
    "linear": _linear,
    "scan": _scan,
    "pick": _pick,
}
