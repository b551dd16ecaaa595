"""When a host is slow: ``python -m benchmarks.machines.host_modes -o FILE [--seconds 5]``.

Times a piece of plain Python, a small eager training step and a compiled graph of many small kernels, over and over, in
four ways: after rests as ``doctor`` has them and without, alone and beside processes that wait at a gate as drawn
programs do. Prints medians and shares of slow moments, and writes every time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.strangers.drawn_programs import SmallStep, plain_us

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/modes.json"),)
QUICK: tuple[tuple[str, ...], ...] = (("-o", "{out}/modes.json", "--device", "cpu", "--seconds", "0.3"),)

_REST_S = 0.25
_WAITERS = 17
_SLOW = 1.5
_WAITER = "import time, pathlib\nwhile not pathlib.Path('never').exists():\n    time.sleep(0.01)"


def compiled_graph(device: str, kernels: int = 60) -> Callable[[], Any]:
    """A compiled function of many reductions that cannot be fused, each another kernel's shape."""
    import torch

    inputs = [torch.ones(64 + 8 * number, 64, device=device) for number in range(kernels)]

    @torch.compile(dynamic=False)
    def work(given: list[Any]) -> list[Any]:
        return [each.softmax(0) for each in given]

    return lambda: work(inputs)


def time_way(works: dict[str, Callable[[], Any]], wait: Callable[[], None], seconds: float, rest_s: float) -> Any:
    """Microseconds of each work over and over, and when."""
    found: dict[str, list[float]] = {name: [] for name in works}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if rest_s:
            time.sleep(rest_s)
        for _ in range(3 if rest_s else 1):
            for name, work in works.items():
                begin = time.perf_counter()
                for _ in range(3):
                    work()
                found[name].append(round((time.perf_counter() - begin) / 3 * 1e6, 1))
                wait()
    return found


def main() -> None:
    """Time in each way and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    import torch

    wait = torch.cuda.synchronize if options.device == "cuda" else (lambda: None)
    works = {"plain": plain_us, "small step": SmallStep(options.device).run, "graph": compiled_graph(options.device)}
    for _ in range(3):
        for work in works.values():
            work()
    wait()
    told: dict[str, Any] = {}
    for beside in (0, _WAITERS, 0):
        others = [subprocess.Popen([sys.executable, "-c", _WAITER]) for _ in range(beside)]
        for rest_s in (_REST_S, 0.0, _REST_S, 0.0):
            name = f"{beside} beside, {'rested' if rest_s else 'sustained'}, {len(told)}"
            told[name] = time_way(works, wait, options.seconds, rest_s)
            shown = []
            for work, times in told[name].items():
                quick = min(times)
                slow = statistics.mean(each > _SLOW * quick for each in times)
                shown.append(f"{work} {statistics.median(times):.0f} us (least {quick:.0f}, {slow:.0%} slow)")
            print(f"{name}: {'; '.join(shown)}", flush=True)
        for each in others:
            each.kill()
    options.output.write_text(json.dumps(told, separators=(",", ":")))


if __name__ == "__main__":
    main()
