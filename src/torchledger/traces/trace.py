"""A profiler's trace as columns: what ran on the device and the host, when, and what launched it.

``read_trace`` reads a Chrome/Kineto trace file (``.json`` or ``.json.gz``); ``trace_from_events`` takes events already
in memory. Both give a ``Trace``: one numpy column per fact, one row per duration event, text and ``args`` stored once
per distinct value, so that memory follows the number of events and not the length of their text.

Times are integer nanoseconds on the trace's own clock, counted from ``Trace.origin_us``; so sums are exact.
"""

from __future__ import annotations

import ast
import gc
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import orjson

from torchledger.errors import MeasureError
from torchledger.traces.links import innermost_covering, match_ids
from torchledger.traces.nsight import ReportStream, is_report
from torchledger.traces.stream import EventStream, Progress, open_events

log = logging.getLogger(__name__)

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


KIND_OF_CATEGORY: Mapping[str, EventKind] = {
    "kernel": EventKind.KERNEL,
    "gpu_memcpy": EventKind.MEMCPY,
    "memcpy": EventKind.MEMCPY,
    "gpu_memset": EventKind.MEMSET,
    "memset": EventKind.MEMSET,
    "cuda_runtime": EventKind.RUNTIME,
    "cuda_driver": EventKind.RUNTIME,
    "runtime": EventKind.RUNTIME,
    "driver": EventKind.RUNTIME,
    "hip_runtime": EventKind.RUNTIME,
    "hip_driver": EventKind.RUNTIME,
    "xpu_runtime": EventKind.RUNTIME,
    "xpu_driver": EventKind.RUNTIME,
    "mtia_runtime": EventKind.RUNTIME,
    "privateuse1_runtime": EventKind.RUNTIME,
    "privateuse1_driver": EventKind.RUNTIME,
    "cpu_op": EventKind.OP,
    "operator": EventKind.OP,
    "user_annotation": EventKind.ANNOTATION,
    "gpu_user_annotation": EventKind.DEVICE_ANNOTATION,
    "python_function": EventKind.PYTHON,
    "cuda_sync": EventKind.SYNC,
}
"""Lower-cased ``cat`` of an event to its kind; others are ``OTHER``."""

_ID_ARGUMENTS = ("correlation", "External id", "Sequence number")
"""Arguments that become columns of ``Events``, in its order."""

_VOLATILE_ARGUMENTS = (
    "Ev Idx",
    "Fwd thread id",
    "Record function id",
    "Python id",
    "Python parent id",
    "Python module id",
    "memory bandwidth (GB/s)",
)
"""Arguments that differ from event to event, say nothing that the rest does not, and would defeat interning."""

_OLD_CATEGORIES = {"Kernel", "Operator", "Memcpy", "Memset"}
"""Categories of profilers before 2022, which write the id of a device event in lower case."""

DEVICE_KINDS = (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET)

KNOWN_SCHEMA_VERSIONS = (1,)

_LATEST_US = 4e15
"""Times beyond 126 years are no times; nanoseconds of what is below fit into 64 bits, sums included."""
_LONGEST_US = 1e13
_LARGEST = 2**53
_MOST_LANES = 10_000  # each is a row of its own in every table of lanes; a large program has hundreds
_MOST_NAMES = 200_000  # each may be a row of a table; a large program has thousands
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
                device=_number_or_text(arguments.get("device", self.lanes[lane].process)),
                stream=_number_or_text(arguments.get("stream", self.lanes[lane].thread)),
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


def read_trace(path: str | PathLike[str], *, progress: Progress | None = None, without: str | None = None) -> Trace:
    """Read a Chrome/Kineto trace, ``.json`` or gzip, or the SQLite export of an Nsight Systems report.

    ``progress`` is called with bytes of the file read and bytes in all; events of the category ``without`` are left
    out (``"python_function"`` is most of a trace with stacks). A trace that is cut off, or that holds events
    that make no sense, is read as far as it goes: ``Trace.problems`` names what was left out.

    Raises ``MeasureError`` naming the file if it is not a trace.
    """
    path = Path(path)
    stream = ReportStream(path) if is_report(path) else open_events(path, progress=progress)
    return _read_stream(stream, source=str(path), without=without)


def trace_from_events(
    events: Iterable[dict[str, Any]], metadata: Mapping[str, Any] | None = None, *, source: str = "memory"
) -> Trace:
    """A ``Trace`` of events already parsed (the list under ``traceEvents``). The events' ``args`` are not changed."""
    columns = _Columns()
    copies = [
        event | {"args": dict(event["args"])} if isinstance(event.get("args"), dict) else event for event in events
    ]
    columns.add(copies)
    return columns.finish(source, dict(metadata or {}), {}, is_truncated=False)


