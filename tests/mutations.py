"""Seeded mutations of files: of their bytes, and of what stands in them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import sqlite3
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

_STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**53 + 1, 2**63, -(2**63), 10**30, 10**400, 0.5, -0.0, 1e308, 5e-324, float("nan"),
    float("inf"), "", "x", "a/../../b", "\x00", "\x1b[2J", "\udcff", "9" * 30,
    "é" * 300, [], {}, [[]], [None], [1, "a"],
    {"float": "nan"}, {"": None}, "aten.mm.default", "cuda:99", "[[1,2],[3]]",
)  # fmt: skip


def mutate_bytes(source: random.Random, content: bytes) -> bytes:
    """Bytes flipped, cut off, taken out, doubled or put in."""
    changed = bytearray(content)
    place = source.randrange(len(changed) + 1)
    match source.randrange(6):
        case 0:
            for _ in range(source.choice((1, 3, 20))):
                if changed:
                    changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
        case 1:
            del changed[place:]
        case 2:
            del changed[place : place + source.choice((1, 16, 1024))]
        case 3:
            changed[place:place] = changed[place : place + source.choice((16, 1024))]
        case 4:
            changed[place:place] = source.randbytes(source.choice((1, 16, 256)))
        case 5:
            size = source.choice((1, 4, 8, 64))
            changed[place : place + size] = source.choice((b"\x00", b"\xff", b"[", b'"', b"9")) * size
    return bytes(changed)


def mutate_json(source: random.Random, content: bytes) -> bytes:
    """One value of a JSON text replaced, taken out or doubled."""
    try:
        plain = json.loads(content)
    except (ValueError, RecursionError):
        return mutate_bytes(source, content)
    return json.dumps(_changed(source, plain)).encode()


def _changed(source: random.Random, plain: Any) -> Any:
    if isinstance(plain, (dict, list)) and plain and source.random() < 0.93:
        key = source.choice(list(plain) if isinstance(plain, dict) else range(len(plain)))
        if source.random() < 0.05:
            del plain[key]
        elif source.random() < 0.05 and isinstance(plain, list):
            plain.append(plain[key])
        else:
            plain[key] = _changed(source, plain[key])
        return plain
    return source.choice(_STRANGE)


def mutate_lines(source: random.Random, content: bytes) -> bytes:
    """One line of JSON changed."""
    lines = content.split(b"\n")
    index = source.randrange(len(lines))
    lines[index] = mutate_json(source, lines[index])
    return b"\n".join(lines)


def zipped(change: Callable[[random.Random, bytes], bytes]) -> Callable[[random.Random, bytes], bytes]:
    """The same change inside a gzip file."""

    def mutate(source: random.Random, content: bytes) -> bytes:
        try:
            return gzip.compress(change(source, gzip.decompress(content)), 1, mtime=0)
        except (OSError, EOFError, ValueError, zlib.error):
            return mutate_bytes(source, content)

    return mutate


def mutate_ledger(source: random.Random, content: bytes) -> bytes:
    """A body or a column of one record changed."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(content)
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = source.choice([name for name in tables if connection.execute(f'SELECT 1 FROM "{name}"').fetchone()])
        rows = [row for (row,) in connection.execute(f'SELECT rowid FROM "{table}"')]
        row = source.choice(rows)
        columns = [column[1] for column in connection.execute(f'PRAGMA table_info("{table}")')]
        column = "body" if source.random() < 0.8 else source.choice(columns)
        ((value,),) = connection.execute(f'SELECT "{column}" FROM "{table}" WHERE rowid = ?', (row,))
        text = str(value).encode()
        value = mutate_json(source, text) if column == "body" else source.choice((b"", "x", -1, 2**62, 0.5, "é"))
        if isinstance(value, bytes) and source.random() < 0.9:
            value = value.decode("utf-8", "replace")
        connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (value, row))
        connection.commit()
        return connection.serialize()
    except (sqlite3.Error, IndexError, ValueError, UnicodeError, OverflowError):
        return mutate_bytes(source, content)
    finally:
        connection.close()


