"""The memory of a recorded step on another device: its sizes, rounding and library workspaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchledger.memory.caching_allocator import CUDA_ROUNDING
from torchledger.memory.live_set import MemoryTotals, add_up_memory
from torchledger.memory.workspaces import library_workspaces
from torchledger.nouns import Device, Launch, StepCall


def memory_on(
    device: Device,
    totals: MemoryTotals,
    calls: Sequence[StepCall],
    launches: Sequence[Launch],
    *,
    convolution_tf32: bool = True,
) -> MemoryTotals:
    """What a step would hold on ``device``: the same tensors, as that device's allocator gives them.

    Where the compiler would fuse otherwise on that device, temporaries differ; what was counted on the first device is
    left out.
    """
    is_cuda = device.kind == "cuda"
    kept = [each for each in totals.storages if each.category not in ("workspaces", "cuda_graphs")]
    step = totals.memory.step
    memory = replace(
        totals.memory,
        device=device.name,
        rounding=CUDA_ROUNDING if is_cuda else 1,
        counter=None,
        measured_peak_bytes=None,
        requested_peak_bytes=None,
        reserved_peak_bytes=None,
        unseen_before_bytes=None,
        scratch={},
        unseen={},
        counted={},
    )
    by_graph: dict[str, list[Launch]] = {}
    for launch in launches:
        by_graph.setdefault(launch.graph, []).append(launch)
    workspaces = library_workspaces(
        calls,
        by_graph,
        kept,
        step=step,
        device=device.name,
        compute_capability=device.compute_capability if is_cuda else None,
        first_number=max((each.number for each in totals.storages), default=-1) + 1,
        convolution_tf32=convolution_tf32,
    )
    return add_up_memory(memory, [*kept, *workspaces])
