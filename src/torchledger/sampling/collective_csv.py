"""Tables of measured collectives that others have published, as samples: the sampling guide's own, and nccl-tests'
figures in columns."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchledger.errors import SampleError
from torchledger.nouns import Sample
from torchledger.operators import find_operator
from torchledger.operators.declaration import dtype_name
from torchledger.sampling.points import point_id
from torchledger.work.collectives import collective_kind
from torchledger.work.element_sizes import ELEMENT_SIZES

PROTOCOL = "collective-csv"
"""Protocol of samples out of such a table: one time a row, measured as its maker did."""

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "collective": ("collective", "op_name"),
    "ranks": ("gpus", "num_gpus"),
    "nodes": ("nodes",),
    "gpus_per_node": ("GPUsPerNode",),
    "nbytes": ("bytes",),
    "numel": ("elements", "shape"),
    "dtype": ("nccl_dtype",),
    "device": ("device",),
    "nccl": ("nccl_version",),
    "us": ("time_us", "dur(us)"),
    "ms": ("latency_ms",),
}
"""What a row says, and the columns that published tables say it in."""

_DTYPES = {"half": "float16", "float": "float32", "double": "float64", "int8": "int8"}
_USUAL_DTYPE = "float32"  # nccl-tests' own, where a table names none

_GUIDE_NAME = re.compile(
    r"(?P<device>[^_]+)_(?P<collective>allreduce|allgather|reducescatter|alltoall|broadcast|p2p)(_large)?"
    r"_(?P<precision>fp16|bf16|fp32)(_\d+_\d+)?\.csv$"
)
_GUIDE_KINDS = {"reducescatter": "reduce_scatter", "p2p": "p2p"}


def is_collective_csv(path: str | os.PathLike[str]) -> bool:
    """True for a table whose header says collective, size, ranks and time, in any of the known columns."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            header = next(csv.reader(_without_comments(file)), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return False
    known = _known(header)
    has_name = "collective" in known or _GUIDE_NAME.match(Path(path).name) is not None
    has_ranks = "ranks" in known or {"nodes", "gpus_per_node"} <= known.keys()
    return has_name and has_ranks and bool({"nbytes", "numel"} & known.keys()) and bool({"us", "ms"} & known.keys())


def read_collective_csv(path: str | os.PathLike[str]) -> list[Sample]:
    """The samples of a table of collectives, one a row that has a size and a time; times are in microseconds.

    The guide's tables name device and collective in the file's name, and ``nodes`` and ``GPUsPerNode`` in columns; a
    table that names no device is taken for one device called as the file is. Sizes without an element type are
    float32's, as nccl-tests' are. Raises ``SampleError`` naming file and line of a row that cannot be read.
    """
    path = Path(path)
    named = _GUIDE_NAME.match(path.name)
    given = {}
    if named is not None:
        kind = named["collective"]
        given = {"device": named["device"], "collective": kind, "dtype": named["precision"]}
    samples = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(_without_comments(file))
            columns = _known(next(rows, []))
            for row in rows:
                try:
                    cells = {what: row[index] for what, index in columns.items()}
                    sample = _sample({"device": path.stem} | given | {k: v for k, v in cells.items() if v})
                except (ValueError, IndexError, ArithmeticError, KeyError, SampleError) as error:
                    shown = ",".join(row)[:100]
                    raise SampleError(f"{path}: {shown!r} is no row of a table of collectives: {error}.") from error
                if sample is not None:
                    samples.append(sample)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SampleError(f"cannot read {path}: {error}.") from error
    return samples


def _without_comments(lines: Iterator[str]) -> Iterator[str]:
    return (line for line in lines if line.strip() and not line.startswith("#"))


def _known(header: list[str]) -> dict[str, int]:
    places = {name.strip(): index for index, name in enumerate(header)}
    return {what: places[name] for what, names in _COLUMNS.items() for name in names if name in places}


def _sample(row: Mapping[str, str]) -> Sample | None:
    """One row, or ``None`` where it has no size or no time."""
    duration_us = float(row["us"]) if "us" in row else 1e3 * float(row["ms"]) if "ms" in row else None
    if not duration_us or not {"nbytes", "numel"} & row.keys():
        return None
    kind = _GUIDE_KINDS.get(row["collective"]) or collective_kind(row["collective"])
    if kind is None:
        raise ValueError(f"collective {row['collective']!r} is unknown")
    dtype = dtype_name(_DTYPES.get(row.get("dtype", _USUAL_DTYPE), row.get("dtype", _USUAL_DTYPE)))
    size = ELEMENT_SIZES[dtype]
    numel = int(float(row["numel"])) if "numel" in row else max(int(float(row["nbytes"])) // size, 1)
    nodes = int(float(row.get("nodes", "1")))
    if "gpus_per_node" in row:
        gpus_per_node = int(float(row["gpus_per_node"]))
    else:
        gpus_per_node = int(float(row["ranks"])) // nodes
    if nodes > 1:
        operator = find_operator(f"across_nodes.{kind}")
        p = operator.resolve({"numel": numel, "nodes": nodes, "gpus_per_node": gpus_per_node})
    else:
        operator = find_operator(f"collective.{kind}")
        p = operator.resolve({"numel": numel, "world": gpus_per_node})
    # Shares of messages below the group's size are rounded by whoever measured; only the group itself must be one.
    if nodes * gpus_per_node < 2:
        raise ValueError("a collective needs at least two ranks")
    (work,) = operator.work(p, "forward", size)
    return Sample(
        point_id=point_id(operator.key, p, dtype, row["device"], PROTOCOL),
        operator=operator.key,
        parameters=dict(p),
        direction="forward",
        dtype=dtype,
        device=row["device"],
        times_us=(duration_us,),
        flops=0,
        bytes_moved=int(work.bytes_read),
        clock="host",
        versions={"nccl": row["nccl"]} if "nccl" in row else {},
    )
