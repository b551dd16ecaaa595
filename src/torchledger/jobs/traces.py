"""Ranks' traces as a job: each trace becomes a ledger that holds what the rank did and its collectives.

The traces are read by as many processes as there are processors; each writes ledgers, which are read like a job's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from torchledger.errors import MeasureError
from torchledger.jobs.read import read_job
from torchledger.nouns import Job
from torchledger.store.job import is_job

TRACE_SUFFIXES = (".json", ".json.gz", ".trace.json.gz")
_WORKER = "torchledger.jobs.trace_worker"


def traces_in(folder: str | PathLike[str]) -> list[Path]:
    """The traces in a folder, in order of their names; empty where it is no folder or holds none."""
    path = Path(folder)
    if not path.is_dir():
        return []
    return sorted(each for each in path.iterdir() if each.name.endswith(TRACE_SUFFIXES) and each.name != "job.json")


def is_ranks(path: str | PathLike[str]) -> bool:
    """True for a folder of ranks' ledgers, or of ranks' traces."""
    return is_job(path) or bool(traces_in(path))


def read_ranks(path: str | PathLike[str]) -> Job:
    """The job in a folder of ranks' ledgers, or else of ranks' traces.

    Raises ``StoreError`` for a folder without either, ``MeasureError`` for a trace that cannot be read.
    """
    traces = [] if is_job(path) else traces_in(path)
    return job_of_traces(traces) if traces else read_job(path)


def job_of_traces(paths: Sequence[str | PathLike[str]]) -> Job:
    """The job that these traces are the ranks of. Raises ``MeasureError`` naming the trace that cannot be read, and
    where none holds what a rank did."""
    with tempfile.TemporaryDirectory(prefix="torchledger-") as name:
        folder = Path(name)
        write_rank_ledgers(paths, folder)
        job = read_job(folder)
    if not job.ranks:
        raise MeasureError(
            f"no trace in {Path(paths[0]).parent} holds a collective or work of a device, so that they are no job. "
            f"`torchledger import {paths[0]}` reads one trace; a ledger is named by itself."
        )
    return job.named(", ".join(str(path) for path in paths[:2]) + (", ..." if len(paths) > 2 else ""))


def write_rank_ledgers(paths: Sequence[str | PathLike[str]], folder: Path) -> None:
    """A ledger for each trace, by two processes or more where there are processors for them."""
    workers = max(1, min(os.cpu_count() or 1, len(paths)))
    by_size = sorted(paths, key=lambda path: -os.path.getsize(path) if os.path.exists(path) else 0)
    numbered = {str(path): number for number, path in enumerate(map(str, paths))}
    processes = []
    for worker in range(workers):
        given = [f"{numbered[str(path)]}={path}" for path in by_size[worker::workers]]
        command = [sys.executable, "-m", _WORKER, str(folder), *given]
        processes.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    failed = []
    for process in processes:
        _, said = process.communicate()
        if process.returncode:
            failed.append(said.strip().splitlines()[-1] if said.strip() else f"exit code {process.returncode}")
    if failed:
        raise MeasureError(failed[0].removeprefix("torchledger.errors.MeasureError: "))
