"""A data set of samples: one Parquet file, compacted from journals, merged from parts."""

from __future__ import annotations

import dataclasses
import json
import os
import typing
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchledger.errors import SampleError
from torchledger.nouns import Ceilings, Device, Sample
from torchledger.sampling.journal import JOURNAL_FOLDER, read_journals, write_durably
from torchledger.store import is_ledger
from torchledger.store.codec import FieldError, convert, decode, encode
from torchledger.store.inflate import inflated_limit
from torchledger.work.element_sizes import ELEMENT_SIZES

PARQUET_FILE = "samples.parquet"
FORMAT_VERSION = 1
"""1 (2026-11): first version; metadata ``torchledger.devices`` may hold the records of the devices by name."""

_AS_JSON = {"parameters": (",", ":"), "kernels": (", ", ": "), "telemetry": (",", ":"), "versions": (",", ":")}
"""Fields that are kept as JSON, with its separators."""

_ROWS_AT_LEAST = 10_000
_MOST_VALUES_PER_BYTE = 1
"""Values that a byte of a file may stand for: a sample takes some 80 bytes with ten times in it, but a column of equal
values can claim millions in a few bytes."""

_NEXT_STEP = "Fetch it again, or measure with `torchledger sample`."

_DICTIONARIES = ["operator", "direction", "dtype", "device", "status", "clock", "group", "versions", "kernels"]


def read_samples(path: str | os.PathLike[str]) -> list[Sample]:
    """The samples of a Parquet file, or of a data folder (its Parquet file and what its journals add), each label once,
    the newest of it.

    Raises ``SampleError`` naming the path if it is neither or is damaged.
    """
    path = Path(path)
    if path.is_dir():
        if not (path / PARQUET_FILE).exists() and not (path / JOURNAL_FOLDER).is_dir():
            raise SampleError(f"{path} is no folder of samples: it holds neither {PARQUET_FILE} nor {JOURNAL_FOLDER}/.")
        compacted = _read_parquet(path / PARQUET_FILE) if (path / PARQUET_FILE).exists() else []
        journaled = [s for samples in read_journals(path).samples.values() for s in samples]
        return unique_samples(_of_known_types(path, [*compacted, *journaled]))
    if not path.exists():
        raise SampleError(f"{path} does not exist. Measure one with `torchledger sample SWEEP.yml -o {path}`.")
    return _of_known_types(path, _read_parquet(path))


def _of_known_types(path: Path, samples: list[Sample]) -> list[Sample]:
    if unknown := sorted({sample.dtype for sample in samples} - ELEMENT_SIZES.keys()):
        raise SampleError(f"{path} holds samples of dtype {unknown[0][:40]!r}, which torch does not have. {_NEXT_STEP}")
    return samples


def unique_samples(samples: Iterable[Sample]) -> list[Sample]:
    """Each label (point, direction, dtype, device) once: the newest, and of equals the last given."""
    newest: dict[tuple[str, ...], Sample] = {}
    for sample in samples:
        key = (sample.point_id, sample.direction, sample.device)
        known = newest.get(key)
        if known is None or _age(sample) >= _age(known):
            newest[key] = sample
    return list(newest.values())


def read_devices(path: str | os.PathLike[str]) -> dict[str, Device]:
    """What the devices of a Parquet file or a data folder are, by name; without those of which only the name is kept.

    Their ceilings are those that the folder's workers measured.
    """
    path = Path(path)
    found: dict[str, Device] = {}
    if path.is_dir():
        if (path / PARQUET_FILE).exists():
            found |= _devices_of_parquet(path / PARQUET_FILE)
        headers = read_journals(path, samples=False).headers if (path / JOURNAL_FOLDER).is_dir() else []
        for header in headers:
            if header.get("record"):
                found[header["device"]] = _with_ceilings(convert(Device, header["record"]), header)
    elif path.suffix == ".parquet":
        found |= _devices_of_parquet(path)
    return found


def write_samples(
    path: str | os.PathLike[str], samples: Sequence[Sample], devices: Mapping[str, Device] | None = None
) -> None:
    """Write samples as a Parquet file (zstd), at once; times are kept as 32-bit floats, in microseconds.

    ``devices`` are the records of the samples' devices by name, as far as they are known.
    """
    import pyarrow
    import pyarrow.parquet

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        name: pyarrow.array([_to_column(name, getattr(sample, name)) for sample in samples], type=kind)
        for name, kind in _column_types().items()
    }
    metadata = {"torchledger.samples": str(FORMAT_VERSION)}
    if devices:
        plain = {name: json.loads(encode(device)) for name, device in sorted(devices.items())}
        metadata["torchledger.devices"] = json.dumps(plain)
    table = pyarrow.table(arrays).replace_schema_metadata(metadata)
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, compression="zstd", compression_level=15, use_dictionary=_DICTIONARIES)
    write_durably(path, sink.getvalue().to_pybytes())


