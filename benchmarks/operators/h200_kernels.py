"""Times of single matrix products and convolutions on one CUDA device, thousands a second, with kernels' names.

    python -m benchmarks.operators.h200_kernels --make-plan PLAN_FOLDER --measured DATA [--count 40000]  # anywhere
    python -m benchmarks.operators.h200_kernels -o OUT [--products 80 [--odd]] [--convolutions 170 --plan PLAN_FOLDER]
        [--seed 1]

Sampling an operator runs its forward and its backward many times through autograd; here each product, or one of a
convolution's three (forward, gradient of the image, of the weight), is called alone, once to warm up and three times
to be timed. Limits are in seconds. The convolutions' shapes are the ``conv2d`` points of PLAN_FOLDER in their order
(layers of networks, and random ones, none that DATA holds in whatever group); products are drawn. Writes
OUT/products.npz and OUT/convolutions.npz, and the kernels' names beside them (*_kernels.json).
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import multiprocessing
import random
import statistics
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}", "--convolutions", "0"),)
QUICK: tuple[tuple[str, ...], ...] = (("-o", "{out}", "--products", "5", "--convolutions", "0"),)

STARTED = time.monotonic()
LAYOUTS = ("tn", "nn", "nt")
"""How the factors are stored: ``tn`` x[m, k] w[n, k]^T (linear), ``nn`` x[m, k] w[k, n], ``nt`` x[k, m]^T w[k, n]."""
PASSES = ("forward", "image", "weight")
BLOCK_BYTES = 3 << 30
CALLS = 3
GROUP = 256
SAVE_EVERY_S = 45.0


def say(text: str) -> None:
    """Print with the seconds since the start."""
    print(f"[{time.monotonic() - STARTED:6.1f}s] {text}", flush=True)


class Names:
    """Numbers for the kernels' names; a call's kernels are a tuple of names."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, ...], int] = {}

    def number(self, names: tuple[str, ...]) -> int:
        return self.known.setdefault(names, len(self.known))


def draw_product(draw: random.Random, *, is_odd: bool = False) -> tuple[str, str, int, int, int, int]:
    """Layout, dtype, batch, m, n, k: every side aligned in its own way, long ones less often.

    ``is_odd`` draws what was drawn least: rows that begin at no 16 bytes, float16, float32, batches, and products of
    attention, two of whose sides are alike.
    """

    def log(low: float, high: float, multiple: int) -> int:
        return max(multiple, round(math.exp(draw.uniform(math.log(low), math.log(high))) / multiple) * multiple)

    while True:
        layout = draw.choice(LAYOUTS)
        dtype = draw.choices(("bfloat16", "float16", "float32"), (0.4, 0.42, 0.18) if is_odd else (0.74, 0.14, 0.12))[0]
        is_unaligned = is_odd and dtype != "float32"
        every = draw.choice((0, 0, 1, 1, 2, 4) if is_unaligned else (0, 0, 1, 8, 64))
        some = (1, 1, 2, 2, 4, 8) if is_unaligned else (1, 1, 1, 2, 4, 8, 8, 16, 64, 64, 128)
        aligned = [every or draw.choice(some) for _ in range(3)]
        kind = draw.random()
        batch = 1
        if kind < (0.45 if is_odd else 0.55):
            m, n, k = log(1, 32768, aligned[0]), log(16, 32768, aligned[1]), log(16, 32768, aligned[2])
        else:
            batch = round(math.exp(draw.uniform(0, math.log(512))))
            sides = [log(8, 4096, a) for a in aligned]
            if kind > 0.8:
                side = draw.choice((32, 40, 48, 64, 64, 80, 96, 128, 128, 160, 256))
                place = draw.randrange(3)
                sides[place] = side
                if is_odd:
                    sides[(place + 1) % 3] = sides[(place + 2) % 3]
            m, n, k = sides
        flops, elements = 2 * batch * m * n * k, batch * (m * k + k * n + m * n)
        rate = 4e7 if dtype == "float32" else 6e8
        # No factor may be longer than its third of a block.
        if elements > (2.6e8 if dtype == "float32" else 4.5e8) or flops > (5e10 if dtype == "float32" else 6e11):
            continue
        # The long ones are regular and dear.
        if draw.random() < (120 / max(120, flops / rate, elements * 2 / 4e6)) ** 0.6:
            return layout, dtype, batch, m, n, k


