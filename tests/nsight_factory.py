"""A report of Nsight Systems as ``nsys export --type sqlite`` writes it, in columns of NVIDIA's documented schema."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from torchledger.traces.trace import EventKind, Trace

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (
    vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, totalMemory INTEGER, smCount INTEGER, cuDevice INTEGER,
    threadsPerWarp INTEGER, computeMajor INTEGER, computeMinor INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
    shortName INTEGER NOT NULL, mangledName INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL,
    gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
    blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
    graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL,
    copyKind INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, value INTEGER NOT NULL,
    bytes INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (
    start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, globalTid INTEGER, textId INTEGER);
"""
"""The tables that are read, with the columns that matter; an export has more of both."""

PROCESS = 4711 << 24


class Report:
    """An export that is filled row by row. Times are nanoseconds; ``file`` is where it is written by ``save``."""

    def __init__(self, *, device: str = "NVIDIA H200") -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.executescript(SCHEMA)
        self._texts: dict[str, int] = {}
        self.add("TARGET_INFO_GPU", 0, 0, device, 150_000_000_000, 132, 0, 32, 9, 0)

    def add(self, table: str, *values: object) -> None:
        """One row, whatever its values."""
        self.connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)

    def text(self, value: str) -> int:
        """The number of a text in ``StringIds``."""
        if value not in self._texts:
            self._texts[value] = len(self._texts)
            self.add("StringIds", self._texts[value], value)
        return self._texts[value]

    def kernel(
        self,
        name: str,
        start: int,
        duration: int,
        *,
        correlation: int = 1,
        process: int = PROCESS,
        stream: int = 7,
        grid: Sequence[int] = (132, 1, 1),
        block: Sequence[int] = (128, 1, 1),
        node: int | None = None,
    ) -> None:
        """A kernel on device 0."""
        text = self.text(name)
        where = (start, start + duration, 0, 1, stream, correlation, process)
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", *where, text, text, text, 32, *grid, *block, 0, 1024, node)

    def copy(self, start: int, duration: int, *, correlation: int = 1, size: int = 4096, kind: int = 1) -> None:
        """A copy, from host to device unless another kind is named."""
        where = (start, start + duration, 0, 1, 7, correlation, PROCESS)
        self.add("CUPTI_ACTIVITY_KIND_MEMCPY", *where, size, kind)

    def call(self, name: str, start: int, duration: int, *, correlation: int = 1, process: int = PROCESS) -> None:
        """A call of CUDA's runtime on the process's first thread."""
        where = (start, start + duration, 0, process + 1, correlation)
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", *where, self.text(name), 0)

    def range(self, name: str, start: int, end: int | None, *, event_type: int = 59) -> None:
        """An NVTX range, or with another type a mark, on the same thread."""
        self.add("NVTX_EVENTS", start, end, event_type, None, PROCESS + 1, self.text(name))

    def save(self, path: Path) -> Path:
        """Write the export."""
        self.connection.commit()
        with sqlite3.connect(path) as file:
            self.connection.backup(file)
        file.close()
        return path


def report_of(trace: Trace) -> Report:
    """What Nsight Systems would have recorded of the kernels, copies and calls of a trace of torch's profiler."""
    report = Report()
    events = trace.events
    for kernel in trace.kernels():
        number = kernel.correlation or 0
        if kernel.kind == "kernel":
            report.kernel(
                kernel.name,
                kernel.start_ns,
                kernel.duration_ns,
                correlation=number,
                grid=kernel.grid or (1, 1, 1),
                block=kernel.block or (1, 1, 1),
            )
        else:
            report.copy(kernel.start_ns, kernel.duration_ns, correlation=number, kind=8)
    for row in trace.rows(EventKind.RUNTIME).tolist():
        number = max(int(events.correlation[row]), 0)
        report.call(trace.name(row), int(events.start_ns[row]), int(events.duration_ns[row]), correlation=number)
    return report
