"""A run file: one SQLite database.

SQLite in rollback-journal mode is one file that other processes can read while a run writes it, and what a finished
transaction wrote survives ``kill -9``; a torn transaction is rolled back by the next reader.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sqlite3
import tempfile
import threading
import types
import typing
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from torchledger.errors import StoreError
from torchledger.nouns import Gap, Run
from torchledger.printable import ended
from torchledger.store.bounded import bounded_rows, distrust
from torchledger.store.codec import FieldError, convert, decode, encode
from torchledger.store.hold import check_unheld, hold, remove_unheld
from torchledger.store.job import one_ledger
from torchledger.store.other_files import what_it_is
from torchledger.store.output import check_output
from torchledger.store.schema import (
    APPLICATION_ID,
    OLDEST_READABLE_VERSION,
    SCHEMA_VERSION,
    TABLES,
    create_statements,
)

log = logging.getLogger(__name__)

Record = TypeVar("Record")

_BUSY_TIMEOUT_S = 30.0

_LOCKED = "{} is being written by another process, which did not let go in time. Try again when that has ended."


def _create(path: Path) -> None:
    """Make an empty ledger under another name and give it its own, so that a process that is killed leaves none behind
    that cannot be read.

    Raises ``OSError`` if there is a file of that name meanwhile, or ``sqlite3.Error``.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with contextlib.closing(sqlite3.connect(part, timeout=_BUSY_TIMEOUT_S)) as connection:
            _add_tables(connection, frozenset())
        try:
            os.link(part, path)
        except FileExistsError:
            raise
        except OSError:  # of a file system that knows no links
            os.rename(part, path)
    finally:
        for left in (part, part.with_name(f"{part.name}-journal")):
            with contextlib.suppress(OSError):
                left.unlink(missing_ok=True)


def _add_tables(connection: sqlite3.Connection, present: Collection[str]) -> None:
    """Make the tables that are not there, in one transaction: each would wait for the disk."""
    with connection:
        connection.execute("BEGIN")  # Python begins none by itself before a table is made
        if not present:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        for statement in create_statements(present):
            connection.execute(statement)


