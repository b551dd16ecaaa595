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
    """Lock files for all processes that share a device; the kernel frees them when their holder dies.

    What is timed takes a turn alone. What only has to run (a first call, which tries kernels) shares one with its like.
    All pass one door, so that who wants the device alone is not overtaken for ever. Who waits longer than
    ``patience_s`` goes on without: a hung holder costs a disturbed time, not the whole work.
    """

    def __init__(self, path: str | os.PathLike[str], *, patience_s: float = 25.0) -> None:
        self.path, self.patience_s = Path(path), patience_s

    @contextlib.contextmanager
    def take(self, *, shared: bool = False) -> Iterator[bool]:
        """Wait for a turn and hold it; says whether it came in time. Not to be nested."""
        import fcntl

        until = time.monotonic() + self.patience_s
        door = os.open(self.path.with_suffix(".door"), os.O_RDWR | os.O_CREAT, 0o644)
        device = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            has_turn = _lock(door, fcntl.LOCK_EX, until) and _lock(
                device, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, until
            )
            fcntl.flock(door, fcntl.LOCK_UN)
            if not has_turn:
                log.warning("no turn on the device in %.0f s; going on without", self.patience_s)
            yield has_turn
        finally:
            os.close(device)
            os.close(door)
            time.sleep(_MANNERS_S)


def _lock(file: int, how: int, until: float) -> bool:
    """Whether the lock came before a moment of the monotonic clock."""
    import fcntl

    while True:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() > until:
                return False
            time.sleep(_POLL_S)
