"""Questions to a SQLite file from somebody else, which end in time whatever stands in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

_STEPS_PER_BYTE = 4
"""SQLite's own steps per byte of the file that one question may take: a scan of 16 columns takes about one. A tree of
pages that names one page many times would take any number."""

_STEPS_AT_LEAST = 1_000_000
_STEPS_BETWEEN_CHECKS = 10_000
_LONGEST_TEXT_AT_LEAST = 64 << 20


def distrust(connection: sqlite3.Connection, file_bytes: int) -> None:
    """Let no text be longer than its file (a chain of pages that bites its tail would claim up to a gigabyte), and no
    schema call functions with effects."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(2 * file_bytes, _LONGEST_TEXT_AT_LEAST))
    connection.execute("PRAGMA trusted_schema = OFF")


def bounded_rows(
    connection: sqlite3.Connection, statement: str, parameters: Iterable[Any] = (), *, file_bytes: int
) -> Iterator[tuple[Any, ...]]:
    """The rows of one question. Raises ``sqlite3.Error``, also where it takes too many steps for so small a file."""
    steps_left = max(_STEPS_AT_LEAST, file_bytes * _STEPS_PER_BYTE)

    def is_used_up() -> bool:
        nonlocal steps_left
        steps_left -= _STEPS_BETWEEN_CHECKS
        return steps_left < 0

    connection.set_progress_handler(is_used_up, _STEPS_BETWEEN_CHECKS)
    try:
        yield from connection.execute(statement, tuple(parameters))
    except sqlite3.Error as error:
        if steps_left < 0:
            raise sqlite3.OperationalError("its tables have no end") from error
        raise
