"""What a trace says beside the times of its events: devices, steps, modules, source lines, and what it lacks."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from torchledger.nouns import Device, DeviceEvent
from torchledger.traces.links import innermost_covering
from torchledger.traces.trace import NONE, EventKind, Trace, TraceProblem

_MODULE = "nn.Module: "
_LIBRARY_FRAME = re.compile(
    r"^(torch/|<built-in|<string>|threading\.py|contextlib\.py|.*site-packages/|.*/torch/|runpy\.py|importlib|<frozen|"
    r"nn\.Module|PyTorch|autograd|typing\.py|functools\.py)"
)


def devices_of_trace(trace: Trace) -> tuple[Device, ...]:
    """The devices that a trace names and that ran something; nothing that only a data sheet knows."""
    used = {trace.kernel(row).device for row in _one_row_per_lane(trace)}
    described = trace.metadata.get("deviceProperties") or ()
    # A process that sees one of several devices describes it as number 0 and may still log its number in the machine.
    is_renumbered = used.isdisjoint(_int(properties.get("id")) for properties in described)
    devices = []
    for properties in described:
        index = _int(properties.get("id"))
        if used and index not in used and not is_renumbered:
            continue
        major, minor = properties.get("computeMajor"), properties.get("computeMinor")
        name = str(properties.get("name", "unknown"))
        is_amd = "amd" in name.lower() or "instinct" in name.lower() or "radeon" in name.lower()
        devices.append(
            Device(
                name=name,
                kind="hip" if is_amd else "cuda",
                index=index or 0,
                compute_capability=(major, minor) if isinstance(major, int) and isinstance(minor, int) else None,
                total_memory_bytes=_int(properties.get("totalGlobalMem")),
                num_multiprocessors=_int(properties.get("numSms")),
                max_threads_per_block=_int(properties.get("maxThreadsPerBlock")),
                max_threads_per_multiprocessor=_int(properties.get("maxThreadsPerMultiprocessor")),
                warp_size=_int(properties.get("warpSize")),
                max_shared_memory_per_multiprocessor_bytes=_int(properties.get("sharedMemPerMultiprocessor")),
            )
        )
    return tuple(devices)


def step_durations(trace: Trace) -> list[float]:
    """Wall times of the profiler's steps, in microseconds, where the trace marks any."""
    rows = trace.rows(EventKind.ANNOTATION)
    steps = [row for row in rows.tolist() if re.match(r"^ProfilerStep#\d+$", trace.name(row))]
    return [int(trace.events.duration_ns[row]) / 1e3 for row in steps]


def with_modules_and_lines(trace: Trace, events: list[DeviceEvent]) -> list[DeviceEvent]:
    """Add the innermost ``nn.Module`` and the user's source line, where the trace holds Python frames."""
    columns = trace.events
    python = trace.rows(EventKind.PYTHON)
    if not len(python):
        return events
    is_module = np.array([name.startswith(_MODULE) for name in trace.names])
    is_user = np.array([".py(" in name and not _LIBRARY_FRAME.match(name) for name in trace.names])
    rows = np.array([NONE if event.row is None else event.row for event in events], dtype=np.int64)
    launch = np.where(rows == NONE, NONE, trace.launch_of[rows])
    on_the_host = (rows != NONE) & (columns.kind[rows] == EventKind.OP)
    launch = np.where(on_the_host, rows, launch)
    lane = np.where(launch == NONE, NONE, columns.lane[launch])
    start = columns.start_ns[launch]
    own_rows = len(columns) + np.arange(len(events), dtype=np.int64)
    found = []
    for wanted in (is_module, is_user):
        some = python[wanted[columns.name[python]]]
        found.append(
            innermost_covering(
                lane, start, own_rows, columns.lane[some], columns.start_ns[some], columns.end_ns[some], some
            ).tolist()
        )
    return [
        event
        if module == NONE and line == NONE
        else replace(
            event,
            modules=(trace.name(module).removeprefix(_MODULE),) if module != NONE else (),
            sources=(trace.name(line),) if line != NONE else (),
        )
        for event, module, line in zip(events, *found, strict=True)
    ]


def problems_of(trace: Trace) -> list[TraceProblem]:
    """What the reader left out, and what the whole of the trace shows to be missing or doubtful."""
    problems = list(trace.problems)
    missing, launches = trace.launches_without_kernel
    if missing > launches / 100:
        is_captured = any("BeginCapture" in name or "GraphInstantiate" in name for name in trace.names)
        why = "CUDA graphs were recorded in it" if is_captured else "their time is left out"
        what = f"{missing:,} of {launches:,} launches have no kernel in the trace: {why}"
        problems.append(TraceProblem(what, leaves_out=not is_captured))
    is_cut = trace.is_truncated and bool(trace.metadata.get("deviceProperties"))
    if not len(trace.device_rows) and (launches or is_cut):
        problems.append(TraceProblem("nothing that ran on the device is in the file: these are times of the host"))
    processes: dict[int | str | None, set[int | str | None]] = defaultdict(set)
    for row in _one_row_per_lane(trace):
        processes[trace.kernel(row).device].add(trace.lanes[int(trace.events.lane[row])].process)
    if shared := [f"{device}" for device, found in processes.items() if len(found) > 1]:
        named = ", ".join(shared)
        problems.append(
            TraceProblem(
                f"device {named} has kernels of several processes: if these are ranks, import their own traces"
            )
        )
    return problems


def _one_row_per_lane(trace: Trace) -> list[int]:
    rows = trace.device_rows
    _, first = np.unique(trace.events.lane[rows], return_index=True)
    lanes: list[int] = rows[first].tolist()
    return lanes


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) else None
