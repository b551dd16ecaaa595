"""Which launch a process is in, kept in a file that outlives it: a crash leaves no time to write a ledger."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_LONGEST = 512


class LastLaunch:
    """Writes the launch that has begun and not returned beside a ledger; one page of memory, never synced."""

    def __init__(self, ledger: Path) -> None:
        self._path = _path_of(ledger)
        self._file = os.open(self._path, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)

    def begin(self, launch: str) -> None:
        """A launch is about to start."""
        os.pwrite(self._file, launch.encode()[:_LONGEST].ljust(_LONGEST), 0)

    def end(self) -> None:
        """It has returned."""
        os.pwrite(self._file, b" " * _LONGEST, 0)

    def close(self) -> None:
        """The process ends in its own way: there is nothing to tell."""
        os.close(self._file)
        with contextlib.suppress(OSError):
            self._path.unlink()


def take_last_launch(ledger: Path) -> str | None:
    """The launch in which the process that wrote ``ledger`` ended, if it ended in one; the file is removed."""
    path = _path_of(ledger)
    try:
        text = path.read_bytes().decode(errors="replace").strip()
        path.unlink()
    except OSError:
        return None
    return text or None


def _path_of(ledger: Path) -> Path:
    return ledger.with_name(f".{ledger.name}.launch")