def _to_column(name: str, value: Any) -> Any:
    if name in _AS_JSON:
        return json.dumps(list(value) if name == "kernels" else dict(value), separators=_AS_JSON[name])
    return list(value) if isinstance(value, tuple) else value


def compact(folder: str | os.PathLike[str]) -> int:
    """Bring a data folder's journals into its Parquet file; returns how many samples that holds.

    The journals are removed only once the file was read back and holds them all. Not for a folder that a worker is
    writing to.
    """
    folder = Path(folder)
    journals = sorted((folder / JOURNAL_FOLDER).glob("*.jsonl"))
    samples = read_samples(folder)
    write_samples(folder / PARQUET_FILE, samples, read_devices(folder))
    back = {(s.point_id, s.direction, s.device) for s in _read_parquet(folder / PARQUET_FILE)}
    if back != {(s.point_id, s.direction, s.device) for s in samples}:
        raise SampleError(f"{folder / PARQUET_FILE} does not read back as written; the journals are kept.")
    for journal in journals:
        journal.unlink()
    return len(samples)


def measured_points(folder: Path) -> set[str]:
    """Ids of the points that a folder's Parquet file holds."""
    path = folder / PARQUET_FILE
    if not path.exists():
        return set()
    return set(_read_columns(path, ["point_id"]).get("point_id", ()))


def read_header(path: Path) -> list[dict[str, Any]]:
    """The distinct devices and versions of a Parquet file, as journal headers hold them."""
    columns = _read_columns(path, ["device", "versions"])
    pairs = dict.fromkeys(zip(columns.get("device", ()), columns.get("versions", ()), strict=True))
    return [{"device": device, "versions": _versions(path, versions)} for device, versions in pairs]


def _versions(path: Path, text: Any) -> Mapping[str, str]:
    try:
        return decode(Mapping[str, str], text or "")  # type: ignore[type-abstract]
    except FieldError as error:
        raise SampleError(f"{path} is damaged: column versions: {error}. {_NEXT_STEP}") from error


def merge_samples(sets: Mapping[str, Sequence[Sample]], *, allow_mixed: bool = False) -> list[Sample]:
    """The samples of several parts, each label once.

    Raises ``SampleError`` naming the first part that differs from the others in device, torch, CUDA or driver, unless
    ``allow_mixed``.
    """
    if not allow_mixed:
        first: tuple[str, Sample] | None = None
        for name, samples in sets.items():
            for sample in samples:
                if first is None:
                    first = (name, sample)
                _refuse_mix(first, (name, sample))
    return unique_samples(sample for samples in sets.values() for sample in samples)


def _texts() -> list[str]:
    """The columns of text, in the order of the fields."""
    numbers = ("times_us", "spans_us", "flops", "bytes_moved", "warmup", "attempt", "measured_utc")
    return [field.name for field in dataclasses.fields(Sample) if field.name not in numbers]


def single_precision(times: Sequence[float]) -> tuple[float, ...]:
    """Times as the shortest decimals that are the same 32-bit floats, so that a file gives back what was put in."""
    import numpy

    return tuple(float(text) for text in numpy.asarray(times, dtype=numpy.float32).astype(str))


def count_by_status(samples: Iterable[Sample]) -> dict[str, int]:
    """How many samples have each status."""
    return dict(Counter(sample.status for sample in samples))


def _refuse_mix(first: tuple[str, Sample], other: tuple[str, Sample]) -> None:
    (name, a), (other_name, b) = first, other
    facts: list[tuple[str, str | None, str | None]] = [("device", a.device, b.device)]
    facts += [(key, a.versions.get(key), b.versions.get(key)) for key in ("torch", "cuda", "driver")]
    for fact, mine, theirs in facts:
        if mine != theirs:
            raise SampleError(
                f"{other_name} has {fact} {theirs}, {name} has {mine}: their times do not belong together. "
                "Pass --allow-mixed to merge them all the same."
            )


def _age(sample: Sample) -> tuple[float, int]:
    return (sample.measured_utc or 0.0, sample.attempt)


def _with_ceilings(device: Device, header: Mapping[str, Any]) -> Device:
    limits = header.get("ceilings")
    if not limits:
        return device
    ceilings = Ceilings(copy_gb_per_s=limits["copy_gb_per_s"], tflops_per_s=limits["tflops_per_s"])
    return replace(device, ceilings=ceilings)


def _devices_of_parquet(path: Path) -> dict[str, Device]:
    import pyarrow
    import pyarrow.parquet

    try:
        metadata = pyarrow.parquet.read_schema(path).metadata or {}
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        return dict(decode(dict[str, Device], metadata.get(b"torchledger.devices", b"{}")))
    except FieldError as error:
        raise SampleError(f"{path} is damaged: its devices, {error}. {_NEXT_STEP}") from error


