"""Convolutions as networks over images have them, drawn by chance: for ``drawn_passes.py --draw layers``.

``draw_passes`` and ``h200_kernels.py`` draw sizes one by one, none of them below five pixels. Here a family is drawn
(depthwise blocks of any filter, groups of any width, stems, bottlenecks, encoders and decoders, patches), then a
width, an image, a batch and a stage of it: the last stages of small images have sides of one to four, where libraries
leave their usual kernels. One kind, ``operator``, is drawn as labels of the operator conv2d are.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping

from benchmarks.operators.drawn_convolutions import ConvolutionCase

Sizes = dict[str, int]
"""The fields of a ``ConvolutionCase`` that are numbers."""

_MOST_ELEMENTS = 6e7
_MOST_FLOPS = 6e11
_LONGEST_US = 3000.0
_LONG_US = 80.0
_RATES = {"float32": 3e7, "tf32": 2e8, "bfloat16": 4e8, "float16": 4e8}
"""FLOP that a usual kernel does in a microsecond: long calls are regular and dear, and drawn less often."""
_SLOW_RATE = 4e6
"""The same of kernels for one filter a channel."""

PRECISIONS: Mapping[str, int] = {"bfloat16": 44, "float16": 24, "tf32": 20, "float32": 12}
_OPERATOR_PRECISIONS = {"bfloat16": 1, "float16": 1}


def draw_layers(
    seed: int, weights: Mapping[str, float] | None = None, precisions: Mapping[str, float] | None = None
) -> Iterator[ConvolutionCase]:
    """Configurations without end; ``weights`` are how often each of ``KINDS`` is drawn beside the others.

    ``precisions`` are how often each of them is drawn, in place of ``PRECISIONS``; the operator's own stay.
    """
    pick = random.Random(f"layers {seed}")
    weights = {kind: weight for kind, (weight, _) in KINDS.items()} | dict(weights or {})
    while True:
        kind = pick.choices(tuple(weights), tuple(weights.values()))[0]
        sizes = {"padding": 0, "stride": 1, "groups": 1, **KINDS[kind][1](pick)}
        usual = _OPERATOR_PRECISIONS if kind == "operator" else precisions or PRECISIONS
        precision = pick.choices(tuple(usual), tuple(usual.values()))[0]
        last = pick.random() < (0.67 if kind == "operator" else 0.62)
        case = ConvolutionCase(kind, precision, channels_last=last, **{"width": sizes["height"], **sizes})
        if _is_wanted(case, pick):
            yield case


def _is_wanted(case: ConvolutionCase, pick: random.Random) -> bool:
    """Whether a case can be run, and is short enough or lucky."""
    given, weighted, made = case.shapes
    if case.height + 2 * case.paddings[0] < case.taps[0] or min(made) < 1:
        return False
    if max(map(math.prod, (given, weighted, made))) > _MOST_ELEMENTS or case.flops > _MOST_FLOPS:
        return False
    size = 2 if case.precision in ("bfloat16", "float16") else 4
    rate = _SLOW_RATE if case.groups == case.c_in > 1 else _RATES[case.precision]
    moved = (math.prod(given) + math.prod(made)) * size
    needed_us = max(case.flops / rate, moved / 3e6)
    return needed_us < _LONGEST_US and pick.random() < (_LONG_US / max(_LONG_US, needed_us)) ** 0.6


def _log(pick: random.Random, low: float, high: float, multiple: int = 1) -> int:
    drawn = math.exp(pick.uniform(math.log(low), math.log(high)))
    return max(multiple, round(drawn / multiple) * multiple)


def _image(pick: random.Random) -> int:
    """A picture's side."""
    return pick.choice((32, 48, 64, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 224, 256, 288, 320, 384))


def _stage(pick: random.Random, least: int = 0, most: int = 5) -> int:
    """A side after some halvings, at times of another size altogether."""
    if pick.random() < 0.15:
        return _log(pick, 1, 160)
    return max(1, math.ceil(_image(pick) / 2 ** pick.randint(least, most)))


def _batch(pick: random.Random) -> int:
    return pick.choice((_log(pick, 1, 256), _log(pick, 2, 96), 2 ** pick.randint(0, 8)))


