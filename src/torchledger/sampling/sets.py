"""Sets of samples as wholes: joined, counted, judged, exported."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchledger.device.datasheets import datasheet_ceilings
from torchledger.errors import SampleError
from torchledger.nouns import Device, Sample
from torchledger.operators import find_operator
from torchledger.sampling.dataset import PARQUET_FILE, merge_samples, read_devices, read_samples, write_samples
from torchledger.sampling.gates import GateLimits, quarantine
from torchledger.sampling.guide_csv import (
    COLUMN_DIRECTIONS,
    guide_file_stem,
    read_guide_csv,
    read_guide_folder,
    write_guide_csv,
)
from torchledger.sampling.journal import JOURNAL_FOLDER, read_journals
from torchledger.sampling.worker import gate_limits
from torchledger.store.output import check_output, prepare_folder


def load_set(path: str | os.PathLike[str]) -> list[Sample]:
    """The samples of a data folder, a Parquet file, a guide CSV, or a folder of guide CSVs."""
    path = Path(path)
    if path.suffix == ".csv":
        return read_guide_csv(path)
    if path.is_dir() and not (path / PARQUET_FILE).exists() and not (path / JOURNAL_FOLDER).is_dir():
        samples = read_guide_folder(path)
        if samples:
            return samples
    return read_samples(path)


def merge_files(
    parts: Sequence[Path], output: Path, *, allow_mixed: bool = False, force: bool = False
) -> tuple[int, int]:
    """Join sets into one Parquet file; returns the number of samples and of duplicates dropped.

    Raises ``SampleError`` if devices or versions differ (unless ``allow_mixed``) and ``StoreError`` if the file exists
    (unless ``force``).
    """
    check_output(output, force=force)
    # The same part named twice is still two sets, whose labels are each other's duplicates.
    sets = {
        f"{part}" if part not in parts[:index] else f"{part} ({index})": load_set(part)
        for index, part in enumerate(parts)
    }
    merged = merge_samples(sets, allow_mixed=allow_mixed)
    write_samples(output, merged, {name: one for part in parts for name, one in devices_of_set(part).items()})
    return len(merged), sum(map(len, sets.values())) - len(merged)


def devices_of_set(path: str | os.PathLike[str]) -> dict[str, Device]:
    """The records that a set holds of its devices, by name; none for the guide's CSV files."""
    path = Path(path)
    is_data = path.suffix == ".parquet" or (path / PARQUET_FILE).exists() or (path / JOURNAL_FOLDER).is_dir()
    return read_devices(path) if is_data else {}


def judge(path: str | os.PathLike[str], output: Path | None = None, *, force: bool = False) -> dict[str, Any]:
    """Judge a set by the sanity gates; the judged samples can be written to ``output``, which must not exist (unless
    ``force``).

    Ceilings are those that the set's own workers measured, else the vendor's figures for a known device; without
    either, only the gates that need none are applied, and ``ceilings`` says so.
    """
    if output is not None:
        check_output(output, force=force)
    samples = load_set(path)
    limits, origin = _limits_of(Path(path), samples)
    judged = quarantine(samples, limits)
    if output is not None:
        write_samples(output, judged, devices_of_set(path))
    bad = [sample for sample in judged if sample.status == "quarantined"]
    groups: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in bad:
        groups[sample.operator, sample.direction].append(sample)
    total: Counter[tuple[str, str]] = Counter((sample.operator, sample.direction) for sample in judged)
    return {
        "samples": len(judged),
        "quarantined": len(bad),
        "ceilings": origin,
        "groups": [
            {
                "operator": operator,
                "direction": direction,
                "quarantined": len(group),
                "samples": total[operator, direction],
                "example": {"parameters": dict(group[-1].parameters), "reason": group[-1].reason},
            }
            for (operator, direction), group in groups.items()
        ],
    }


def export_guide(path: str | os.PathLike[str], folder: Path, *, force: bool = False) -> dict[Path, int]:
    """Write the guide's operators of a set as the guide's CSV files, one per device, operator and precision.

    Raises ``StoreError`` if one of them exists (unless ``force``) or cannot be written.
    """
    groups: dict[tuple[str, str, str], list[Sample]] = defaultdict(list)
    for sample in load_set(path):
        if sample.operator.startswith("guide."):
            groups[sample.device, sample.operator, sample.dtype].append(sample)
    if not groups:
        raise SampleError(f"{path} holds none of the guide's operators, so there is nothing to write as its CSV files.")
    columns_of = {direction: column for column, direction in COLUMN_DIRECTIONS.items()}
    names = [
        f"{guide_file_stem(device, find_operator(name).name, dtype, 0, 0).removesuffix('_0_0')}.csv"
        for device, name, dtype in groups
    ]
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise SampleError(f"{path} holds several devices whose names give one file, {repeated[0]}. Export them apart.")
    written = {}
    for target, ((_, name, _), samples) in zip(prepare_folder(folder, names, force=force), groups.items(), strict=True):
        operator = find_operator(name)
        columns = [*operator.parameters, *(columns_of[direction] for direction in operator.directions)]
        written[target] = write_guide_csv(target, columns, samples, force=force)
    return written


def _limits_of(path: Path, samples: Sequence[Sample]) -> tuple[GateLimits | None, str]:
    if path.is_dir() and (path / JOURNAL_FOLDER).is_dir():
        for header in read_journals(path, samples=False).headers:
            if header.get("ceilings"):
                return gate_limits(header["ceilings"]), "measured"
    devices = {sample.device for sample in samples}
    if len(devices) == 1:
        (name,) = devices
        record = devices_of_set(path).get(name)
        if record is not None and record.ceilings is not None:
            return GateLimits(record.ceilings, record.l2_cache_bytes or 0), record.ceilings.method
        if known := datasheet_ceilings(name):
            return GateLimits(*known), "datasheet"
    return None, "none known"
