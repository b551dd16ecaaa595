"""A second opinion on a sample: CUDA-graph replay timed by events.

It shares nothing with CUPTI: a graph of several iterations is captured and replayed, and two events around the replay
divide by the iterations. What it includes beyond the kernels is the device's gap between two nodes, which is measured
with a kernel of one element and taken off per kernel. Warm-up and number of iterations are a sample's own, because a
device at its power cap runs a burst of ten and a long replay at different clocks.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from torchledger.operators import find_operator
from torchledger.sampling.cases import InputPool, make_case
from torchledger.sampling.points import Point

_LEAD_CYCLES = 1_500_000
"""The device spins for so long, nearly a millisecond, while the host queues what is timed: otherwise the first event
passes before the host has launched the graph, and the wait counts."""


class PointReplay:
    """A point's directions, captured as CUDA graphs of ``iterations`` runs each; replayed as often as asked.

    Raises torch's ``RuntimeError`` for operators that cannot be captured, such as those that synchronise.
    """

    def __init__(self, point: Point, pool: InputPool, *, warmup: int = 2, iterations: int = 10) -> None:
        import torch

        self.warmup, self.iterations = warmup, iterations
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._graphs: dict[str, tuple[Callable[[], Any], Any]] = {}
        with torch.cuda.stream(self._stream):
            # Backward kernels run on the stream of their forward, so the graph that is differentiated is made here too.
            case = make_case(find_operator(point.operator), point.parameters, point.dtype, pool)
            for direction, run in case.runs.items():
                if direction in case.prepare:
                    case.prepare[direction]()
                self._graphs[direction] = (run, capture_graph(run, self._stream, iterations))

    def times_us(self) -> dict[str, float]:
        """Microseconds an iteration, by direction, of one replay after the warm-up runs; gaps between kernels count."""
        import torch

        from torchledger._torch.kernels import spin

        events = {}
        with torch.cuda.stream(self._stream):
            for direction, (run, graph) in self._graphs.items():
                spin(_LEAD_CYCLES)
                for _ in range(self.warmup):
                    run()
                events[direction] = between_events(graph.replay, self._stream)
        self._stream.synchronize()
        return {
            direction: float(first.elapsed_time(second)) * 1e3 / self.iterations
            for direction, (first, second) in events.items()
        }


def without_gaps(times_us: Mapping[str, float], kernels: Mapping[str, int], gap_us: float) -> dict[str, float]:
    """Times by direction less the gap that follows each kernel; ``kernels`` says how many an iteration launches.

    >>> without_gaps({"forward": 10.0}, {"forward": 2}, 0.5)
    {'forward': 9.0}
    """
    return {direction: us - gap_us * kernels[direction] for direction, us in times_us.items()}


def gap_between_kernels_us(*, kernel_us: float, count: int = 200, repeats: int = 7) -> float:
    """The device's idle time between two nodes of a graph: a chain of one-element additions, each less its own
    ``kernel_us`` as CUPTI gives it."""
    import torch

    from torchledger._torch.kernels import spin

    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        one = torch.zeros(1, device="cuda")
        graph = capture_graph(lambda: one.add_(1.0), stream, count)
        pairs = []
        for _ in range(repeats):
            spin(_LEAD_CYCLES)
            pairs.append(between_events(graph.replay, stream))
    stream.synchronize()
    return statistics.median(float(a.elapsed_time(b)) * 1e3 / count for a, b in pairs[1:]) - kernel_us


def capture_graph(run: Callable[[], Any], stream: Any, iterations: int) -> Any:
    """A CUDA graph of ``iterations`` runs on a stream, replayed once."""
    import torch

    for _ in range(3):
        run()
    stream.synchronize()
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(iterations):
            run()
    # The first replay also uploads the graph.
    graph.replay()
    stream.synchronize()
    return graph


def between_events(run: Callable[[], Any], stream: Any) -> tuple[Any, Any]:
    """Run between two events on a stream; the events, whose ``elapsed_time`` is known once the stream is through."""
    import torch

    first: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    second: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    first.record(stream)
    run()
    second.record(stream)
    return first, second
