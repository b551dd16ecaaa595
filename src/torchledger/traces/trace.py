"""A profiler's trace as columns: what ran on the device and the host, when, and what launched it.

A ``Trace`` (made by ``traces.reading``) holds one numpy column per fact, one row per duration event, text and ``args``
once per distinct value, so that memory follows the number of events and not the length of their text.

Times are integer nanoseconds on the trace's own clock, counted from ``Trace.origin_us``; so sums are exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import orjson

from torchledger.traces.links import innermost_covering, match_ids

IntColumn = npt.NDArray[np.int64]

NONE = -1
"""Stands in integer columns for "not recorded"."""


class EventKind(IntEnum):
    """What a duration event is, whatever its writer calls it."""

    OTHER = 0
    KERNEL = 1
    MEMCPY = 2
    MEMSET = 3
    RUNTIME = 4
    """A call of the CUDA/HIP runtime or driver on the host."""
    OP = 5
    """An ATen op, a Triton launch or another operator on the host."""
    ANNOTATION = 6
    """``record_function`` and profiler steps, on the host."""
    DEVICE_ANNOTATION = 7
    """The same range as seen on the device."""
    PYTHON = 8
    SYNC = 9
    """The device side of a synchronisation."""


DEVICE_KINDS = (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET)


_LARGEST = 2**53
_LONGEST_NAME = 1_000  # characters of what should have been a number or a name


@dataclass(frozen=True)
class Lane:
    """A row of the trace viewer: a host thread, or a stream of a device. ``name`` is what the trace calls it."""

    process: int | str
    thread: int | str
    name: str | None = None


@dataclass(frozen=True)
class TraceProblem:
    """Something that a trace holds and the reader left out or doubts; ``events`` is how many it concerns.

    ``leaves_out``: time of events is missing from the sums for it.
    """

    what: str
    events: int | None = None
    leaves_out: bool = False

    @property
    def text(self) -> str:
        """The problem in words, with its number of events."""
        return f"{self.events} {self.what}" if self.events else self.what


@dataclass(frozen=True, eq=False)
class Events:
    """One row per duration event of the trace, in the order of the file.

    ``name``, ``category``, ``lane`` and ``argument`` index the tables of the ``Trace``. ``correlation``,
    ``external_id`` and ``sequence`` are ``NONE`` where the event has none.
    """

    kind: npt.NDArray[np.int8]
    name: npt.NDArray[np.int32]
    category: npt.NDArray[np.int32]
    lane: npt.NDArray[np.int32]
    argument: npt.NDArray[np.int32]
    start_ns: IntColumn
    duration_ns: IntColumn
    correlation: IntColumn
    external_id: IntColumn
    sequence: IntColumn

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def end_ns(self) -> IntColumn:
        """Where each event ends."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True)
class TraceKernel:
    """One device event: a kernel, a copy or a fill. ``row`` is its row in ``Trace.events``.

    ``launch`` is the row of the runtime call that enqueued it, ``op`` the row of the innermost operator that call was
    made in; ``None`` where the trace does not say (the launch lies before the trace began, a graph replay, ...).
    ``arguments`` are the event's own ``args``.
    """

    row: int
    kind: Literal["kernel", "memcpy", "memset"]
    name: str
    start_ns: int
    duration_ns: int
    device: int | str | None
    stream: int | str | None
    correlation: int | None
    external_id: int | None
    launch: int | None
    op: int | None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration_us(self) -> float:
        """Time on the device, in microseconds."""
        return self.duration_ns / 1e3

    @property
    def grid(self) -> tuple[int, ...] | None:
        """Blocks in x, y, z, as the trace holds them."""
        return _int_tuple(self.arguments.get("grid"))

    @property
    def block(self) -> tuple[int, ...] | None:
        """Threads of a block in x, y, z."""
        return _int_tuple(self.arguments.get("block"))

    @property
    def n_regs(self) -> int | None:
        """Registers per thread."""
        return _int_or_none(self.arguments.get("registers per thread"))

    @property
    def shared_bytes(self) -> int | None:
        """Shared memory of a block, in bytes."""
        return _int_or_none(self.arguments.get("shared memory"))

    @property
    def bytes_copied(self) -> int | None:
        """Bytes of a copy or fill."""
        return _int_or_none(self.arguments.get("bytes"))

    @property
    def graph_node_id(self) -> int | None:
        """The node of the CUDA graph that this kernel replays; ``None`` outside graphs."""
        return _int_or_none(self.arguments.get("graph node id"))


