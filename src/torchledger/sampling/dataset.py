"""A data set of samples: one Parquet file, compacted from journals, merged from parts."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchledger.errors import SampleError
from torchledger.nouns import Ceilings, Device, Sample
from torchledger.sampling.journal import JOURNAL_FOLDER, read_journals, write_durably
from torchledger.store.codec import convert, encode

PARQUET_FILE = "samples.parquet"
FORMAT_VERSION = 1
"""1 (2026-11): first version; metadata ``torchledger.devices`` may hold the records of the devices by name."""

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
        return unique_samples([*compacted, *journaled])
    if not path.exists():
        raise SampleError(f"{path} does not exist. Measure one with `torchledger sample SWEEP.yml -o {path}`.")
    return _read_parquet(path)


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
    floats = pyarrow.list_(pyarrow.float32())
    columns: dict[str, tuple[Any, Any]] = {
        "point_id": (pyarrow.string(), lambda s: s.point_id),
        "operator": (pyarrow.string(), lambda s: s.operator),
        "parameters": (pyarrow.string(), lambda s: json.dumps(dict(s.parameters), separators=(",", ":"))),
        "direction": (pyarrow.string(), lambda s: s.direction),
        "dtype": (pyarrow.string(), lambda s: s.dtype),
        "device": (pyarrow.string(), lambda s: s.device),
        "status": (pyarrow.string(), lambda s: s.status),
        "times_us": (floats, lambda s: list(s.times_us)),
        "spans_us": (floats, lambda s: list(s.spans_us)),
        "flops": (pyarrow.int64(), lambda s: s.flops),
        "bytes_moved": (pyarrow.int64(), lambda s: s.bytes_moved),
        "kernels": (pyarrow.string(), lambda s: json.dumps(list(s.kernels))),
        "reason": (pyarrow.string(), lambda s: s.reason),
        "clock": (pyarrow.string(), lambda s: s.clock),
        "warmup": (pyarrow.int16(), lambda s: s.warmup),
        "attempt": (pyarrow.int16(), lambda s: s.attempt),
        "group": (pyarrow.string(), lambda s: s.group),
        "telemetry": (pyarrow.string(), lambda s: json.dumps(dict(s.telemetry), separators=(",", ":"))),
        "versions": (pyarrow.string(), lambda s: json.dumps(dict(s.versions), separators=(",", ":"))),
        "measured_utc": (pyarrow.float64(), lambda s: s.measured_utc),
    }
    arrays = {name: pyarrow.array([get(s) for s in samples], type=kind) for name, (kind, get) in columns.items()}
    metadata = {"torchledger.samples": str(FORMAT_VERSION)}
    if devices:
        plain = {name: json.loads(encode(device)) for name, device in sorted(devices.items())}
        metadata["torchledger.devices"] = json.dumps(plain)
    table = pyarrow.table(arrays).replace_schema_metadata(metadata)
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, compression="zstd", compression_level=15, use_dictionary=_DICTIONARIES)
    write_durably(path, sink.getvalue().to_pybytes())


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
    return set(_read_columns(path, ["point_id"])["point_id"])


def read_header(path: Path) -> list[dict[str, Any]]:
    """The distinct devices and versions of a Parquet file, as journal headers hold them."""
    columns = _read_columns(path, ["device", "versions"])
    pairs = dict.fromkeys(zip(columns["device"], columns["versions"], strict=True))
    return [{"device": device, "versions": json.loads(versions)} for device, versions in pairs]


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
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise SampleError(f"{path} is no Parquet file or is damaged: {error}.") from error
    plain = json.loads(metadata.get(b"torchledger.devices", b"{}"))
    return {name: convert(Device, device) for name, device in plain.items()}


def _read_columns(path: Path, names: list[str] | None) -> dict[str, list[Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, columns=names)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise SampleError(f"{path} is no Parquet file or is damaged: {error}.") from error
    version = (table.schema.metadata or {}).get(b"torchledger.samples")
    if version is None:
        raise SampleError(f"{path} holds no samples of torchledger.")
    if int(version) > FORMAT_VERSION:
        raise SampleError(f"{path} has format {int(version)}; this version reads up to {FORMAT_VERSION}. Upgrade.")
    columns: dict[str, list[Any]] = table.to_pydict()
    return columns


def _read_parquet(path: Path) -> list[Sample]:
    columns = _read_columns(path, None)
    parsed: dict[str, Any] = {}

    def plain(text: str) -> Any:
        if text not in parsed:
            parsed[text] = json.loads(text)
        return parsed[text]

    decode: dict[str, Callable[[Any], Any]] = {
        "parameters": json.loads,
        "kernels": lambda text: tuple(plain(text)),
        "telemetry": plain,
        "versions": plain,
        "times_us": single_precision,
        "spans_us": single_precision,
    }
    for name, function in decode.items():
        columns[name] = [function(value) for value in columns[name]]
    names = list(columns)
    return [Sample(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)]
