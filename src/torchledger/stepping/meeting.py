"""Ranks of one job agree on the step with which they begin to record: small files in the job's folder.

A rank that compiles for longer than the others, or that alone compiles anything, would else record other steps than
they do, and no collective of it would have a partner.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from torchledger.store.job import begin_path, ready_path

_LONGEST_WAIT = 8
"""Steps for which a rank that is ready waits for the others."""

_MOST_APART = 64
"""Steps by which ranks' counts may differ; further apart they do not count the same."""


class Meeting:
    """One rank's part in the agreement. Ranks count the same steps, and none ends one before all have begun it."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self._folder, self._rank, self._size = folder, rank, size
        self._asked = 0
        self._is_over = False
        self.note: str | None = None

    def may_begin(self, count: int) -> bool:
        """Told at the end of step number ``count`` that this rank is ready: True where it begins now.

        All begin one step after the last of them is ready. True at once where the folder cannot be used.
        """
        if self._is_over:
            return True
        self._asked += 1
        try:
            begin = self._begin()
            if begin is None:
                begin = self._agree(count)
            self._is_over = (begin is not None and count >= begin) or self._asked > 2 * _LONGEST_WAIT
        except OSError:
            self._is_over = True
        return self._is_over

    def _agree(self, count: int) -> int | None:
        """Say what this rank counts; the step to begin with where this rank can tell, else ``None``."""
        self._folder.mkdir(exist_ok=True)
        ready_path(self._folder, self._rank).write_text(f"{count}\n")
        counts = {rank: number for rank in range(self._size) if (number := self._number(rank)) is not None}
        if len(counts) == self._size:
            apart = max(counts.values()) - min(counts.values())
            return self._decide(max(counts.values()) + 1 if apart <= _MOST_APART else 0)
        if self._asked > _LONGEST_WAIT:
            missing = [str(rank) for rank in range(self._size) if rank not in counts]
            self.note = (
                f"recorded without waiting for rank {', '.join(missing)}, which {_LONGEST_WAIT} steps later was not "
                "ready to be: other steps may be recorded there"
            )
            return self._decide(count + 1)
        return None

    def _decide(self, begin: int) -> int | None:
        """Set the step for all, unless another rank has."""
        try:
            with begin_path(self._folder).open("x") as file:
                file.write(f"{begin}\n")
        except FileExistsError:
            return self._begin()
        return begin

    def _begin(self) -> int | None:
        return _read_number(begin_path(self._folder))

    def _number(self, rank: int) -> int | None:
        return _read_number(ready_path(self._folder, rank))

    def leave(self) -> None:
        """Take this rank's files out of the folder, with the last rank all of them."""
        with contextlib.suppress(OSError):
            ready_path(self._folder, self._rank).unlink(missing_ok=True)
            if not any(ready_path(self._folder, rank).exists() for rank in range(self._size)):
                begin_path(self._folder).unlink(missing_ok=True)


def _read_number(path: Path) -> int | None:
    """The number in a file; ``None`` where it is not there, or is being written."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    return int(text) if text.endswith("\n") and text.strip().isdigit() else None
