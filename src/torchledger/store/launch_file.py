"""Measured launches as one compressed file: what a model of kernel times learns from.

Lines of JSON, gzipped: a header (device, versions), then one line per launch in the order of its graph: the program it
is of, the record, and its times in microseconds (none where it was not measured; it still tells what ran before the
next one). Parts can be joined by concatenation.

Format history: 1 (2026-11), first version; the header may hold the device's record (``record``), a launch what its step
moves (``traffic``).
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchledger.errors import StoreError
from torchledger.nouns import Device, Launch, Step, StepCall
from torchledger.store.codec import FieldError, decode, encode
from torchledger.store.inflate import inflated_lines
from torchledger.store.latest import latest_measurements
from torchledger.store.ledger import open_ledger
from torchledger.store.output import output_file
from torchledger.work.step_traffic import StepTraffic, step_traffic

FORMAT_VERSION = 1
SUFFIX = ".launches"

_NOT_KEPT: Mapping[str, Any] = {"sources": (), "fx_nodes": (), "modules": (), "wrapper_line": None}
"""What says where a launch came from says nothing of its time."""
_NOT_KEPT_OF_BUFFERS: Mapping[str, Any] = {"fx_node": None, "argument": None}

_NEXT_STEP = "Measure one with `torchledger sample --fused`, or fetch it again."


@dataclass(frozen=True)
class MeasuredLaunch:
    """A launch with its device times in microseconds, one per call; ``program`` groups what was compiled together.

    ``traffic`` is of the step, where steps followed each other; ``None`` where the cache was swept before its graph.
    """

    launch: Launch
    times_us: tuple[float, ...]
    program: str
    traffic: StepTraffic | None = None

    @property
    def duration_us(self) -> float | None:
        """Median of the times; ``None`` if it was not measured."""
        return statistics.median(self.times_us) if self.times_us else None


@dataclass(frozen=True)
class LaunchSet:
    """Measured launches of one device; ``record`` is what it is, ``None`` in files that only name it."""

    device: str
    launches: tuple[MeasuredLaunch, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    record: Device | None = None


def write_launches(path: str | os.PathLike[str], found: LaunchSet, *, force: bool = False) -> None:
    """Write a set; raises ``StoreError`` if the file exists (without ``force``) or cannot be written."""
    with (
        output_file(Path(path), force=force) as unfinished,
        open(unfinished, "wb") as plain,
        gzip.GzipFile("", "wb", compresslevel=9, fileobj=plain, mtime=0) as file,
    ):
        header: dict[str, Any] = {"format": FORMAT_VERSION, "device": found.device}
        header["versions"] = dict(found.versions)
        if found.record is not None:
            header["record"] = json.loads(encode(found.record))
        file.write(json.dumps(header).encode() + b"\n")
        for item in found.launches:
            buffers = tuple(dataclasses.replace(buffer, **_NOT_KEPT_OF_BUFFERS) for buffer in item.launch.buffers)
            slim = dataclasses.replace(item.launch, buffers=buffers, **_NOT_KEPT)
            times = json.dumps([round(time, 4) for time in item.times_us])
            program = json.dumps(item.program)
            step = b"" if item.traffic is None else b' "traffic": %b,' % encode(item.traffic)
            file.write(b'{"program": %b, "times_us": %b,%b "launch": ' % (program.encode(), times.encode(), step))
            file.write(encode(slim) + b"}\n")


def read_launches(path: str | os.PathLike[str]) -> LaunchSet:
    """Read a ``.launches`` file, or the launches and profile of a ledger.

    Raises ``StoreError`` naming the file if it is absent, damaged, of another format, or of several devices.
    """
    path = Path(path)
    if path.suffix == ".ledger":
        return launches_of_ledger(path)
    if not path.exists():
        raise StoreError(f"{path} does not exist. Measure one with `torchledger sample --fused -o {path}`.")
    header: _Line | None = None
    record: Device | None = None
    launches: list[MeasuredLaunch] = []
    for number, text in enumerate(inflated_lines(path, "file of launches"), start=1):
        try:
            line = decode(_Line, text)
        except FieldError as error:
            raise StoreError(f"{path} is damaged: line {number}, {error}. {_NEXT_STEP}") from error
        if line.format is not None:
            if line.format != FORMAT_VERSION:
                raise StoreError(f"{path} has format {line.format}; this version reads {FORMAT_VERSION}.")
            if header is not None and line.device != header.device:
                raise StoreError(f"{path} mixes launches of {header.device} and {line.device}.")
            header, record = line, line.record or record
        elif line.launch is None or header is None:
            missing = "a header" if line.launch is not None else "a launch"
            raise StoreError(f"{path} is no file of launches: {missing} is missing in line {number}. {_NEXT_STEP}")
        else:
            launches.append(MeasuredLaunch(line.launch, line.times_us, line.program, line.traffic))
    if header is None:
        raise StoreError(f"{path} is no file of launches: it has no header. {_NEXT_STEP}")
    return LaunchSet(header.device, tuple(launches), header.versions, record)


@dataclass(frozen=True)
class _Line:
    """A line of either kind: a header has a ``format``, every other line a ``launch``."""

    format: int | None = None
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    record: Device | None = None
    launch: Launch | None = None
    times_us: tuple[float, ...] = ()
    program: str = ""
    traffic: StepTraffic | None = None


def launches_of_ledger(path: str | os.PathLike[str], *, program: str | None = None) -> LaunchSet:
    """The launches of a ledger with the times of its profile; the program is the file's stem unless given."""
    path = Path(path)
    with open_ledger(path) as reader:
        run = reader.run()
        launches = reader.read(Launch)
        steps = reader.read(Step)
        traffic = step_traffic(launches, steps[-1].graph_calls, reader.read(StepCall)) if steps else None
        measured = {
            each.subject: each.samples_us for each in latest_measurements(reader) if each.kind in ("profile", "sample")
        }
    # The accelerator, where there is one: kernels of a CPU beside it are not what a model of the device is about.
    devices = sorted(run.devices, key=lambda device: device.kind == "cpu")
    versions = {"torch": run.environment.torch or "", "torchledger": run.environment.torchledger}
    return LaunchSet(
        device=devices[0].name if devices else "unknown",
        launches=tuple(
            MeasuredLaunch(launch, measured.get(launch.launch_id, ()), program or path.stem, traffic)
            for launch in launches
        ),
        versions=versions,
        record=devices[0] if devices else None,
    )


def join_launches(sets: Iterable[LaunchSet]) -> LaunchSet:
    """One set out of several of one device; raises ``StoreError`` for several."""
    found = list(sets)
    devices = {item.device for item in found}
    if len(devices) != 1:
        raise StoreError(f"launches of {', '.join(sorted(devices)) or 'no device'} cannot be joined.")
    launches = tuple(launch for item in found for launch in item.launches)
    record = next((item.record for item in found if item.record is not None), None)
    return LaunchSet(found[0].device, launches, found[0].versions, record)