@dataclass(frozen=True, eq=False)
class Trace:
    """A whole trace. Index ``names``, ``categories``, ``lanes`` and ``argument_texts`` by the columns of ``events``.

    ``metadata`` is what the file says beside its events (``deviceProperties``, ``distributedInfo``, ...).
    ``origin_us`` is the ``ts`` of time 0.
    """

    source: str
    metadata: Mapping[str, Any]
    events: Events
    names: tuple[str, ...]
    categories: tuple[str, ...]
    lanes: tuple[Lane, ...]
    argument_texts: tuple[bytes, ...]
    origin_us: float
    problems: tuple[TraceProblem, ...] = ()
    is_truncated: bool = False

    def rows(self, *kinds: EventKind) -> IntColumn:
        """Rows of all events of these kinds, in the order of the file."""
        return np.flatnonzero(np.isin(self.events.kind, kinds))

    def name(self, row: int) -> str:
        """Name of an event."""
        return self.names[int(self.events.name[row])]

    def arguments(self, row: int) -> Mapping[str, Any]:
        """The ``args`` of an event, without its ids (those are columns) and counters."""
        return self.argument_values[int(self.events.argument[row])]

    @cached_property
    def argument_values(self) -> Sequence[Mapping[str, Any]]:
        """Each distinct ``args``, parsed when first asked for."""
        return _LazyValues(self.argument_texts)

    @cached_property
    def device_rows(self) -> IntColumn:
        """Rows of kernels, copies and fills in order of their start."""
        rows = self.rows(*DEVICE_KINDS)
        order: IntColumn = rows[np.argsort(self.events.start_ns[rows], kind="stable")]
        return order

    @cached_property
    def launch_of(self) -> IntColumn:
        """Per event: the row of the runtime call that enqueued it (device events), else ``NONE``."""
        events = self.events
        launches = np.full(len(events), NONE, dtype=np.int64)
        device = self.rows(*DEVICE_KINDS, EventKind.SYNC)
        runtime = self.rows(EventKind.RUNTIME)
        launches[device] = match_ids(
            events.correlation[device],
            events.start_ns[device],
            events.correlation[runtime],
            events.start_ns[runtime],
            runtime,
        )
        return launches

    @cached_property
    def launches_without_kernel(self) -> tuple[int, int]:
        """How many runtime calls that launch one kernel have none in the trace, and how many such calls there are."""
        is_launch = np.array(["aunch" in name and "Kernel" in name for name in self.names] or [False])
        runtime = self.rows(EventKind.RUNTIME)
        launches = runtime[is_launch[self.events.name[runtime]]]
        return len(launches) - int(np.isin(launches, self.launch_of).sum()), len(launches)

    @cached_property
    def op_of(self) -> IntColumn:
        """Per event: the row of the innermost operator around it (host events) or its launch (device events).

        By time on the host thread; by ``External id`` only where the launch itself was not recorded, because older
        profilers write the correlation under that name.
        """
        events = self.events
        ops = self.rows(EventKind.OP)
        result = np.full(len(events), NONE, dtype=np.int64)
        host = self.rows(EventKind.RUNTIME, EventKind.OP, EventKind.ANNOTATION)
        result[host] = innermost_covering(
            events.lane[host],
            events.start_ns[host],
            host,
            events.lane[ops],
            events.start_ns[ops],
            events.end_ns[ops],
            ops,
        )
        device = self.rows(*DEVICE_KINDS)
        launch = self.launch_of[device]
        has_launch = launch != NONE
        # What stands around the launch of a whole graph says nothing of one of its kernels.
        is_graph = np.array(["GraphLaunch" in name for name in self.names] or [False])
        has_own_launch = has_launch & ~is_graph[events.name[launch]]
        result[device[has_own_launch]] = result[launch[has_own_launch]]
        orphans = device[~has_launch & (events.external_id[device] != NONE)]
        if len(orphans) and self.external_ids_name_ops:
            result[orphans] = match_ids(
                events.external_id[orphans],
                events.start_ns[orphans],
                events.external_id[ops],
                events.start_ns[ops],
                ops,
            )
        return result

    @cached_property
    def external_ids_name_ops(self) -> bool:
        """False where the profiler wrote the correlation as ``External id`` (before 2024), so that it names no op."""
        events = self.events
        device = self.rows(*DEVICE_KINDS)
        known = device[(events.external_id[device] != NONE) & (events.correlation[device] != NONE)]
        if not len(known):
            return True
        return bool(np.any(events.external_id[known] != events.correlation[known]))

    def op_chain(self, row: int) -> list[int]:
        """Rows of the operators around an event, innermost first."""
        chain = []
        op = int(self.op_of[row])
        while op != NONE:
            chain.append(op)
            op = int(self.op_of[op])
        return chain

    def kernel(self, row: int) -> TraceKernel:
        """The record of one device event."""
        return next(self._kernels(np.array([row], dtype=np.int64)))

    def kernels(self) -> Iterator[TraceKernel]:
        """All device events in order of their start."""
        return self._kernels(self.device_rows)

    def _kernels(self, rows: IntColumn) -> Iterator[TraceKernel]:
        events = self.events
        columns: list[npt.NDArray[Any]] = [events.kind, events.name, events.argument, events.lane, events.start_ns]
        columns += [events.duration_ns, events.correlation, events.external_id, self.launch_of, self.op_of]
        for row, kind, name, argument, lane, start, duration, correlation, external, launch, op in zip(
            rows.tolist(), *(column[rows].tolist() for column in columns), strict=True
        ):
            arguments = self.argument_values[argument]
            yield TraceKernel(
                row=row,
                kind=_KIND_NAMES[kind],
                name=self.names[name],
                start_ns=start,
                duration_ns=duration,
                device=number_or_text(arguments.get("device", self.lanes[lane].process)),
                stream=number_or_text(arguments.get("stream", self.lanes[lane].thread)),
                correlation=None if correlation == NONE else correlation,
                external_id=None if external == NONE else external,
                launch=None if launch == NONE else launch,
                op=None if op == NONE else op,
                arguments=arguments,
            )