SIDES = (7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224)
CHANNELS = (16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 2048)
LAYERS = (
    *((3, 64, 7, 2, 1, 224), (64, 64, 1, 1, 1, 56), (64, 64, 3, 1, 1, 56), (64, 256, 1, 1, 1, 56)),
    *((256, 64, 1, 1, 1, 56), (256, 128, 1, 1, 1, 56), (128, 128, 3, 2, 1, 56), (128, 512, 1, 1, 1, 28)),
    *((256, 512, 1, 2, 1, 56), (512, 128, 1, 1, 1, 28), (128, 128, 3, 1, 1, 28), (512, 256, 1, 1, 1, 28)),
    *((256, 256, 3, 2, 1, 28), (256, 1024, 1, 1, 1, 14), (512, 1024, 1, 2, 1, 28), (1024, 256, 1, 1, 1, 14)),
    *((256, 256, 3, 1, 1, 14), (1024, 512, 1, 1, 1, 14), (512, 512, 3, 2, 1, 14), (512, 2048, 1, 1, 1, 7)),
    *((1024, 2048, 1, 2, 1, 14), (2048, 512, 1, 1, 1, 7), (512, 512, 3, 1, 1, 7), (64, 128, 3, 2, 1, 56)),
    *((64, 128, 3, 1, 1, 112), (128, 256, 3, 1, 1, 56), (256, 512, 3, 1, 1, 28), (512, 512, 3, 1, 1, 14)),
    *((3, 96, 4, 4, 1, 224), (3, 128, 4, 4, 1, 224), (96, 192, 2, 2, 1, 56), (192, 384, 2, 2, 1, 28)),
    *((384, 768, 2, 2, 1, 14), (96, 96, 7, 1, 96, 56), (192, 192, 7, 1, 192, 28), (384, 384, 7, 1, 384, 14)),
    *((768, 768, 7, 1, 768, 7), (3, 768, 16, 16, 1, 224), (3, 1024, 14, 14, 1, 224), (3, 192, 16, 16, 1, 224)),
    *((3, 32, 3, 2, 1, 224), (32, 32, 3, 1, 32, 112), (32, 16, 1, 1, 1, 112), (16, 96, 1, 1, 1, 112)),
    *((96, 96, 3, 2, 96, 112), (96, 24, 1, 1, 1, 56), (24, 144, 1, 1, 1, 56), (144, 144, 3, 1, 144, 56)),
    *((144, 144, 5, 2, 144, 56), (144, 40, 1, 1, 1, 28), (40, 240, 1, 1, 1, 28), (240, 240, 5, 1, 240, 28)),
    *((240, 240, 3, 2, 240, 28), (240, 80, 1, 1, 1, 14), (80, 480, 1, 1, 1, 14), (480, 480, 5, 1, 480, 14)),
    *((480, 112, 1, 1, 1, 14), (112, 672, 1, 1, 1, 14), (672, 672, 5, 2, 672, 14), (672, 192, 1, 1, 1, 7)),
    *((192, 1152, 1, 1, 1, 7), (1152, 1152, 5, 1, 1152, 7), (320, 1280, 1, 1, 1, 7), (1152, 320, 1, 1, 1, 7)),
    *((120, 120, 9, 2, 120, 28), (60, 60, 7, 1, 60, 28), (100, 100, 11, 1, 100, 14), (240, 240, 9, 1, 240, 14)),
    *((128, 128, 3, 1, 32, 56), (256, 256, 3, 2, 32, 56), (512, 512, 3, 1, 32, 14), (1024, 1024, 3, 1, 32, 7)),
    *((64, 64, 3, 1, 4, 56), (160, 160, 3, 2, 10, 56), (400, 400, 3, 1, 25, 14), (224, 224, 3, 1, 2, 56)),
    *((448, 448, 3, 2, 4, 56), (896, 896, 3, 1, 8, 14), (112, 112, 3, 1, 1, 28), (320, 320, 3, 1, 1, 32)),
    *((640, 640, 3, 1, 1, 16), (1280, 1280, 3, 1, 1, 8), (640, 320, 3, 1, 1, 32), (320, 4, 3, 1, 1, 64)),
    *((4, 320, 3, 1, 1, 64), (128, 32, 3, 1, 1, 28), (64, 64, 3, 1, 1, 224), (192, 64, 1, 1, 1, 28)),
    *((96, 208, 3, 1, 1, 14), (16, 48, 5, 1, 1, 14), (64, 192, 5, 1, 1, 27), (3, 64, 11, 4, 1, 224)),
)
"""(c_in, c_out, kernel, stride, groups, height) of layers of well-known networks: residual, grouped, depthwise, with
patches, for segmentation and diffusion."""


