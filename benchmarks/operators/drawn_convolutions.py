"""Convolutions drawn by chance, on a GPU, and as data to fit.

``python -m benchmarks.operators.drawn_convolutions measure -o ROWS.json [--limit S] [--seed N]`` times forward,
backward and the gradient of the weight alone at drawn configurations, warm and after the cache was swept: images and
signals along one dimension, depthwise, grouped, patches, transposed, in four precisions, with channels last or not;
``--volumes`` draws those over three dimensions instead, ``--groups`` groups as residual networks have them,
``--patches`` images cut into patches, and what leaves pixels out, ``--further`` what strangers' programs have beyond
these, ``--wide`` signals under wide filters.
``python -m benchmarks.operators.drawn_convolutions data ROWS.json... -o FOLDER`` writes them as the launches that
generated code would make of them, those in float32 that were not rounded for the tensor cores apart, and volumes apart;
that needs no GPU. ``--device`` names the one that measured them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.operators.drawn_calls import time_all
from benchmarks.operators.drawn_launches import Row, in_both_states, is_steady, library_launch, made_buffer, write_data
from torchledger.nouns import Buffer, Launch
from torchledger.store.launch_file import MeasuredLaunch

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("measure", "-o", "{out}/convolutions.json"),)

_MOST_FLOPS, _LEAST_FLOPS = 6e11, 2e6
_MOST_ELEMENTS = 2**27
PRECISIONS = ("bfloat16", "bfloat16", "float16", "float32", "float32", "tf32")


@dataclass(frozen=True)
class ConvolutionCase:
    """Sizes of a convolution; ``height`` is 1 along one dimension. Of a transposed one ``c_in`` and ``height`` are
    those of the smaller tensor, that it is given."""

    kind: str
    precision: str
    count: int
    c_in: int
    c_out: int
    height: int
    width: int
    kernel: int
    stride: int
    padding: int
    groups: int
    channels_last: bool
    depth: int = 0
    """Of a volume; 0 is none."""
    deep_kernel: int = 1
    deep_stride: int = 1
    deep_padding: int = 0
    tall: int = 0
    """How high a filter is that is not as high as it is wide; 0: it is square."""
    tall_padding: int = 0
    tall_stride: int = 0
    """How far a filter steps down that steps otherwise across; 0: as far."""

    @property
    def is_flat(self) -> bool:
        """Along one dimension."""
        return self.kind == "signal"

    @property
    def taps(self) -> tuple[int, ...]:
        """Of the filter, by dimension."""
        if self.depth:
            return self.deep_kernel, self.kernel, self.kernel
        return (self.kernel,) if self.is_flat else (self.tall or self.kernel, self.kernel)

    @property
    def strides(self) -> tuple[int, ...]:
        """By dimension."""
        if self.depth:
            return self.deep_stride, self.stride, self.stride
        if self.tall_stride:
            return self.tall_stride, self.stride
        return (self.stride,) * len(self.taps)

    @property
    def paddings(self) -> tuple[int, ...]:
        """By dimension."""
        if self.depth:
            return self.deep_padding, self.padding, self.padding
        if self.tall:
            return self.tall_padding, self.padding
        return (self.padding,) * len(self.taps)

    @property
    def is_transposed(self) -> bool:
        """Its result is larger than what it is given."""
        return self.kind == "transposed"

    def _sides(self, given: tuple[int, ...]) -> tuple[int, ...]:
        """Of the result."""
        along = zip(given, self.taps, self.strides, self.paddings, strict=True)
        if self.is_transposed:
            return tuple((size - 1) * stride - 2 * padding + taps for size, taps, stride, padding in along)
        return tuple((size + 2 * padding - taps) // stride + 1 for size, taps, stride, padding in along)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Of the input, the weight and the result."""
        given = (self.width,) if self.is_flat else (self.height, self.width)
        given = (self.depth, *given) if self.depth else given
        weight = (
            (self.c_in, self.c_out // self.groups) if self.is_transposed else (self.c_out, self.c_in // self.groups)
        )
        made = self._sides(given)
        return (self.count, self.c_in, *given), (*weight, *self.taps), (self.count, self.c_out, *made)

    @property
    def flops(self) -> int:
        """Of the forward."""
        given, weight, made = self.shapes
        pixels = math.prod((given if self.is_transposed else made)[2:])
        return 2 * self.count * pixels * math.prod(weight)


def draw(count: int, seed: int) -> Iterator[ConvolutionCase]:
    """Configurations as models have them, and some that none has."""
    pick = random.Random(f"convolutions {seed}")
    found = 0
    while found < count:
        kind = pick.choice(
            ("image", "image", "image", "pointwise", "depthwise", "patches", "transposed", "signal", "grouped")
        )
        channels = (16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 960, 1024, 1152, 1536, 1920)
        c_in, c_out = pick.choice(channels), pick.choice(channels)
        kernel, stride, groups = pick.choice((3, 3, 3, 5, 7)), pick.choice((1, 1, 1, 2)), 1
        padding = kernel // 2
        width = round(2 ** pick.uniform(1, 8))
        if kind == "pointwise":
            kernel, padding = 1, 0
        elif kind == "depthwise":
            groups = c_out = c_in
        elif kind == "patches":
            kernel = stride = pick.choice((2, 4, 4, 8, 14, 16))
            c_in = pick.choice((1, 3, 3, c_in))
            padding, width = 0, max(1, width // 2) * kernel
        elif kind == "transposed":
            kernel, stride, padding = pick.choice(((2, 2, 0), (2, 2, 0), (4, 2, 1), (3, 1, 1)))
        elif kind == "signal":
            width = round(2 ** pick.uniform(5, 14))
            kernel = pick.choice((1, 3, 3, 5, 7, 10, 15))
            padding, stride = kernel // 2, pick.choice((1, 1, 2, 5))
            c_in = pick.choice((1, c_in, c_in, c_in))
        elif kind == "grouped":
            groups = pick.choice([each for each in (2, 4, 8, 16, 32) if c_in % each == c_out % each == 0] or [1])
        elif pick.random() < 0.1:
            c_in = 3
        if pick.random() < 0.7:
            width = max(1, width // 7 * 7 if pick.random() < 0.5 else width // 8 * 8)
        case = ConvolutionCase(
            kind, pick.choice(PRECISIONS), max(1, round(2 ** pick.uniform(0, 7))), c_in, c_out,
            1 if kind == "signal" else width, max(width, kernel), kernel, stride, padding, groups,
            channels_last=kind != "signal" and pick.random() < 0.6,
        )  # fmt: skip
        if kind != "signal" and case.height < kernel:
            continue
        largest = max(math.prod(shape) for shape in case.shapes)
        if _LEAST_FLOPS < case.flops < _MOST_FLOPS and largest < _MOST_ELEMENTS and min(case.shapes[2]) > 0:
            found += 1
            yield case


def draw_groups(count: int, seed: int) -> Iterator[ConvolutionCase]:
    """Configurations as ResNeXt and RegNet have them: as wide behind as before, groups of a few to some hundred
    channels, every third with a stride."""
    pick = random.Random(f"groups {seed}")
    found = 0
    while found < count:
        each = pick.choice((1, 2, 4, 8, 8, 16, 16, 24, 24, 32, 40, 48, 48, 56, 64, 64, 80, 96, 112, 128, 168, 232, 264))
        groups = pick.choice((2, 4, 8, 16, 32, 32, 64)) if pick.random() < 0.5 else round(2 ** pick.uniform(0.6, 6))
        width = pick.choice((7, 8, 14, 16, 28, 32, 56, 64, 112)) if pick.random() < 0.6 else pick.randrange(4, 128)
        kernel, stride = pick.choice((3, 3, 3, 3, 5, 1)), pick.choice((1, 1, 2))
        case = ConvolutionCase(
            "grouped", pick.choice(PRECISIONS), max(1, round(2 ** pick.uniform(0, 8))), each * groups, each * groups,
            width, width, kernel, stride, kernel // 2, groups, channels_last=pick.random() < 0.5,
        )  # fmt: skip
        largest = max(math.prod(shape) for shape in case.shapes)
        if _LEAST_FLOPS < case.flops < _MOST_FLOPS and largest < _MOST_ELEMENTS and case.c_in <= 4096:
            found += 1
            yield case


_KINDS_OF_VOLUMES = (
    *("full", "full", "full", "flat", "deep", "pointwise"),
    *("patches", "transposed", "first", "depthwise", "grouped"),
)


def draw_patches(count: int, seed: int) -> Iterator[ConvolutionCase]:
    """Configurations of which each filter reads pixels of its own: images cut into patches, of three channels or as
    many as a layer makes, and one pixel of four."""
    pick = random.Random(f"patches {seed}")
    found = 0
    channels = (24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1280)
    while found < count:
        is_pointwise = pick.random() < 0.35
        kernel = 1 if is_pointwise else pick.choice((2, 2, 4, 4, 8, 8, 14, 16, 16, 32))
        stride = 2 if is_pointwise else kernel
        c_in = pick.choice(channels) if is_pointwise or pick.random() < 0.3 else pick.choice((3, 3, 3, 1, 4))
        each = pick.choice((4, 7, 8, 12, 14, 16, 24, 28, 32, 56)) if pick.random() < 0.7 else pick.randrange(2, 64)
        case = ConvolutionCase(
            "patches", pick.choice(PRECISIONS), max(1, round(2 ** pick.uniform(0, 8))), c_in, pick.choice(channels),
            each * stride, each * stride, kernel, stride, 0, 1, channels_last=pick.random() < 0.6,
        )  # fmt: skip
        largest = max(math.prod(shape) for shape in case.shapes)
        if _LEAST_FLOPS < case.flops < _MOST_FLOPS and largest < _MOST_ELEMENTS:
            found += 1
            yield case


def draw_volumes(count: int, seed: int) -> Iterator[ConvolutionCase]:
    """Configurations as networks over films, scans and fields have them, and some that none has."""
    pick = random.Random(f"volumes {seed}")
    found = 0
    while found < count:
        kind = pick.choice(_KINDS_OF_VOLUMES)
        channels = (4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 512)
        c_in, c_out, groups = pick.choice(channels), pick.choice(channels), 1
        kernel = deep_kernel = pick.choice((3, 3, 3, 5))
        stride, deep_stride = pick.choice(((1, 1), (1, 1), (2, 2), (2, 1)))
        depth, width = round(2 ** pick.uniform(0.5, 7)), round(2 ** pick.uniform(1.5, 8))
        if kind == "flat":
            deep_kernel = deep_stride = 1
        elif kind == "deep":
            kernel, stride, deep_stride = 1, 1, pick.choice((1, 1, 2))
        elif kind == "pointwise":
            kernel = deep_kernel = 1
            stride = deep_stride = pick.choice((1, 1, 1, 2))
        elif kind == "patches":
            kernel, deep_kernel = pick.choice(((2, 2), (4, 4), (16, 2), (16, 4), (8, 1), (4, 2)))
            stride, deep_stride, c_in = kernel, deep_kernel, pick.choice((1, 3, c_in))
            depth, width = max(1, depth // 2) * deep_kernel, max(1, width // 2) * kernel
        elif kind == "transposed":
            kernel, deep_kernel = pick.choice(((2, 2), (2, 2), (4, 4), (2, 1)))
            stride, deep_stride = min(kernel, 2), min(deep_kernel, 2)
        elif kind == "first":
            c_in, kernel = pick.choice((1, 1, 2, 3, 3, 4)), pick.choice((3, 5, 7))
        elif kind == "depthwise":
            groups = c_out = c_in
        elif kind == "grouped":
            groups = pick.choice([each for each in (2, 4, 8, 16, 32) if c_in % each == c_out % each == 0] or [1])
        if pick.random() < 0.7:
            width = max(1, width // 7 * 7 if pick.random() < 0.5 else width // 8 * 8)
        kept = kind not in ("patches", "pointwise", "transposed")
        padding, deep_padding = (each // 2 if kept else int(each == 4) for each in (kernel, deep_kernel))
        padding, deep_padding = (0, 0) if kind == "patches" else (padding, deep_padding)
        case = ConvolutionCase(
            "transposed" if kind == "transposed" else f"volume {kind}", pick.choice((*PRECISIONS, "tf32")),
            max(1, round(2 ** pick.uniform(-0.5, 5))), c_in, c_out, width, width, kernel, stride,
            padding, groups, channels_last=pick.random() < 0.25,
            depth=max(depth, deep_kernel), deep_kernel=deep_kernel, deep_stride=deep_stride,
            deep_padding=deep_padding,
        )  # fmt: skip
        largest = max(math.prod(shape) for shape in case.shapes)
        if _LEAST_FLOPS < case.flops < _MOST_FLOPS and largest < _MOST_ELEMENTS // 2 and min(case.shapes[2]) > 0:
            found += 1
            yield case


def draw_further(count: int, seed: int) -> Iterator[ConvolutionCase]:
    """Configurations that strangers' programs had and the other draws have not: signals with wide filters in groups of
    many channels, results of a few channels, widths that are multiples of 48, filters of five, wide transposed ones."""
    pick = random.Random(f"further {seed}")
    found = 0
    wide = (48, 64, 80, 96, 128, 144, 160, 192, 240, 256, 288, 320, 384, 432, 512, 576, 640, 768)
    while found < count:
        kind = pick.choice((*("signal", "image") * 3, "few", "few", "five", "transposed"))
        c_in, c_out = pick.choice(wide), pick.choice(wide)
        width = pick.choice((7, 8, 14, 16, 19, 28, 32, 48, 56, 64, 96, 112, 128)) if pick.random() < 0.7 else 0
        width, groups = width or pick.randrange(4, 192), 1
        kernel, stride = 3, pick.choice((1, 1, 1, 1, 2))
        if kind == "signal":
            width = round(2 ** pick.uniform(5, 14))
            kernel = pick.choice((3, 5, 7, 11, 15, 20, 25, 31, 40, 41, 64, 80, 127, 128, 251))
            stride = pick.choice((1, 1, 1, 1, 2, 4))
            c_in = pick.choice((1, 1, c_in, c_in, c_in))
            each = pick.choice((1, 1, 2, 4, 8, 16, 32, 48, 64))
            if c_in % each == 0 and pick.random() < 0.6:
                groups, c_out = c_in // each, c_in * pick.choice((1, 1, 2))
        elif kind == "few":
            c_out, kernel = pick.choice((1, 1, 2, 3, 4, 6, 10, 12)), pick.choice((1, 1, 1, 3, 3, 7))
        elif kind == "image":
            c_out = pick.choice((c_in, c_in, c_out, min(2 * c_in, 1536), max(16, c_in // 3)))
        elif kind == "five":
            kernel, c_in = pick.choice((5, 5, 5, 7, 9)), pick.choice((3, c_in, c_in, c_in))
        is_larger = kind == "transposed"
        if is_larger:
            kernel, stride, width = *pick.choice(((4, 2), (4, 2), (2, 2), (5, 2), (8, 4))), max(4, width // 4)
        case = ConvolutionCase(
            kind if kind in ("signal", "transposed") else "image", pick.choice(PRECISIONS),
            max(1, round(2 ** pick.uniform(0, 8))), c_in, c_out, 1 if kind == "signal" else width, max(width, kernel),
            kernel, stride, (kernel - stride) // 2 if is_larger else kernel // 2, groups,
            channels_last=kind != "signal" and pick.random() < 0.6,
        )  # fmt: skip
        largest = max(math.prod(shape) for shape in case.shapes)
        if 10 * _LEAST_FLOPS < case.flops < _MOST_FLOPS and largest < _MOST_ELEMENTS and min(case.shapes[2]) > 0:
            found += 1
            yield case


def draw_wide(count: int, seed: int) -> Iterator[ConvolutionCase]:
    """Signals whose filters have more than 32 taps, as speech and audio have them: for these a library has few kernels
    that use the tensor cores. Whole ones, and groups of one channel to a few hundred."""
    pick = random.Random(f"wide {seed}")
    found = 0
    while found < count:
        kernel = pick.choice((33, 40, 41, 48, 63, 64, 80, 95, 101, 127, 128, 128, 160, 200, 251))
        c_in = pick.choice((1, 16, 32, 48, 64, 80, 96, 128, 144, 192, 256, 320, 384, 512, 640, 768, 1024, 1280))
        c_out, groups = pick.choice((16, 32, 64, 80, 96, 128, 192, 256, 384, 512, 768)), 1
        each = pick.choice((1, 2, 4, 8, 16, 32, 48, 64, 80, 128, 256))
        if pick.random() < 0.45 and each < c_in and c_in % each == 0:
            groups, c_out = c_in // each, c_in * pick.choice((1, 1, 1, 2))
        width = round(2 ** pick.uniform(4.5, 14))
        case = ConvolutionCase(
            "signal", pick.choice(PRECISIONS), max(1, round(2 ** pick.uniform(0, 7))), c_in, c_out, 1,
            max(width, kernel), kernel, pick.choice((1, 1, 1, 1, 2, 4)), kernel // 2, groups, channels_last=False,
        )  # fmt: skip
        largest = max(math.prod(shape) for shape in case.shapes)
        if 10 * _LEAST_FLOPS < case.flops < _MOST_FLOPS / 4 and largest < _MOST_ELEMENTS // 2:
            found += 1
            yield case


def runs(case: ConvolutionCase, place: str) -> dict[str, Callable[[], Any]]:
    """What is timed of a case, by direction."""
    import torch

    given, weighted, made = case.shapes
    dtype = getattr(torch, "float32" if case.precision == "tf32" else case.precision)
    last = torch.channels_last_3d if case.depth else torch.channels_last

    def tensor(shape: tuple[int, ...]) -> Any:
        values = torch.randn(*shape, device=place, dtype=dtype)
        return values.to(memory_format=last) if case.channels_last else values

    image, weight, gradient = tensor(given), tensor(weighted), tensor(made)
    dims = len(given) - 2
    along = [list(case.strides), list(case.paddings), [1] * dims]
    sizes = (*along, case.is_transposed, [0] * dims, case.groups)

    def forward() -> Any:
        torch.backends.cudnn.allow_tf32 = case.precision == "tf32"
        return torch.convolution(image, weight, None, *sizes)

    def backward(*mask: bool) -> Any:
        torch.backends.cudnn.allow_tf32 = case.precision == "tf32"
        return torch.ops.aten.convolution_backward(gradient, image, weight, [0], *sizes, list(mask))

    found = {"forward": forward, "backward": lambda: backward(True, True, False)}
    if case.kind == "patches" or case.c_in <= 3:
        found["weight"] = lambda: backward(False, True, False)
    return found


def launches(rows: Sequence[Row]) -> Iterator[MeasuredLaunch]:
    """Two launches a row, as attention's are."""
    for number, row in enumerate(rows):
        if is_steady(row, slack_us=0.7):
            pair = (_launch(row, f"convolution_{number}", order) for order in range(2))
            yield from in_both_states(row, pair, f"convolution-{row['case']}")


def _launch(row: Row, graph: str, order: int) -> Launch:
    names = ConvolutionCase.__dataclass_fields__
    case = ConvolutionCase(**{name: row[name] for name in names if name in row})
    dtype = "float32" if case.precision == "tf32" else case.precision

    def buffer(name: str, shape: tuple[int, ...], role: Literal["input", "output"]) -> Buffer:
        stride = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
        if case.channels_last:
            _, channels, *sides = shape
            inner = [channels * math.prod(sides[place + 1 :]) for place in range(len(sides))]
            stride = [channels * math.prod(sides), 1, *inner]
        return made_buffer(name, dtype, shape, stride, role, numel=math.prod(shape))

    given, weighted, made = case.shapes
    direction = row["direction"]
    if direction == "forward":
        call, operator = "extern_kernels.convolution", "convolution"
        buffers = [buffer("image", given, "input"), buffer("weight", weighted, "input"), buffer("out", made, "output")]
        none = (0,) * len(case.taps)
        spread = {
            "stride": case.strides,
            "padding": case.paddings,
            "dilation": (1,) * len(none),
            "output_padding": none,
        }
        kwargs = {name: str(sizes) for name, sizes in spread.items()}
        kwargs |= {"transposed": str(case.is_transposed), "groups": str(case.groups), "bias": "None"}
    else:
        operator = "convolution_backward"
        call, kwargs = f"torch.ops.aten.{operator}.default", {"transposed": str(case.is_transposed)}
        buffers = [buffer("grad", made, "input"), buffer("image", given, "input"), buffer("weight", weighted, "input")]
        if direction == "backward":
            buffers.append(buffer("dimage", given, "output"))
        buffers.append(buffer("dweight", weighted, "output"))
    flops = case.flops * (2 if direction == "backward" else 1)
    return library_launch(graph, order, operator, call, buffers, kwargs, flops=flops)


def main() -> None:
    """Measure, or make data of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "data"))
    parser.add_argument("rows", nargs="*", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=150, help="seconds")
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="NVIDIA H200")
    parser.add_argument("--name", default="drawn", help="how the files of the data begin")
    drawn = parser.add_mutually_exclusive_group()
    drawn.add_argument("--volumes", dest="draw", action="store_const", const=draw_volumes)
    drawn.add_argument("--groups", dest="draw", action="store_const", const=draw_groups)
    drawn.add_argument("--further", dest="draw", action="store_const", const=draw_further)
    drawn.add_argument("--wide", dest="draw", action="store_const", const=draw_wide)
    drawn.add_argument("--patches", dest="draw", action="store_const", const=draw_patches)
    options = parser.parse_args()
    if options.what == "measure":
        cases = list((options.draw or draw)(options.count, options.seed))
        asked = [
            ({"case": number, **asdict(case)}, lambda case=case: runs(case, "cuda"))
            for number, case in enumerate(cases)
        ]
        print(f"{time_all(asked, options.output, options.limit)} rows", flush=True)
        return
    of_these = "" if options.name == "drawn" else f"{options.name}-"
    rows = [
        {**row, "case": f"{of_these}{place}-{row['case']}" if place or of_these else row["case"]}
        for place, path in enumerate(options.rows)
        for row in json.loads(path.read_text())
    ]
    for is_deep, is_exact in itertools.product((False, True), repeat=2):
        kind = "volumes" if is_deep else "convolutions"
        path = options.output / f"{options.name}_{'exact_' if is_exact else ''}{kind}_torch2.11.launches"
        some = [row for row in rows if (bool(row.get("depth")), row["precision"] == "float32") == (is_deep, is_exact)]
        if some:
            print(f"{path}: {write_data(path, launches(some), options.device):,} launches")


if __name__ == "__main__":
    main()
