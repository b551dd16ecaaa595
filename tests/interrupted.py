"""A signal at a chosen line of our own code, whose handler raises: what a launcher that ends its ranks may do."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torchledger

PACKAGE = str(Path(torchledger.__file__).parent)


class ToldToEndError(Exception):
    """What the program's own handler raises."""


class Lines:
    """Counts the lines of ours that the calling thread runs; at the ``at``-th a signal comes, if it is reached.

    ``under`` narrows them to files whose paths begin so.
    """

    def __init__(self, at: int | None = None, *, number: int = signal.SIGTERM, under: str = PACKAGE) -> None:
        self.n_run = 0
        self.where: str | None = None
        self._at = at
        self._number = number
        self._under = under

    def listen(self) -> None:
        """From here on. The trace function that was there before is gone once the signal has come."""
        sys.settrace(self._called)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self._under) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.n_run += 1
            if self.n_run == self._at:
                sys.settrace(None)
                self.where = f"{frame.f_code.co_filename.removeprefix(PACKAGE + '/')}:{frame.f_lineno}"
                signal.raise_signal(self._number)
        return self._line


def raise_told(number: int, frame: FrameType | None) -> None:
    """A handler as that of torch's elastic agent."""
    raise ToldToEndError(f"told to end by signal {number}")


@contextlib.contextmanager
def told_at(lines: Lines) -> Iterator[Lines]:
    """A program whose handler raises, and what the lines of ours do to it, until the block ends."""
    former = signal.signal(signal.SIGTERM, raise_told)
    traced = sys.gettrace()
    lines.listen()
    try:
        yield lines
    finally:
        sys.settrace(traced)
        signal.signal(signal.SIGTERM, former)


def log_to(path: Path) -> None:
    """Write what our guards say of what they caught into a file, in the little that they say by default."""
    handler = logging.FileHandler(path)
    logging.getLogger("torchledger").addHandler(handler)
    logging.getLogger("torchledger").setLevel(logging.DEBUG)
