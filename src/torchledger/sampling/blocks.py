"""Blocks of networks with random sizes: attention, feed-forward, convolutions, a language model's beginning and end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchledger.sampling.drawing import VOCABULARIES, Draw, Function, activate, functional, rms_norm, rotate, rotate_by


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


BLOCKS: Mapping[str, tuple[Callable[[Draw], Function], float]] = {
    "attention": (_attention, 1.6),
    "feed_forward": (_feed_forward, 1.3),
    "convolution": (_convolution, 1.6),
    "image_chain": (_image_chain, 1.2),
    "head": (_head, 0.5),
    "embeddings": (_embeddings, 0.5),
    "library": (_library, 0.7),
}
"""How to draw a block, and its weight among the families."""