def _read_columns(path: Path, names: Sequence[str]) -> dict[str, list[Any]]:
    """Columns of a Parquet file, each of the type that it is written with; those that the file lacks are left out."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, read_dictionary=_texts()) as file:
            _refuse_foreign(path, file)
            held = [name for name in names if name in file.schema_arrow.names]
            table = file.read(columns=held)
        columns = {}
        for name in held:
            columns[name] = _plain_column(table.column(name), _column_types()[name])
    except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
        raise _unreadable(path, error) from error
    return columns


def _unreadable(path: Path, error: Exception) -> SampleError:
    if is_ledger(path):
        return SampleError(f"{path} is a ledger, not a set of samples: `torchledger show {path}` reads it.")
    what = " ".join(str(error).split()).rstrip(".")
    return SampleError(f"{path} is no Parquet file or is damaged: {what}. {_NEXT_STEP}")


def _refuse_foreign(path: Path, file: Any) -> None:
    """Raise ``SampleError`` for what was not written here, or claims more than a file of its size can hold."""
    metadata = file.metadata
    version = (metadata.metadata or {}).get(b"torchledger.samples")
    if version is None:
        raise SampleError(f"{path} holds no samples of torchledger. {_NEXT_STEP}")
    if not version.isdigit() or int(version) > FORMAT_VERSION:
        raise SampleError(
            f"{path} has format {version.decode(errors='replace')}; this version reads up to {FORMAT_VERSION}. Upgrade."
        )
    size = path.stat().st_size
    most_values = _ROWS_AT_LEAST + size * _MOST_VALUES_PER_BYTE
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    inflated = sum(group.total_byte_size for group in groups)
    values = metadata.num_rows
    if values <= most_values and inflated <= inflated_limit(size):
        values = max([values, *_values_of_lists(file, groups)])
    if values > most_values or inflated > inflated_limit(size):
        raise SampleError(
            f"{path} claims {values:,} values and {inflated:,} bytes in a file of {size:,} bytes, which holds at most "
            f"{most_values:,} values and {inflated_limit(size):,} bytes. {_NEXT_STEP}"
        )


def _values_of_lists(file: Any, groups: Sequence[Any]) -> list[int]:
    """How many times each column of lists holds, by group of rows."""
    lists = [name for name in ("times_us", "spans_us") if name in file.schema_arrow.names]
    if not lists:
        return []
    # Where a column's own metadata is damaged, pyarrow raises here and ends the process in `group.column`.
    file.scan_contents(lists)
    schema = file.metadata.schema
    places = [place for place in range(len(schema)) if schema.column(place).path.split(".")[0] in lists]
    return [group.column(place).num_values for group in groups for place in places]


def _plain_column(column: Any, kind: Any) -> list[Any]:
    """A column's values, equal texts as one object; raises ``ArrowException`` if they are not of the type ``kind``."""
    import pyarrow

    values: list[Any] = []
    for chunk in column.chunks:
        if pyarrow.types.is_dictionary(chunk.type):
            words = chunk.dictionary.cast(kind).to_pylist()
            values += [None if index is None else words[index] for index in chunk.indices.to_pylist()]
        else:
            values += chunk.cast(kind).to_pylist()
    return values


def _column_types() -> dict[str, Any]:
    """Parquet's type for each field of a sample."""
    import pyarrow

    floats = pyarrow.list_(pyarrow.float32())
    return {
        **dict.fromkeys(_texts(), pyarrow.string()),
        **dict.fromkeys(("times_us", "spans_us"), floats),
        **dict.fromkeys(("flops", "bytes_moved"), pyarrow.int64()),
        **dict.fromkeys(("warmup", "attempt"), pyarrow.int16()),
        "measured_utc": pyarrow.float64(),
    }


def _read_parquet(path: Path) -> list[Sample]:
    columns = _read_columns(path, [field.name for field in dataclasses.fields(Sample)])
    hints = typing.get_type_hints(Sample)
    for name in _AS_JSON:
        if name in columns:
            decoded: dict[str, Any] = {}
            for row, text in enumerate(columns[name], start=1):
                try:
                    if text not in decoded:
                        decoded[text] = decode(hints[name], text or "")
                except FieldError as error:
                    raise SampleError(f"{path} is damaged: row {row}, column {name}: {error}. {_NEXT_STEP}") from error
            columns[name] = [decoded[text] for text in columns[name]]
    for name in ("times_us", "spans_us"):
        if name in columns:
            columns[name] = [single_precision(value or ()) for value in columns[name]]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    try:
        return convert(list[Sample], rows)
    except FieldError as error:
        raise SampleError(f"{path} is damaged: samples, {error}. {_NEXT_STEP}") from error