def _width(pick: random.Random, low: int = 16, high: int = 1024) -> int:
    """Channels: a usual base doubled some times, a multiple of eight, seldom any number."""
    kind = pick.random()
    if kind < 0.45:
        found = pick.choice((16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 144, 160, 192)) * 2 ** pick.randint(0, 4)
    elif kind < 0.9:
        found = _log(pick, low, high, 8)
    else:
        found = _log(pick, low, high)
    return min(max(found, low), 2 * high)


def _depthwise(pick: random.Random) -> Sizes:
    kernel = pick.choice((3, 3, 3, 3, 5, 5, 5, 7, 7, 7, 7, 9, 11, 13, 2, 4))
    stride = 2 if pick.random() < 0.25 else 1
    channels = _width(pick, 8, 1536)
    padding = kernel // 2 if pick.random() < 0.93 else 0
    wider = 2 if pick.random() < 0.04 else 1
    return {
        "count": _batch(pick), "c_in": channels, "c_out": wider * channels, "height": _stage(pick, 1),
        "kernel": kernel, "stride": stride, "padding": padding, "groups": channels,
    }  # fmt: skip


def _grouped(pick: random.Random) -> Sizes:
    """Groups of some width, as many as fit; both sides alike but for a few."""
    each = pick.choice((2, 4, 4, 8, 8, 16, 16, 16, 24, 24, 32, 40, 48, 48, 56, 64, 72, 80, 112, 120, 128, 232))
    groups = pick.choice((2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 32, 48, 64))
    if each * groups > 2560:
        groups = max(2, 2560 // each)
    kernel = pick.choice((3, 3, 3, 3, 3, 3, 1, 5, 7))
    return {
        "count": _batch(pick), "c_in": each * groups, "c_out": each * groups * (2 if pick.random() < 0.06 else 1),
        "height": _stage(pick, 1), "kernel": kernel, "stride": pick.choice((1, 1, 1, 2)), "padding": kernel // 2,
        "groups": groups,
    }  # fmt: skip


def _stem(pick: random.Random) -> Sizes:
    """A network's first layer, and patches of pictures."""
    kernel, stride, padding = pick.choice(
        ((3, 1, 1), (3, 2, 1), (3, 2, 1), (7, 2, 3), (7, 2, 3), (7, 4, 2), (7, 4, 3), (4, 4, 0), (4, 4, 0), (2, 2, 0),
         (8, 8, 0), (14, 14, 0), (16, 16, 0), (16, 16, 0), (32, 32, 0), (5, 1, 2), (11, 4, 2), (4, 4, 1))
    )  # fmt: skip
    return {
        "count": _batch(pick), "c_in": pick.choice((1, 3, 3, 3, 3, 3, 3, 4, 6, 12)),
        "c_out": _width(pick, 16, 192) if kernel < 8 else _width(pick, 96, 1024),
        "height": _image(pick), "kernel": kernel, "stride": stride, "padding": padding,
    }  # fmt: skip


def _narrow(pick: random.Random) -> Sizes:
    """A layer with few channels at its end: pictures made of features, masks, attention over places."""
    kernel = pick.choice((1, 1, 3, 3, 7))
    return {
        "count": _batch(pick), "c_in": _width(pick, 16, 512), "c_out": pick.choice((1, 2, 3, 3, 3, 4, 4, 8, 10, 12)),
        "height": _stage(pick, 0, 3), "kernel": kernel, "padding": kernel // 2,
    }  # fmt: skip


def _pointwise(pick: random.Random) -> Sizes:
    """Bottlenecks, expansions, squeezes of whole images to one place, shortcuts with a stride."""
    c_in = _width(pick, 8, 1024)
    c_out = pick.choice((c_in, 2 * c_in, 4 * c_in, 6 * c_in, c_in // 2, c_in // 4, c_in // 6, _width(pick)))
    return {
        "count": _batch(pick), "c_in": c_in, "c_out": max(1, min(c_out, 4096)),
        "height": 1 if pick.random() < 0.12 else _stage(pick, 1), "kernel": 1,
        "stride": 2 if pick.random() < 0.12 else 1,
    }  # fmt: skip


def _whole(pick: random.Random) -> Sizes:
    """Three by three and larger over all channels: residual networks, encoders and decoders with wide inputs."""
    c_in = _width(pick, 16, 768)
    c_out = pick.choice((c_in, c_in, c_in, 2 * c_in, c_in // 2, max(8, c_in // 3), _width(pick, 16, 512)))
    kernel = pick.choice((3, 3, 3, 3, 3, 3, 5, 7))
    return {
        "count": _batch(pick), "c_in": c_in, "c_out": max(c_out, 8), "height": _stage(pick),
        "kernel": kernel, "stride": pick.choice((1, 1, 1, 2)), "padding": kernel // 2,
    }  # fmt: skip


def _smaller(pick: random.Random) -> Sizes:
    """Patches of features, which one layer halves; the gradient of its image is what doubles them."""
    kernel, stride, padding = pick.choice(((2, 2, 0), (2, 2, 0), (2, 2, 0), (4, 2, 1), (3, 2, 1), (4, 4, 0)))
    c_in = _width(pick, 8, 768)
    return {
        "count": _batch(pick), "c_in": c_in, "c_out": pick.choice((c_in, 2 * c_in, 2 * c_in, _width(pick))),
        "height": max(kernel, _stage(pick)), "kernel": kernel, "stride": stride, "padding": padding,
    }  # fmt: skip


def _stripe(pick: random.Random) -> Sizes:
    """Filters that are not square: one after another across and along, over spectra, words beside letters."""
    tall, kernel = pick.choice(
        (*((1, side) for side in (2, 3, 3, 5, 5, 7, 7, 9, 11, 15, 21)), (2, 3), (3, 5), (3, 7), (5, 3), (3, 2), (4, 8))
    )
    if pick.random() < 0.5:
        tall, kernel = kernel, tall
    same = pick.random() < 0.8
    c_in = pick.choice((1, 2, 80)) if pick.random() < 0.1 else _width(pick, 16, 768)
    groups = c_in if pick.random() < 0.2 else 1
    return {
        "count": _batch(pick), "c_in": c_in, "groups": groups,
        "c_out": c_in if groups > 1 else pick.choice((c_in, c_in // 3 or 1, 2 * c_in, _width(pick))),
        "height": _stage(pick), "width": _stage(pick), "kernel": kernel, "padding": kernel // 2 if same else 0,
        "tall": tall, "tall_padding": tall // 2 if same else 0, "stride": 2 if pick.random() < 0.1 else 1,
    }  # fmt: skip


def _uneven_step(pick: random.Random) -> Sizes:
    """Filters that step otherwise down than across: periods of a signal, spectra whose frequencies alone are halved,
    lines of text."""
    c_in = pick.choice((1, 2)) if pick.random() < 0.15 else _width(pick, 16, 512)
    c_out = pick.choice((c_in, 2 * c_in, c_in // 2 or 1, _width(pick, 16, 1024)))
    if pick.random() < 0.35:
        period = pick.choice((2, 3, 5, 7, 11))
        tall, kernel, down, across = 5, 1, pick.choice((3, 3, 2, 4)), 1
        height, width = _log(pick, 4, 8192 // period), period
    else:
        tall, kernel = pick.choice(
            ((3, 3), (3, 3), (5, 2), (3, 2), (5, 3), (5, 5), (4, 3), (3, 5), (2, 2), (2, 1), (7, 5))
        )
        down, across = pick.choice(((2, 1), (2, 1), (2, 1), (4, 1), (3, 1), (4, 2)))
        height, width = _stage(pick, 0, 3), _log(pick, 16, 1000)
    same = pick.random() < 0.8
    case = {
        "count": _batch(pick), "c_in": c_in, "c_out": c_out, "height": height, "width": width,
        "kernel": kernel, "padding": kernel // 2 if same else 0, "stride": across,
        "tall": tall, "tall_padding": tall // 2 if same else 0, "tall_stride": down,
    }  # fmt: skip
    if height > 1 and kernel > 1 and pick.random() < 0.3:
        names = (("kernel", "tall"), ("padding", "tall_padding"), ("stride", "tall_stride"), ("width", "height"))
        case |= {one: case[two] for one, two in names} | {two: case[one] for one, two in names}
    return case


def _folded(pick: random.Random) -> Sizes:
    """Filters of their own for each picture of a batch, which is folded into groups: layers that a style or a task
    changes, filters that were foretold."""
    groups = pick.choice((2, 4, 4, 8, 8, 12, 16, 16, 24, 32, 64))
    each = pick.choice((8, 16, 32, 32, 64, 64, 96, 128, 128, 192, 256, 256, 384, 512, 512))
    made = pick.choice((each, each, each, each // 2, 2 * each, 3, 1))
    kernel, stride = pick.choice(((3, 1), (3, 1), (3, 1), (1, 1), (1, 1), (3, 2), (4, 2), (5, 1), (7, 1)))
    side = pick.choice((4, 8, 16, 32, 64, 128, 256)) if pick.random() < 0.6 else _stage(pick)
    is_odd = stride == 2 and pick.random() < 0.6
    return {
        "count": 1, "c_in": groups * each, "c_out": groups * made, "height": side + is_odd, "kernel": kernel,
        "stride": stride, "padding": 0 if is_odd else kernel // 2, "groups": groups,
    }  # fmt: skip


_CHANNELS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 2048)
_SIDES = (7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224)


def _operator(pick: random.Random) -> Sizes:
    """As conv2d's labels are drawn (``calibrating/operators.yml``)."""
    kind = pick.choices(("usual", "any", "stem", "one each", "grouped"), (1300, 900, 250, 500, 200))[0]
    kernel, stride, groups = pick.choice((1, 1, 3, 3, 3, 5, 7)), pick.choice((1, 1, 1, 2)), 1
    if kind == "usual":
        c_in, c_out, height = pick.choice(_CHANNELS), pick.choice(_CHANNELS), pick.choice(_SIDES)
    elif kind == "any":
        c_in, c_out, height = _log(pick, 4, 2048, 4), _log(pick, 4, 2048, 4), _log(pick, 5, 256)
    elif kind == "stem":
        kernel = pick.choice((3, 3, 4, 7, 16))
        stride = pick.choice([each for each in (1, 2, 2, 4, 16) if each <= kernel])
        c_in, c_out, height = pick.choice((1, 3, 3, 4)), pick.choice(_CHANNELS[:8]), pick.choice(range(32, 257, 32))
    elif kind == "one each":
        c_in = c_out = groups = _log(pick, 8, 1536, 8)
        height, kernel = _log(pick, 5, 128), pick.choice((3, 3, 5, 7))
    else:
        c_in = c_out = pick.choice((64, 96, 128, 192, 256, 384, 512))
        height, kernel, groups = pick.choice((7, 14, 28, 56)), 3, pick.choice((2, 4, 8, 16, 32))
    return {
        "count": _log(pick, 1, 256), "c_in": c_in, "c_out": c_out, "height": height, "kernel": kernel,
        "stride": stride, "padding": kernel // 2, "groups": groups,
    }  # fmt: skip


def _full_size(pick: random.Random) -> Sizes:
    """A layer that works on pictures at their full size, as restoration, translation and first decoder stages have
    them: few channels, many pixels, few pictures."""
    kernel, stride, padding = pick.choice(
        ((1, 1, 0), (1, 1, 0), (1, 1, 0), (3, 1, 1), (3, 1, 1), (3, 1, 1), (3, 1, 0), (3, 2, 1), (4, 2, 1), (2, 2, 0),
         (5, 1, 2), (7, 1, 3), (7, 1, 0), (9, 1, 4))
    )  # fmt: skip
    channels = (3, 3, 8, 12, 16, 24, 32, 32, 48, 64, 64, 96, 128, 192)
    c_in, c_out = pick.choice(channels), pick.choice(channels)
    if c_in > 3 and pick.random() < 0.5:
        c_out = c_in * pick.choice((1, 1, 2))
    height = pick.choice((64, 96, 128, 128, 160, 192, 224, 256, 256, 256, 320, 384, 512)) + (kernel - 1) * (not padding)
    return {
        "count": pick.choice((1, 1, 2, 2, 4, 4, 8, 8, 12, 16, 24, 32, 48, 64)),
        "c_in": c_in, "c_out": c_out, "height": height, "kernel": kernel, "stride": stride, "padding": padding,
    }  # fmt: skip


KINDS: Mapping[str, tuple[float, Callable[[random.Random], Sizes]]] = {
    "depthwise": (22, _depthwise),
    "groups": (20, _grouped),
    "stem": (9, _stem),
    "narrow": (4, _narrow),
    "pointwise": (11, _pointwise),
    "whole": (9, _whole),
    "smaller": (7, _smaller),
    "operator": (18, _operator),
    "stripes": (0, _stripe),
    "steps": (0, _uneven_step),
    "folded": (0, _folded),
    "full size": (0, _full_size),
}
"""How often each is drawn, where nothing else is said, beside what draws its sizes."""
