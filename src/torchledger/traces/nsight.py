"""The SQLite export of an Nsight Systems report (``nsys export --type sqlite``) as the events of a trace.

The tables are those of NVIDIA's documented export schema (Nsight Systems, "SQLite Export Schema Reference"): kernels,
copies, fills and API calls as CUPTI recorded them, NVTX ranges, and their texts in ``StringIds``. Versions differ in
columns, and a table that nothing was recorded for is absent; what is absent is unknown.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchledger.errors import MeasureError
from torchledger.store.bounded import bounded_rows, distrust
from torchledger.store.ledger import is_ledger

_MAGIC = b"SQLite format 3\x00"
_BATCH = 10_000

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_FILLS = "CUPTI_ACTIVITY_KIND_MEMSET"
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_WHOLE_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_RANGES = "NVTX_EVENTS"
_STRINGS = "StringIds"
_GPUS = "TARGET_INFO_GPU"

_RANGE_TYPES = frozenset({59, 60})
"""``NvtxPushPopRange`` and ``NvtxStartEndRange`` of the schema's event types."""

_API_CLASSES = frozenset({0, 1})
"""Calls of CUDA's runtime and driver; other classes are ranges around them, with the same correlation."""

_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""CUPTI's kinds of copies, in the words of torch's profiler."""

_VERSION_OF_CALL = re.compile(r"_v\d+(_ptsz)?$")
_OPERATOR = re.compile(r"(aten::\w+)(?:, |$)")
"""What ``torch.autograd.profiler.emit_nvtx`` calls the range of an operator: ``aten::mm, seq = 12``."""

_PROCESS_BITS = 40
"""Correlations count up in each process; those of several processes are kept apart above these bits."""


def is_report(path: Path) -> bool:
    """True for an SQLite database, of whatever program."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


