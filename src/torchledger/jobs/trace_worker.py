"""Reads ranks' traces in a process of its own: ``python -m torchledger.jobs.trace_worker FOLDER NUMBER=TRACE ...``."""

from __future__ import annotations

import datetime
import gc
import platform
import sys
import uuid
from pathlib import Path

from torchledger import __version__
from torchledger.errors import StoreError, TorchledgerError
from torchledger.jobs.rank_trace import rank_of_trace
from torchledger.nouns import Environment, Run
from torchledger.nouns.run import IMPORTED
from torchledger.store import LedgerWriter


def main(folder: Path, given: list[str]) -> int:
    """Write a ledger for each trace; a trace that does not tell its rank has its place among them."""
    for each in given:
        number, _, path = each.partition("=")
        try:
            rank, world, collectives, activity = rank_of_trace(path)
        except TorchledgerError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        run = Run(
            run_id=uuid.uuid4().hex,
            started_utc=now,
            argv=("torchledger", "import", path),
            environment=Environment(python=platform.python_version(), platform=IMPORTED, torchledger=__version__),
            status="finished",
            rank=int(number) if rank is None else rank,
            world_size=world,
        )
        target = folder / f"rank{run.rank}.ledger"
        try:
            writer = LedgerWriter(target)
        except StoreError as error:
            # Whether it is there is asked afterwards: another process may make it at any moment.
            same = f"{path} is of rank {run.rank}, as is another trace: are they of one run?"
            sys.stderr.write(f"{same if target.exists() else error}\n")
            return 1
        with writer:
            writer.add(run, *collectives, *([] if activity is None else [activity]))
    return 0


if __name__ == "__main__":
    gc.disable()  # records by the ten thousand, none in a cycle, in a process that ends with its traces
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
