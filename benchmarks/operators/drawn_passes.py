"""Passes of convolutions drawn by chance, each timed alone on a GPU, hundreds a second, with their kernels' names.

``python -m benchmarks.operators.drawn_passes -o PASSES.npz [--limit S] [--seed N] [--workers 14]`` draws what
``h200_kernels.py`` does not: convolutions along one dimension (speech, positions, causal and pointwise layers, random
ones), float32 with and without TF32, groups, patches and the strides of transposed layers; and times the forward, the
gradient of the image and that of the weight, warm. A transposed convolution's forward is the gradient of the image of a
plain one. ``--draw layers [--weights depthwise=30 groups=20] [--precisions tf32=1 float32=1]`` draws layers of networks
over images instead (``drawn_layers.py``); ``--gradients 0.25`` times the gradients of a quarter of the configurations,
and of the others the forward alone; ``--first 1`` gradients alone. ``--large`` makes each of them larger, by its batch
or its picture, until its largest tensor has 60 to 600 million elements (half as many of four bytes), or by ``--large
12`` 12 to 120.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.operators.drawn_convolutions import ConvolutionCase
from benchmarks.operators.drawn_layers import KINDS, PRECISIONS, draw_layers
from benchmarks.operators.h200_kernels import chosen_and_timed, device_record, draw_convolution, say

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (
    ("-o", "{out}/passes.npz"),
    ("--draw", "layers", "-o", "{out}/layers.npz"),
)
QUICK: tuple[tuple[str, ...], ...] = (("-o", "{out}/passes.npz", "--limit", "20", "--workers", "2"),)

PASSES = ("forward", "image", "weight")
COLUMNS = (
    *("count", "c_in", "c_out", "height", "width", "kernel", "stride", "padding", "groups"),
    *("tall", "tall_padding", "tall_stride"),
)
WIDTHS = (64, 80, 96, 128, 160, 192, 240, 256, 320, 384, 480, 512, 640, 768, 1024, 1280, 1536, 2048)
_BLOCK_BYTES, _LARGE_BLOCK_BYTES = 3 << 28, 3_750_000_000
_MOST_ELEMENTS = 6e7
_LONGEST_LARGE_US, _LONG_LARGE_US = 20_000, 1_000
_LONGEST_NAME, _LONGEST_NAMES = 260, 1800
_RATES = {"float32": 3e7, "tf32": 2e8, "bfloat16": 4e8, "float16": 4e8}
"""FLOP that a usual kernel does in a microsecond: long calls are regular and dear, and drawn less often."""


def draw_passes(seed: int, signals: Mapping[str, float] | None = None) -> Iterator[ConvolutionCase]:
    """Configurations without end: two in five along one dimension. With ``signals`` all are, each of these kinds as
    often as it says beside the others."""
    pick = random.Random(f"passes {seed}")
    while True:
        kind = pick.choices(("signal", "image", "grouped", "patches", "upward"), (40, 34, 12, 6, 8))[0]
        case = _signal(pick, signals or SIGNALS) if signals or kind == "signal" else _image(pick, kind)
        if case is None:
            continue
        given, weighted, made = case.shapes
        if min(made) < 1 or max(map(math.prod, (given, weighted, made))) > _MOST_ELEMENTS:
            continue
        needed_us = _needed_us(case)
        if needed_us < 4000 and pick.random() < (60 / max(60, needed_us)) ** 0.6:
            yield case


def _element_bytes(case: ConvolutionCase) -> int:
    return 2 if case.precision in ("bfloat16", "float16") else 4


def _needed_us(case: ConvolutionCase) -> float:
    """What a forward takes about, by its FLOPs or by what it moves."""
    given, _, made = case.shapes
    moved = (math.prod(given) + math.prod(made)) * _element_bytes(case)
    return max(case.flops / _RATES[case.precision], moved / 3e6)


def draw_large(drawn: Iterator[ConvolutionCase], seed: int, least: float = _MOST_ELEMENTS) -> Iterator[ConvolutionCase]:
    """Of each configuration that is ``drawn`` a larger one, by its batch, its picture or both: the largest of its
    tensors has from ``least`` elements to ten times as many."""
    pick = random.Random(f"large {seed}")
    for case in drawn:
        size = _element_bytes(case)
        wanted = least * (10 * 2 / size) ** pick.random()
        factor = wanted / max(map(math.prod, case.shapes))
        by_picture = factor ** pick.choice((0.0, 0.3, 0.5, 1.0))
        side = by_picture if case.height == 1 else math.sqrt(by_picture)
        larger = replace(
            case,
            count=max(1, round(case.count * factor / by_picture)),
            height=1 if case.height == 1 else round(case.height * side),
            width=round(case.width * side),
        )
        most = max(map(math.prod, larger.shapes))
        if not least < most <= _LARGE_BLOCK_BYTES / 3 / size or larger.count > 8192 or larger.height > 2048:
            continue
        needed_us = _needed_us(larger)
        if needed_us < _LONGEST_LARGE_US and pick.random() < (_LONG_LARGE_US / max(_LONG_LARGE_US, needed_us)) ** 0.6:
            yield larger


SIGNALS: Mapping[str, float] = {
    "pair": 30, "usual": 20, "any": 12, "speech": 10, "pointwise": 8, "one each": 9, "positions": 4, "first": 7
}  # fmt: skip
"""How often each kind of signal is drawn."""


def _signal(pick: random.Random, kinds: Mapping[str, float]) -> ConvolutionCase | None:
    def log(low: float, high: float, multiple: int = 1) -> int:
        return max(multiple, round(math.exp(pick.uniform(math.log(low), math.log(high))) / multiple) * multiple)

    kind = pick.choices(tuple(kinds), tuple(kinds.values()))[0]
    count, length = (
        log(1, 64),
        pick.choice((log(32, 4096, 32), log(32, 4096, 8), log(16, 20_000), 2 ** pick.randint(5, 13))),
    )
    c_in, c_out = pick.choice(WIDTHS), pick.choice(WIDTHS)
    kernel, stride, groups = pick.choice((3, 3, 5, 7)), 1, 1
    if kind == "pair":
        c_out = pick.choice((c_in, c_in // 2, c_in * 2))
    elif kind == "usual":
        kernel, stride = pick.choice((1, 2, 3, 4, 5, 7, 9, 15)), pick.choice((1, 1, 2, 4))
    elif kind == "any":
        c_in, c_out, kernel, stride = (
            log(4, 2048, 4),
            log(4, 2048, 4),
            pick.choice((3, 4, 5, 7, 11)),
            pick.choice((1, 1, 2)),
        )
    elif kind == "speech":
        c_in = c_out = pick.choice((256, 512, 512, 512, 768))
        kernel, stride = pick.choice(((3, 2), (3, 2), (2, 2), (10, 5), (8, 4), (4, 2)))
        length = log(100, 60_000)
    elif kind == "pointwise":
        kernel = 1
    elif kind == "one each":
        c_in = c_out = groups = pick.choice(WIDTHS)
        kernel = pick.choice((3, 4, 4, 5, 7, 9, 15, 31))
    elif kind == "positions":
        groups = pick.choice((4, 8, 16, 16))
        c_in = c_out = pick.choice((256, 512, 768, 1024))
        kernel = pick.choice((19, 31, 64, 128, 128))
    else:
        c_in, length = pick.choice((1, 1, 2, 4, 80, 80, 128)), log(200, 200_000)
        kernel, stride = pick.choice(((10, 5), (3, 1), (3, 1), (7, 1), (7, 2), (15, 4), (16, 16)))
    padding = pick.choice((kernel // 2, kernel // 2, kernel // 2, 0, kernel - 1))
    if kind == "speech" or length + 2 * padding < kernel:
        padding = 0
    if length < kernel:
        return None
    precision = pick.choices(("bfloat16", "float16", "tf32", "float32"), (34, 22, 24, 20))[0]
    return ConvolutionCase(
        "signal", precision, count, c_in, c_out, 1, length, kernel, stride, padding, groups, channels_last=False
    )


def _image(pick: random.Random, kind: str) -> ConvolutionCase | None:
    precision = pick.choices(("tf32", "float32", "bfloat16", "float16"), (46, 42, 8, 4))[0]
    p = draw_convolution(pick)
    if kind == "grouped":
        precision = pick.choices(("tf32", "float32", "bfloat16", "float16"), (28, 24, 32, 16))[0]
        each = pick.choice((4, 8, 8, 16, 16, 16, 24, 32, 40, 48, 64, 112))
        groups = pick.choice((2, 3, 4, 6, 8, 12, 16, 24, 32, 64))
        if not 16 <= each * groups <= 2048:
            return None
        side = round(2 ** pick.uniform(2.3, 7)) // 2 * 2 + pick.choice((0, 0, 0, 1))
        p |= {"c_in": each * groups, "c_out": each * groups * pick.choice((1, 1, 1, 2)), "groups": groups}
        p |= {
            "height": side,
            "width": side,
            "kernel": pick.choice((3, 3, 3, 3, 5, 1)),
            "stride": pick.choice((1, 1, 2)),
        }
        p["padding"] = p["kernel"] // 2
    elif kind == "patches":
        precision = pick.choices(("tf32", "float32", "bfloat16", "float16"), (30, 26, 30, 14))[0]
        patch = pick.choice((2, 4, 4, 7, 8, 14, 16, 16, 32))
        p |= {"c_in": pick.choice((1, 3, 3, 3, 3, 64, 96, 128, 192)), "c_out": pick.choice(WIDTHS), "groups": 1}
        side = patch * pick.randint(2, max(2, 256 // patch))
        p |= {"height": side, "width": side, "kernel": patch, "stride": patch, "padding": 0}
    elif kind == "upward":
        precision = pick.choices(("tf32", "float32", "bfloat16", "float16"), (22, 18, 36, 24))[0]
        kernel, stride, padding = pick.choice(((2, 2, 0), (2, 2, 0), (2, 2, 0), (4, 2, 1), (3, 2, 1)))
        side = 2 * round(2 ** pick.uniform(1, 7))
        p |= {
            "c_in": pick.choice(WIDTHS) // 2,
            "c_out": pick.choice(WIDTHS),
            "groups": 1,
            "height": side,
            "width": side,
        }
        p |= {"kernel": kernel, "stride": stride, "padding": padding}
    if p["height"] + 2 * p["padding"] < p["kernel"]:
        return None
    return ConvolutionCase(
        kind, precision, p["n"], p["c_in"], p["c_out"], p["height"], p["width"], p["kernel"], p["stride"], p["padding"],
        p["groups"], channels_last=bool(p["channels_last"]),
    )  # fmt: skip


_BLOCKS: dict[str, Any] = {}


def _tensor(dtype: str, place: int, shape: tuple[int, ...], channels_last: bool) -> Any:
    """Random numbers in a third of one block per dtype."""
    import torch

    if dtype not in _BLOCKS:
        kind = getattr(torch, dtype)
        _BLOCKS[dtype] = torch.randn(_BLOCK_BYTES // kind.itemsize, dtype=kind, device="cuda:0")
    block = _BLOCKS[dtype]
    if math.prod(shape) > block.numel() // 3 // 1024 * 1024:
        _BLOCKS[dtype] = block = torch.randn(_LARGE_BLOCK_BYTES // block.itemsize, dtype=block.dtype, device="cuda:0")
    flat = block.narrow(0, place * (block.numel() // 3) // 1024 * 1024, math.prod(shape))
    if not channels_last:
        return flat.view(shape)
    count, channels, *rest = shape
    return flat.view(count, *rest, channels).permute(0, -1, *range(1, len(rest) + 1))


def pass_calls(
    parameters: dict[str, Any], precision: str, _pool: Any, gradients: float = 1.0, first: int = 0
) -> list[Callable[[], Any]]:
    """The passes of one configuration from the ``first`` on, ready to be called; gradients of this share of
    configurations alone."""
    import torch

    case = ConvolutionCase(**parameters)
    dtype = "float32" if precision == "tf32" else precision
    given, weighted, made = case.shapes
    image, weight, gradient = (
        _tensor(dtype, place, shape, case.channels_last) for place, shape in enumerate((given, weighted, made))
    )
    dims = len(given) - 2
    sizes = (list(case.strides), list(case.paddings), [1] * dims, False, [0] * dims, case.groups)

    def backward(mask: list[bool]) -> Callable[[], Any]:
        def call() -> Any:
            torch.backends.cudnn.allow_tf32 = precision == "tf32"
            return torch.ops.aten.convolution_backward(gradient, image, weight, None, *sizes, mask)

        return call

    def forward() -> Any:
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        return torch.convolution(image, weight, None, *sizes)

    calls = [forward, backward([True, False, False]), backward([False, True, False])]
    has_gradients = random.Random(f"gradients {sorted(parameters.items())}").random() < gradients
    return calls[first : None if has_gradients else 1]


def case_columns(asked: Sequence[dict[str, Any]], precisions: Sequence[str]) -> dict[str, Any]:
    """The configurations of rows as columns of a file."""
    return {
        "precision": np.array(precisions, dtype="U8"),
        "kind": np.array([case["kind"] for case in asked], dtype="U10"),
        **{name: np.array([case[name] for case in asked], np.int32) for name in COLUMNS},
        "channels_last": np.array([case["channels_last"] for case in asked], np.int8),
    }


def save(rows: list[tuple[Any, ...]], names: list[tuple[str, ...]], path: Path, first: int = 0) -> None:
    """Write what there is, with the kernels' names; calls are numbered from the ``first`` pass on."""
    asked, precisions, passes, times, spreads, kernels = zip(*rows, strict=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    # In order and as bytes, names take half the room: what is alike lies together.
    told, number = np.unique([told_once(each)[:_LONGEST_NAMES].encode() for each in names], return_inverse=True)
    np.savez_compressed(
        path,
        device=device_record(),
        **case_columns(asked, precisions),
        direction=np.array(passes, np.int8) + np.int8(first),
        time_us=np.array(times, np.float32),
        spread=np.array(spreads, np.float16),
        kernels=number[np.array(kernels, np.int32)].astype(np.int32),
        kernel_names=told,
    )


def told_once(names: tuple[str, ...]) -> str:
    """A call's kernels, each once with how often it ran: what runs for each group apart runs a thousand times.

    >>> told_once(("a", "b", "a"))
    'a x2 + b'
    """
    return " + ".join(
        name[:_LONGEST_NAME] + (f" x{times}" if times > 1 else "") for name, times in Counter(names).items()
    )


def _weight(text: str, known: Collection[str], what: str) -> tuple[str, float]:
    name, _, weight = text.partition("=")
    if name not in known:
        raise argparse.ArgumentTypeError(f"{name!r} is no {what}: choose of {', '.join(known)}")
    return name, float(weight)


def main() -> None:
    """Draw and time until the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=170.0, help="seconds")
    parser.add_argument("--count", type=int, default=60_000, help="configurations at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=14, help="processes that choose kernels")
    parser.add_argument("--draw", choices=("passes", "layers"), default="passes")
    of_kinds = partial(_weight, known=KINDS, what="kind of layer")
    of_precisions = partial(_weight, known=PRECISIONS, what="precision")
    parser.add_argument("--weights", nargs="*", type=of_kinds, default=(), help="of layers: KIND=WEIGHT")
    parser.add_argument("--precisions", nargs="*", type=of_precisions, default=(), help="of layers: NAME=WEIGHT")
    of_signals = partial(_weight, known=SIGNALS, what="kind of signal")
    parser.add_argument("--signals", nargs="*", type=of_signals, default=(), help="passes of these alone: KIND=WEIGHT")
    parser.add_argument("--gradients", type=float, default=1.0, metavar="SHARE", help="of configurations")
    parser.add_argument("--first", type=int, default=0, choices=range(len(PASSES)), help="pass; 1: no forwards")
    parser.add_argument(
        "--large", type=float, nargs="?", const=60.0, metavar="MILLIONS", help="tensors of so many elements at least"
    )
    options = parser.parse_args()
    gc.disable()
    if options.draw == "layers":
        drawn = draw_layers(options.seed, dict(options.weights), dict(options.precisions))
    else:
        drawn = draw_passes(options.seed, dict(options.signals))
    if options.large:
        drawn = draw_large(drawn, options.seed, options.large * 1e6)
    cases = [next(drawn) for _ in range(options.count)]
    points = [(asdict(case), case.precision) for case in cases]
    rows, names = chosen_and_timed(
        points,
        partial(pass_calls, gradients=options.gradients, first=options.first),
        options.limit,
        options.workers,
    )
    if rows:
        save(rows, list(names.known), options.output, options.first)
    say(f"{len(rows):,} passes in {options.limit:.0f} s")


if __name__ == "__main__":
    main()
