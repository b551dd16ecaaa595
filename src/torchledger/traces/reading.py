"""Reading a trace: from a file, or from events in memory, into the columns of a ``Trace``."""

from __future__ import annotations

import ast
import gc
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from torchledger.errors import MeasureError
from torchledger.traces.nsight import ReportStream, is_report
from torchledger.traces.stream import EventStream, Progress, open_events
from torchledger.traces.trace import NONE, EventKind, Events, IntColumn, Lane, Trace, TraceProblem, number_or_text

log = logging.getLogger(__name__)

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

KNOWN_SCHEMA_VERSIONS = (1,)

_LATEST_US = 4e15
"""Times beyond 126 years are no times; nanoseconds of what is below fit into 64 bits, sums included."""
_LONGEST_US = 1e13

_MOST_LANES = 10_000  # each is a row of its own in every table of lanes; a large program has hundreds
_MOST_NAMES = 200_000  # each may be a row of a table; a large program has thousands


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
            lane = (number_or_text(event.get("pid", "")), number_or_text(event.get("tid", "")))
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
                Lane(number_or_text(process), number_or_text(thread), self._lane_names.get((process, thread)))
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


def _lane_keys(processes: list[Any], threads: list[Any]) -> list[tuple[int | str, int | str]]:
    if set(map(type, processes)) | set(map(type, threads)) <= {int, str}:
        return list(zip(processes, threads, strict=True))
    return list(zip(map(number_or_text, processes), map(number_or_text, threads), strict=True))
