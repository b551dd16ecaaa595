"""How the programs here time their own steps.

Where ``TICK_HOST`` is set they also time a small step between the pieces: how quick the host is just then.
"""

import json, os, statistics, sys, time
from pathlib import Path
import torch

NAME = os.environ.get("TICK_NAME", Path(sys.argv[0]).stem)


def _gate():
    folder = os.environ.get("DRAWN_GATE")
    if folder is None:
        return
    torch.cuda.empty_cache()
    (Path(folder) / f"{NAME}.ready").touch()
    while not (Path(folder) / f"{NAME}.go").exists():
        time.sleep(0.01)


def _leave(answer):
    folder = os.environ.get("DRAWN_GATE")
    if folder is None:
        return
    (Path(folder) / f"{NAME}.done.new").write_text(json.dumps(answer))
    (Path(folder) / f"{NAME}.done.new").rename(Path(folder) / f"{NAME}.done")
    if "DRAWN_STAYS" in os.environ:
        until = time.monotonic() + 300
        while not (Path(folder) / "all.done").exists() and time.monotonic() < until:
            time.sleep(0.05)


def _small_step():
    """What times a small eager training step, in microseconds until it is issued."""
    if "TICK_HOST" not in os.environ:
        return None
    sys.path.append(str(Path(__file__).resolve().parents[3]))
    from benchmarks.strangers.drawn_programs import SmallStep

    small = SmallStep("cuda")
    return lambda: [round(small.us(torch.cuda.synchronize), 1) for _ in range(4)]


def steps(warmup=4, pieces=5, count=12):
    """Yields the number of the step. Steps behind the warm-up are timed, in pieces of `count` steps."""
    for i in range(warmup):
        yield i
    torch.cuda.synchronize()
    _gate()
    for i in range(2):
        yield warmup + i
    times, issued, smalls = [], [], []
    small = _small_step()
    if "TICK_SHORT" in os.environ:
        pieces, count = 2, 10
    for piece in range(pieces):
        if small:
            smalls += small()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for i in range(count):
            yield warmup + 2 + piece * count + i
        issued.append((time.perf_counter() - begin) / count * 1e3)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / count * 1e3)
    answer = {
        "step_ms": statistics.median(times),
        "pieces_ms": times,
        "issued_ms": issued,
        "small_us": smalls + (small() if small else []),
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
    }
    print(json.dumps(answer), flush=True)
    _leave(answer)
