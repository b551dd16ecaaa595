"""The journal of one worker: a line of JSON per finished point, on disk before the next begins.

A journal has one writer. Its name holds host, process and start time, so that workers on many nodes can share a folder
of a network file system without sharing a file. A line that a kill tore is dropped on reading and its point measured
again. Lines are of four kinds: ``header`` (device, versions; applies to what follows), ``attempt`` (points about to be
measured), ``fault`` (points that were in flight when a worker died; written by it or by its supervisor), ``point`` (one
finished point with its samples). An attempt without a fault was interrupted from outside and is simply measured again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torchledger.errors import SampleError
from torchledger.nouns import Device, Sample
from torchledger.store.codec import FieldError, convert, parse

JOURNAL_FOLDER = "journal"

_SAMPLE_FIELDS = {item.name: item for item in fields(Sample)}
_FROM_HEADER = ("device", "versions")


class Journal:
    """Appends to one journal file; each call is on disk when it returns.

    ``header`` is ``None`` for a supervisor, which measures nothing. Raises ``SampleError`` if the disk is full or the
    folder cannot be written; what was written before stays whole.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any] | None) -> None:
        self.header = dict(header or {})
        directory = folder / JOURNAL_FOLDER
        self.path = directory / f"{journal_prefix(os.getpid())}{time.time_ns()}.jsonl"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            raise SampleError(f"cannot write {self.path}: {error.strerror}.") from error
        if header is not None:
            self._append({"kind": "header", **self.header})

    def attempt(self, points: Sequence[str]) -> None:
        """Say which points are about to be measured."""
        self._append({"kind": "attempt", "points": list(points)})

    def fault(self, points: Sequence[str], reason: str) -> None:
        """Say which points were in flight when the device failed."""
        self._append({"kind": "fault", "points": list(points), "reason": reason})

    def finish(self, *finished: tuple[str, Sequence[Sample]]) -> None:
        """Keep the samples of finished points, each with its id: a line a point, one sync for all of them."""
        self._append(
            *(
                {"kind": "point", "point": point, "samples": [_to_plain(sample) for sample in samples]}
                for point, samples in finished
            )
        )

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _append(self, *lines: Mapping[str, Any]) -> None:
        utc = round(time.time(), 3)
        texts = [json.dumps({**line, "utc": utc}, separators=(",", ":")) + "\n" for line in lines]
        try:
            _write_all(self._file, "".join(texts).encode())
            os.fsync(self._file)
        except OSError as error:
            hint = "free space on the disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "look at the disk"
            raise SampleError(
                f"cannot write {self.path}: {error.strerror}. What was finished is kept; {hint} and run the same "
                "command again to go on."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def journal_prefix(process: int) -> str:
    """How the names of a process's journals on this host begin."""
    return f"{socket.gethostname()}-{process}-"


@dataclass
class JournalState:
    """What the journals of a folder hold together.

    ``samples`` by point id, the newest of each; ``finished_utc`` when; ``deaths`` counts, for points without samples,
    how often a worker died while it measured that one alone; ``suspects`` are points without samples that were in
    flight in a group when a worker died; ``in_flight`` maps a journal's file name to what it began and did not finish.
    """

    samples: dict[str, tuple[Sample, ...]] = field(default_factory=dict)
    finished_utc: dict[str, float] = field(default_factory=dict)
    deaths: dict[str, int] = field(default_factory=dict)
    suspects: set[str] = field(default_factory=set)
    in_flight: dict[str, list[str]] = field(default_factory=dict)
    headers: list[dict[str, Any]] = field(default_factory=list)
    torn_lines: int = 0


def read_journals(folder: Path, *, samples: bool = True) -> JournalState:
    """All journals of a data folder, in order of time; torn lines are counted and left out.

    ``samples=False`` leaves the samples undecoded (each point maps to no samples), for those who only need the ids.
    """
    state = JournalState()
    for path in sorted((folder / JOURNAL_FOLDER).glob("*.jsonl")):
        _read_one(path, state, samples)
    for point in state.samples:
        state.deaths.pop(point, None)
        state.suspects.discard(point)
    return state


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file's content at once: a reader sees the old or the new, also after a crash."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            _write_all(file, content)
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise SampleError(f"cannot write {path}: {error.strerror}.") from error


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_one(path: Path, state: JournalState, with_samples: bool) -> None:
    header = _Line()
    in_flight: list[str] = []
    for number, plain in _whole_lines(path, state):
        line = _checked(path, number, plain)
        kind = plain.get("kind")
        if kind == "header":
            header = line
            state.headers.append({"device": "", "versions": {}} | plain)
        elif kind == "attempt":
            in_flight = list(line.points)
        elif kind == "fault":
            _note_fault(list(line.points), state)
            in_flight = []
        elif kind == "point":
            if line.point in in_flight:
                in_flight.remove(line.point)
            if line.utc >= state.finished_utc.get(line.point, 0.0):
                state.finished_utc[line.point] = line.utc
                state.samples[line.point] = _samples_of(path, number, line, header) if with_samples else ()
    state.in_flight[path.name] = in_flight


@dataclass(frozen=True)
class _Limits:
    """The ceilings that a worker measured, as its header holds them."""

    copy_gb_per_s: float | None
    tflops_per_s: Mapping[str, float]
    l2_bytes: int | None


@dataclass(frozen=True)
class _Line:
    """What lines hold, whatever their kind."""

    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    record: Device | None = None
    ceilings: _Limits | None = None
    points: tuple[str, ...] = ()
    point: str = ""
    utc: float = 0.0
    samples: tuple[Mapping[str, Any], ...] = ()


def _checked(path: Path, number: int, line: Mapping[str, Any]) -> _Line:
    try:
        return convert(_Line, line)
    except FieldError as error:
        raise damaged_line(path, number, str(error)) from error


def damaged_line(path: Path, number: int, what: str) -> SampleError:
    """The error of a file of lines, one of which is not what it should be."""
    return SampleError(
        f"{path} is damaged: line {number}: {what}. Remove that line; its points are measured again when "
        "`torchledger sample` is run again."
    )


def _note_fault(points: list[str], state: JournalState) -> None:
    if len(points) == 1:
        state.deaths[points[0]] = state.deaths.get(points[0], 0) + 1
    else:
        state.suspects.update(points)


def _whole_lines(path: Path, state: JournalState) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                value = parse(line) if line.endswith(b"\n") else None
            except FieldError:
                value = None
            if isinstance(value, dict):
                yield number, value
            else:
                state.torn_lines += 1


def _to_plain(sample: Sample) -> dict[str, Any]:
    plain = {}
    for name, item in _SAMPLE_FIELDS.items():
        value = getattr(sample, name)
        if name == "point_id" or name in _FROM_HEADER or value == item.default:
            continue
        plain[name] = value
    return plain


def _samples_of(path: Path, number: int, line: _Line, header: _Line) -> tuple[Sample, ...]:
    common = {"point_id": line.point, "device": header.device, "versions": header.versions}
    try:
        return convert(tuple[Sample, ...], [common | dict(sample) for sample in line.samples])
    except FieldError as error:
        raise damaged_line(path, number, f"samples, {error}") from error


def _write_all(file: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]