def mutate_export(source: random.Random, content: bytes) -> bytes:
    """A value, a column, a table or a byte of a report of Nsight Systems changed."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(content)
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = source.choice(tables)
        columns = [column[1] for column in connection.execute(f'PRAGMA table_info("{table}")')]
        column = source.choice(columns)
        what = source.random()
        if what < 0.7:
            value = source.choice(
                (None, b"\xff", "x", "\x1b[31m", -1, 0, 2**62, -(2**63), 0.5, float("inf"), "é" * 1000)
            )
            (count,) = connection.execute(f'SELECT COUNT(*) FROM "{table}"').fetchone()
            where = "" if source.random() < 0.3 else f" WHERE rowid % {count + 1} = {source.randrange(count + 1)}"
            connection.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ?{where}', (value,))
        elif what < 0.8:
            connection.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column}_"')
        elif what < 0.9:
            connection.execute(f'DROP TABLE "{table}"')
        else:
            return mutate_bytes(source, content)
        connection.commit()
        return connection.serialize()
    except (sqlite3.Error, IndexError, ValueError, OverflowError):
        return mutate_bytes(source, content)
    finally:
        connection.close()


def mutate_parquet(source: random.Random, content: bytes) -> bytes:
    """A value, a column's type or the rows of a Parquet file changed."""
    try:
        table = parquet.read_table(io.BytesIO(content))
        index = source.randrange(table.num_columns)
        values = table.column(index).to_pylist()
        strange = source.choice(_STRANGE)
        match source.randrange(4):
            case 0:
                table = table.remove_column(index)
            case 1:
                table = table.set_column(index, table.column_names[index], pyarrow.array([strange] * len(values)))
            case 2:
                text = values[0] if isinstance(values[0], str) else "{}"
                values[source.randrange(len(values))] = mutate_json(source, text.encode()).decode("utf-8", "replace")
                table = table.set_column(index, table.column_names[index], pyarrow.array(values))
            case 3:
                table = pyarrow.concat_tables([table] * source.choice((2, 50)))
        buffer = io.BytesIO()
        parquet.write_table(table, buffer)
        return buffer.getvalue()
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, IndexError, OverflowError):
        return mutate_bytes(source, content)


def mutate_model(source: random.Random, content: bytes) -> bytes:
    """A header or an array of a model changed, with checksums that match."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        header = json.loads(members["header.json"])["header"]
        if source.random() < 0.5:
            header = json.loads(mutate_json(source, json.dumps(header).encode()))
        else:
            key = source.choice([key for key in header["entries"] if key.startswith("linear")])
            name = f"entries/{key}.npz"
            members[name] = _with_other_array(source, members[name])
            header["entries"][key]["sha256"] = hashlib.sha256(members[name]).hexdigest()
        text = json.dumps(header, sort_keys=True)
        sealed = {"header": json.loads(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
        members["header.json"] = json.dumps(sealed, sort_keys=True).encode()
        return _zip(members)
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, TypeError, AttributeError, IndexError, OSError):
        return mutate_bytes(source, content)


def _with_other_array(source: random.Random, blob: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = source.choice(list(members))
    array = np.load(io.BytesIO(members[name]))
    changed = source.choice((array.astype(np.float32), array[..., None], array.ravel()[:1], array * -1, array + 100))
    file = io.BytesIO()
    np.save(file, changed)
    members[name] = file.getvalue() if source.random() < 0.8 else mutate_bytes(source, members[name])
    return _zip(members)


def _zip(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def mutate_text(source: random.Random, content: bytes) -> bytes:
    """A word or a line of a text replaced or doubled."""
    words = content.decode("utf-8", "replace").split(" ")
    index = source.randrange(len(words))
    strange = source.choice(
        (*_STRANGE, "&a", "*a", "<<: *a", "{from: 1, to: 1e12, step: 1}", "- - -", ": :", "9" * 5_000)
    )
    words[index] = source.choice((str(strange), json.dumps(strange), words[index] * 2, "\n", ""))
    return " ".join(words).encode("utf-8", "surrogateescape")