def _read_stream(stream: EventStream | ReportStream, *, source: str, without: str | None = None) -> Trace:
    columns = _Columns()
    # Every piece makes and drops tens of thousands of dictionaries, none in a cycle: the collector would search them
    # for nothing, for a third of the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for events in stream:
            if without is not None:
                events = [event for event in events if event.get("cat") != without]
            columns.add(events)
    finally:
        if was_enabled:
            gc.enable()
    return columns.finish(source, stream.metadata, stream.problems, is_truncated=stream.is_truncated)


class _Ids(dict[Any, int]):
    """Numbers keys in the order in which they first appear."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


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


class _Columns:
    """Gathers lists of raw events into columns."""

    def __init__(self) -> None:
        self._names = _Ids()
        self._categories = _Ids()
        self._lanes = _Ids()
        self._arguments = _Ids()
        self._arguments[b"{}"] = 0
        self._parts: list[tuple[npt.NDArray[Any], ...]] = []
        self._lane_names: dict[tuple[Any, Any], str] = {}
        self._open: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
        self._problems: Counter[str] = Counter()
        self._origin_us: float | None = None

    def add(self, events: list[dict[str, Any]]) -> None:
        """Append a list of events; takes their ``args`` apart."""
        phases = _values(events, "ph", None)
        durations = [event for event, phase in zip(events, phases, strict=True) if phase == "X"]
        if len(durations) < len(events):
            durations += self._add_others([event for event, phase in zip(events, phases, strict=True) if phase != "X"])
        if durations:
            self._add_durations(durations)

    def _add_durations(self, events: list[dict[str, Any]]) -> None:
        number = len(events)
        starts = _floats(_values(events, "ts", None))
        durations = _floats(_values(events, "dur", 0))
        keep = (np.abs(starts) < _LATEST_US) & (np.abs(durations) < _LONGEST_US)
        if not keep.all():
            self._problems["events without a readable time are left out"] += int(number - keep.sum())
        if (is_negative := keep & (durations < 0)).any():
            self._problems["events with a duration below zero are left out"] += int(is_negative.sum())
            keep &= ~is_negative
        if not keep.any():
            return
        if self._origin_us is None:
            self._origin_us = float(np.floor(starts[keep].min()))
        names = self._numbered(self._names, _values(events, "name", ""))
        categories = self._numbered(self._categories, _values(events, "cat", ""))
        lanes = self._numbered(self._lanes, _lane_keys(_values(events, "pid", ""), _values(events, "tid", "")))
        if len(self._lanes) > _MOST_LANES or len(self._names) > _MOST_NAMES:
            raise MeasureError(
                f"this is no trace of a program: more than {_MOST_LANES:,} threads and streams, or {_MOST_NAMES:,} "
                "names of events. Record a few steps with torch.profiler."
            )
        ids, arguments = self._take_arguments(events)
        with np.errstate(invalid="ignore", over="ignore"):
            start_ns = np.rint((starts - self._origin_us) * 1e3)
            duration_ns = np.rint(durations * 1e3)
        part = (names, categories, lanes, arguments, start_ns, duration_ns, *ids)
        if not keep.all():
            part = tuple(column[keep] for column in part)
        integers = tuple(column.astype(np.int64) for column in part[4:6])
        self._parts.append((*part[:4], *integers, *part[6:]))

    @staticmethod
    def _numbered(ids: _Ids, keys: list[Any]) -> npt.NDArray[np.int32]:
        try:
            return np.fromiter(map(ids.__getitem__, keys), np.int32, len(keys))
        except TypeError:  # a list or an object where a name should be
            return np.fromiter(map(ids.__getitem__, map(str, keys)), np.int32, len(keys))

    def _take_arguments(self, events: list[dict[str, Any]]) -> tuple[tuple[npt.NDArray[Any], ...], npt.NDArray[Any]]:
        """Ids as columns; what is left of ``args`` as an index into the table of distinct texts."""
        empty: dict[str, Any] = {}
        arguments = _values(events, "args", empty)
        if set(map(type, arguments)) != {dict}:
            arguments = [one if type(one) is dict else empty for one in arguments]
        if _OLD_CATEGORIES & self._categories.keys():
            for one in arguments:
                if "external id" in one:
                    one["External id"] = one.pop("external id")
        present = set().union(*arguments)
        none = np.full(len(arguments), NONE, dtype=np.int64)
        ids = tuple(
            _integers([one.pop(name, NONE) for one in arguments]) if name in present else none for name in _ID_ARGUMENTS
        )
        for name in _VOLATILE_ARGUMENTS:
            if name in present:
                for one in arguments:
                    one.pop(name, None)
        dumps = orjson.dumps
        try:
            texts = [dumps(one) if one else b"{}" for one in arguments]
        except TypeError:  # integers beyond 64 bits, halves of surrogate pairs
            texts = [json.dumps(one).encode() for one in arguments]
        return ids, self._numbered(self._arguments, texts)

    def _add_others(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Names of lanes from metadata events; ``B``/``E`` pairs as durations; the rest has no time."""
        paired = []
        for event in events:
            phase = event.get("ph")
            if phase not in ("M", "B", "E"):
                continue
            arguments = event.get("args")
            arguments = arguments if isinstance(arguments, dict) else {}
            lane = (_number_or_text(event.get("pid", "")), _number_or_text(event.get("tid", "")))
            if phase == "M":
                if event.get("name") == "thread_name":
                    self._lane_names[lane] = str(arguments.get("name", ""))
            elif phase == "B":
                self._open.setdefault(lane, []).append(event | {"args": arguments})
            elif phase == "E":
                stack = self._open.get(lane)
                if not stack:
                    self._problems["ends of events that never began are left out"] += 1
                    continue
                begin = stack.pop()
                duration = _float_or_nan(event.get("ts")) - _float_or_nan(begin.get("ts"))
                paired.append(event | begin | {"args": begin["args"] | arguments, "dur": duration})
        return paired

    def finish(
        self, source: str, metadata: dict[str, Any], problems: Mapping[str, int], *, is_truncated: bool
    ) -> Trace:
        """All columns joined."""
        if left_open := sum(map(len, self._open.values())):
            self._problems["events that never end are left out"] += left_open
        if self._parts:
            joined = [np.concatenate(columns) for columns in zip(*self._parts, strict=True)]
        else:
            joined = [np.zeros(0, np.int32)] * 4 + [np.zeros(0, np.int64)] * (2 + len(_ID_ARGUMENTS))
        self._parts.clear()
        names, categories, lanes, arguments, start_ns, duration_ns, *ids = joined
        kind_of = np.array(
            [KIND_OF_CATEGORY.get(str(category).lower(), EventKind.OTHER) for category in self._categories]
            or [EventKind.OTHER],
            dtype=np.int8,
        )
        events = Events(kind_of[categories], names, categories, lanes, arguments, start_ns, duration_ns, *ids)
        rank = metadata.get("distributedInfo")
        metadata = metadata | {
            "deviceProperties": _device_properties(metadata.get("deviceProperties")),
            "distributedInfo": rank if isinstance(rank, dict) else {},
        }
        all_problems = [
            TraceProblem(what, number or None, leaves_out=number > 0)
            for what, number in (*problems.items(), *self._problems.items())
        ]
        version = metadata.get("schemaVersion")
        if version is not None and version not in KNOWN_SCHEMA_VERSIONS:
            known = ", ".join(map(str, KNOWN_SCHEMA_VERSIONS))
            all_problems.append(TraceProblem(f"the trace has schema version {version}; version {known} is known here"))
        return Trace(
            source=source,
            metadata=metadata,
            events=events,
            names=tuple(map(str, self._names)),
            categories=tuple(map(str, self._categories)),
            lanes=tuple(
                Lane(_number_or_text(process), _number_or_text(thread), self._lane_names.get((process, thread)))
                for process, thread in self._lanes
            ),
            argument_texts=tuple(self._arguments),
            origin_us=self._origin_us or 0.0,
            problems=tuple(all_problems),
            is_truncated=is_truncated,
        )


