"""Random programs for Inductor to compile: what the kernels of models are made of, at random shapes.

A program is drawn from a seed, so that every process draws the same one. Chains mix pointwise functions, reductions,
norms, softmax, gathers, cat, permutes, residuals, random masks and products; blocks are the usual parts of networks
(attention, feed-forward, convolution with batch norm, squeeze and excite) with random sizes; networks are small models
from inputs to loss. Each is run forward and backward, in bfloat16, under autocast with float32 parameters, or in
float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torchledger.sampling.drawing import (
    VOCABULARIES,
    Draw,
    Function,
    TensorSpec,
    activate,
    functional,
    rms_norm,
    rotate,
    rotate_by,
)
from torchledger.sampling.networks import NETWORKS

Precision = Literal["bfloat16", "autocast", "float32"]
LARGEST_NUMEL = 2**27


@dataclass(frozen=True)
class Program:
    """A function of tensors, and what its inputs are."""

    seed: int
    family: str
    precision: Precision
    function: Function
    inputs: Mapping[str, TensorSpec] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``"attention-17"``."""
        return f"{self.family}-{self.seed}"


def draw_program(seed: int, *, largest_numel: int = LARGEST_NUMEL, family: str | None = None) -> Program:
    """The program of a seed, of a given family or of any; its activations have at most about ``largest_numel``
    elements."""
    draw = Draw(seed, largest_numel)
    family = family or draw.choose(tuple(_FAMILIES), weights=tuple(weight for _, weight in _FAMILIES.values()))
    function = _FAMILIES[family][0](draw)
    # Whole models are mostly trained under autocast.
    weights = (0.25, 0.7, 0.05) if family in NETWORKS else (0.55, 0.35, 0.1)
    precision: Precision = draw.choose(("bfloat16", "autocast", "float32"), weights=weights)
    return Program(seed, family, precision, function, dict(draw.inputs))


def make_inputs(program: Program, device: str) -> dict[str, Any]:
    """Tensors for a program's inputs: activations in its dtype, weights in float32 under autocast."""
    import torch

    generator = torch.Generator(device=device).manual_seed(program.seed)
    half = torch.float32 if program.precision == "float32" else torch.bfloat16
    weights = torch.float32 if program.precision == "autocast" else half
    tensors = {}
    for name, spec in program.inputs.items():
        if spec.kind == "ids":
            tensors[name] = torch.randint(0, spec.high, spec.shape, device=device, generator=generator)
            continue
        dtype = {"activation": half, "weight": weights, "state": weights, "buffer": torch.float32}[spec.kind]
        tensor = torch.randn(spec.shape, device=device, generator=generator, dtype=torch.float32).to(dtype)
        if spec.kind == "weight":
            tensor *= 1 / math.sqrt(max(spec.shape[-1], 1))
        if spec.channels_last:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        tensors[name] = tensor.requires_grad_(spec.kind not in ("buffer", "state"))
    return tensors


# Chains of steps on one tensor

Step = Callable[[Any, Mapping[str, Any]], Any]


def _chain(draw: Draw) -> Function:
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


# Blocks of networks


