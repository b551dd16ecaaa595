"""Made-up measured launches: pointwise kernels, row reductions and products on a device that follows a roofline."""

from __future__ import annotations

import numpy as np

from factories import make_buffer, make_launch
from torchledger.nouns import Access, Launch, LoopNest
from torchledger.store.launch_file import LaunchSet, MeasuredLaunch

_RATE, _BANDWIDTH, _FLOOR = 5e8, 3e6, 1.5  # FLOP and bytes per microsecond, microseconds


def pointwise(rows: int, width: int, exps: int, *, order: int = 0, graph: str = "forward_0") -> Launch:
    """``exps`` exponentials of a bfloat16 tensor of [rows, width]."""
    size = 2 * rows * width
    access = {"strides": (width, 1), "dtype": "bfloat16", "index": "p"}
    return make_launch(
        graph=graph,
        order=order,
        kernel=f"p{rows}x{width}x{exps}",
        kernel_name="triton_poi_fused_exp_0",
        category="pointwise",
        device="cuda:0",
        buffers=(
            make_buffer(name=f"in{order}", role="input", dtype="bfloat16", bytes_read=size, bytes_written=0),
            make_buffer(name=f"out{order}", role="output", dtype="bfloat16", bytes_read=0, bytes_written=size),
        ),
        loops=(
            LoopNest(
                extents=(rows, width),
                ops={"exp": exps, "mul": exps},
                accesses=(
                    Access(buffer=f"in{order}", kind="load", **access),  # type: ignore[arg-type]
                    Access(buffer=f"out{order}", kind="store", **access),  # type: ignore[arg-type]
                ),
            ),
        ),
    )


def product(m: int, k: int, n: int, *, order: int = 0, graph: str = "forward_0") -> Launch:
    """A bfloat16 product [m, k] x [k, n] by the library."""

    def factor(name: str, rows: int, columns: int, role: str) -> object:
        size = 2 * rows * columns
        return make_buffer(
            name=f"{name}{order}",
            role=role,
            dtype="bfloat16",
            shape=(rows, columns),
            stride=(columns, 1),
            bytes_read=size if role == "input" else 0,
            bytes_written=0 if role == "input" else size,
        )

    return make_launch(
        graph=graph,
        order=order,
        kernel="mm",
        kernel_name="extern_kernels.mm",
        category="extern",
        device="cuda:0",
        flops=2 * m * k * n,
        aten_ops=("aten.mm",),
        buffers=(factor("a", m, k, "input"), factor("b", k, n, "input"), factor("c", m, n, "output")),
    )


def time_of(launch: Launch) -> float:
    """What the made-up device takes for it, cold."""
    exps = sum(nest.ops.get("exp", 0) * np.prod(nest.extents) for nest in launch.loops)
    return float(_FLOOR + max((launch.flops or 0) / _RATE, (launch.bytes_moved or 0) / _BANDWIDTH) + exps / 2e6)


def make_launch_set(programs: int = 60, *, seed: int = 0) -> LaunchSet:
    """Each program is a graph with two pointwise kernels and a product between them."""
    generator = np.random.default_rng(seed)
    items = []
    for program in range(programs):
        rows, width, k = (int(size) * 64 for size in np.exp(generator.uniform(np.log(2), np.log(64), 3)))
        graph = f"forward_{seed}_{program}"
        launches = (
            pointwise(rows, width, int(generator.integers(1, 6)), order=0, graph=graph),
            product(rows, k, width, order=1, graph=graph),
            pointwise(rows, width, int(generator.integers(1, 6)), order=2, graph=graph),
        )
        for launch in launches:
            times = tuple(time_of(launch) * float(np.exp(0.01 * generator.standard_normal())) for _ in range(3))
            items.append(MeasuredLaunch(launch, times, f"program-{seed}-{program}"))
    return LaunchSet("TEST", tuple(items), {"torch": "2.13.0"})
