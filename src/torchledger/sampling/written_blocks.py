"""Blocks as models write them out themselves, at random sizes: scores with biases that lie otherwise, norms of heads,
groups of pictures' channels, losses of whole rows, pictures and rows that are put at places.

Of these a library has no kernel, or models leave its own: a bias that is learned for each pair of places, a norm of
queries cut from one product, a loss of one's own over a vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchledger.sampling.drawing import VOCABULARIES, Draw, Function, activate, draw_norm, drop, functional, rotate


def _scored(draw: Draw) -> Function:
    """Scores of pairs with what is added to them before a softmax: a bias for each pair and head, laid out by rows or
    by heads, slopes of distances, masks of rows, of both or of what comes after; one or two axes of a pair grid."""
    heads = draw.choose((2, 4, 4, 6, 8, 8, 12, 16))
    length = draw.choose((16, 32, 48, 49, 64, 96, 100, 128, 144, 192, 196, 256, 320, 384, 512, 577, 768, 1024))
    numel = draw.size(min(2**18, draw.largest // 32), draw.largest // 2)
    batch = max(1, min(512, numel // (heads * length * length)))
    head_dim, laid = draw.choose((16, 32, 64)), draw.choose(("rows", "rows", "heads", "each", "slopes", "none"))
    x = [draw.add((batch, heads, length, head_dim)) for _ in range(3)]
    shapes = {"rows": (length * length, heads), "heads": (1, heads, length, length), "each": (batch, 1, length, length)}
    bias = draw.add(shapes[laid], draw.choose(("activation", "weight"))) if laid in shapes else ""
    slopes = draw.add((heads,), "buffer") if laid == "slopes" else ""
    known, masked = draw.add((batch, length), "ids", high=8), draw.choose(("", "", "keys", "causal", "both"))
    library, wide = draw.chance(0.5), draw.chance(0.5)
    gated, dropout = draw.chance(0.3), draw.choose((0.0, 0.0, 0.1))
    gate = draw.add((batch, length, heads * head_dim)) if gated else ""

    def added(t: Mapping[str, Any], device: Any) -> Any:
        import torch

        found: Any = None
        place = torch.arange(length, device=device)
        if laid == "rows":
            found = t[bias].view(length, length, heads).permute(2, 0, 1)[None]
        elif bias:
            found = t[bias]
        elif slopes:
            found = -t[slopes].sigmoid()[:, None, None] * (place[:, None] - place[None]).abs()
        if masked in ("keys", "both"):
            hidden = torch.where(t[known] > 0, 0.0, -1e4)[:, None, None, :]
            found = hidden if found is None else found + hidden
        if masked in ("causal", "both"):
            hidden = torch.full((length, length), -1e4, device=device).triu(1)
            found = hidden if found is None else found + hidden
        return found

    def run(**t: Any) -> Any:
        query, key, value = (t[each] for each in x)
        extra = added(t, query.device)
        if library:
            extra = None if extra is None else extra.to(query.dtype)
            mixed = functional().scaled_dot_product_attention(query, key, value, attn_mask=extra, dropout_p=dropout)
        else:
            scores = query @ key.transpose(-1, -2) * head_dim**-0.5
            scores = scores if extra is None else scores + extra
            weights = (scores.float() if wide else scores).softmax(-1).to(value.dtype)
            mixed = drop(weights, dropout) @ value
        joined = mixed.transpose(1, 2).reshape(batch, length, heads * head_dim)
        return joined * t[gate].sigmoid() if gate else joined

    return run


def _head_norms(draw: Draw) -> Function:
    """Queries and keys cut from one product, each head through a norm of its own, turned by their places, attended."""
    head_dim, heads = draw.choose((32, 64, 64, 80, 96, 128, 128, 256)), draw.choose((2, 4, 6, 8, 12, 16, 32))
    key_heads = draw.choose([each for each in (heads, heads, heads // 2, heads // 4) if each and heads % each == 0])
    width = (heads + 2 * key_heads) * head_dim
    batch, length = draw.tokens(width)
    x = draw.add((batch, length, width))
    how = draw.choose(("rms", "rms", "library", "library", "layer", "length"))
    weights = [draw.add((head_dim,), "weight") for _ in range(2)] if draw.chance(0.6) or how == "layer" else []
    norms = [draw_norm(draw, head_dim, rms=how == "rms") for _ in range(2)]
    angles = draw.add((length, head_dim), "buffer") if draw.chance(0.6) else ""
    first, causal = draw.chance(0.5), draw.chance(0.7)

    def normed(part: Any, which: int, t: Mapping[str, Any]) -> Any:
        if how == "library":
            return functional().rms_norm(part, (head_dim,), t[weights[which]] if weights else None)
        if how == "length":
            part = functional().normalize(part, dim=-1)
            return part * t[weights[which]] if weights else part
        return norms[which](part, t)

    def run(**t: Any) -> Any:
        sizes = (heads * head_dim, key_heads * head_dim, key_heads * head_dim)
        parts = [part.view(batch, length, -1, head_dim) for part in t[x].split(sizes, -1)]
        parts = parts if first else [part.transpose(1, 2) for part in parts]
        query, key = (normed(part, which, t) for which, part in enumerate(parts[:2]))
        if angles:
            table = t[angles][:, None] if first else t[angles]
            query, key = (rotate(part, table.cos(), table.sin()) for part in (query, key))
        value = parts[2]
        if first:
            query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        query, key = (part.to(value.dtype) for part in (query, key))
        mixed = functional().scaled_dot_product_attention(
            query, key, value, is_causal=causal, enable_gqa=key_heads < heads
        )
        return mixed.transpose(1, 2).reshape(batch, length, -1)

    return run


def _channel_groups(draw: Draw) -> Function:
    """Pictures, lines or volumes through norms of groups of their channels, with what diffusion and speech models have
    around these: an activation, a scale and a shift by the moment, a convolution's result before, a sum after."""
    channels = draw.choose((32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024))
    sides = draw.choose(
        (
            *((side, side) for side in (8, 16, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256)),
            *((side,) for side in (128, 250, 512, 1000, 4000, 16_000)),
            *((side, side, side) for side in (8, 16, 24, 32, 48)),
        )
    )
    pixels = 1
    for side in sides:
        pixels *= side
    numel = draw.size(min(2**17, draw.largest // 64), draw.largest)
    count = max(1, min(256, numel // (channels * pixels)))
    whole = draw.choose((1, 2, 4, 8, 8, 16, 32, 32, channels))
    groups = whole if channels % whole == 0 else 8
    last = len(sides) == 2 and draw.chance(0.4)
    x = draw.add((count, channels, *sides), channels_last=last)
    beside = draw.add((count, channels, *sides), channels_last=last) if draw.chance(0.4) else ""
    moment = draw.add((count, 2 * channels)) if draw.chance(0.4) else ""
    layers = [[draw.add((channels,), "weight") for _ in range(2)] for _ in range(draw.choose((1, 1, 2)))]
    bias = draw.add((channels,), "weight") if draw.chance(0.4) else ""
    name, before = draw.choose(("silu", "silu", "gelu", "relu")), draw.chance(0.3)
    ones = (1,) * len(sides)

    def run(**t: Any) -> Any:
        y = t[x]
        y = y + t[bias].view(1, -1, *ones) if bias else y
        y = y + t[beside] if beside and before else y
        for weight, shift in layers:
            y = functional().group_norm(y, groups, t[weight].to(y.dtype), t[shift].to(y.dtype))
            if moment:
                scale, moved = t[moment].view(count, -1, *ones).chunk(2, 1)
                y = y * (1 + scale) + moved
            y = activate(name, y)
        return y + t[beside] if beside and not before else y

    return run


def _row_losses(draw: Draw) -> Function:
    """Losses over rows of scores that trainers write: one that flattens scores, adds the square of their sums, smooths,
    weighs by difficulty, compares two models, sums chances of what was chosen."""
    width = draw.choose(VOCABULARIES) if draw.chance(0.6) else draw.size(32, 2**17, draw.choose((1, 8, 64)))
    numel = draw.size(max(2**16, 4 * width), max(2**17, 4 * width, draw.largest))
    rows = max(4, min(65_536, numel // width))
    x, targets = draw.add((rows, width)), draw.add((rows,), "ids", high=width)
    way = draw.choose(("plain", "cap", "sums", "smooth", "focal", "teacher", "chosen", "entropy", "ignored"))
    other = draw.add((rows, width)) if way == "teacher" else ""
    bias = draw.add((width,), "weight") if draw.chance(0.25) else ""
    wide, cap = draw.chance(0.7), way == "cap" or draw.chance(0.15)
    shift, heat = draw.chance(0.3), draw.choose((1.0, 0.7, 2.0))

    def scores(t: Mapping[str, Any]) -> Any:
        h = t[x] + t[bias].to(t[x].dtype) if bias else t[x]
        h = h.float() if wide else h
        h = 15.0 * (h / 15.0).tanh() if cap else h
        return h / heat if heat != 1.0 else h

    def run(**t: Any) -> Any:
        h, ids = scores(t), t[targets]
        if shift:
            h, ids = h[:-1], ids[1:]
        loss = functional().cross_entropy
        if way == "sums":
            return loss(h, ids) + 1e-4 * h.logsumexp(-1).square().mean()
        if way == "smooth":
            return loss(h, ids, label_smoothing=0.1)
        if way == "ignored":
            return loss(h, ids.masked_fill(ids % 7 == 0, -100), ignore_index=-100)
        if way == "focal":
            each = loss(h, ids, reduction="none")
            return ((1 - (-each).exp()).square() * each).mean()
        if way == "teacher":
            taught = (t[other][:-1] if shift else t[other]).to(h.dtype) / heat
            return functional().kl_div(h.log_softmax(-1), taught.log_softmax(-1), log_target=True, reduction="sum")
        chances = h.log_softmax(-1)
        chosen = chances.gather(-1, ids[:, None])[:, 0].sum()
        return chosen + (chances.exp() * chances).sum(-1).mean() if way == "entropy" else chosen

    return run


def _placed(draw: Draw) -> Function:
    """Pictures read between their places and enlarged by any factor, rows taken and put at places that data name: the
    gradients are sums at places that meet."""
    way = draw.choose(("enlarged", "enlarged", "sampled", "taken", "put", "tables"))
    channels = draw.choose((1, 3, 8, 16, 32, 64, 96, 128, 256))
    side = draw.choose((7, 8, 14, 16, 24, 28, 32, 48, 64, 96))
    numel = draw.size(min(2**16, draw.largest // 64), draw.largest // 8)
    count = max(1, min(256, numel // (channels * side * side)))
    times, last = draw.choose((1.5, 2.0, 2.0, 3.0, 4.0, 0.5)), draw.chance(0.4)
    mode, corners = draw.choose(("bilinear", "bilinear", "bicubic")), draw.chance(0.4)
    is_picture, name = way in ("enlarged", "sampled"), draw.choose(("", "relu", "silu"))
    rows, width = count * side * side, channels
    x = draw.add((count, channels, side, side), channels_last=last) if is_picture else draw.add((rows, width))
    out_side = draw.choose((side, 2 * side, side // 2 or 1))
    grid = draw.add((count, out_side, out_side, 2)) if way == "sampled" else ""
    picked = max(1, min(rows * draw.choose((1, 2, 8)), draw.largest // (4 * width)))
    ids = draw.add((picked,), "ids", high=rows) if way in ("taken", "put") else ""
    levels = draw.choose((2, 4, 8, 16))
    tables = draw.add((levels, draw.choose((256, 4096, 65_536, 2**19)), draw.choose((1, 2, 4))), "weight")
    seen = draw.add((rows, levels), "ids", high=256) if way == "tables" else ""

    def run(**t: Any) -> Any:
        import torch

        if way == "enlarged":
            y = activate(name, t[x]) if name else t[x]
            return functional().interpolate(y, scale_factor=times, mode=mode, align_corners=corners)
        if way == "sampled":
            y = functional().grid_sample(t[x], t[grid].to(t[x].dtype).tanh(), align_corners=corners)
            return activate(name, y) if name else y
        if way == "tables":
            places = t[seen] * 797 % t[tables].shape[1]
            found = torch.stack([t[tables][level][places[:, level]] for level in range(levels)], 1)
            return found.flatten(1).square()
        if way == "taken":
            return (activate(name, t[x]) if name else t[x])[t[ids]] * 0.5
        kept = torch.zeros(rows, width, device=t[x].device, dtype=t[x].dtype)
        return kept.index_put((t[ids][:rows],), t[x][: min(picked, rows)] * 2, accumulate=True)

    return run


WRITTEN_BLOCKS: Mapping[str, tuple[Callable[[Draw], Function], float]] = {
    "scored": (_scored, 0.6),
    "head_norms": (_head_norms, 0.5),
    "channel_groups": (_channel_groups, 0.5),
    "row_losses": (_row_losses, 0.5),
    "placed": (_placed, 0.4),
}
"""How to draw a block, and its weight among the families."""
