"""A made-up job: ranks that compute, sleep and meet in an all_reduce, each on a clock of its own."""

from __future__ import annotations

from pathlib import Path

from factories import make_activity, make_collective, make_live_storage, make_step, make_step_call, make_step_memory
from synthetic import write_ledger
from torchledger.store import LedgerWriter

MS = 1_000_000
STEPS = 3
CLOCKS_APART_NS = 7_000 * MS
"""Between one rank's clock and the next one's."""

_BARRIER_NS = 10_000
"""What all ranks begin and end at once: it bounds how far their clocks are apart."""


def write_job(
    folder: Path, *, ranks: int = 2, late_ms: int = 0, launches: int = 6, message_bytes: int = 4096, peak: int = 1000
) -> Path:
    """Steps of a barrier, 2 ms compute, a sleep of the last rank, 1 ms compute, and an all_reduce of 1 ms."""
    folder.mkdir()
    everyone = tuple(range(ranks))
    for rank in everyone:
        sleep = late_ms * MS if rank == ranks - 1 else 0
        wait = late_ms * MS - sleep
        pieces: list[tuple[int, int, str]] = []
        collectives = []
        own = now = rank * CLOCKS_APART_NS
        for step in range(STEPS):
            pieces.append((1, _BARRIER_NS, "barrier"))
            facts = {"group_size": ranks, "ranks": everyone, "index": step}
            ended = now + _BARRIER_NS
            collectives.append(make_collective(operation="barrier", group="1", issued_ns=now, ended_ns=ended, **facts))
            pieces += [(0, 2 * MS, "forward_0#0"), (2, 10 + sleep, "sleeps"), (0, MS, "backward_0#0")]
            pieces.append((1, MS + wait, "all_reduce"))
            arrived = ended + 3 * MS + sleep + 10
            now = arrived + MS + wait
            facts |= {"message_bytes": message_bytes, "order": 1}
            collectives.append(make_collective(issued_ns=arrived, ended_ns=now, **facts))
        path = write_ledger(folder / f"rank{rank}.ledger", launches=launches, rank=rank, world_size=ranks)
        with LedgerWriter(path, append=True) as writer:
            writer.add(
                make_step(recorded=STEPS, graph_calls={"forward_0": 1, "backward_0": 1}, clock="cupti"),
                make_step_call(kind="graph", name="forward_0", phase="forward", start_us=0.0, host_us=5.0),
                make_step_call(kind="graph", name="backward_0", phase="backward", order=1, start_us=9.0, host_us=5.0),
                make_activity(*pieces, steps=STEPS, start_ns=own, host=f"host{rank}", clock="cupti"),
                *collectives,
                make_step_memory(device="cuda:0"),
                make_live_storage(nbytes=peak + rank, device="cuda:0"),
            )
    return folder
