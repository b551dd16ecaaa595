"""Small records for tests: every field has a plain default, a test names only what it is about."""

from __future__ import annotations

from typing import Any

from torchledger.device.datasheets import device_of_name
from torchledger.expecting.machine import LATEST_NETWORKS, Machine
from torchledger.nouns import (
    Buffer,
    Collective,
    CollectiveMatch,
    Device,
    Environment,
    Graph,
    Kernel,
    Launch,
    LiveStorage,
    RankActivity,
    Run,
    Sample,
    Step,
    StepCall,
    StepMemory,
)


def make_buffer(**changes: Any) -> Buffer:
    fields: dict[str, Any] = {
        "name": "buf0",
        "role": "output",
        "dtype": "float32",
        "shape": (32, 64),
        "stride": (64, 1),
        "device": "cpu",
        "bytes_read": 0,
        "bytes_written": 8192,
    }
    return Buffer(**(fields | changes))


def make_launch(**changes: Any) -> Launch:
    fields: dict[str, Any] = {
        "graph": "forward_0",
        "order": 0,
        "kernel": "k0",
        "kernel_name": "cpp_fused_relu_0",
        "category": "cpp",
        "device": "cpu",
        "buffers": (make_buffer(),),
    }
    return Launch(**(fields | changes))


def make_kernel(**changes: Any) -> Kernel:
    fields: dict[str, Any] = {"key": "k0", "name": "cpp_fused_relu_0", "category": "cpp", "backend": "cpp"}
    return Kernel(**(fields | changes))


def make_graph(**changes: Any) -> Graph:
    fields: dict[str, Any] = {"name": "forward_0", "direction": "forward"}
    return Graph(**(fields | changes))


def make_environment(**changes: Any) -> Environment:
    fields: dict[str, Any] = {"python": "3.11.7", "platform": "linux", "torchledger": "0.1.0", "torch": "2.13.0"}
    return Environment(**(fields | changes))


def make_device(**changes: Any) -> Device:
    return Device(**({"name": "test device", "kind": "cpu"} | changes))


def make_machine(name: str = "TEST", num_multiprocessors: int | None = 132, *rates: Any, **changes: Any) -> Machine:
    """A GPU's scales, a microsecond for 1 MB unless given; ``rates`` and ``changes`` are ``Machine``'s fields, or the
    device's."""
    of_device = {key: changes.pop(key) for key in list(changes) if key in Device.__dataclass_fields__}
    device = Device(name=name, kind="cuda", num_multiprocessors=num_multiprocessors, **of_device)
    usual: tuple[Any, ...] = ({}, 1e6, 2.0)
    fields = dict(zip(("flops_per_us", "bytes_per_us", "floor_us"), (*rates, *usual[len(rates) :]), strict=True))
    return Machine(device, **(fields | changes))


def make_h200(**changes: Any) -> Machine:
    """The scales of an H200 as one was measured."""
    rates = {"bfloat16": 7.93e8, "float32": 4.57e7}
    fields: dict[str, Any] = {"bytes_per_us": 4.32e6, "floor_us": 1.8, "networks": LATEST_NETWORKS}
    return Machine(device_of_name("NVIDIA H200"), rates, **(fields | changes))


def make_run(**changes: Any) -> Run:
    fields: dict[str, Any] = {
        "run_id": "r0",
        "started_utc": "2026-11-21T00:00:00Z",
        "argv": ("train.py",),
        "environment": make_environment(),
        "devices": (make_device(),),
    }
    return Run(**(fields | changes))


def make_sample(point: str, utc: float | None, operator: str = "gelu", **changes: Any) -> Sample:
    """One label of four timed iterations, finished at ``utc``."""
    fields: dict[str, Any] = {
        "point_id": point,
        "operator": operator,
        "parameters": {"numel": 64},
        "direction": "forward",
        "dtype": "float32",
        "device": "H200",
        "times_us": (1.0, 2.0, 3.0, 4.0),
        "measured_utc": utc,
    }
    return Sample(**(fields | changes))


def make_step(**changes: Any) -> Step:
    """A step of a CPU that was found by its optimizer; its device time and what covers it are of no calls."""
    fields: dict[str, Any] = {
        "name": "step_0",
        "found_by": "optimizer",
        "clock": "cpu_profiler",
        "plain_us": (1000.0,),
        "seen": 5,
        "recorded": 1,
    }
    return Step(**(fields | changes))


def make_step_call(**changes: Any) -> StepCall:
    fields: dict[str, Any] = {
        "step": "step_0",
        "order": 0,
        "kind": "operator",
        "name": "aten::add",
        "phase": "loss",
        "samples_us": (10.0,),
    }
    return StepCall(**(fields | changes))


def make_collective(**changes: Any) -> Collective:
    """An all_reduce of four ranks that begins when it is asked for and takes 100 us."""
    fields: dict[str, Any] = {
        "step": "step_0",
        "index": 0,
        "order": 0,
        "operation": "all_reduce",
        "name": "c10d::allreduce_",
        "issued_ns": 0,
        "group": "0",
        "group_size": 4,
        "ranks": (0, 1, 2, 3),
        "dtype": "float32",
        "message_bytes": 4096,
    }
    fields |= changes
    fields.setdefault("started_ns", fields["issued_ns"])
    fields.setdefault("ended_ns", fields["started_ns"] + 100_000)
    return Collective(**fields)


def make_match(arrived_ns: tuple[int, ...], ended_ns: tuple[int, ...], **changes: Any) -> CollectiveMatch:
    """One all_reduce as its ranks arrived at it and left it."""
    fields: dict[str, Any] = {
        "index": 0,
        "operation": "all_reduce",
        "group": "0",
        "group_size": len(arrived_ns),
        "ranks": tuple(range(len(arrived_ns))),
        "message_bytes": 4096,
    }
    return CollectiveMatch(arrived_ns=arrived_ns, ended_ns=ended_ns, **(fields | changes))


def make_activity(*pieces: tuple[int, int, str], steps: int = 1, start_ns: int = 0, **changes: Any) -> RankActivity:
    """Pieces one after another: kind (0 compute, 1 communication, 2 idle), nanoseconds, label."""
    labels = tuple(dict.fromkeys(label for _, _, label in pieces))
    starts = [sum(length for _, length, _ in pieces[:place]) for place in range(len(pieces))]
    total = sum(length for _, length, _ in pieces)
    fields: dict[str, Any] = {
        "step": "step_0",
        "clock": "cpu_profiler",
        "start_ns": start_ns,
        "end_ns": start_ns + total,
        "step_start_ns": tuple(start_ns + total * step // steps for step in range(steps)),
        "piece_start_ns": tuple(starts),
        "piece_ns": tuple(length for _, length, _ in pieces),
        "kind": tuple(kind for kind, _, _ in pieces),
        "label": tuple(labels.index(label) for _, _, label in pieces),
        "source": tuple(0 for _ in pieces),
        "labels": labels,
        "sources": ("",),
        "communication_ns": sum(length for kind, length, _ in pieces if kind == 1),
        "host": "here",
    }
    return RankActivity(**(fields | changes))


def make_live_storage(**changes: Any) -> LiveStorage:
    """A storage of 100 bytes that was there before the step."""
    return LiveStorage(**{"step": "step_0", "number": 0, "category": "eager", "nbytes": 100, "device": "cpu"} | changes)


def make_step_memory(**changes: Any) -> StepMemory:
    """A step's memory on a CPU, with nothing counted beside it."""
    return StepMemory(**{"step": "step_0", "device": "cpu"} | changes)