@contextlib.contextmanager
def ledger_in_place(path: Path, *, force: bool) -> Iterator[Path]:
    """Where to make a ledger that takes the place of ``path`` when all is done: what fails leaves what was there.

    Raises ``StoreError`` as ``LedgerWriter``, before anything is made and again before the place is taken.
    """
    _check_place(path, force=force)
    try:
        folder = tempfile.TemporaryDirectory(prefix=".torchledger-", dir=path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    with folder:
        made = Path(folder.name) / path.name
        yield made
        _check_place(path, force=force)
        try:
            made.replace(path)
        except OSError as error:
            raise _unwritable(path, error) from error


def _check_place(path: Path, *, force: bool) -> None:
    check_output(path, force=force)
    if path.exists():
        if path.stat().st_size:  # an empty file keeps a place, and holds nothing to lose
            _check_readable(path)
        check_unheld(path)


def _check_readable(path: Path) -> None:
    """What cannot be read may be somebody's, and is not replaced even when asked to."""
    advice = "It is not replaced: choose another name, or remove it."
    if not is_ledger(path):
        raise StoreError(f"{path} is not a ledger. {advice}")
    try:
        open_ledger(path).close()
    except StoreError as error:
        raise StoreError(f"{error} {advice}") from error


def _unwritable(path: Path, error: Exception) -> StoreError:
    said = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return StoreError(f"cannot write {path}: {ended(said)} Check that the folder exists, is writable and has room.")


class LedgerWriter:
    """Writes records into a new ledger, or appends to an existing one (``append=True``).

    Each ``add`` is one transaction: all of it is in the file afterwards, or none. Safe to call from several threads
    and, because SQLite connections must not cross a fork, silent in a forked child.

    Raises ``StoreError`` if the file exists (without ``force`` or ``append``) or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], *, force: bool = False, append: bool = False) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._owner = os.getpid()
        if append:
            open_ledger(self.path).close()
        else:
            _check_place(self.path, force=force)
            if self.path.exists():
                remove_unheld(self.path)
        try:
            if not append:
                _create(self.path)
            self._connection = sqlite3.connect(self.path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
            if append:
                _add_tables(self._connection, _table_names(self._connection))
        except (sqlite3.Error, OSError) as error:
            raise _unwritable(self.path, error) from error
        self._hold = hold(self.path)

    def add(self, *records: Any, replace: bool = False) -> None:
        """Write records of any kinds in one transaction; ``replace`` overwrites those with an equal key.

        What could not be read back, of a fault of ours, has a ``Gap`` in its place.
        """
        if os.getpid() != self._owner:
            return
        verb = "INSERT OR REPLACE" if replace else "INSERT"
        with self._lock:
            try:
                with self._connection:
                    for record, body in map(_readable, records):
                        table = TABLES[type(record)]
                        columns = ", ".join(f'"{column}"' for column in table.columns)
                        marks = ", ".join("?" * (len(table.columns) + 1))
                        values = [
                            value
                            if value is None or isinstance(value, (int, float))
                            else str(value).encode("utf-8", "backslashreplace").decode()
                            for value in (getattr(record, column) for column in table.columns)
                        ]
                        self._connection.execute(
                            f'{verb} INTO "{table.name}" ({columns}, body) VALUES ({marks})', [*values, body]
                        )
            except sqlite3.Error as error:
                raise StoreError(
                    f"cannot write to {self.path}: {ended(str(error))} What was written before is whole and readable."
                ) from error

    def close(self) -> None:
        """Close the file; in a forked child, leave it alone."""
        if os.getpid() == self._owner:
            self._connection.close()
            self._hold.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class LedgerReader:
    """Reads records out of a ledger. Use ``open_ledger`` to get one."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._tables = _table_names(connection)
        self._bytes = 0

    def read(self, record_type: type[Record], **where: Any) -> list[Record]:
        """All records of a type in the order written; ``where`` selects by columns.

        >>> reader.read(Launch, graph="forward_0")  # doctest: +SKIP
        """
        return list(self.iterate(record_type, **where))

    def iterate(self, record_type: type[Record], **where: Any) -> Iterator[Record]:
        """Like ``read``, one record at a time."""
        table = TABLES[record_type]
        if unknown := set(where) - set(table.columns):
            raise ValueError(f"{table.name} has no column {sorted(unknown)}; it has {list(table.columns)}")
        if table.name not in self._tables:
            return
        condition = " AND ".join(f'"{column}" IS ?' for column in where)
        statement = (
            f'SELECT rowid, CAST(body AS BLOB) FROM "{table.name}"'
            + (f" WHERE {condition}" if where else "")
            + " ORDER BY rowid"
        )
        held = 0
        for row, body in self._rows(statement, where.values()):
            held += len(body or b"")
            if held > self._bytes and held > self._size_now():
                raise self._damaged(f"{table.name} hold more text than the file has bytes")
            try:
                yield decode(record_type, body or b"")
            except FieldError as error:
                raise self._damaged(f"record {row} of {table.name}, {error}") from error

    def count(self, record_type: type[Any]) -> int:
        """How many records of a type the ledger holds."""
        if TABLES[record_type].name not in self._tables:
            return 0
        # Without the subquery, SQLite counts in one step of its own that nothing interrupts.
        rows = f'SELECT 1 FROM "{TABLES[record_type].name}" LIMIT -1'
        ((number,),) = self._rows(f"SELECT COUNT(*) FROM ({rows})", ())
        return int(number)

    def columns(self, record_type: type[Any], *names: str) -> list[tuple[Any, ...]]:
        """The named columns of all records of a type, without decoding their bodies: fast on large ledgers."""
        table = TABLES[record_type]
        if unknown := set(names) - set(table.columns):
            raise ValueError(f"{table.name} has no column {sorted(unknown)}; it has {list(table.columns)}")
        if table.name not in self._tables:
            return []
        selected = ", ".join(f'"{name}"' for name in names)
        rows = list(self._rows(f'SELECT {selected} FROM "{table.name}" ORDER BY rowid', ()))
        try:
            return convert(_rows_type(typing.cast(Any, record_type), names), rows)
        except FieldError as error:
            raise self._damaged(f"columns {', '.join(names)} of {table.name}, {error}") from error

    def run(self) -> Run:
        """The run that this ledger is of."""
        runs = self.read(Run)
        if not runs:
            raise StoreError(f"{self.path} holds no run: it was cut off before the first record was written.")
        return runs[-1]

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _rows(self, statement: str, parameters: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        try:
            yield from bounded_rows(self._connection, statement, parameters, file_bytes=self._size_now())
        except (sqlite3.Error, UnicodeError) as error:
            if _is_locked(error):
                raise StoreError(_LOCKED.format(self.path)) from error
            raise self._damaged(str(error)) from error

    def _size_now(self) -> int:
        """Bytes of the file, which grows while a run writes it."""
        self._bytes = os.path.getsize(self.path)
        return self._bytes

    def _damaged(self, what: str) -> StoreError:
        return StoreError(
            f"{self.path} is damaged: {what}. Record it again, or recover what is whole with `sqlite3 .recover`."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def open_ledger(path: str | os.PathLike[str]) -> LedgerReader:
    """Open a ledger for reading, of a job the first rank's; nothing in the file is executed or changed.

    Raises ``StoreError`` naming the file if it is absent, not a ledger, truncated, or of a version not read here.
    """
    path = Path(path)
    if not path.exists():
        raise StoreError(f"{path} does not exist. Record one with `torchledger run -o {path} SCRIPT`.")
    if path.is_dir():
        path = one_ledger(path)
    try:
        connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
        ((application_id,),) = connection.execute("PRAGMA application_id")
        ((version,),) = connection.execute("PRAGMA user_version")
        distrust(connection, path.stat().st_size)
        _table_names(connection)
    except (sqlite3.Error, UnicodeError) as error:
        if _is_locked(error):
            raise StoreError(_LOCKED.format(path)) from error
        if is_ledger(path):
            raise StoreError(
                f"{path} is cut off, or damaged ({error}). Record it again, or recover what is whole with "
                "`sqlite3 .recover`."
            ) from error
        raise _no_ledger(path) from error
    if application_id != APPLICATION_ID:
        connection.close()
        raise _no_ledger(path)
    if not OLDEST_READABLE_VERSION <= version <= SCHEMA_VERSION:
        connection.close()
        raise StoreError(
            f"{path} has format {version}; this version reads {OLDEST_READABLE_VERSION} to {SCHEMA_VERSION}. "
            "Upgrade torchledger to read it."
        )
    return LedgerReader(path, connection)


def _no_ledger(path: Path) -> StoreError:
    if (known := what_it_is(path)) is not None:
        return StoreError(f"{path} is not a ledger, but {known}.")
    what = "is empty, and no ledger" if not path.stat().st_size else "is not a ledger"
    return StoreError(f"{path} {what}. Record one with `torchledger run -o FILE SCRIPT`.")


def _is_locked(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_ledger(path: str | os.PathLike[str]) -> bool:
    """True for a file that is a ledger of any version, by what it says about itself."""
    try:
        with open(path, "rb") as file:
            head = file.read(72)
    except OSError:
        return False
    return head.startswith(b"SQLite format 3") and head[68:72] == APPLICATION_ID.to_bytes(4, "big")


def _table_names(connection: sqlite3.Connection) -> frozenset[str]:
    """The tables that a file has; one that was written before a kind of record existed lacks that record's table."""
    return frozenset(name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))


@functools.cache
def _rows_type(record_type: Any, names: tuple[str, ...]) -> Any:
    """What rows of these columns are, by the hints of the fields and properties that they hold."""
    hints = typing.get_type_hints(record_type)
    kinds = [
        hints[name] if name in hints else typing.get_type_hints(getattr(record_type, name).fget)["return"]
        for name in names
    ]
    return list[tuple[tuple(map(_column_type, kinds))]]  # type: ignore[misc]


def _column_type(hint: Any) -> Any:
    """The type of a column's values: SQLite holds truth as 0 and 1, NaN as NULL, and ``add`` the rest as text."""
    if hint is bool:
        return Literal[0, 1]
    if hint is float:
        return float | None
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if all(member in (str, int, float, types.NoneType) or typing.get_origin(member) is Literal for member in members):
        return hint
    if bool in members:
        return Literal[0, 1] | None
    return str | None


def _readable(record: Any) -> tuple[Any, str]:
    """A record and its text, or those of a gap where it is not the record that its type says."""
    try:
        if type(record) not in TABLES:
            raise FieldError("it is no record of a ledger")
        body = encode(record)
        decode(type(record), body)
    except (FieldError, TypeError) as error:
        if isinstance(record, Run | Gap):
            raise StoreError(f"a {type(record).__name__} of ours cannot be written: {error}") from error
        record = Gap("run", type(record).__name__, f"one was not written: {error}")
        body = encode(record)
    return record, body.decode()
