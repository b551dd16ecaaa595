"""A second opinion on a sample: CUDA-graph replay timed by events.

It shares nothing with CUPTI: a graph of several iterations is captured and replayed, and two events around the replay
divide by the iterations. What it includes beyond the kernels is the device's gap between two nodes, which is measured
with a kernel of one element and taken off per kernel.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchledger.operators import find_operator
from torchledger.sampling.cases import InputPool, make_case
from torchledger.sampling.points import Point


@dataclass(frozen=True)
class ReplayTime:
    """Per iteration, in microseconds: replay time over iterations, and the same less the gaps between kernels."""

    direction: str
    raw_us: float
    corrected_us: float


def replay_point(
    point: Point, pool: InputPool, *, kernels: dict[str, int], gap_us: float, iterations: int = 10, repeats: int = 7
) -> list[ReplayTime]:
    """Replay each direction of a point; ``kernels`` says how many one iteration of a direction launches.

    Raises torch's ``RuntimeError`` for operators that cannot be captured, such as those that synchronise.
    """
    import torch

    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    found = []
    with torch.cuda.stream(stream):
        # Backward kernels run on the stream of their forward, so the graph that is differentiated is made here too.
        case = make_case(find_operator(point.operator), point.parameters, point.dtype, pool)
        for direction, run in case.runs.items():
            if direction in case.prepare:
                case.prepare[direction]()
            raw = _replay(run, stream, iterations, repeats)
            found.append(ReplayTime(direction, raw, raw - gap_us * kernels.get(direction, 1)))
    return found


def gap_between_kernels_us(*, kernel_us: float, count: int = 200) -> float:
    """The device's idle time between two nodes of a graph: a chain of one-element additions, each less its own
    ``kernel_us`` as CUPTI gives it."""
    import torch

    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        one = torch.zeros(1, device="cuda")
        return _replay(lambda: one.add_(1.0), stream, count, 7) - kernel_us


def _replay(run: Callable[[], Any], stream: Any, iterations: int, repeats: int) -> float:
    import torch

    for _ in range(3):
        run()
    stream.synchronize()
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(iterations):
            run()
    times = []
    for _ in range(repeats + 1):
        first: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        second: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        first.record(stream)
        graph.replay()
        second.record(stream)
        second.synchronize()
        times.append(float(first.elapsed_time(second)) * 1e3 / iterations)
    return statistics.median(times[1:])
