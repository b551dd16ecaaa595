"""A whole ledger as Parquet tables: one file per record type, with nested lists and structs where records nest.

The columns are the fields of the records plus the columns that a ledger selects by (``bytes_read``, ``source`` and so
on) and ``launch_id``, so that DuckDB, pandas or Polars can ask without knowing this package.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from torchledger.errors import StoreError
from torchledger.nouns import Launch
from torchledger.store.ledger import LedgerReader, open_ledger
from torchledger.store.output import prepare_folder
from torchledger.store.schema import TABLES

_BATCH = 2_000


@dataclass(frozen=True)
class Records:
    """Records of one type that stand in no ledger, for a table called ``name``; ``derived`` are properties that are
    columns too."""

    name: str
    record_type: type
    records: Sequence[Any]
    derived: tuple[str, ...] = ()


def export_parquet(reader: LedgerReader, folder: str | os.PathLike[str], *, force: bool = False) -> list[Path]:
    """Write ``<table>.parquet`` for every table that holds records into ``folder`` (made if needed).

    Raises ``StoreError`` before anything is written if a file exists (without ``force``).
    """
    held = [record_type for record_type in TABLES if reader.count(record_type)]
    names = [f"{TABLES[record_type].name}.parquet" for record_type in held]
    paths = prepare_folder(Path(folder), names, force=force)
    for record_type, path in zip(held, paths, strict=True):
        with _Table(record_type, _derived_columns(record_type), path) as table:
            table.write(reader.iterate(record_type))
    return paths


def export_parquet_of_ranks(
    ledgers: Mapping[int, Path], between: Sequence[Records], folder: str | os.PathLike[str], *, force: bool = False
) -> list[Path]:
    """Write ``<table>.parquet`` for every table that holds records of any rank, and one for each of ``between``.

    The first column is the ``rank`` that a record is of. Raises ``StoreError`` before anything is written if a file
    exists (without ``force``).
    """
    held: set[type] = set()
    for path in ledgers.values():
        with open_ledger(path) as reader:
            held |= {record_type for record_type in TABLES if reader.count(record_type)}
    types = [record_type for record_type in TABLES if record_type in held]
    names = [TABLES[record_type].name for record_type in types] + [each.name for each in between]
    paths = prepare_folder(Path(folder), [f"{name}.parquet" for name in names], force=force)
    with contextlib.ExitStack() as stack:
        tables = {
            record_type: stack.enter_context(_Table(record_type, _derived_columns(record_type), path, has_rank=True))
            for record_type, path in zip(types, paths, strict=False)
        }
        for rank, ledger in ledgers.items():
            with open_ledger(ledger) as reader:
                for record_type, table in tables.items():
                    table.write(reader.iterate(record_type), rank=rank)
    for each, path in zip(between, paths[len(types) :], strict=True):
        with _Table(each.record_type, each.derived, path) as table:
            table.write(each.records)
    return paths


class _Table:
    """Writes records of one type to one file, which is there when all were written."""

    def __init__(self, record_type: type, derived: Sequence[str], path: Path, *, has_rank: bool = False) -> None:
        import pyarrow as pa

        hints = typing.get_type_hints(record_type)
        self._fields = [field.name for field in dataclasses.fields(record_type)]
        self._derived = derived
        self._is_ranked = has_rank and "rank" not in self._fields
        fields = [pa.field("rank", pa.int64())] if self._is_ranked else []
        fields += [pa.field(name, _arrow_type(hints[name])) for name in self._fields]
        fields += [pa.field(name, _arrow_type(_property_type(record_type, name))) for name in derived]
        self._schema = pa.schema(fields)
        self._kinds = {name: self._schema.field(name).type for name in self._fields}
        self._path, self._unfinished = path, path.with_name(f".{path.name}.{os.getpid()}")
        self._writer: Any = None

    def __enter__(self) -> Self:
        import pyarrow.parquet as pq

        with self._told():
            self._writer = pq.ParquetWriter(self._unfinished, self._schema, compression="zstd")
        return self

    def write(self, records: Iterable[Any], *, rank: int | None = None) -> None:
        """Add records, those of ``rank`` where several are written together."""
        batch: list[dict[str, Any]] = []
        for record in records:
            row = {name: _arrow_value(getattr(record, name), self._kinds[name]) for name in self._fields}
            row |= {name: getattr(record, name) for name in self._derived}
            batch.append(row | {"rank": rank} if self._is_ranked else row)
            if len(batch) == _BATCH:
                self._write(batch)
                batch = []
        self._write(batch)

    def _write(self, batch: list[dict[str, Any]]) -> None:
        import pyarrow as pa

        with self._told():
            self._writer.write_table(pa.Table.from_pylist(batch, schema=self._schema))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with self._told():
                self._writer.close()
                if kind is None:
                    self._unfinished.replace(self._path)
        finally:
            self._unfinished.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What the file system refuses names the file."""
        try:
            yield
        except OSError as error:
            raise StoreError(f"cannot write {self._path}: {error.strerror or error}.") from error


def _derived_columns(record_type: type) -> list[str]:
    fields = {field.name for field in dataclasses.fields(record_type)}
    derived = [column for column in TABLES[record_type].columns if column not in fields]
    if record_type is Launch:
        derived = ["launch_id", *derived, "bytes_moved"]
    return derived


def _property_type(record_type: type, name: str) -> Any:
    getter = getattr(record_type, name).fget
    return typing.get_type_hints(getter)["return"]


def _arrow_type(hint: Any) -> Any:
    """The Arrow type of a record field's type hint."""
    import pyarrow as pa

    simple = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    if hint in simple:
        return simple[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return pa.string()
    if origin is tuple:
        return pa.list_(_arrow_type(arguments[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return pa.map_(pa.string(), _arrow_type(arguments[1]))
    if origin in (typing.Union, types.UnionType):
        known = [argument for argument in arguments if argument is not type(None)]
        if len(known) == 1:
            return _arrow_type(known[0])
        return pa.float64() if set(known) == {int, float} else pa.string()
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return pa.struct([pa.field(field.name, _arrow_type(hints[field.name])) for field in dataclasses.fields(hint)])
    raise TypeError(f"no Arrow type for {hint!r}")


def _arrow_value(value: Any, kind: Any) -> Any:
    """A field's value as the Arrow type ``kind`` takes it; what may be of several types is a string there."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {
            field.name: _arrow_value(getattr(value, field.name), kind.field(field.name).type)
            for field in dataclasses.fields(value)
        }
    if pa.types.is_map(kind):
        return [(str(key), _arrow_value(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_list(kind):
        return [_arrow_value(item, kind.value_type) for item in value]
    return str(value) if pa.types.is_string(kind) else value