_KIND_NAMES: Mapping[int, Literal["kernel", "memcpy", "memset"]] = {
    int(EventKind.KERNEL): "kernel",
    int(EventKind.MEMCPY): "memcpy",
    int(EventKind.MEMSET): "memset",
}


class _LazyValues(Sequence[Mapping[str, Any]]):
    """Parses each text when it is first asked for."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._texts = texts
        self._values: dict[int, Mapping[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: Any) -> Any:
        value = self._values.get(index)
        if value is None:
            try:
                value = orjson.loads(self._texts[index])
            except orjson.JSONDecodeError:
                value = json.loads(self._texts[index])
            self._values[index] = value
        return value


def number_or_text(value: Any) -> int | str:
    """What names a process, a thread or a stream: a whole number, or text of bearable length."""
    if type(value) is int and -_LARGEST < value < _LARGEST:
        return value
    return value if type(value) is str else _as_text(value)


def _as_text(value: Any) -> str:
    """What stands where a number or a name should be, as a name."""
    try:
        return str(value)[:_LONGEST_NAME]
    except ValueError:  # an integer of more than 4,300 digits
        return "a number without end"


def _int_or_none(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and -_LARGEST < value < _LARGEST else None


def _int_tuple(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not value:
        return None
    numbers = [number for entry in value if (number := _int_or_none(entry)) is not None]
    return tuple(numbers) if len(numbers) == len(value) else None
