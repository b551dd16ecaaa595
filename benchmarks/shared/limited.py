"""A command in a process group of its own that has so many seconds, for benchmarks of programs that might hang."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.shared.places import child_environment

TIME_IS_UP = 124


def run_limited(
    command: Sequence[str], limit_s: float, *, folder: Path | None = None, paths: Sequence[Path] = (), **variables: str
) -> tuple[int, str]:
    """Exit code (124 where the time was up) and what was printed.

    torchledger's source and ``paths`` stand in front of the ``PYTHONPATH`` that is there (``ROOT`` for a program of
    ``benchmarks`` in another ``folder``). When the time is up all that the command started ends with it, compilers too.
    """
    process = subprocess.Popen(
        command,
        env=child_environment(*paths, **variables),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return TIME_IS_UP, output
    return process.returncode, output
