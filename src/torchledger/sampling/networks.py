"""Whole small networks as random programs: what fuses across the layers of a model.

A block by itself never sums the gradients of several branches, never fuses the gradient of an embedding with the norm
behind it, and meets one memory layout only. Language models, vision transformers and convolutional networks are drawn
with one or two layers and random sizes, norms, positions, gates, branches and heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchledger.sampling.drawing import (
    VOCABULARIES,
    Draw,
    Function,
    Layer,
    Tensors,
    activate,
    draw_norm,
    drop,
    functional,
    rotate_by,
)

_SMALLEST_NUMEL = 2**19


def _tokens(draw: Draw, widest: int, lengths: tuple[int, ...]) -> tuple[int, int]:
    """Batch and length such that the widest activation is sensible; several of its size are alive at once."""
    top = max(draw.largest // 4, 64)
    numel = draw.size(min(_SMALLEST_NUMEL, top // 4), top)
    count = max(32, numel // widest)
    length = min(draw.choose(lengths), count)
    return max(1, min(count // length, 256)), length


# Transformers


@dataclass(frozen=True)
class _Style:
    """What all layers of one transformer share."""

    width: int
    heads: int
    head_dim: int
    groups: int
    hidden: int
    activation: str
    rms: bool
    after: bool
    gated: bool
    bias: bool
    packed: bool
    spelled_out: bool
    wide_softmax: bool
    layer_scale: bool
    dropout: float


def _style(draw: Draw, *, vision: bool) -> _Style:
    head_dim = draw.choose((32, 64, 64, 64, 80, 128))
    heads = draw.choose([heads for heads in (3, 4, 6, 8, 12, 16, 20, 32) if heads * head_dim <= 2560])
    width = heads * head_dim
    gated = not vision and draw.chance(0.4)
    return _Style(
        width=width,
        heads=heads,
        head_dim=head_dim,
        groups=draw.choose((1, 2, 4)) if heads % 4 == 0 and not vision and draw.chance(0.5) else 1,
        hidden=draw.choose((4 * width, 4 * width, round(width * 8 / 3 / 64) * 64, 2 * width)),
        activation=draw.choose(("silu", "gelu_tanh") if gated else ("gelu", "gelu", "gelu_tanh", "relu", "square")),
        rms=not vision and draw.chance(0.5),
        after=draw.chance(0.2),
        gated=gated,
        bias=vision or draw.chance(0.5),
        packed=draw.chance(0.6 if vision else 0.3),
        spelled_out=draw.chance(0.2 if vision else 0.35),
        wide_softmax=draw.chance(0.5),
        layer_scale=vision and draw.chance(0.4),
        dropout=0.1 if draw.chance(0.25) else 0.0,
    )


def _linear(draw: Draw, inward: int, outward: int, bias: bool) -> Layer:
    weight = draw.add((outward, inward), "weight")
    shift = draw.add((outward,), "weight") if bias else ""
    return lambda x, t: functional().linear(x, t[weight], t[shift] if bias else None)


def _attend(draw: Draw, style: _Style, *, causal: bool, crossed: bool) -> Callable[..., Any]:
    """Projections, attention and output projection: ``f(x, memory, t, angles, score_bias)``."""
    width, heads, head_dim = style.width, style.heads, style.head_dim
    kv_width = width // style.groups
    packed = style.packed and style.groups == 1 and not crossed
    first = _linear(draw, width, 3 * width if packed else width, style.bias)
    others = [] if packed else [_linear(draw, width, kv_width, style.bias) for _ in range(2)]
    last = _linear(draw, width, width, style.bias)

    def run(x: Any, memory: Any, t: Tensors, angles: Any, score_bias: Any) -> Any:
        import torch

        batch, length = x.shape[:2]
        parts = first(x, t).chunk(3, -1) if packed else (first(x, t), *(layer(memory, t) for layer in others))
        query, key, value = (part.reshape(batch, part.shape[1], -1, head_dim).transpose(1, 2) for part in parts)
        if angles is not None:
            query, key = (rotate_by(part, angles) for part in (query, key))
        if not style.spelled_out and score_bias is None:
            mixed = functional().scaled_dot_product_attention(
                query, key, value, is_causal=causal, enable_gqa=style.groups > 1
            )
        else:
            if style.groups > 1:
                key, value = (part.repeat_interleave(style.groups, 1) for part in (key, value))
            scores = query @ key.transpose(2, 3) * head_dim**-0.5
            if score_bias is not None:
                scores = scores + score_bias
            if causal:
                seen = torch.ones(length, key.shape[2], device=scores.device, dtype=torch.bool).tril()
                scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
            weights = functional().softmax(scores.float() if style.wide_softmax else scores, -1).to(value.dtype)
            mixed = drop(weights, style.dropout) @ value
        return drop(last(mixed.transpose(1, 2).reshape(batch, length, heads * head_dim), t), style.dropout)

    return run


def _block(draw: Draw, style: _Style, *, causal: bool, crossed: bool) -> Callable[..., Any]:
    """One layer: self-attention, attention to a memory if ``crossed``, feed-forward; each with norm and residual."""
    attend = _attend(draw, style, causal=causal, crossed=False)
    look = _attend(draw, style, causal=False, crossed=True) if crossed else None
    norms = [draw_norm(draw, style.width, rms=style.rms) for _ in range(3 if crossed else 2)]
    scales = [draw.add((style.width,), "weight") for _ in norms] if style.layer_scale else []
    up = _linear(draw, style.width, style.hidden, style.bias)
    gate = _linear(draw, style.width, style.hidden, style.bias) if style.gated else None
    down = _linear(draw, style.hidden, style.width, style.bias)

    def feed(x: Any, t: Tensors) -> Any:
        h = activate(style.activation, up(x, t))
        return drop(down(h * gate(x, t) if gate else h, t), style.dropout)

    def run(x: Any, memory: Any, t: Tensors, angles: Any = None, score_bias: Any = None) -> Any:
        parts: list[Layer] = [lambda y, t: attend(y, y, t, angles, score_bias)]
        if look is not None:
            parts.append(lambda y, t: look(y, memory, t, None, None))
        for place, part in enumerate([*parts, feed]):
            result = part(x if style.after else norms[place](x, t), t)
            if scales:
                result = result * t[scales[place]]
            x = norms[place](x + result, t) if style.after else x + result
        return x

    return run


def _positions(draw: Draw, style: _Style, length: int, *, causal: bool) -> tuple[Layer, Callable[..., Any]]:
    """What is added to the embeddings, and what attention gets: angles of a rotation, or a bias of the scores."""
    kind = draw.choose(("rotary", "table", "relative", "none"), weights=(3, 3, 2, 1))
    if kind == "rotary":
        rates = draw.add((style.head_dim // 2,), "buffer")
        return (lambda x, t: x), lambda t: (_angles(t[rates], length), None)
    if kind == "table":
        table = draw.add((max(length, 64), style.width), "weight")
        return (lambda x, t: x + t[table][:length]), lambda t: (None, None)
    if kind == "relative":
        buckets, step = draw.choose((32, 32, 64, 2 * length - 1)), max(1, length // 64)
        table = draw.add((buckets, style.heads), "weight")
        return (lambda x, t: x), lambda t: (None, _relative_bias(t[table], length, step, causal))
    return (lambda x, t: x), lambda t: (None, None)


def _angles(rates: Any, length: int) -> Any:
    """Angles [length, head_dim] of a rotary embedding, both halves alike."""
    import torch

    half = torch.arange(length, device=rates.device).float()[:, None] * rates[None]
    return torch.cat((half, half), -1)


def _relative_bias(table: Any, length: int, step: int, causal: bool) -> Any:
    """Score bias [1, heads, length, length] by the distance of two places, in buckets of ``step``."""
    import torch

    place = torch.arange(length, device=table.device)
    distance = place[None] - place[:, None]
    distance = (-distance).clamp(min=0) if causal else distance + length - 1
    bucket = (distance // step).clamp(max=table.shape[0] - 1)
    return functional().embedding(bucket, table).permute(2, 0, 1)[None]


def _language(draw: Draw) -> Function:
    """Embeddings, positions, one or two layers (with or without an encoder before them), norm, loss."""
    style = _style(draw, vision=False)
    layers, crossed, causal = draw.choose((1, 1, 2)), draw.chance(0.15), draw.chance(0.7)
    batch, length = _tokens(draw, style.hidden, (128, 256, 512, 512, 1024, 2048))
    vocabulary = draw.choose(
        [size for size in VOCABULARIES if size * batch * length <= max(draw.largest, 2**16)] or [64]
    )
    fitting = max(1, draw.largest // 2 // (style.heads * length * length))
    batch = max(1, min(batch, fitting))
    room = max(draw.largest, 2**16) // (batch * length)
    vocabulary = draw.choose([size for size in VOCABULARIES if size <= room] or [64])
    ids, table = draw.add((batch, length), "ids", high=vocabulary), draw.add((vocabulary, style.width), "weight")
    added, given = _positions(draw, style, length, causal=causal)
    encoder = [_block(draw, style, causal=False, crossed=False) for _ in range(layers)] if crossed else []
    decoder = [_block(draw, style, causal=causal, crossed=crossed) for _ in range(layers)]
    norm, shifted = draw_norm(draw, style.width, rms=style.rms), draw.chance(0.5)
    tied, with_logits, scaled = draw.chance(0.5), draw.chance(0.7), draw.chance(0.15)
    head = "" if tied else draw.add((vocabulary, style.width), "weight")

    def run(**t: Any) -> Any:
        embedded = functional().embedding(t[ids], t[table]) * (style.width**0.5 if scaled else 1.0)
        x = drop(added(embedded, t), style.dropout)
        angles, score_bias = given(t)
        memory = x
        for block in encoder:
            memory = block(memory, None, t, angles, score_bias)
        for block in decoder:
            x = block(x, memory, t, angles, score_bias)
        logits = functional().linear(norm(x, t), t[table] if tied else t[head])
        goal = t[ids].reshape(-1)
        if shifted:
            goal = functional().pad(t[ids], (0, 1), value=-100)[:, 1:].reshape(-1)
        loss = functional().cross_entropy(logits.float().reshape(-1, vocabulary), goal)
        return (loss, logits) if with_logits else loss

    return run


def _vision_transformer(draw: Draw) -> Function:
    """Patches of images, class token, places, one or two layers, a head."""
    style = _style(draw, vision=True)
    layers, side, patch = draw.choose((1, 1, 2)), draw.choose((8, 12, 14, 16)), draw.choose((4, 8, 16))
    classes, pooled = draw.choose((10, 100, 1000)), draw.chance(0.4)
    places = side * side + (0 if pooled else 1)
    batch, _ = _tokens(draw, style.hidden * places, (1,))
    batch = min(batch, 128, max(1, draw.largest // 2 // (style.heads * places * places)))
    images = draw.add((batch, 3, side * patch, side * patch), "buffer")
    weight, bias = draw.add((style.width, 3, patch, patch), "weight"), draw.add((style.width,), "weight")
    token = "" if pooled else draw.add((1, 1, style.width), "weight")
    table = draw.add((1, places, style.width), "weight")
    blocks = [_block(draw, style, causal=False, crossed=False) for _ in range(layers)]
    norm, head = draw_norm(draw, style.width, rms=style.rms), _linear(draw, style.width, classes, True)
    ids = draw.add((batch,), "ids", high=classes)

    def run(**t: Any) -> Any:
        import torch

        x = functional().conv2d(t[images].to(t[weight].dtype), t[weight], t[bias], patch).flatten(2).transpose(1, 2)
        if not pooled:
            x = torch.cat((t[token].expand(batch, -1, -1), x), 1)
        x = drop(x + t[table], style.dropout)
        for block in blocks:
            x = block(x, None, t)
        x = norm(x, t)
        return functional().cross_entropy(head(x.mean(1) if pooled else x[:, 0], t), t[ids])

    return run


# Convolutional networks


def _convolve(
    draw: Draw, inward: int, outward: int, kernel: int, *, stride: int = 1, groups: int = 1, bias: bool = False
) -> Layer:
    weight = draw.add((outward, inward // groups, kernel, kernel), "weight")
    shift = draw.add((outward,), "weight") if bias else ""
    return lambda x, t: functional().conv2d(
        x, t[weight], t[shift] if bias else None, stride, (kernel - 1) // 2, 1, groups
    )


def _batch_norm(draw: Draw, channels: int) -> Layer:
    scale, shift = (draw.add((channels,), "weight") for _ in range(2))
    mean, variance = (draw.add((channels,), "state") for _ in range(2))
    return lambda x, t: functional().batch_norm(x, t[mean], t[variance], t[scale], t[shift], training=True)


def _channel_norm(draw: Draw, channels: int) -> Layer:
    scale, shift = (draw.add((channels,), "weight") for _ in range(2))

    def run(x: Any, t: Tensors) -> Any:
        return functional().layer_norm(x.permute(0, 2, 3, 1), (channels,), t[scale], t[shift]).permute(0, 3, 1, 2)

    return run


def _split(channels: int, parts: int) -> list[int]:
    sizes = [channels // parts] * parts
    sizes[0] += channels - sum(sizes)
    return sizes


def _by_parts(layers: list[tuple[int, Layer]]) -> Layer:
    """Channels split, each part through its own layer, and cat."""

    def run(x: Any, t: Tensors) -> Any:
        import torch

        parts = torch.split(x, [size for size, _ in layers], 1)
        return torch.cat([layer(part, t) for part, (_, layer) in zip(parts, layers, strict=True)], 1)

    return run


def _squeeze(draw: Draw, channels: int, name: str) -> Layer:
    inner = max(4, channels // draw.choose((4, 8, 16)))
    down, up = _convolve(draw, channels, inner, 1, bias=True), _convolve(draw, inner, channels, 1, bias=True)
    gate = draw.choose(("sigmoid", "sigmoid", "hardsigmoid"))

    def run(x: Any, t: Tensors) -> Any:
        weights = up(activate(name, down(x.mean((2, 3), keepdim=True), t)), t)
        return x * (weights.sigmoid() if gate == "sigmoid" else functional().hardsigmoid(weights))

    return run


def _image_block(draw: Draw, kind: str, inward: int, outward: int, stride: int, name: str, mixed: bool) -> Layer:
    """A block of a convolutional network with its residual, where the shapes allow one."""
    acts: Layer = lambda x, t: activate(name, x)  # noqa: E731
    parts: list[Layer] = []
    if kind == "next":
        return _next_block(draw, inward, outward, stride)
    if kind == "plain":
        parts += [_convolve(draw, inward, outward, 3, stride=stride), _batch_norm(draw, outward), acts]
        parts += [_convolve(draw, outward, outward, 3), _batch_norm(draw, outward)]
    elif kind == "bottleneck":
        inner = max(8, outward // 4)
        parts += [_convolve(draw, inward, inner, 1), _batch_norm(draw, inner), acts]
        parts += [_convolve(draw, inner, inner, 3, stride=stride), _batch_norm(draw, inner), acts]
        parts += [_convolve(draw, inner, outward, 1), _batch_norm(draw, outward)]
    else:
        inner = inward * draw.choose((1, 3, 4, 6))
        if inner != inward:
            count = 2 if mixed and draw.chance(0.5) else 1
            sizes = zip(_split(inward, count), _split(inner, count), strict=True)
            widen = [(size, _convolve(draw, size, out, 1)) for size, out in sizes]
            parts.append(_by_parts(widen) if count > 1 else widen[0][1])
            parts += [_batch_norm(draw, inner), acts]
        branches = _split(inner, draw.choose((2, 3, 4)) if mixed else 1)
        kernels = (3, 5, 7, 9) if mixed else (draw.choose((3, 5, 7)),)
        deep = [
            (size, _convolve(draw, size, size, kernel, stride=stride, groups=size))
            for size, kernel in zip(branches, kernels, strict=False)
        ]
        parts += [_by_parts(deep) if len(deep) > 1 else deep[0][1], _batch_norm(draw, inner), acts]
        if draw.chance(0.6):
            parts.append(_squeeze(draw, inner, name))
        parts += [_convolve(draw, inner, outward, 1), _batch_norm(draw, outward)]
    shortcut: list[Layer] = []
    if kind in ("plain", "bottleneck") and (inward != outward or stride > 1):
        shortcut = [_convolve(draw, inward, outward, 1, stride=stride), _batch_norm(draw, outward)]

    def run(x: Any, t: Tensors) -> Any:
        y = x
        for part in parts:
            y = part(y, t)
        beside = x
        for part in shortcut:
            beside = part(beside, t)
        y = y + beside if beside.shape == y.shape else y
        return acts(y, t) if kind in ("plain", "bottleneck") else y

    return run


def _next_block(draw: Draw, inward: int, outward: int, stride: int) -> Layer:
    """A depthwise convolution, norm over channels, two linear layers at every pixel, a scale, and the residual."""
    deep = _convolve(draw, outward, outward, draw.choose((3, 5, 7)), groups=outward, bias=True)
    weights = [draw.add((outward,), "weight") for _ in range(3)]
    up, down = _linear(draw, outward, 4 * outward, True), _linear(draw, 4 * outward, outward, True)
    before = _channel_norm(draw, inward) if inward != outward or stride > 1 else None
    shrink = draw.add((outward, inward, 2, 2), "weight") if before and stride > 1 else ""
    widen = _convolve(draw, inward, outward, 1, bias=True) if before and stride == 1 else None

    def run(x: Any, t: Tensors) -> Any:
        if before is not None:
            x = before(x, t)
            x = functional().conv2d(x, t[shrink], None, 2) if shrink else widen(x, t) if widen else x
        y = deep(x, t).permute(0, 2, 3, 1)
        y = functional().layer_norm(y, (outward,), t[weights[0]], t[weights[1]])
        y = down(activate("gelu", up(y, t)), t) * t[weights[2]]
        return x + y.permute(0, 3, 1, 2)

    return run


def _image_network(draw: Draw) -> Function:
    """A stem, one to three blocks of one kind that shrink and widen the image, a head."""
    kind = draw.choose(("plain", "bottleneck", "inverted", "mixed", "next"), weights=(1, 1.5, 1.5, 2, 1.5))
    channels = draw.choose((16, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256))
    name = draw.choose(("relu", "silu", "hardswish")) if kind in ("inverted", "mixed") else "relu"
    side, step = draw.choose((28, 32, 56, 64, 112)), draw.choose((2, 2, 4))
    widest = channels * side * side * (4 if kind in ("inverted", "mixed") else 1)
    top = max(draw.largest // 2, 64)
    batch = max(1, min(128, draw.size(min(2**20, top // 4), top) // widest))
    pooled = step == 4 and kind != "next"
    images = draw.add((batch, 3, side * step, side * step), "buffer", channels_last=draw.chance(0.3))
    kernel = draw.choose((3, 7)) if kind != "next" else step
    stem_norm = _channel_norm(draw, channels) if kind == "next" else _batch_norm(draw, channels)
    stem = draw.add((channels, 3, kernel, kernel), "weight")
    blocks, current = [], channels
    for place in range(draw.choose((1, 2, 2, 3))):
        outward = current if place == 0 or draw.chance(0.4) else draw.choose((current, 2 * current, current * 3 // 2))
        outward = max(8, outward // 8 * 8) if outward != current else current
        stride = 2 if place > 0 and side >= 14 and draw.chance(0.5) else 1
        blocks.append(_image_block(draw, kind, current, outward, stride, name, kind == "mixed"))
        current, side = outward, side // stride
    classes = draw.choose((10, 100, 1000))
    head, ids = _linear(draw, current, classes, True), draw.add((batch,), "ids", high=classes)
    first_stride = step if kind == "next" else 2

    def run(**t: Any) -> Any:
        padding = 0 if kind == "next" else kernel // 2
        x = functional().conv2d(t[images].to(t[stem].dtype), t[stem], None, first_stride, padding)
        x = stem_norm(x, t)
        if kind != "next":
            x = activate(name, x)
        if pooled:
            x = functional().max_pool2d(x, 3, 2, 1)
        for block in blocks:
            x = block(x, t)
        return functional().cross_entropy(head(x.mean((2, 3)), t), t[ids])

    return run


NETWORKS: Mapping[str, tuple[Callable[[Draw], Function], float]] = {
    "language": (_language, 3.0),
    "vision_transformer": (_vision_transformer, 1.0),
    "image_network": (_image_network, 3.0),
}
"""How to draw a network, and its weight among the families."""
