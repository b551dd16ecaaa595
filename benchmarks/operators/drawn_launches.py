"""Launches of drawn calls as generated code would make them, with their times: data to fit.

A call was timed with a cache that was swept before it (``swept_us``) and warm (``warm_us``), each several times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torchledger.device.datasheets import device_of_name
from torchledger.nouns import Buffer, Launch
from torchledger.store.launch_file import LaunchSet, MeasuredLaunch, write_launches
from torchledger.work.element_sizes import ELEMENT_SIZES

Row = Mapping[str, Any]

STATES = ("swept_us", "warm_us")
VERSIONS = {"torch": "2.11.0+cu130"}

_STEADY = 1.06
"""Times of a call that differ by more are not its own: another process had the device in between."""


def is_steady(row: Row, *, slack_us: float = 0.0) -> bool:
    """Whether a row has times that agree; ``slack_us`` is how far short ones may differ besides."""
    return "error" not in row and all(max(row[state]) <= _STEADY * min(row[state]) + slack_us for state in STATES)


def in_both_states(row: Row, launches: Iterable[Launch], program: str) -> Iterator[MeasuredLaunch]:
    """A row's two launches: over inputs that the cache has lost, and the same again."""
    for launch, state in zip(launches, STATES, strict=True):
        yield MeasuredLaunch(launch, tuple(row[state]), program)


def made_buffer(
    name: str, dtype: str, shape: Sequence[int], stride: Sequence[int], role: Literal["input", "output"], *, numel: int
) -> Buffer:
    """A tensor that a call reads, or makes; ``numel`` elements lie in memory."""
    nbytes = numel * ELEMENT_SIZES[dtype]
    return Buffer(
        name=name,
        role=role,
        dtype=dtype,
        shape=tuple(shape),
        stride=tuple(stride),
        device="cuda:0",
        bytes_read=0 if role == "output" else nbytes,
        bytes_written=nbytes if role == "output" else 0,
        bytes_quality="exact",
    )


def library_launch(
    graph: str,
    order: int,
    operator: str,
    call: str,
    buffers: Sequence[Buffer],
    kwargs: Mapping[str, str],
    *,
    kernel: str | None = None,
    flops: int | None = None,
) -> Launch:
    """A launch of an operator (``"convolution"``) by a wrapper's call (``"extern_kernels.convolution"``)."""
    return Launch(
        graph=graph,
        order=order,
        kernel=kernel or call,
        kernel_name=call,
        category="extern",
        device="cuda:0",
        buffers=tuple(buffers),
        kwargs=kwargs,
        aten_ops=(f"aten.{operator}",),
        call=call,
        flops=flops,
        flops_quality="exact",
    )


def clips_as_no_model_does(item: MeasuredLaunch) -> bool:
    """Atomics by the distance of two places of our own random language models: many clip or step distances so that half
    of all pairs meet in one row of a table for all of them, which no kernel tells and no known model does."""
    atomics = [access for nest in item.launch.loops for access in nest.accesses if access.kind == "atomic"]
    return item.program.startswith("language-") and any(each.strides and each.strides[-1] == 0 for each in atomics)


def write_data(path: Path, launches: Iterable[MeasuredLaunch], device_name: str = "NVIDIA H200") -> int:
    """Write them as data of a device; their number."""
    device = device_of_name(device_name)
    found = tuple(launches)
    write_launches(path, LaunchSet(device.name, found, VERSIONS, device), force=True)
    return len(found)
