"""Calls of other libraries drawn by chance, on a GPU, and as data to fit.

``python -m benchmarks.operators.drawn_library measure -o ROWS.json [--limit S] [--seed N]`` times what generated code
leaves to PyTorch's own kernels (bags of embeddings and their gradients, sorting, adding where indices say, resizing,
pooling, Fourier transforms ...) at drawn sizes, warm and after the cache was swept.
``python -m benchmarks.operators.drawn_library data ROWS.json... -o FILE`` writes them as the launches that generated
code would make of them; that needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks.operators.drawn_calls import time_all
from benchmarks.operators.drawn_launches import Row, in_both_states, is_steady, library_launch, made_buffer, write_data
from torchledger.nouns import Buffer, Launch
from torchledger.store.launch_file import MeasuredLaunch

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("measure", "-o", "{out}/library.json"),)

_MOST_ELEMENTS = 2**26

Drawn = tuple[str, tuple[Any, ...]]
"""An operator's name with its overload and its arguments."""


def _numel(pick: random.Random) -> float:
    return 2 ** pick.uniform(10, 24.5)


def _rows(pick: random.Random, numel: float, most_columns: int = 2**14) -> tuple[int, int]:
    columns = max(1, min(round(2 ** pick.uniform(3, math.log2(most_columns))), int(numel)))
    if pick.random() < 0.6:
        columns = max(8, columns // 8 * 8)
    return max(1, int(numel / columns)), columns


def _dtype(pick: random.Random) -> Any:
    import torch

    return pick.choice((torch.float32, torch.float32, torch.bfloat16, torch.float16))


def _values(pick: random.Random, place: str, shape: Sequence[int], dtype: Any = None) -> Any:
    import torch

    return torch.randn(*shape, device=place).to(dtype or _dtype(pick))


def bags(pick: random.Random, place: str) -> list[Drawn]:
    """Sums over rows of a table and their gradients; tables of recommenders, bags of one to a hundred."""
    import torch

    rows, dim = round(2 ** pick.uniform(6, 21)), pick.choice((8, 16, 32, 64, 64, 128, 128, 256, 512))
    rows = min(rows, _MOST_ELEMENTS // dim)
    count, each = round(2 ** pick.uniform(4, 14)), pick.choice((1, 1, 2, 4, 8, 16, 50, 100))
    mode = pick.choice((0, 0, 0, 1, 2))
    dtype = pick.choice((torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16))
    table = _values(pick, place, (rows, dim), dtype)
    indices = torch.randint(0, rows, (count * each,), device=place)
    if pick.random() < 0.3:
        # A few rows are asked for most often, as words and popular items are.
        indices = (rows * torch.rand(count * each, device=place) ** 4).long()
    offsets = torch.arange(0, count * each, each, device=place)
    made = torch.ops.aten._embedding_bag(table, indices, offsets, False, mode)
    gradient = torch.randn_like(made[0])
    return [
        ("_embedding_bag.default", (table, indices, offsets, False, mode)),
        (
            "_embedding_bag_backward.default",
            (gradient, indices, offsets, made[1], made[2], made[3], rows, False, mode, False, None),
        ),
    ]


def indexing(pick: random.Random, place: str) -> list[Drawn]:
    """Adding and reducing where indices say, which generated code leaves alone for half precision."""
    import torch

    rows, columns = _rows(pick, _numel(pick), 2048)
    taken = max(1, min(round(rows * 2 ** pick.uniform(-3, 2)), _MOST_ELEMENTS // columns))
    target = _values(pick, place, (rows, columns))
    where = torch.randint(0, rows, (taken,), device=place)
    given = torch.randn(taken, columns, device=place).to(target.dtype)
    wide = where.view(-1, 1).expand(taken, columns)
    return [
        pick.choice((
            ("index_put.default", (target, [where], given, True)),
            ("embedding_dense_backward.default", (given, where, rows, -1, False)),
            ("index_add.default", (target, 0, where, given)),
        )),
        ("scatter_add.default", (target, 0, wide, given)),
        ("scatter_reduce.two", (target, 0, wide, given, pick.choice(("sum", "amax", "mean")))),
    ]  # fmt: skip


def sorting(pick: random.Random, place: str) -> list[Drawn]:
    """Sorting along rows of all lengths, and what needs it."""
    rows, columns = _rows(pick, min(_numel(pick), 2**23), pick.choice((2**12, 2**18)))
    given = _values(pick, place, (rows, columns))
    k = pick.choice([k for k in (1, 2, 5, 8, 32, 50, 100) if k <= columns] or [1])
    return [
        ("sort.default", (given, -1, pick.random() < 0.5)),
        ("topk.default", (given, k)),
        pick.choice((("kthvalue.default", (given, k)), ("median.dim", (given, -1)))),
    ]


def scans(pick: random.Random, place: str) -> list[Drawn]:
    """Running sums and extremes."""
    import torch

    given = _values(pick, place, _rows(pick, _numel(pick), pick.choice((2**12, 2**18))), torch.float32)
    return [
        (pick.choice(("cumsum.default", "cumprod.default", "logcumsumexp.default")), (given, pick.choice((0, 1)))),
        ("cummax.default", (given, 1)),
    ]


def counting(pick: random.Random, place: str) -> list[Drawn]:
    """What has as many results as its values say, and drawing."""
    import torch

    numel = int(min(_numel(pick), 2**22))
    given = torch.randn(numel, device=place)
    whole = torch.randint(0, pick.choice((16, 1024, 65536)), (numel,), device=place)
    rows, columns = _rows(pick, min(_numel(pick), 2**22), 2**15)
    chances = torch.rand(rows, columns, device=place)
    every: list[Drawn] = [
        ("nonzero.default", (given > 0,)),
        ("_unique2.default", (whole,)),
        ("bincount.default", (whole,)),
        ("histc.default", (given, 100)),
        ("multinomial.default", (chances, pick.choice((1, 1, 4)), True)),
        ("randperm.default", (numel,)),
        ("masked_select.default", (given, given > 0.5)),
        ("searchsorted.Tensor", (given.sort().values, given)),
    ]
    return pick.sample(every, 2)


def pictures(pick: random.Random, place: str) -> list[Drawn]:
    """Resizing, pooling and unfolding of images, and their gradients."""
    import torch

    aten = torch.ops.aten
    channels, side = pick.choice((3, 16, 32, 64, 128, 256)), pick.choice((7, 14, 16, 28, 32, 56, 64))
    count = max(1, min(256, int(min(_numel(pick), 2**23) / channels / side**2)))
    given = _values(pick, place, (count, channels, side, side))
    if pick.random() < 0.4:
        given = given.contiguous(memory_format=torch.channels_last)
    twice = [2 * side, 2 * side]
    large = torch.randn(count, channels, *twice, device=place).to(given.dtype)
    shape = list(given.shape)
    pooled, places = aten.max_pool2d_with_indices(given, [3, 3], [2, 2], [1, 1])
    grid = torch.rand(count, side, side, 2, device=place).to(given.dtype) * 2 - 1
    half = aten._adaptive_avg_pool2d(given, [max(1, side // 2)] * 2)
    small = torch.randn_like(pooled)
    corner = [1, 1, 1, 1]
    every: list[Drawn] = [
        ("upsample_bilinear2d.default", (given, twice, False)),
        ("upsample_bilinear2d_backward.default", (large, twice, shape, False)),
        ("upsample_bicubic2d.default", (given, twice, False)),
        ("upsample_bicubic2d_backward.default", (large, twice, shape, False)),
        ("upsample_nearest2d_backward.default", (large, twice, shape)),
        ("grid_sampler_2d.default", (given, grid, 0, 0, False)),
        ("grid_sampler_2d_backward.default", (given, given, grid, 0, 0, False, [True, True])),
        (
            "max_pool2d_with_indices_backward.default",
            (small, given, [3, 3], [2, 2], [1, 1], [1, 1], False, places),
        ),
        ("avg_pool2d_backward.default", (aten.avg_pool2d(given, [3, 3], [2, 2], [1, 1]), given, [3, 3], [2, 2], [1, 1],
                                         False, True, None)),
        ("_adaptive_avg_pool2d.default", (given, [max(1, side // 2)] * 2)),
        ("_adaptive_avg_pool2d_backward.default", (half, given)),
        ("im2col.default", (given, [3, 3], [1, 1], [1, 1], [1, 1])),
        ("col2im.default", (aten.im2col(given, [3, 3], [1, 1], [1, 1], [1, 1]), [side, side], [3, 3], [1, 1], [1, 1],
                            [1, 1])),
        ("reflection_pad2d_backward.default", (aten.reflection_pad2d(given, corner), given, corner)),
        ("replication_pad2d_backward.default", (aten.replication_pad2d(given, corner), given, corner)),
    ]  # fmt: skip
    return pick.sample(every, 3)


def adaptive(pick: random.Random, place: str) -> list[Drawn]:
    """Pooling to a number of cells that need not divide the image's sides, and its gradients; to more cells, too."""
    import torch

    aten = torch.ops.aten
    channels, side = pick.choice((16, 64, 128, 256, 512, 512, 1024, 2048)), round(2 ** pick.uniform(1, 7))
    high, wide = side, max(1, round(side * pick.choice((1, 1, 1, 0.5, 1.5))))
    count = max(1, min(256, int(min(_numel(pick), 2**25) / channels / high / wide)))
    given = _values(pick, place, (count, channels, high, wide))
    if pick.random() < 0.3:
        given = given.contiguous(memory_format=torch.channels_last)
    cells = [pick.choice((1, 2, 3, 4, 5, 6, 6, 7, 7, 7, 8, 12, 14, 16))] * 2
    small = aten._adaptive_avg_pool2d(given, cells)
    largest, places = aten.adaptive_max_pool2d(given, cells)
    return [
        ("_adaptive_avg_pool2d.default", (given, cells)),
        ("_adaptive_avg_pool2d_backward.default", (torch.randn_like(small), given)),
        ("adaptive_max_pool2d.default", (given, cells)),
        ("adaptive_max_pool2d_backward.default", (torch.randn_like(largest), given, places)),
    ]


def transforms(pick: random.Random, place: str) -> list[Drawn]:
    """Fourier transforms, distances and factors of small matrices."""
    import torch

    rows, columns = _rows(pick, min(_numel(pick), 2**23), 2**12)
    given = torch.randn(rows, columns, device=place)
    size = pick.choice((8, 16, 32, 64, 128))
    matrices = torch.randn(max(1, min(4096, 2**20 // size**2)), size, size, device=place)
    positive = matrices @ matrices.mT + size * torch.eye(size, device=place)
    points = torch.randn(1, min(rows, 2048), min(columns, 64), device=place)
    every: list[Drawn] = [
        ("_fft_r2c.default", (given, [1], 0, True)),
        ("_fft_c2c.default", (torch.complex(given, given), [1], 0, True)),
        ("_cdist_forward.default", (points, points, 2.0, None)),
        ("linalg_cholesky_ex.default", (positive,)),
    ]
    return pick.sample(every, 2)


def products(pick: random.Random, place: str) -> list[Drawn]:
    """Products of float32 matrices, rounded for the tensor cores, in the layouts of a forward and its gradients."""
    step = pick.choice((1, 4, 8, 8, 64, 64, 64))
    while True:
        m, k, n = (max(1, round(2 ** pick.uniform(4, most) / step)) * step for most in (14.5, 13.5, 14.0))
        batch = round(2 ** pick.uniform(1, 8)) if pick.random() < 0.3 else 1
        if 1e6 < 2 * batch * m * k * n < 3e11 and batch * (m * k + k * n + m * n) < 2**27:
            return [_product(pick, place, batch, m, k, n)]


def thin(pick: random.Random, place: str) -> list[Drawn]:
    """Such products with few rows and columns over long sums, most of them many at once: what slots, anchors and
    kernels of linear attention sum up."""
    m, n = (pick.choice((4, 8, 16, 24, 32, 48, 64, 64, 96, 128)) for _ in range(2))
    batch = round(2 ** pick.uniform(1, 8)) if pick.random() < 0.75 else 1
    k = round(2 ** pick.uniform(10, min(18, math.log2(2**27 / (batch * (m + n))))))
    return [_product(pick, place, batch, m, k - k % pick.choice((1, 8, 8)), n)]


def _product(pick: random.Random, place: str, batch: int, m: int, k: int, n: int) -> Drawn:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True

    def factor(rows: int, columns: int, *, across: bool) -> Any:
        lead = (batch,) if batch > 1 else ()
        if across:
            return torch.randn(*lead, columns, rows, device=place).transpose(-1, -2)
        return torch.randn(*lead, rows, columns, device=place)

    left_across, right_across = pick.choice(((False, True), (False, False), (True, False), (True, True)))
    left, right = factor(m, k, across=left_across), factor(k, n, across=right_across)
    if batch > 1:
        return "bmm.default", (left, right)
    if pick.random() < 0.25:
        return "addmm.default", (torch.randn(n, device=place), left, right)
    return "mm.default", (left, right)


_MAKERS: tuple[Callable[[random.Random, str], list[Drawn]], ...] = (
    bags, bags, bags, indexing, indexing, sorting, sorting, scans, counting, pictures, pictures, transforms,
)  # fmt: skip

_BY_NAME = {maker.__name__: maker for maker in (*_MAKERS, products, thin, adaptive)}


def described(drawn: Drawn, made: Any) -> dict[str, Any]:
    """The tensors that a call reads and makes, and its other arguments, as a row holds them."""
    import torch
    from torch.utils._pytree import tree_leaves

    name, arguments = drawn

    def tensors(values: Any) -> list[dict[str, Any]]:
        return [
            {
                "dtype": str(each.dtype).removeprefix("torch."), "shape": list(each.shape),
                "stride": list(each.stride()),
            }
            for each in tree_leaves(values) if isinstance(each, torch.Tensor)
        ]  # fmt: skip

    plain = [each for each in arguments if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(each))]
    return {"operator": name, "inputs": tensors(arguments), "outputs": tensors(made), "others": [str(e) for e in plain]}


def run_of(drawn: Drawn, place: str) -> Callable[[], Any]:
    """The call."""
    import torch

    name, arguments = drawn
    base, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, base), overload)
    if base == "randperm":
        return lambda: operator(*arguments, device=place)
    return lambda: operator(*arguments)


def issue_us(run: Callable[[], Any], place: str) -> float:
    """What the host needs to issue a call, begun on an idle device; what waits for the device is in it."""
    import torch

    wait = torch.cuda.synchronize if place == "cuda" else (lambda: None)
    for _ in range(2):
        run()
    wait()
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        run(), run()
        times.append((time.perf_counter() - begin) * 1e6 / 2)
        wait()
    return round(min(times), 2)


def cases(
    count: int, seed: int, place: str, makers: Sequence[Callable[[random.Random, str], list[Drawn]]] = _MAKERS
) -> Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    """Rows that are filled while their calls are made, each draw's calls under a number."""
    for number in range(count):
        row: dict[str, Any] = {"case": number}

        def made(number: int = number, row: dict[str, Any] = row) -> dict[str, Callable[[], Any]]:
            pick = random.Random(f"library {seed} {number}")
            maker = makers[number % len(makers)]
            found: dict[str, Callable[[], Any]] = {}
            row["calls"] = {}
            for each in maker(pick, place):
                run = run_of(each, place)
                row["calls"][each[0]] = described(each, run()) | {"issue_us": issue_us(run, place)}
                found[each[0]] = run
            return found

        yield row, made


def launches(rows: Sequence[Row]) -> Iterator[MeasuredLaunch]:
    """Two launches a row, as attention's are."""
    for number, row in enumerate(rows):
        if not is_steady(row, slack_us=0.7) or not row["direction"] or min(row["warm_us"]) <= 0:
            continue
        call = row["calls"][row["direction"]]
        pair = (_launch(call, f"library_{number}", order) for order in range(2))
        yield from in_both_states(row, pair, f"library-{row['case']}")


def _launch(call: Row, graph: str, order: int) -> Launch:
    def buffer(name: str, tensor: Row, role: Literal["input", "output"]) -> Buffer:
        # One element at least where a stride is 0: what a broadcast tensor holds.
        held = math.prod(size for size, step in zip(tensor["shape"], tensor["stride"], strict=True) if step)
        return made_buffer(name, tensor["dtype"], tensor["shape"], tensor["stride"], role, numel=held)

    buffers = [buffer(f"in{place}", each, "input") for place, each in enumerate(call["inputs"])]
    buffers += [buffer(f"out{place}", each, "output") for place, each in enumerate(call["outputs"])]
    others = {f"arg{place}": each for place, each in enumerate(call["others"])}
    operator = call["operator"]
    return library_launch(graph, order, operator.partition(".")[0], f"torch.ops.aten.{operator}", buffers, others)


def main() -> None:
    """Measure, or make data of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "data"))
    parser.add_argument("rows", nargs="*", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=100, help="seconds")
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--kinds",
        nargs="*",
        choices=sorted(_BY_NAME),
        help="of calls to draw; all but `products`, `thin` and `adaptive`",
    )
    parser.add_argument("--device", default="NVIDIA H200")
    options = parser.parse_args()
    if options.what == "measure":
        makers = [_BY_NAME[name] for name in options.kinds] if options.kinds else _MAKERS
        drawn = list(cases(options.count, options.seed, "cuda", makers))
        print(f"{time_all(drawn, options.output, options.limit)} rows")
        return
    rows = [row for path in options.rows for row in json.loads(path.read_text())]
    print(f"{options.output}: {write_data(options.output, launches(rows), options.device):,} launches")


if __name__ == "__main__":
    main()