class ReportStream:
    """Iterates over lists of events as a Chrome trace holds them; afterwards ``problems`` is complete.

    The file is opened for reading alone, nothing in it is executed, and every value is of its column's kind or its row
    is left out. Raises ``MeasureError`` naming the file if it is no export of a report.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file_bytes = path.stat().st_size
        self.metadata: dict[str, Any] = {}
        self.problems: dict[str, int] = {}
        self.is_truncated = False
        self._processes: dict[int, int] = {}

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        try:
            connection = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)
        except sqlite3.Error as error:
            raise self._no_report(str(error)) from error
        try:
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            distrust(connection, self._file_bytes)
            yield from self._events(connection)
        except sqlite3.Error as error:
            raise self._no_report(str(error)) from error
        finally:
            connection.close()

    def _events(self, connection: sqlite3.Connection) -> Iterator[list[dict[str, Any]]]:
        tables = self._tables(connection)
        if _KERNELS not in tables and _WHOLE_GRAPHS not in tables:
            if is_ledger(self._path):
                raise MeasureError(f"{self._path} is a ledger. `torchledger show {self._path}` reads it.")
            raise self._no_report(f"it has no table {_KERNELS}")
        strings = dict(self._rows(connection, tables, _STRINGS, ("id", "value"), (), text=("value",)))
        self.metadata["deviceProperties"] = self._devices(connection, tables)
        for table, columns, optional, make in (
            (_KERNELS, ("start", "end", "deviceId", "streamId"), _OF_A_KERNEL, self._kernel),
            (_COPIES, ("start", "end", "deviceId", "streamId"), _OF_A_COPY, self._copy),
            (_FILLS, ("start", "end", "deviceId", "streamId"), _OF_A_COPY, self._fill),
            (_CALLS, ("start", "end", "globalTid", "correlationId", "nameId"), ("eventClass",), self._call),
            (_RANGES, ("start", "end", "eventType", "globalTid"), ("textId", "text"), self._range),
        ):
            batch = []
            for row in self._rows(connection, tables, table, columns, optional, text=("text",)):
                facts = dict(zip((*columns, *optional), row, strict=True))
                event = make(facts, strings)
                if event is not None:
                    times = {"ph": "X", "ts": facts["start"] / 1e3, "dur": (facts["end"] - facts["start"]) / 1e3}
                    batch.append(event | times)
                if len(batch) == _BATCH:
                    yield batch
                    batch = []
            if batch:
                yield batch
        whole = sum(1 for _ in self._rows(connection, tables, _WHOLE_GRAPHS, ("start", "end"), ()))
        if whole:
            self.problems[
                "replays of CUDA graphs were recorded as wholes, without their kernels, and are left out: "
                "`nsys profile --cuda-graph-trace=node` records them"
            ] = whole

    def _tables(self, connection: sqlite3.Connection) -> dict[str, frozenset[str]]:
        """The columns of the tables that are read; a view or a virtual table is none, since it could run anything."""
        known = (_KERNELS, _COPIES, _FILLS, _CALLS, _WHOLE_GRAPHS, _RANGES, _STRINGS, _GPUS)
        found = bounded_rows(
            connection,
            f"SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name IN ({', '.join('?' * len(known))})",
            known,
            file_bytes=self._file_bytes,
        )
        plain = [name for name, sql in found if not str(sql).upper().startswith("CREATE VIRTUAL")]
        return {
            name: frozenset(str(row[1]) for row in connection.execute(f'PRAGMA table_info("{name}")')) for name in plain
        }

    def _rows(
        self,
        connection: sqlite3.Connection,
        tables: dict[str, frozenset[str]],
        table: str,
        columns: Sequence[str],
        optional: Sequence[str],
        *,
        text: Sequence[str] = (),
    ) -> Iterator[tuple[Any, ...]]:
        """Rows whose ``columns`` are integers (or text); ``optional`` ones are ``None`` where they are absent."""
        present = tables.get(table)
        if present is None:
            return
        if lacking := set(columns) - present:
            self.problems[f"the table {table} has no column {', '.join(sorted(lacking))} and is left out"] = 0
            return
        names = (*columns, *optional)
        selected = ", ".join(f'"{name}"' if name in present else "NULL" for name in names)
        kinds = [str if name in text else int for name in names]
        odd = 0
        for row in bounded_rows(connection, f'SELECT {selected} FROM "{table}"', file_bytes=self._file_bytes):
            if all(type(value) is kind for value, kind in zip(row[: len(columns)], kinds, strict=False)):
                rest = zip(row[len(columns) :], kinds[len(columns) :], strict=True)
                yield (*row[: len(columns)], *(value if type(value) is kind else None for value, kind in rest))
            elif table != _RANGES or row[1] is not None:  # a mark has no end
                odd += 1
        if odd:
            self.problems[f"rows of {table} make no sense and are left out"] = odd

    def _kernel(self, facts: dict[str, Any], strings: dict[int, str]) -> dict[str, Any]:
        texts = (strings.get(facts[name]) for name in ("demangledName", "shortName", "mangledName"))
        shared = [facts["staticSharedMemory"], facts["dynamicSharedMemory"]]
        arguments = {
            "grid": [facts["gridX"], facts["gridY"], facts["gridZ"]],
            "block": [facts["blockX"], facts["blockY"], facts["blockZ"]],
            "registers per thread": facts["registersPerThread"],
            "shared memory": sum(shared) if None not in shared else None,
            "graph node id": facts["graphNodeId"],
        }
        return self._on_device("kernel", next(filter(None, texts), "a kernel without a name"), facts, arguments)

    def _copy(self, facts: dict[str, Any], strings: dict[int, str]) -> dict[str, Any]:
        kind = _COPY_KINDS.get(facts["copyKind"], "of another kind")
        return self._on_device("gpu_memcpy", f"Memcpy {kind}", facts, {"bytes": facts["bytes"]})

    def _fill(self, facts: dict[str, Any], strings: dict[int, str]) -> dict[str, Any]:
        return self._on_device("gpu_memset", "Memset (Device)", facts, {"bytes": facts["bytes"]})

    def _on_device(self, category: str, name: str, facts: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
        own = {"device": facts["deviceId"], "stream": facts["streamId"]}
        correlation = self._correlation(facts["correlationId"], facts["globalPid"])
        known = arguments | own | {"correlation": correlation}
        return {
            "cat": category,
            "name": name,
            "pid": facts["deviceId"],
            "tid": facts["streamId"],
            "args": {key: value for key, value in known.items() if value is not None and value != [None] * 3},
        }

    def _call(self, facts: dict[str, Any], strings: dict[int, str]) -> dict[str, Any] | None:
        if facts["eventClass"] is not None and facts["eventClass"] not in _API_CLASSES:
            return None
        name = _VERSION_OF_CALL.sub("", strings.get(facts["nameId"], "a call without a name"))
        correlation = self._correlation(facts["correlationId"], facts["globalTid"])
        return {"cat": "cuda_runtime", "name": name, "args": {"correlation": correlation}, **_thread(facts)}

    def _range(self, facts: dict[str, Any], strings: dict[int, str]) -> dict[str, Any] | None:
        name = facts["text"] or strings.get(facts["textId"])
        if name is None or facts["eventType"] not in _RANGE_TYPES:
            return None
        operator = _OPERATOR.match(name)
        category = "cpu_op" if operator else "user_annotation"
        return {"cat": category, "name": operator[1] if operator else name, "args": {}, **_thread(facts)}

    def _correlation(self, number: int | None, global_id: int | None) -> int | None:
        """One number for a process's correlation; a serialized id holds the process above 24 bits of thread."""
        if number is None or not 0 <= number < 1 << _PROCESS_BITS:
            return None
        process = self._processes.setdefault((global_id or 0) >> 24, len(self._processes))
        return process << _PROCESS_BITS | number

    def _devices(
        self, connection: sqlite3.Connection, tables: dict[str, frozenset[str]]
    ) -> list[dict[str, int | str | None]]:
        columns = ("cuDevice", "totalMemory", "computeMajor", "computeMinor", "smCount", "threadsPerWarp")
        keys = ("id", "totalGlobalMem", "computeMajor", "computeMinor", "numSms", "warpSize")
        rows = self._rows(connection, tables, _GPUS, ("id",), ("name", *columns), text=("name",))
        return [
            {"name": name or "unknown"} | dict(zip(keys, (index if known is None else known, *rest), strict=True))
            for index, name, known, *rest in rows
        ]

    def _no_report(self, why: str) -> MeasureError:
        return MeasureError(
            f"{self._path} is no export of an Nsight Systems report: {why}. "
            "Make one with `nsys export --type sqlite report.nsys-rep`."
        )


_OF_A_COPY = ("correlationId", "globalPid", "bytes", "copyKind")
_OF_A_KERNEL = (
    *("correlationId", "globalPid", "demangledName", "shortName", "mangledName"),
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "graphNodeId"),
)


def _thread(facts: dict[str, Any]) -> dict[str, int]:
    """Process and thread of a serialized id: 24 bits each, the thread's last."""
    return {"pid": facts["globalTid"] >> 24 & 0xFFFFFF, "tid": facts["globalTid"] & 0xFFFFFF}
