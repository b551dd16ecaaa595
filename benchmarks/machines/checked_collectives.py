"""What the hosts of a group need to check a collective before they launch it.

    python -m benchmarks.machines.checked_collectives [--ranks 2 4 8] [--rounds 40] [-o FILE.json]

With ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` torch lets the hosts of a group meet over Gloo before each collective, one after
the other, and compare what they are about to launch, whatever its size. Processes of one machine reduce one number
through Gloo with and without those checks; the difference is what a check takes. Needs no GPU, and at least as many
idle cores as ranks: each process has threads of Gloo's beside its own. Of rounds of calls the quietest counts.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--ranks", "2", "--rounds", "5", "-o", "{out}/checked_collectives.json"),)

CALLS, WARM = 10, 30


def rounds_of(rank: int, ranks: int, port: int, is_checked: bool, rounds: int, out: str) -> None:
    """Reduces one number in rounds; the first rank writes the mean of each, in microseconds."""
    torch.set_num_threads(1)
    dist.set_debug_level(dist.DebugLevel.DETAIL if is_checked else dist.DebugLevel.OFF)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    number, means = torch.zeros(1), []
    for _ in range(WARM):
        dist.all_reduce(number)
    for _ in range(rounds):
        begun = time.perf_counter()
        for _ in range(CALLS):
            dist.all_reduce(number)
        means.append((time.perf_counter() - begun) / CALLS * 1e6)
    if rank == 0:
        Path(out).write_text(json.dumps(means))
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])


def measured_us(ranks: int, is_checked: bool, rounds: int) -> list[float]:
    """Means of the rounds of so many processes."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "means.json")
        torch.multiprocessing.spawn(rounds_of, (ranks, free_port(), is_checked, rounds, out), nprocs=ranks, join=True)  # type: ignore[no-untyped-call]
        return [float(mean) for mean in json.loads(Path(out).read_text())]


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    cores = len(os.sched_getaffinity(0))
    print(f"torch {torch.__version__}, {cores} cores, load {os.getloadavg()[0]:.1f}")
    found: dict[str, dict[str, float]] = {}
    for ranks in options.ranks:
        if 2 * ranks > cores:
            print(f"{ranks} ranks want {2 * ranks} idle cores of {cores}: too long, and left out of the line.")
        plain, checked = (measured_us(ranks, is_checked, options.rounds) for is_checked in (False, True))
        found[str(ranks)] = {
            "check_us": min(checked) - min(plain),
            "median_us": statistics.median(checked) - statistics.median(plain),
        }
        print(
            f"{ranks} ranks: a check takes {found[str(ranks)]['check_us']:,.0f} us in the quietest of {options.rounds} "
            f"rounds, {found[str(ranks)]['median_us']:,.0f} us in the middle one",
            flush=True,
        )
    # Ranks that wait for a core say nothing of a check.
    quiet = [ranks for ranks in options.ranks if 2 * ranks <= cores] or options.ranks
    counts = [float(ranks) for ranks in quiet]
    times = [found[str(ranks)]["check_us"] for ranks in quiet]
    # One more rank is one more to meet: a line, which one measurement alone does not give.
    rank_us, fixed_us = statistics.linear_regression(counts, times) if len(counts) > 1 else (None, None)
    if rank_us is not None:
        print(f"as a line: {fixed_us:,.0f} us and {rank_us:,.0f} us for each rank")
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        line = {"fixed_us": fixed_us, "rank_us": rank_us}
        told = {"torch": torch.__version__, "cores": cores, "ranks": found, **line}
        options.output.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