def _attention(draw: Draw) -> Function:
    """Norm, projections, rotary or learned bias, attention (fused or spelled out), output projection, residual."""
    head_dim, heads = draw.choose((32, 64, 64, 80, 96, 128, 128)), draw.choose((4, 6, 8, 12, 16, 20, 32))
    groups = draw.choose((1, 1, 1, 2, 4)) if heads % 4 == 0 else 1
    width, kv_heads = heads * head_dim, heads // groups
    batch, length = draw.tokens(width)
    spelled_out = draw.chance(0.35)
    batch = max(1, min(batch, draw.largest // (heads * length * length))) if spelled_out else batch
    rotary, causal, bias = draw.chance(0.4), draw.chance(0.6), draw.chance(0.4)
    post_norm, rms, dropout = draw.chance(0.3), draw.chance(0.4), draw.chance(0.3)
    x, norm, shift = draw.add((batch, length, width)), draw.add((width,), "weight"), draw.add((width,), "weight")
    packed = groups == 1 and draw.chance(0.4)
    q = draw.add(((3 if packed else 1) * width, width), "weight")
    k, v = (draw.add((kv_heads * head_dim, width), "weight") for _ in range(2)) if not packed else ("", "")
    out = draw.add((width, width), "weight")
    biases = [draw.add((width * (3 if packed else 1),), "weight"), draw.add((width,), "weight")] if bias else []
    angles, computed = draw.add((length, head_dim), "buffer") if rotary else "", draw.chance(0.4)
    score_bias = draw.add((1, heads, length, length), "weight") if spelled_out and draw.chance(0.4) else ""

    def run(**t: Any) -> Any:
        import torch

        def normalise(y: Any) -> Any:
            return rms_norm(y, t[norm]) if rms else functional().layer_norm(y, (width,), t[norm], t[shift])

        y = t[x] if post_norm else normalise(t[x])
        first = functional().linear(y, t[q], t[biases[0]] if bias else None)
        parts = first.chunk(3, -1) if packed else (first, functional().linear(y, t[k]), functional().linear(y, t[v]))
        query, key, value = (part.reshape(batch, length, -1, head_dim).transpose(1, 2) for part in parts)
        if rotary:
            turned = rotate_by if computed else lambda part, table: rotate(part, table, table)
            query, key = (turned(part, t[angles]) for part in (query, key))
        if spelled_out:
            key, value = (part.repeat_interleave(groups, 1) for part in (key, value)) if groups > 1 else (key, value)
            scores = query @ key.transpose(2, 3) * head_dim**-0.5
            if score_bias:
                scores = scores + t[score_bias]
            if causal:
                seen = torch.ones(length, length, device=scores.device, dtype=torch.bool).tril()
                scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
            weights = functional().softmax(scores.float(), -1).to(value.dtype)
            if dropout:
                weights = functional().dropout(weights, 0.1, training=True)
            mixed = weights @ value
        else:
            mixed = functional().scaled_dot_product_attention(
                query, key, value, is_causal=causal, enable_gqa=groups > 1
            )
        joined = mixed.transpose(1, 2).reshape(batch, length, width)
        result = functional().linear(joined, t[out], t[biases[1]] if bias else None)
        if dropout:
            result = functional().dropout(result, 0.1, training=True)
        result = t[x] + result
        return normalise(result) if post_norm else result

    return run


def _feed_forward(draw: Draw) -> Function:
    """Norm, up, activation or gate, down, residual."""
    width = draw.width(128, 4096)
    batch, length = draw.tokens(4 * width)
    hidden = draw.choose((4 * width, 4 * width, round(width * 8 / 3 / 64) * 64, 2 * width))
    gated, bias, rms, post = draw.chance(0.4), draw.chance(0.5), draw.chance(0.4), draw.chance(0.3)
    name = draw.choose(("gelu", "gelu_tanh", "relu", "silu", "square"))
    dropout = draw.chance(0.3)
    x, norm, shift = draw.add((batch, length, width)), draw.add((width,), "weight"), draw.add((width,), "weight")
    up, down = draw.add((hidden, width), "weight"), draw.add((width, hidden), "weight")
    gate = draw.add((hidden, width), "weight") if gated else ""
    biases = [draw.add((hidden,), "weight"), draw.add((width,), "weight")] if bias else []

    def run(**t: Any) -> Any:
        def normalise(y: Any) -> Any:
            return rms_norm(y, t[norm]) if rms else functional().layer_norm(y, (width,), t[norm], t[shift])

        y = t[x] if post else normalise(t[x])
        h = activate(name, functional().linear(y, t[up], t[biases[0]] if bias else None))
        if gated:
            h = h * functional().linear(y, t[gate])
        result = functional().linear(h, t[down], t[biases[1]] if bias else None)
        if dropout:
            result = functional().dropout(result, 0.1, training=True)
        result = t[x] + result
        return normalise(result) if post else result

    return run


def _image(draw: Draw, channels: int) -> tuple[int, int]:
    side = draw.choose((7, 14, 16, 28, 32, 56, 64, 112))
    numel = draw.size(min(2**18, draw.largest // 16), draw.largest // 2)
    return max(1, min(256, numel // (channels * side * side))), side


def _convolution(draw: Draw) -> Function:
    """Convolutions with batch norm, activation and residual, as residual and inverted-residual networks have them."""
    channels = draw.choose((16, 24, 32, 40, 64, 80, 96, 120, 128, 192, 256, 384, 512, 768, 1024))
    count, side = _image(draw, channels)
    last = draw.chance(0.4)
    name = draw.choose(("relu", "silu", "hardswish", "gelu"))
    x = draw.add((count, channels, side, side), channels_last=last)
    layers: list[tuple[str, int, int, int, str, str, str, str]] = []
    current = channels
    for _ in range(draw.choose((1, 2, 3))):
        kernel = draw.choose((1, 1, 3, 3, 5, 7))
        grouped = kernel > 1 and draw.chance(0.4)
        outward = current if grouped else draw.choose((channels, channels, max(16, channels // 2), 2 * channels))
        stride = 2 if kernel > 1 and side >= 14 and not layers and draw.chance(0.2) else 1
        weight = draw.add((outward, 1 if grouped else current, kernel, kernel), "weight", channels_last=last)
        vectors = [draw.add((outward,), "weight") for _ in range(2)]
        running = [draw.add((outward,), "state") for _ in range(2)]
        layers.append((weight, current if grouped else 1, kernel // 2, stride, *vectors, *running))
        current = outward
    squeeze = [draw.add((max(8, current // 4), current), "weight"), draw.add((current, max(8, current // 4)), "weight")]
    excite, residual = draw.chance(0.3), draw.chance(0.6)

    def run(**t: Any) -> Any:
        y = t[x]
        for weight, groups, padding, stride, scale, shift, mean, variance in layers:
            y = functional().conv2d(y, t[weight], None, stride, padding, 1, groups)
            y = functional().batch_norm(y, t[mean].clone(), t[variance].abs(), t[scale], t[shift], training=True)
            y = activate(name, y)
        if excite:
            pooled = functional().linear(y.mean((2, 3)), t[squeeze[0]])
            y = y * functional().linear(activate(name, pooled), t[squeeze[1]]).sigmoid()[:, :, None, None]
        return y + t[x] if residual and y.shape == t[x].shape else y

    return run


def _image_chain(draw: Draw) -> Function:
    """Pointwise functions, norms over channels or space, pooling and permutes on images."""
    channels = draw.choose((3, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048))
    count, side = _image(draw, channels)
    x = draw.add((count, channels, side, side), channels_last=draw.chance(0.4))
    weight, bias = draw.add((channels,), "weight"), draw.add((channels,), "weight")
    other = draw.add((count, channels, side, side))
    kind = draw.choose(("batch_norm", "channel_norm", "group_norm", "pool", "average", "scale", "resize"))
    name = draw.choose(("relu", "silu", "gelu", "hardswish"))
    residual, before = draw.chance(0.5), draw.chance(0.5)
    groups = draw.choose([g for g in (1, 4, 8, 16) if channels % g == 0])

    def run(**t: Any) -> Any:
        y = activate(name, t[x]) if before else t[x]
        if kind == "batch_norm":
            y = functional().batch_norm(y, None, None, t[weight], t[bias], training=True)
        elif kind == "channel_norm":
            y = functional().layer_norm(y.permute(0, 2, 3, 1), (channels,), t[weight], t[bias]).permute(0, 3, 1, 2)
        elif kind == "group_norm":
            y = functional().group_norm(y, groups, t[weight], t[bias])
        elif kind == "scale":
            y = t[weight][:, None, None] * y
        if residual:
            y = y + t[other]
        y = activate(name, y)
        if kind == "pool" and side >= 14:
            return functional().max_pool2d(y, 3, 2, 1)
        if kind == "average":
            return y.mean((2, 3))
        if kind == "resize" and side <= 32:
            return functional().interpolate(y, scale_factor=2.0, mode="nearest")
        return y

    return run


def _head(draw: Draw) -> Function:
    """A language model's end: norm, products with the vocabulary, cross entropy."""
    width, vocabulary = draw.width(256, 4096), draw.choose(VOCABULARIES)
    tokens = max(64, min(16_384, draw.size(draw.largest // 32, 2 * draw.largest) // vocabulary))
    x, weight = draw.add((1, tokens, width)), draw.add((vocabulary, width), "weight")
    norm, ids = draw.add((width,), "weight"), draw.add((tokens,), "ids", high=vocabulary)
    rms, shifted = draw.chance(0.5), draw.chance(0.5)

    def run(**t: Any) -> Any:
        y = rms_norm(t[x], t[norm]) if rms else functional().layer_norm(t[x], (width,), t[norm])
        logits = functional().linear(y, t[weight]).float()
        if shifted:
            return functional().cross_entropy(logits[0, :-1], t[ids][1:])
        return functional().cross_entropy(logits[0], t[ids])

    return run


def _embeddings(draw: Draw) -> Function:
    """A language model's beginning: tables of tokens and positions, norm, dropout."""
    width, vocabulary = draw.width(128, 4096), draw.choose(VOCABULARIES)
    batch, length = draw.tokens(width)
    ids, table = draw.add((batch, length), "ids", high=vocabulary), draw.add((vocabulary, width), "weight")
    places = draw.add((max(length, 64), width), "weight")
    norm, shift = draw.add((width,), "weight"), draw.add((width,), "weight")
    normed, dropout = draw.chance(0.5), draw.chance(0.4)

    def run(**t: Any) -> Any:
        y = functional().embedding(t[ids], t[table]) + t[places][:length]
        if normed:
            y = functional().layer_norm(y, (width,), t[norm], t[shift])
        return functional().dropout(y, 0.1, training=True) if dropout else y

    return run


def _library(draw: Draw) -> Function:
    """Several library calls side by side: products, batched products, attention; for their shapes, not for fusion."""
    calls: list[tuple[Any, ...]] = []
    for _ in range(draw.choose((4, 6, 8))):
        kind = draw.choose(("linear", "linear", "linear", "bmm", "attention"))
        if kind == "linear":
            k, n = draw.width(64, 8192), draw.width(64, 16_384 if draw.chance(0.2) else 8192)
            m = max(16, min(65_536, draw.size(2**30, 2**39) // (k * n)))
            m = round(m / 8) * 8 if draw.chance(0.8) else m
            calls.append((kind, draw.add((m, k)), draw.add((n, k), "weight"), draw.add((n,), "weight")))
        elif kind == "bmm":
            b, m, k, n = draw.size(4, 256), draw.width(64, 2048), draw.width(32, 1024), draw.width(32, 2048)
            b = max(1, min(b, draw.largest // max(m * k, k * n, m * n)))
            calls.append((kind, draw.add((b, m, k)), draw.add((b, k, n))))
        else:
            d, h, length = draw.choose((32, 64, 80, 96, 128)), draw.size(4, 32), draw.size(128, 4096, 32)
            b = max(1, min(64, draw.size(2**20, 2**26) // (h * length * d)))
            causal = draw.chance(0.5)
            calls.append((kind, *(draw.add((b, length, h, d)) for _ in range(3)), causal))

    def run(**t: Any) -> Any:
        outputs = []
        for kind, *names in calls:
            if kind == "linear":
                outputs.append(functional().linear(t[names[0]], t[names[1]], t[names[2]]))
            elif kind == "bmm":
                outputs.append(t[names[0]] @ t[names[1]])
            else:
                query, key, value = (t[name].transpose(1, 2) for name in names[:3])
                outputs.append(functional().scaled_dot_product_attention(query, key, value, is_causal=names[3]))
        return tuple(outputs)

    return run


_FAMILIES: Mapping[str, tuple[Callable[[Draw], Function], float]] = {
    "chain": (_chain, 4.0),
    "attention": (_attention, 1.6),
    "feed_forward": (_feed_forward, 1.3),
    "convolution": (_convolution, 1.6),
    "image_chain": (_image_chain, 1.2),
    "head": (_head, 0.5),
    "embeddings": (_embeddings, 0.5),
    "library": (_library, 0.7),
    **NETWORKS,
}