def _device_properties(value: Any) -> tuple[Mapping[str, Any], ...]:
    """``deviceProperties`` as records; some writers store it as the text of a Python list."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return ()
    return tuple(entry for entry in value if isinstance(entry, dict)) if isinstance(value, list) else ()


def _values(events: list[dict[str, Any]], key: str, default: Any) -> list[Any]:
    """One field of every event; quick where all have it, as the events of one writer do."""
    try:
        return list(map(itemgetter(key), events))
    except KeyError:
        return [event.get(key, default) for event in events]


def _floats(values: list[Any]) -> npt.NDArray[np.float64]:
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_float_or_nan(value) for value in values], dtype=np.float64)


def _integers(values: list[Any]) -> IntColumn:
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([_integer_or_none(value) for value in values], dtype=np.int64)


def _float_or_nan(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _integer_or_none(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return NONE
    return number if -(2**63) <= number < 2**63 else NONE


def _number_or_text(value: Any) -> int | str:
    if type(value) is int and -_LARGEST < value < _LARGEST:
        return value
    return value if type(value) is str else _as_text(value)


def _as_text(value: Any) -> str:
    """What stands where a number or a name should be, as a name."""
    try:
        return str(value)[:_LONGEST_NAME]
    except ValueError:  # an integer of more than 4,300 digits
        return "a number without end"


def _lane_keys(processes: list[Any], threads: list[Any]) -> list[tuple[int | str, int | str]]:
    if set(map(type, processes)) | set(map(type, threads)) <= {int, str}:
        return list(zip(processes, threads, strict=True))
    return list(zip(map(_number_or_text, processes), map(_number_or_text, threads), strict=True))


def _int_or_none(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and -_LARGEST < value < _LARGEST else None


def _int_tuple(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not value:
        return None
    numbers = [number for entry in value if (number := _int_or_none(entry)) is not None]
    return tuple(numbers) if len(numbers) == len(value) else None
