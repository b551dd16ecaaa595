"""What fills a device's memory in a step: each storage from its allocation to its end, and what counted beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MemoryCategory = Literal[
    "parameters",
    "buffers",
    "optimizer_state",
    "gradients",
    "inputs",
    "activations",
    "temporaries",
    "eager",
    "collectives",
    "cuda_graphs",
    "workspaces",
    "kept",
    "blocks",
]
"""What a storage is for: ``activations`` were made before a backward and are alive when it begins, ``temporaries`` live
within one call of a compiled graph or come out of its backward, ``eager`` are other tensors of eager operators,
``inputs`` what the step reads, ``kept`` what was there before and no call of the step was given; ``cuda_graphs`` are
pools of recorded graphs, ``workspaces`` of libraries, ``collectives`` buffers of communication. ``blocks`` is no
storage: rests that a caching allocator does not cut off larger blocks."""

MemoryCounter = Literal["cuda_allocator", "cpu_profiler"]
"""Who counted beside the ledger: the caching allocator's own peak, or allocations that the profiler saw on a CPU."""


@dataclass(frozen=True)
class LiveStorage:
    """One storage that was alive in a step, with its size in bytes as it was asked for.

    ``number`` tells the storages of a step apart. ``born`` and ``freed`` are places in the order of all allocations and
    frees of the step: ``None`` for what was there before it, and for what is still there after it. ``born_in`` and
    ``freed_in`` are the orders of the step's calls (``StepCall.order``) in which that happened; within a graph's call
    ``born_launch`` is the launch that was next, ``freed_launch`` likewise. ``name`` is a parameter's path, for
    gradients and optimizer state too. ``operator`` made it, for ``module`` at ``source``; ``needed_by`` is the last
    call that was given it, ``read_by`` are the
    modules that read it before the backward (``"@12"`` for the call of a graph with that order).
    """

    step: str
    number: int
    category: MemoryCategory
    nbytes: int
    device: str
    born: int | None = None
    born_in: int | None = None
    born_launch: int | None = None
    freed: int | None = None
    freed_in: int | None = None
    freed_launch: int | None = None
    name: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    operator: str | None = None
    module: str | None = None
    source: str | None = None
    needed_by: int | None = None
    read_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepMemory:
    """What is known of a step's memory beside its storages; bytes throughout.

    ``rounding`` is what the device's allocator rounds each size up to. ``measured_peak_bytes`` is the peak that
    ``counter`` saw, ``requested_peak_bytes`` the same of sizes as asked for, ``reserved_peak_bytes`` what the allocator
    held of the device then, used or not. ``unseen_before_bytes`` was allocated when the step began and belongs to no
    tensor. ``scratch`` is what calls of the step (by order) worked on and gave back, and no tensor ever was;
    ``counted`` holds for calls the most that was counted while they ran, ``unseen`` how much more was counted than the
    storages add to when they began. ``number_bytes`` is what numbers of Python took in the step as tensors, which no
    operator shows; ``held_bytes`` what was there before it and no tensor of Python's shows, as an autograd graph of the
    step before holds it alone.
    """

    step: str
    device: str
    rounding: int = 1
    counter: MemoryCounter | None = None
    measured_peak_bytes: int | None = None
    requested_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    unseen_before_bytes: int | None = None
    scratch: Mapping[str, int] = field(default_factory=dict)
    unseen: Mapping[str, int] = field(default_factory=dict)
    number_bytes: int = 0
    held_bytes: int = 0
    counted: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class MemoryRow:
    """What a category or module holds at the peak of each of two steps, in bytes."""

    name: str
    first_bytes: int
    second_bytes: int

    @property
    def delta_bytes(self) -> int:
        """The second less the first."""
        return self.second_bytes - self.first_bytes


@dataclass(frozen=True)
class MemoryChange:
    """The peaks of two steps, in bytes, and what of them differs; rows are those that changed."""

    first_peak_bytes: int
    second_peak_bytes: int
    by_category: tuple[MemoryRow, ...] = ()
    by_module: tuple[MemoryRow, ...] = ()

    @property
    def delta_bytes(self) -> int:
        """The second peak less the first."""
        return self.second_peak_bytes - self.first_peak_bytes
