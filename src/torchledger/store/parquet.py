"""A whole ledger as Parquet tables: one file per record type, with nested lists and structs where records nest.

The columns are the fields of the records plus the columns that a ledger selects by (``bytes_read``, ``source`` and so
on) and ``launch_id``, so that DuckDB, pandas or Polars can ask without knowing this package.
"""

from __future__ import annotations

import dataclasses
import os
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchledger.errors import StoreError
from torchledger.nouns import Launch
from torchledger.store.ledger import LedgerReader
from torchledger.store.output import prepare_folder
from torchledger.store.schema import TABLES

_BATCH = 2_000


def export_parquet(reader: LedgerReader, folder: str | os.PathLike[str], *, force: bool = False) -> list[Path]:
    """Write ``<table>.parquet`` for every table that holds records into ``folder`` (made if needed).

    Raises ``StoreError`` before anything is written if a file exists (without ``force``).
    """
    held = [record_type for record_type in TABLES if reader.count(record_type)]
    names = [f"{TABLES[record_type].name}.parquet" for record_type in held]
    paths = prepare_folder(Path(folder), names, force=force)
    for record_type, path in zip(held, paths, strict=True):
        _write_table(reader, record_type, path)
    return paths


def _write_table(reader: LedgerReader, record_type: type, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    derived = _derived_columns(record_type)
    hints = typing.get_type_hints(record_type)
    schema = pa.schema(
        [pa.field(field.name, _arrow_type(hints[field.name])) for field in dataclasses.fields(record_type)]
        + [pa.field(name, _arrow_type(_property_type(record_type, name))) for name in derived]
    )
    fields = [field.name for field in dataclasses.fields(record_type)]
    kinds = {name: schema.field(name).type for name in fields}
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with pq.ParquetWriter(unfinished, schema, compression="zstd") as writer:
            batch: list[dict[str, Any]] = []
            record: Any
            for record in reader.iterate(record_type):
                row = {name: _arrow_value(getattr(record, name), kinds[name]) for name in fields}
                batch.append(row | {name: getattr(record, name) for name in derived})
                if len(batch) == _BATCH:
                    writer.write_table(pa.Table.from_pylist(batch, schema=schema))
                    batch.clear()
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
        unfinished.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}.") from error
    finally:
        unfinished.unlink(missing_ok=True)


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
