"""Turns on a device: processes that share it let each other through, so that what is timed runs alone."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

_POLL_S = 0.001
_MANNERS_S = 0.003
"""After a turn, so that whoever waits finds the lock free before its last holder comes back."""


class Turns:
    """One lock file for all processes that share a device; the kernel frees it when its holder dies.

    Who waits longer than ``patience_s`` goes on without: a hung holder costs a disturbed time, not the whole work.
    """

    def __init__(self, path: str | os.PathLike[str], *, patience_s: float = 25.0) -> None:
        self.path, self.patience_s = Path(path), patience_s

    @contextlib.contextmanager
    def take(self) -> Iterator[bool]:
        """Wait for a turn and hold it; says whether it came in time. Not to be nested."""
        import fcntl

        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        has_turn = False
        until = time.monotonic() + self.patience_s
        try:
            while not has_turn and time.monotonic() < until:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    has_turn = True
                except OSError:
                    time.sleep(_POLL_S)
            if not has_turn:
                log.warning("no turn on the device in %.0f s; going on without", self.patience_s)
            yield has_turn
        finally:
            os.close(file)
            time.sleep(_MANNERS_S)
