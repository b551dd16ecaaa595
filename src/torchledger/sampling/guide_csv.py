"""The sampling guide's CSV files: read as samples, written from samples."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchledger.errors import SampleError
from torchledger.nouns import Sample
from torchledger.operators import Operator, Parameters, find_operator
from torchledger.operators.declaration import DTYPE_NAMES, dtype_name
from torchledger.sampling.collective_csv import is_collective_csv, read_collective_csv
from torchledger.sampling.points import point_id
from torchledger.store.output import file_name, output_file
from torchledger.work.element_sizes import ELEMENT_SIZES

FORWARD_COLUMN, BACKWARD_COLUMN, STEP_COLUMN = "F_dur(us)", "B_dur(us)", "dur(us)"
COLUMN_DIRECTIONS = {FORWARD_COLUMN: "forward", BACKWARD_COLUMN: "backward", STEP_COLUMN: "step"}

_FILE_NAME = re.compile(r"(?P<device>[^_]+)_(?P<operator>.+)_(?P<precision>fp16|bf16|fp32)(_(\d+)_(\d+))?\.csv$")

_LARGEST_SIZE = 2**40
_ROW_SHOWN = 100  # characters

PUBLISHED_PROTOCOL = "guide-csv"
"""Protocol of samples that come from a published CSV: one time per direction, the mean of ranks 2 to 6 of ten."""


def read_guide_csv(path: str | os.PathLike[str]) -> list[Sample]:
    """The samples of one guide CSV (``{GPU}_{operator}_{precision}[_{parts}_{part}].csv``), one per row and direction,
    or those of a published table of collectives (``collective_csv.py``).

    Times are in microseconds and single: the format keeps no repeats. FLOPs and bytes are those of the catalogue's
    operator of that name. Raises ``SampleError`` naming the file, and the line of a row that cannot be read.
    """
    path = Path(path)
    if is_collective_csv(path):
        return read_collective_csv(path)
    match = _FILE_NAME.match(path.name)
    if match is None:
        raise SampleError(
            f"{path.name} is not named as the guide's files are, GPU_operator_precision.csv; rename it so. A table of "
            "collectives needs columns for collective, ranks, bytes or elements, and time_us or latency_ms."
        )
    operator = find_operator(match["operator"], prefer_guide=True)
    dtype = dtype_name(match["precision"])
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            try:
                return _read_rows(path, rows, operator, dtype, match["device"])
            except (csv.Error, UnicodeDecodeError) as error:
                raise SampleError(
                    f"{path} line {max(rows.line_num, 1)}: {error}. Save the table as CSV in UTF-8 and give that."
                ) from error
    except OSError as error:
        raise SampleError(f"cannot read {path}: {error.strerror}.") from error


def _read_rows(path: Path, rows: Any, operator: Operator, dtype: str, device: str) -> list[Sample]:
    header = next(rows, None)
    if header is None:
        raise SampleError(f"{path} is empty: no header row.")
    columns = [column.strip() for column in header]
    timed = [(index, COLUMN_DIRECTIONS[name]) for index, name in enumerate(columns) if name in COLUMN_DIRECTIONS]
    count = len(columns) - len(timed)
    if not timed or count != len(operator.parameters):
        raise SampleError(
            f"{path}: columns {str(columns)[:_ROW_SHOWN]} do not fit {operator.name}, which has parameters "
            f"{list(operator.parameters)} and then {FORWARD_COLUMN},{BACKWARD_COLUMN} or {STEP_COLUMN}."
        )
    samples: list[Sample] = []
    for row in rows:
        if not row:
            continue
        try:
            values = [_whole(text) for text in row[:count]]
            times = [(direction, float(row[index])) for index, direction in timed]
            p = operator.resolve(values)
            samples += [_sample(operator, p, direction, dtype, device, us) for direction, us in times]
        except (ValueError, IndexError, ArithmeticError) as error:
            shown = ",".join(row)[:_ROW_SHOWN]
            raise SampleError(
                f"{path} line {rows.line_num}: {shown!r} is no row of numbers for {operator.name}."
            ) from error
    return samples


def _whole(text: str) -> int:
    """A size; raises ``ValueError`` for what no tensor has."""
    number = int(float(text))
    if abs(number) > _LARGEST_SIZE:
        raise ValueError(f"{text} is no size")
    return number


def read_guide_folder(folder: str | os.PathLike[str]) -> list[Sample]:
    """The samples of every guide CSV of a known operator and every table of collectives in a folder, each measurement
    once where parts lie beside their sum; other files are left alone."""
    folder = Path(folder)
    if not folder.is_dir():
        raise SampleError(f"{folder} is no folder.")
    samples: list[Sample] = []
    collectives: dict[tuple[str, tuple[float, ...]], Sample] = {}
    for path in sorted(folder.glob("*.csv")):
        if is_collective_csv(path):
            # Parts and their sum lie side by side in the published folders.
            collectives.update({(sample.point_id, sample.times_us): sample for sample in read_collective_csv(path)})
            continue
        match = _FILE_NAME.match(path.name)
        if match is None:
            continue
        try:
            find_operator(match["operator"], prefer_guide=True)
        except SampleError:
            continue
        samples += read_guide_csv(path)
    return [*samples, *collectives.values()]


def guide_file_stem(device: str, operator: str, precision: str, parts: int, part: int) -> str:
    """``{GPU}_{operator}_{precision}_{parts}_{part}``, the GPU's name without spaces, as the guide writes it.

    What no file's name holds is a hyphen in the device's: behind its first underscore stands the operator.
    """
    plain = file_name(device.replace(" ", "")).replace("_", "-")
    return f"{plain}_{operator}_{short_precision(precision)}_{parts}_{part}"


def short_precision(dtype: str) -> str:
    """``"fp16"`` for ``"float16"``."""
    plain = dtype_name(dtype)
    return next((short for short in ("fp16", "bf16", "fp32", "fp8") if DTYPE_NAMES[short] == plain), plain)


def write_guide_csv(
    path: str | os.PathLike[str], columns: Sequence[str], samples: Sequence[Sample], *, force: bool = False
) -> int:
    """Write the samples of one operator in the guide's form, sorted by parameters; returns the number of rows.

    A row holds the median of each direction's times; shapes that lack one of the directions are left out.
    Raises ``StoreError`` if the file exists (unless ``force``) or cannot be written.
    """
    timed = [name for name in columns if name in COLUMN_DIRECTIONS]
    rows: dict[tuple[float, ...], dict[str, float]] = {}
    for sample in samples:
        if sample.status != "ok" or not sample.times_us:
            continue
        operator = find_operator(sample.operator)
        key = tuple(sample.parameters[name] for name in operator.parameters)
        ordered = sorted(sample.times_us)
        middle = len(ordered) // 2
        median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
        rows.setdefault(key, {})[sample.direction] = median  # type: ignore[arg-type]
    complete = 0
    with output_file(Path(path), force=force) as unfinished, unfinished.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for key in sorted(rows):
            times = [rows[key].get(COLUMN_DIRECTIONS[name]) for name in timed]
            if None not in times:
                writer.writerow([*key, *(round(us, 4) for us in times if us is not None)])
                complete += 1
    return complete


def _sample(operator: Operator, p: Parameters, direction: str, dtype: str, device: str, us: float) -> Sample:
    work = operator.work(p, direction, ELEMENT_SIZES[dtype])
    return Sample(
        point_id=point_id(operator.key, p, dtype, device, PUBLISHED_PROTOCOL),
        operator=operator.key,
        parameters=dict(p),
        direction=direction,  # type: ignore[arg-type]
        dtype=dtype,
        device=device,
        times_us=(us,),
        flops=sum(int(part.flops) for part in work),
        bytes_moved=sum(int(part.bytes_moved) for part in work),
        clock="trace",
    )
