"""Does a kernel last longer because CUPTI records it? The same launches timed in five ways, on one CUDA device.

    python -m benchmarks.capture.profiler_effect

Microseconds a launch, medians of four rounds: by CUPTI with and without markers between launches, by CUDA events around
ten launches, and the same ten launches as a replayed graph by events and by CUPTI. Four seconds on an H200.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = ((),)


LAUNCHES, ROUNDS, SPIN_CYCLES = 10, 4, 1_500_000
Run = Callable[[], Any]


def main() -> None:
    """Print one line of JSON per kernel."""
    import torch
    from torch.nn.functional import gelu, layer_norm

    from torchledger.sampling.independent import capture_graph

    x, y = (torch.randn(1 << 28, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    rows = torch.randn(1 << 16, 2048, device="cuda", dtype=torch.bfloat16)
    cases: dict[str, Run] = {
        "gelu": lambda: gelu(x),
        "softmax": lambda: torch.softmax(rows, -1),
        "mul": lambda: x * y,
        "layer_norm": lambda: layer_norm(rows, (2048,)),
    }
    with torch.no_grad():
        for name, run in cases.items():
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                graph = capture_graph(run, stream, LAUNCHES)
            found = [
                {
                    "cupti": by_cupti(run, is_marked=True),
                    "cupti, no markers": by_cupti(run, is_marked=False),
                    "events": by_events(run, partial(several, run), torch.cuda.current_stream()),
                    "graph, events": by_events(run, graph.replay, stream),
                    "graph, cupti": graph_by_cupti(graph, stream),
                }
                for _ in range(ROUNDS)
            ]
            print(name, json.dumps({key: round(statistics.median(row[key] for row in found), 2) for key in found[0]}))


def by_cupti(run: Run, *, is_marked: bool) -> float:
    """The median launch, behind a spinning kernel so that the queue is never empty."""
    from torchledger._torch.device_trace import DeviceTrace

    with DeviceTrace() as trace:
        trace.mark(SPIN_CYCLES)
        run()
        run()
        marks = [trace.mark()]
        for _ in range(LAUNCHES):
            run()
            if is_marked:
                marks.append(trace.mark())
        if not is_marked:
            trace.mark()
    pieces = trace.pieces()
    assert pieces is not None
    if is_marked:
        return statistics.median(pieces[mark].busy_us for mark in marks[:-1])
    return statistics.median((end - start) / 1e3 for start, end in pieces[marks[0]].intervals)


def by_events(run: Run, timed: Run, stream: Any) -> float:
    """The mean of the ``LAUNCHES`` launches that ``timed`` makes, behind a spinning kernel and two runs."""
    import torch

    from torchledger._torch.kernels import spin
    from torchledger.sampling.independent import between_events

    with torch.cuda.stream(stream):
        spin(SPIN_CYCLES)
        run()
        run()
        begin, end = between_events(timed, stream)
    stream.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / LAUNCHES


def several(run: Run) -> None:
    """The launches one after the other."""
    for _ in range(LAUNCHES):
        run()


def graph_by_cupti(graph: Any, stream: Any) -> float:
    """The median launch of a replay that is recorded."""
    import torch

    from torchledger._torch.device_trace import DeviceTrace

    with DeviceTrace() as trace:
        trace.mark()
        with torch.cuda.stream(stream):
            graph.replay()
        stream.synchronize()
    intervals = [interval for piece in trace.pieces() or () for interval in piece.intervals]
    return statistics.median((end - start) / 1e3 for start, end in intervals)


if __name__ == "__main__":
    main()
