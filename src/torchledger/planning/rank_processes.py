"""The process from which ranks are forked, as the plan sees it: requests in, exit codes out."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

import torchledger
from torchledger.errors import PlanError

AT_ONCE = max(1, min(4, os.cpu_count() or 1))
"""Ranks that run beside each other: one a core, and no more than a machine has memory for."""


class RankProcesses:
    """A process that has imported what ranks need, from the first request to the end of ``with``."""

    def __init__(self) -> None:
        self._running: tuple[subprocess.Popen[bytes], TextIO, TextIO] | None = None

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._running is None:
            return
        process, requests, answers = self._running
        if error is not None:
            process.kill()
        for each in (requests, answers):
            with contextlib.suppress(BrokenPipeError):  # it is gone, and its last request with it
                each.close()
        process.wait()

    def record(self, requests: Sequence[Path]) -> list[int | None]:
        """Record the ranks that some requests ask for: the exit code of each, ``None`` where another failed first.

        Raises ``PlanError`` where the process itself has ended.
        """
        self._running = self._running or self._start()
        process, asking, hearing = self._running
        try:
            asking.write(json.dumps({"requests": [str(each) for each in requests], "at_once": AT_ONCE}) + "\n")
            asking.flush()
            answer = hearing.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise PlanError(f"the ranks' process ended with exit code {process.wait()}; see above.")
        codes: list[int | None] = json.loads(answer)
        return codes

    def _start(self) -> tuple[subprocess.Popen[bytes], TextIO, TextIO]:
        asked, asking = os.pipe()
        hearing, told = os.pipe()
        paths = [str(Path(torchledger.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-m", "torchledger.planning.rank_worker", str(os.getpid()), str(asked), str(told)]
        requests, answers = os.fdopen(asking, "w"), os.fdopen(hearing)
        try:
            process = subprocess.Popen(
                command,
                stdout=sys.stderr.fileno(),
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                pass_fds=(asked, told),
            )
        finally:
            os.close(asked)
            os.close(told)
        return process, requests, answers
