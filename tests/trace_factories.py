"""Small traces for tests: each event has plain defaults, a test names only what it is about."""

from __future__ import annotations

from typing import Any

_FIELDS = ("name", "cat", "pid", "tid", "ts", "dur", "ph")


def _event(defaults: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    event = {"ph": "X"} | defaults
    arguments = dict(event.pop("args", {}))
    for key, value in changes.items():
        if key in _FIELDS:
            event[key] = value
        else:
            arguments[key] = value
    return event | {"args": arguments}


def kernel_event(**changes: Any) -> dict[str, Any]:
    """A kernel on device 0, stream 7."""
    arguments = {"device": 0, "stream": 7, "correlation": 11, "grid": [132, 1, 1], "block": [128, 1, 1]}
    defaults = {"cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 110.5, "dur": 5.25, "args": arguments}
    return _event(defaults, changes)


def memcpy_event(**changes: Any) -> dict[str, Any]:
    """A copy from host to device."""
    arguments = {"device": 0, "stream": 7, "correlation": 12, "bytes": 4096}
    name = "Memcpy HtoD (Pageable -> Device)"
    return _event(
        {"cat": "gpu_memcpy", "name": name, "pid": 0, "tid": 7, "ts": 120, "dur": 2, "args": arguments}, changes
    )


def runtime_event(**changes: Any) -> dict[str, Any]:
    """A launch on host thread 1."""
    arguments = {"cbid": 211, "correlation": 11}
    defaults = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 104, "dur": 4}
    return _event(defaults | {"args": arguments}, changes)


def op_event(**changes: Any) -> dict[str, Any]:
    """An operator on host thread 1."""
    arguments = {"External id": 1, "Ev Idx": 0, "Record function id": 0}
    defaults = {"cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 102, "dur": 8, "args": arguments}
    return _event(defaults, changes)


def small_trace(copies: int = 1) -> dict[str, Any]:
    """A linear layer's launch, ``copies`` times, with all that Kineto writes around it."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "ts": 0, "args": {"name": "python"}}
    ]
    for copy in range(copies):
        shift = 1000.0 * copy
        shapes = {"Input Dims": [[4, 8], [8, 16]], "Input type": ["float", "float"]}
        events += [
            op_event(name="aten::linear", ts=100 + shift, dur=12, **{"External id": 2 * copy}),
            op_event(ts=102 + shift, **shapes, **{"External id": 2 * copy + 1}),
            runtime_event(ts=104 + shift, correlation=copy),
            {"ph": "s", "id": copy, "pid": 1, "tid": 1, "ts": 104 + shift, "cat": "ac2g", "name": "ac2g"},
            kernel_event(ts=110.5 + shift, correlation=copy, **{"External id": 2 * copy + 1}),
            {"ph": "f", "id": copy, "pid": 0, "tid": 7, "ts": 110.5 + shift, "cat": "ac2g", "name": "ac2g"},
        ]
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "Test GPU"}], "traceEvents": events} | {
        "traceName": "small.json"
    }
