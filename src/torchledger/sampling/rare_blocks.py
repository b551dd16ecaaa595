"""Blocks that few networks have, at random sizes: norms side by side, ranks, scattered rows, images that grow, rows
that do not lie as they are read, and long ones.

What random chains and usual networks hold seldom is what a model of times knows worst: gradients of several norms in
one kernel, which hold more values than a thread has registers, sorts, running sums, atomics, and upsampled images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchledger.sampling.drawing import Draw, Function, Layer, activate, draw_norm, drop, functional

_NORM_WIDTHS = (128, 192, 256, 256, 320, 384, 384, 480, 512, 512, 576, 640, 768, 768, 960, 1024, 1152, 1280, 1536, 2048)


def _norm_branches(draw: Draw) -> Function:
    """One tensor through one to three norms side by side, each with its own product and dropout, summed; twice.

    Its gradients meet in one kernel, with those of the norms' weights.
    """
    width = draw.choose(_NORM_WIDTHS) if draw.chance(0.85) else draw.size(128, 2048, draw.choose((1, 8, 16)))
    rows = draw.size(512, max(1024, min(16_384, draw.largest // (4 * width))))
    rms, dropout = draw.chance(0.35), 0.1 if draw.chance(0.5) else 0.0
    begins, after = draw.choose(("given", "table", "tables")), draw.chance(0.25)
    x = draw.add((1, rows, width)) if begins == "given" else ""
    vocabulary = draw.choose((512, 1000, 8192, 30_522, 50_257))
    table = draw.add((vocabulary, width), "weight") if not x else ""
    ids = draw.add((1, rows), "ids", high=vocabulary) if not x else ""
    places = draw.add((rows, width), "weight") if begins == "tables" else ""
    first = draw_norm(draw, width, rms=rms) if not x and draw.chance(0.5) else None
    layers: list[list[tuple[Layer, str, str, str]]] = []
    for _ in range(draw.choose((1, 2, 2, 3))):
        branches = []
        for _ in range(draw.choose((1, 2, 2, 3))):
            inner = draw.choose((64, 128, width))
            bias = draw.add((width,), "weight") if draw.chance(0.5) else ""
            weights = draw.add((inner, width), "weight"), draw.add((width, inner), "weight")
            branches.append((draw_norm(draw, width, rms=rms), *weights, bias))
        layers.append(branches)
    last, name = draw_norm(draw, width, rms=rms), draw.choose(("gelu", "relu", "silu", ""))

    def start(t: Mapping[str, Any]) -> Any:
        if x:
            return t[x]
        h = functional().embedding(t[ids], t[table])
        h = h + t[places] if places else h
        return drop(first(h, t) if first is not None else h, dropout)

    def run(**t: Any) -> Any:
        h = start(t)
        for branches in layers:
            made = []
            for norm, up, down, bias in branches:
                inner = functional().linear(h if after else norm(h, t), t[up])
                inner = activate(name, inner) if name else inner
                made.append(drop(functional().linear(inner, t[down], t[bias] if bias else None), dropout))
            h = h + sum(made[1:], made[0])
            h = branches[0][0](h, t) if after else h
        return last(h, t)

    return run


def _ranking(draw: Draw) -> Function:
    """Scores of rows: sorted, the best kept, summed on, or the largest marked."""
    width = draw.choose((32, 64, 128, 256, 256, 384, 512, 512, 768, 1024, 2048))
    rows = draw.size(256, max(512, min(16_384, draw.largest // (2 * width))))
    how = draw.choose(("sort", "sort both", "topk", "cumsum", "cumsum rows", "argmax"))
    count, name = min(draw.choose((4, 16, 64)), width), draw.choose(("silu", "relu", "tanh"))
    x, weight = draw.add((draw.choose((1, 2, 8)), rows, width)), draw.add((width, width), "weight")
    biased = draw.add((width,), "weight") if draw.chance(0.5) else ""

    def run(**t: Any) -> Any:
        import torch

        scores = functional().linear(t[x], t[weight], t[biased] if biased else None)
        if how == "sort":
            return activate(name, scores.sort(-1).values)
        if how == "sort both":
            best = scores.sort(-1, descending=True)
            return best.values * best.indices.to(scores.dtype)
        if how == "topk":
            taken, where = scores.topk(count, -1)
            return activate(name, torch.zeros_like(scores).scatter(-1, where, taken.softmax(-1).to(scores.dtype)))
        if how.startswith("cumsum"):
            return activate(name, scores.cumsum(-1 if how == "cumsum" else 1))
        return scores * (scores.argmax(-1, keepdim=True) % 2)

    return run


def _scattering(draw: Draw) -> Function:
    """Rows that are gathered by an index, changed, and added up by another; or looked up in a small table."""
    width = draw.choose((16, 32, 64, 96, 128, 192, 256, 384, 512, 1024))
    nodes = draw.size(256, max(512, min(65_536, draw.largest // (8 * width))))
    edges = nodes * draw.choose((1, 2, 4, 8))
    kind = draw.choose(("messages", "bags", "buckets"))
    x, name = draw.add((nodes, width)), draw.choose(("relu", "silu", "gelu"))
    source, target = draw.add((edges,), "ids", high=nodes), draw.add((edges,), "ids", high=nodes)
    per = draw.choose((1, 4, 8))
    few = draw.choose((32, 64, 512, 4096))
    table, looked_up = draw.add((few, width), "weight"), draw.add((nodes, per), "ids", high=few)
    weight = draw.add((width,), "weight")

    def run(**t: Any) -> Any:
        import torch

        if kind == "messages":
            message = activate(name, t[x][t[source]] * t[weight])
            return torch.zeros_like(t[x], dtype=message.dtype).index_add(0, t[target], message) + t[x]
        bags = functional().embedding(t[looked_up], t[table])
        if kind == "bags":
            return activate(name, bags.sum(1)) + t[x]
        return activate(name, t[x] * bags.mean(1)) * t[weight]

    return run


def _places(draw: Draw) -> Function:
    """Scores to which a number is added for how far two places are apart, out of a small table for each head.

    The table's gradient, that of each layer which reads it, is summed by atomics, most of which meet at a few places of
    it: distances in buckets, or those within a window of a picture.
    """
    heads = draw.choose((1, 2, 4, 6, 8, 12, 16, 16, 24, 32))
    is_window = draw.chance(0.35)
    side = draw.choose((2, 4, 7, 7, 8, 8, 12, 16))
    length = side * side if is_window else draw.size(32, 1024, draw.choose((1, 8, 32, 64)))
    count = max(1, min(draw.choose((1, 2, 4, 8, 16, 64, 256)), draw.largest // (4 * heads * length**2)))
    kind = "window" if is_window else draw.choose(("buckets", "buckets", "clipped", "all"))
    buckets = draw.choose((16, 32, 32, 64))
    rows = {"window": (2 * side - 1) ** 2, "buckets": buckets, "clipped": 2 * buckets + 1, "all": 2 * length - 1}[kind]
    scores, table = draw.add((count, heads, length, length)), draw.add((rows, heads), "weight")
    dropout, masked = 0.1 if draw.chance(0.5) else 0.0, draw.chance(0.3)
    layers = [scores, *(draw.add((count, heads, length, length)) for _ in range(draw.choose((0, 0, 0, 1, 3))))]

    def distances(device: Any) -> Any:
        import torch

        place = torch.arange(length, device=device)
        if kind == "window":
            row, column = (each[:, None] - each[None, :] + side - 1 for each in (place // side, place % side))
            return row * (2 * side - 1) + column
        apart = place[None, :] - place[:, None]
        if kind == "all":
            return apart + length - 1
        if kind == "clipped":
            return apart.clamp(-buckets, buckets) + buckets
        half, near = buckets // 2, buckets // 4
        far = near + ((apart.abs().float() / near).clamp(min=1).log() / 2.8 * (half - near)).long()
        return (apart > 0).long() * half + torch.where(apart.abs() < near, apart.abs(), far.clamp(max=half - 1))

    def layer(given: Any, added: Any) -> Any:
        y = given * 0.125 + added.to(given.dtype)
        if masked:
            y = y.masked_fill(given.detach() > 3, -1e4)
        return drop(y.softmax(-1), dropout)

    def run(**t: Any) -> Any:
        added = functional().embedding(distances(t[scores].device), t[table]).permute(2, 0, 1)
        made = [layer(t[each], added) for each in layers]
        return sum(made[1:], made[0])

    return run


def _growing_images(draw: Draw) -> Function:
    """Images through a norm and an activation, made smaller or larger, and joined with others; or lines of them."""
    channels = draw.choose((16, 32, 48, 64, 96, 128, 192, 256, 384))
    side = draw.choose((7, 8, 14, 16, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112))
    numel = draw.size(min(2**18, draw.largest // 16), draw.largest // 4)
    count = max(1, min(128, numel // (channels * side * side)))
    last, norm = draw.chance(0.5), draw.choose(("group", "batch", "batch", "none"))
    way = draw.choose(("nearest", "bilinear", "max", "average", "line"))
    line, groups = way == "line", draw.choose((1, 4, 8))
    shape = (count, channels, side * side) if line else (count, channels, side, side)
    x = draw.add(shape, channels_last=last and not line)
    scale, shift = draw.add((channels,), "weight"), draw.add((channels,), "weight")
    grown = (count, channels // 2, 2 * side, 2 * side)
    beside = draw.add(grown, channels_last=last) if way in ("nearest", "bilinear") and draw.chance(0.6) else ""
    name, again = draw.choose(("silu", "relu", "gelu")), draw.chance(0.5)
    scale2, shift2 = draw.add((channels,), "weight"), draw.add((channels,), "weight")

    def normed(y: Any, weight: Any, bias: Any) -> Any:
        if norm == "group":
            return functional().group_norm(y, groups, weight, bias)
        return functional().batch_norm(y, None, None, weight, bias, training=True) if norm == "batch" else y

    def run(**t: Any) -> Any:
        import torch

        y = activate(name, normed(t[x], t[scale], t[shift]))
        if line:
            return y.transpose(1, 2).log_softmax(-1) if again else y.mean(-1)
        if way == "max":
            y = functional().max_pool2d(y, 2)
        elif way == "average":
            y = functional().avg_pool2d(y, 2)
        else:
            y = functional().interpolate(y, scale_factor=2.0, mode=way)
        if again:
            y = activate(name, normed(y, t[scale2], t[shift2]))
        return torch.cat((y, t[beside]), 1) if beside else y

    return run


def _image_norms(draw: Draw) -> Function:
    """Images through norms over a whole picture or groups of its channels, with what is around them: a scale for each
    channel, pooling, a product by pixels, and what was before added."""
    channels = draw.choose((24, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 768))
    side = draw.choose((4, 7, 8, 12, 14, 16, 20, 28, 32, 40, 56, 64, 80)) if draw.chance(0.7) else draw.size(4, 80)
    numel = draw.size(min(2**14, draw.largest // 256), draw.largest // 8)
    count = max(1, min(256, numel // (channels * side * side)))
    groups = draw.choose([each for each in (1, 1, 1, 2, 4, 8, 16, 32) if channels % each == 0])
    last, name = draw.chance(0.6), draw.choose(("gelu", "silu", "relu"))
    x = draw.add((count, channels, side, side), channels_last=last)
    mixed, hidden = draw.choose(("pool", "depthwise", "none")), draw.choose((1, 2, 4)) * channels
    layers = []
    for _ in range(draw.choose((1, 1, 2))):
        layer = {each: draw.add((channels,), "weight") for each in ("weight", "bias", "scale", "weight2", "bias2")}
        layer["taps"] = draw.add((channels, 1, 3, 3), "weight")
        layer["up"] = draw.add((hidden, channels, 1, 1), "weight")
        layer["up bias"] = draw.add((hidden,), "weight")
        layer["down"] = draw.add((channels, hidden, 1, 1), "weight")
        layers.append(layer)
    scaled, again = draw.chance(0.6), draw.chance(0.7)

    def run(**t: Any) -> Any:
        y = t[x]
        for layer in layers:
            z = functional().group_norm(y, groups, t[layer["weight"]], t[layer["bias"]])
            if mixed == "pool":
                z = functional().avg_pool2d(z, 3, 1, 1, count_include_pad=False) - z
            elif mixed == "depthwise":
                z = functional().conv2d(activate(name, z), t[layer["taps"]], None, 1, 1, 1, channels)
            y = y + (z * t[layer["scale"]][:, None, None] if scaled else z)
            if again:
                z = functional().group_norm(y, groups, t[layer["weight2"]], t[layer["bias2"]])
                z = activate(name, functional().conv2d(z, t[layer["up"]], t[layer["up bias"]]))
                y = y + functional().conv2d(z, t[layer["down"]])
        return y

    return run


def _turned(draw: Draw) -> Function:
    """Rows that do not lie as they are read: a norm or softmax over what was transposed, folded, cut into windows or
    made by channels, with or without a product that would lay it out anew."""
    width = draw.choose(_NORM_WIDTHS) if draw.chance(0.7) else draw.size(32, 3072, draw.choose((1, 2, 8, 16)))
    numel = draw.size(min(2**16, draw.largest // 64), draw.largest // 4)
    way = draw.choose(("tokens", "tokens", "channels", "channels", "patches", "windows", "heads"))
    side = (
        draw.choose((7, 8, 14, 16, 20, 28, 32, 56, 64)) if way != "patches" else 2 * draw.choose((4, 7, 8, 14, 16, 28))
    )
    length = side * side if way != "tokens" else draw.choose((16, 49, 64, 128, 196, 197, 256, 512, 576, 1024, 2048))
    batch = max(1, min(512, numel // (length * width)))
    shape = (batch, width, length) if way == "channels" else (batch, length, width)
    x, beside = draw.add(shape), draw.add((batch, length, width)) if draw.chance(0.4) else ""
    mixes = way == "tokens" and draw.chance(0.7)
    mixing, biased = draw.add((length, length), "weight") if mixes else "", draw.chance(0.5)
    bias = draw.add((length,), "weight") if mixing and biased else ""
    heads = draw.choose([heads for heads in (1, 2, 4, 8) if width % heads == 0])
    normed = {"patches": 4 * width, "heads": width // heads}.get(way, width)
    norm, ends = (
        draw_norm(draw, normed, rms=draw.chance(0.35)),
        draw.choose(("norm", "norm", "norm", "softmax", "mean")),
    )
    weight = draw.add((draw.choose((normed, normed // 2 or 1, 256)), normed), "weight") if draw.chance(0.5) else ""
    name = draw.choose(("", "", "gelu", "silu", "relu"))
    cut = draw.choose([cut for cut in (2, 4, 7, 8) if side % cut == 0] or [1])

    def turn(t: Mapping[str, Any]) -> Any:
        h = t[x]
        if way == "tokens":
            h = h.transpose(1, 2)
            h = functional().linear(h, t[mixing], t[bias] if bias else None) if mixing else h
            return h.transpose(1, 2) if mixing else h.contiguous().transpose(1, 2) * 0.5
        if way == "channels":
            return h.transpose(1, 2)
        if way == "heads":
            return h.reshape(batch, length, heads, width // heads).transpose(1, 2)
        h = h.reshape(batch, side, side, width)
        if way == "patches":
            return h.reshape(batch, side // 2, 2, side // 2, 2, width).permute(0, 1, 3, 4, 2, 5).flatten(3)
        h = h.roll((-(cut // 2), -(cut // 2)), (1, 2)) if biased else h
        parts = h.reshape(batch, side // cut, cut, side // cut, cut, width).permute(0, 1, 3, 2, 4, 5)
        return parts.reshape(batch, length, width)

    def run(**t: Any) -> Any:
        h = turn(t)
        h = activate(name, h) if name else h
        h = h + t[beside] if beside and h.shape == t[beside].shape else h
        if ends == "norm":
            h = norm(h, t)
        else:
            h = h.softmax(-1) if ends == "softmax" else h.mean(-2)
        return functional().linear(h, t[weight]) if weight else h

    return run


def _long_rows(draw: Draw) -> Function:
    """Rows of 2,000 to 260,000 numbers, which a kernel walks several times: softmax, norms, losses, largest ones."""
    width = draw.choose((2048, 4096, 8192, 16_384, 32_000, 32_768, 50_257, 65_536, 128_256)) if draw.chance(0.5) else 0
    width = width or draw.size(1536, 2**18, draw.choose((1, 2, 8, 64)))
    numel = draw.size(max(2**17, 4 * width), max(2**18, 4 * width, draw.largest // 2))
    rows, before = max(4, numel // width), draw.choose(("", "scale", "scale", "mask", "bias", "cap"))
    x, bias = draw.add((rows, width)), draw.add((width,), "weight") if before == "bias" else ""
    ways = (
        "softmax",
        "softmax",
        "log_softmax",
        "layer_norm",
        "rms_norm",
        "logsumexp",
        "cross_entropy",
        "standard",
        "max",
    )
    way, wide, dropout = draw.choose(ways), draw.chance(0.5), 0.1 if draw.chance(0.25) else 0.0
    ids, norm = draw.add((rows,), "ids", high=width), draw_norm(draw, width, rms=way == "rms_norm")
    length = draw.choose((rows, max(1, rows // 8)))

    def prepare(h: Any, t: Mapping[str, Any]) -> Any:
        import torch

        if before == "scale":
            return h * 0.125
        if before == "cap":
            return 30.0 * (h / 30.0).tanh()
        if before == "bias":
            return h + t[bias]
        if before == "mask":
            row, column = torch.arange(rows, device=h.device) % length, torch.arange(width, device=h.device)
            return h.masked_fill(column[None] > row[:, None] + width // 2, -1e4)
        return h

    def run(**t: Any) -> Any:
        h = prepare(t[x].float() if wide else t[x], t)
        if way in ("layer_norm", "rms_norm"):
            return drop(norm(h.to(t[x].dtype), t), dropout)
        if way == "cross_entropy":
            return functional().cross_entropy(h.float(), t[ids])
        if way == "standard":
            return (h - h.mean(-1, keepdim=True)) / (h.std(-1, keepdim=True) + 1e-5)
        if way == "max":
            return h / (h.abs().amax(-1, keepdim=True) + 1e-5)
        if way == "logsumexp":
            return h.logsumexp(-1)
        h = h.softmax(-1) if way == "softmax" else h.log_softmax(-1)
        return drop(h.to(t[x].dtype), dropout)

    return run


RARE_BLOCKS: Mapping[str, tuple[Callable[[Draw], Function], float]] = {
    "norm_branches": (_norm_branches, 1.5),
    "ranking": (_ranking, 0.4),
    "scattering": (_scattering, 0.4),
    "places": (_places, 0.3),
    "growing_images": (_growing_images, 0.7),
    "image_norms": (_image_norms, 0.5),
    "turned": (_turned, 0.7),
    "long_rows": (_long_rows, 0.5),
}
"""How to draw a block, and its weight among the families."""