def draw_convolution(draw: random.Random) -> dict[str, int]:
    """Parameters of one ``conv2d``: a layer of a network at any batch and resolution, or a random one of its kind."""

    def log(low: float, high: float, multiple: int = 1) -> int:
        return max(multiple, round(math.exp(draw.uniform(math.log(low), math.log(high))) / multiple) * multiple)

    while True:
        kind = draw.choices(("layer", "usual", "any", "stem", "one each", "grouped"), (20, 30, 22, 8, 14, 6))[0]
        n, stride, groups, height = log(1, 256), draw.choice((1, 1, 1, 2)), 1, draw.choice(SIDES)
        kernel, last = draw.choice((1, 1, 3, 3, 3, 5, 7)), draw.choice((0, 1, 1))
        if kind == "layer":
            c_in, c_out, kernel, stride, groups, height = draw.choice(LAYERS)
            height = max(kernel, round(height * draw.choice((0.5, 0.75, 1, 1, 1, 1.14, 1.5, 2))))
            n = draw.choice((n, draw.choice((1, 2, 4, 8, 16, 32, 64, 128, 256))))
        elif kind == "usual":
            c_in, c_out = draw.choice(CHANNELS), draw.choice(CHANNELS)
        elif kind == "any":
            c_in, c_out, height = log(4, 2048, 4), log(4, 2048, 4), log(5, 256)
        elif kind == "stem":
            c_in, c_out, height = (
                draw.choice((1, 3, 3, 4)),
                draw.choice(CHANNELS[:8]),
                draw.choice((*range(32, 257, 32),)),
            )
            kernel, stride = draw.choice((3, 3, 4, 7, 16)), draw.choice((1, 2, 2, 4, 16))
        elif kind == "one each":
            c_in = c_out = groups = log(8, 1536, draw.choice((4, 8, 8)))
            height, kernel, stride = log(5, 160), draw.choice((3, 3, 5, 7, 9, 11)), draw.choice((1, 1, 2))
        else:
            c_in = c_out = draw.choice((64, 96, 128, 192, 256, 384, 512))
            height, kernel, groups = draw.choice((7, 14, 28, 56)), 3, draw.choice((2, 4, 8, 16, 32))
        padding = 0 if kernel == stride and draw.random() < 0.5 else kernel // 2
        if (stride > kernel and kernel != 1) or height + 2 * padding < kernel:
            continue
        places = ((height + 2 * padding - kernel) // stride + 1) ** 2
        flops = 2 * n * places * c_out * (c_in // groups) * kernel**2
        image, result = n * c_in * height**2, n * c_out * places
        if flops > 6e11 or max(image, result) > (6e7 if groups > 1 else 2e8):
            continue
        # The long ones are regular and dear.
        if draw.random() < (60 / max(60, flops / 4e8, (image + result) * 2 / 3e6)) ** 0.6:
            names = ("n", "c_in", "height", "width", "c_out", "kernel", "stride", "padding", "groups", "channels_last")
            values = (n, c_in, height, height, c_out, kernel, stride, padding, groups, last)
            return dict(zip(names, values, strict=True))


def make_plan(folder: Path, measured: Path, count: int, seed: int) -> None:
    """Write a plan of convolutions that are not among the measured ones."""
    from torchledger.sampling.dataset import read_samples
    from torchledger.sampling.points import Plan, Point, save_plan

    def key(parameters: Any) -> str:
        return json.dumps(dict(parameters), sort_keys=True)

    seen = {key(sample.parameters) for sample in read_samples(measured) if sample.operator == "conv2d"}
    draw, points = random.Random(seed), []
    while len(points) < count:
        parameters, dtype = draw_convolution(draw), draw.choices(("bfloat16", "float16"), (0.8, 0.2))[0]
        if key(parameters) not in seen:
            seen.add(key(parameters))
            points.append(Point("conv2d", parameters, dtype, "train"))
    folder.mkdir(parents=True, exist_ok=True)
    save_plan(Plan(tuple(points)), folder)
    print(f"{len(points):,} points in {folder}")


def blocks() -> Callable[[str, int, int], Any]:
    """Cuts flat tensors of random numbers out of one block per dtype: at a place (0, 1, 2) that is a third of it."""
    import torch

    made: dict[str, Any] = {}

    def cut(dtype: str, place: int, numel: int) -> Any:
        if dtype not in made:
            kind = getattr(torch, dtype)
            made[dtype] = torch.randn(BLOCK_BYTES // kind.itemsize, dtype=kind, device="cuda")
        block = made[dtype]
        start = place * (block.numel() // 3) // 1024 * 1024
        return block.narrow(0, start, numel)

    return cut


def product_call(shape: tuple[str, str, int, int, int, int], cut: Callable[[str, int, int], Any]) -> Callable[[], Any]:
    """One product, ready to be called."""
    import torch

    layout, dtype, batch, m, n, k = shape
    left, right = cut(dtype, 0, batch * m * k), cut(dtype, 1, batch * k * n)
    out = cut(dtype, 2, batch * m * n)
    lead = (batch,) if batch > 1 else ()
    left = left.view(*lead, k, m).transpose(-1, -2) if layout == "nt" else left.view(*lead, m, k)
    right = right.view(*lead, n, k).transpose(-1, -2) if layout == "tn" else right.view(*lead, k, n)
    out = out.view(*lead, m, n)
    call = torch.bmm if batch > 1 else torch.mm
    return lambda: call(left, right, out=out)


def convolution_calls(parameters: dict[str, int], dtype: str, pool: Any) -> list[Callable[[], Any]]:
    """The three passes of one convolution, ready to be called."""
    import torch

    from torchledger.operators import Parameters, find_operator
    from torchledger.sampling.cases import _gradient_like

    operator = find_operator("conv2d")
    p = Parameters(operator.resolve(parameters))
    pool.start_point()
    tensors = {name: value.detach() for name, value in pool.tensors(operator.tensors(p), dtype).items()}
    x, weight = tensors["x"], tensors["weight"]
    gradient = _gradient_like(operator.forward(p, x, weight), pool)

    def backward(mask: list[bool]) -> Callable[[], Any]:
        return lambda: torch.ops.aten.convolution_backward(
            gradient, x, weight, None, [p.stride] * 2, [p.padding] * 2, [1, 1], False, [0, 0], p.groups, mask
        )

    return [lambda: operator.forward(p, x, weight), backward([True, False, False]), backward([False, True, False])]


def timed(calls: Iterator[tuple[Any, Callable[[], Any]]]) -> Iterator[tuple[Any, list[float], tuple[str, ...]]]:
    """Key, times in microseconds and kernels of each call, in one profiler session."""
    from torchledger._torch.device_trace import DeviceTrace

    marks = []
    trace = DeviceTrace()
    with trace:
        for key, call in calls:
            try:
                call()
            except RuntimeError as error:
                say(f"{key}: {str(error).splitlines()[0][:150]}")
                continue
            pieces = []
            for _ in range(CALLS):
                pieces.append(trace.mark())
                call()
            trace.mark()
            marks.append((key, pieces))
    found = trace.pieces()
    if found is None:
        say(f"records of {len(marks)} calls were lost")
        return
    for key, pieces in marks:
        here = [found[index] for index in pieces]
        if all(piece.names for piece in here):
            yield key, [piece.busy_us for piece in here], here[-1].names


def products(limit_s: float, seed: int, out: Path, names: Names, *, is_odd: bool) -> None:
    """Draw and time products until the limit."""
    import torch

    deadline, saved = time.monotonic() + limit_s, time.monotonic()
    draw = random.Random(seed)
    cut = blocks()
    rows: list[tuple[Any, ...]] = []

    def calls() -> Iterator[tuple[Any, Callable[[], Any]]]:
        for _ in range(GROUP):
            shape = draw_product(draw, is_odd=is_odd)
            try:
                yield shape, product_call(shape, cut)
            except (RuntimeError, torch.AcceleratorError) as error:
                say(f"{shape}: {error}")

    with torch.no_grad():
        while time.monotonic() < deadline:
            for shape, times, kernels in timed(calls()):
                rows.append((*shape, statistics.median(times), max(times) / min(times), names.number(kernels)))
            if time.monotonic() > saved + SAVE_EVERY_S:
                save_products(rows, out, names)
                saved = time.monotonic()
    save_products(rows, out, names)
    say(f"products: {len(rows):,} in {limit_s:.0f} s")


def device_record() -> np.ndarray:
    """What measured, as JSON: the record that `torchledger fit-constants` reads."""
    import torch

    from torchledger.device.describe import describe_devices
    from torchledger.store.codec import encode

    index = torch.cuda.current_device()
    gpu = next(found for found in describe_devices() if (found.kind, found.index) == ("cuda", index))
    return np.array(encode(gpu).decode())


def save_products(rows: list[tuple[Any, ...]], out: Path, names: Names) -> None:
    """Write what there is."""
    columns = list(zip(*rows, strict=True))
    np.savez_compressed(
        out / "products.npz",
        device=device_record(),
        layout=np.array([LAYOUTS.index(v) for v in columns[0]], np.int8),
        dtype=np.array(columns[1], dtype="U8"),
        **{name: np.array(column, np.int32) for name, column in zip(("b", "m", "n", "k"), columns[2:6], strict=True)},
        time_us=np.array(columns[6], np.float32),
        spread=np.array(columns[7], np.float32),
        kernels=np.array(columns[8], np.int32),
        kernel_names=np.array([" + ".join(each)[:900] for each in names.known]).astype("S"),
    )
    (out / "product_kernels.json").write_text(json.dumps([list(key) for key in names.known]))


def convolutions(limit_s: float, plan: Path, out: Path, part: str, workers: int) -> None:
    """Time the plan's convolutions in order until the limit."""
    number, parts = map(int, part.split("/"))
    with (plan / "plan.jsonl").open() as file:
        points = [json.loads(line) for line in file][1:]
    points = [point[1:3] for point in points if point[0] == "conv2d"][number - 1 :: parts]
    rows, names = chosen_and_timed(points, convolution_calls, limit_s, workers)
    if rows:
        save_convolutions(rows, out, names)
    say(f"convolutions: {len(rows):,} passes in {limit_s:.0f} s")


def chosen_and_timed(
    points: list[Any], calls_of: Callable[[Any, str, Any], list[Callable[[], Any]]], limit_s: float, workers: int
) -> tuple[list[tuple[Any, ...]], Names]:
    """Time the calls of points (parameters and dtype) in order until the limit.

    ``calls_of`` makes them out of these two and a pool of inputs; rows are parameters, dtype, the call's number, its
    time, its spread, and the number of its kernels' names.

    A library takes 40 ms of the host to choose a convolution's kernels, and microseconds to run them: so many processes
    choose at once, then each times what it has chosen, alone on the device.
    """
    context = multiprocessing.get_context("spawn")
    barrier, stop = context.Barrier(workers), context.Value("b", 0)
    with tempfile.TemporaryDirectory() as folder:
        until = time.time() + limit_s
        processes = [
            context.Process(target=_work, args=(i, workers, points[i::workers], calls_of, until, folder, barrier, stop))
            for i in range(workers)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(1.0, until + 45 - time.time()))
        for process in processes:
            if process.is_alive():
                process.kill()
        names, rows = Names(), []
        for path in sorted(Path(folder).glob("*.json")):
            given = json.loads(path.read_text())
            known = [names.number(tuple(kernels)) for kernels in given["names"]]
            rows += [(*row[:-1], known[row[-1]]) for row in given["rows"]]
    return rows, names


def _work(
    index: int, workers: int, points: list[Any], calls_of: Any, until: float, folder: str, barrier: Any, stop: Any
) -> None:
    import torch

    from torchledger._torch.device_trace import DeviceTrace
    from torchledger.sampling.cases import InputPool

    gc.disable()
    torch.set_num_threads(1)
    pool = InputPool("cuda:0", pool_bytes=2 << 30)
    names, rows, place, cycle = Names(), [], 0, 0
    with torch.no_grad(), DeviceTrace() as trace:
        trace.mark()
    try:
        while place < len(points) and not stop.value:
            ready: list[tuple[Any, Callable[[], Any]]] = []
            started = time.monotonic()
            # The first cycle is short, so that something is there early.
            for parameters, dtype in points[place : place + (24 if cycle == 0 else 80)]:
                place += 1
                try:
                    with torch.no_grad():
                        calls = calls_of(parameters, dtype, pool)
                        for call in calls:
                            call()
                except RuntimeError as error:
                    if index == 0:
                        say(f"{parameters}: {str(error).splitlines()[0][:120]}")
                    continue
                ready += [((parameters, dtype, number), call) for number, call in enumerate(calls)]
                if time.time() > until:
                    break
            torch.cuda.synchronize()
            built = time.monotonic() - started
            barrier.wait(60)
            for turn in range(workers):
                if turn == index:
                    with torch.no_grad():
                        found = list(timed(iter(ready)))
                    torch.cuda.synchronize()
                barrier.wait(60)
            rows += [
                (*key, statistics.median(times), max(times) / min(times), names.number(kernels))
                for key, times, kernels in found
            ]
            path = Path(folder) / f"{index}.json"
            path.with_suffix(".part").write_text(json.dumps({"rows": rows, "names": list(names.known)}))
            path.with_suffix(".part").replace(path)
            cycle += 1
            if index == 0:
                say(f"cycle {cycle}: {len(rows):,} passes of mine, chosen in {built:.1f} s")
                if time.time() + 20 > until:
                    stop.value = 1
            barrier.wait(60)
    except threading.BrokenBarrierError:
        say(f"process {index}: another one is gone")


def save_convolutions(rows: list[tuple[Any, ...]], out: Path, names: Names) -> None:
    """Write what there is."""
    asked, dtypes, passes, times, spreads, kernels = zip(*rows, strict=True)
    parameters = ("n", "c_in", "height", "width", "c_out", "kernel", "stride", "padding", "groups", "channels_last")
    np.savez_compressed(
        out / "convolutions.npz",
        device=device_record(),
        dtype=np.array(dtypes, dtype="U8"),
        **{name: np.array([point.get(name, 0) for point in asked], np.int32) for name in parameters},
        direction=np.array(passes, np.int8),
        time_us=np.array(times, np.float32),
        spread=np.array(spreads, np.float32),
        kernels=np.array(kernels, np.int32),
    )
    (out / "convolution_kernels.json").write_text(json.dumps([list(key) for key in names.known]))


def main() -> None:
    """Run the parts, each within its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=Path())
    parser.add_argument("--make-plan", type=Path)
    parser.add_argument("--measured", type=Path)
    parser.add_argument("--count", type=int, default=40_000)
    parser.add_argument("--products", type=float, default=80.0, help="seconds")
    parser.add_argument("--convolutions", type=float, default=170.0, help="seconds")
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--odd", action="store_true", help="what was drawn least: unaligned, float16, float32")
    parser.add_argument("--part", default="1/1", help="of the plan's convolutions: every PARTS-th from the PART-th")
    parser.add_argument("--workers", type=int, default=14, help="processes that choose convolutions' kernels")
    arguments = parser.parse_args()
    if arguments.make_plan:
        make_plan(arguments.make_plan, arguments.measured, arguments.count, arguments.seed)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = Names()
    gc.disable()
    if arguments.products > 0:
        try:
            products(arguments.products, arguments.seed, arguments.out, names, is_odd=arguments.odd)
        except Exception:
            # What one part cannot do must not cost the other, on a machine that is there for minutes.
            traceback.print_exc()
    if arguments.convolutions > 0 and arguments.plan:
        convolutions(arguments.convolutions, arguments.plan, arguments.out, arguments.part, arguments.workers)


if __name__ == "__main__":
    main()
