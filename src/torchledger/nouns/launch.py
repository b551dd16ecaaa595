"""Compiled graphs, the kernels they define and the launches they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Direction = Literal["forward", "backward", "inference"]

Category = Literal[
    "pointwise",
    "reduction",
    "persistent_reduction",
    "split_scan",
    "template",
    "foreach",
    "combo",
    "extern",
    "user_triton",
    "multi_kernel",
    "cpp",
    "inline",
    "nop",
]
"""Inductor's own categories, plus ``extern`` (library call), ``user_triton``, ``cpp`` (a C++ kernel that holds loops of
several kinds), ``inline`` (an eager line in the wrapper) and ``nop`` (an entry that launches nothing)."""

Quality = Literal["exact", "measured", "estimated", "upper_bound", "unavailable"]


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's model."""

    file: str
    line: int
    function: str | None = None
    code: str | None = None


@dataclass(frozen=True)
class Access:
    """One load or store of a loop nest.

    ``strides`` holds one entry per loop of the nest (in elements; ``None`` where the index is not affine in that
    loop); ``is_indirect`` says that the address depends on loaded values.
    """

    buffer: str
    kind: Literal["load", "store", "atomic"]
    index: str
    strides: tuple[int | None, ...]
    dtype: str | None = None
    is_indirect: bool = False


@dataclass(frozen=True)
class LoopNest:
    """One loop nest inside a fused kernel: what the fit room learns from.

    ``extents`` are the pointwise extents, ``reduction_extents`` those reduced over; ``ops`` counts the operations of
    one iteration by name (``{"mul": 2, "exp": 1}``).
    """

    extents: tuple[int, ...]
    reduction_extents: tuple[int, ...] = ()
    ops: Mapping[str, int] = field(default_factory=dict)
    accesses: tuple[Access, ...] = ()
    reduction_type: str | None = None


@dataclass(frozen=True)
class Buffer:
    """One tensor that a launch touches.

    ``shape`` and ``stride`` are in elements (hints where symbolic; then ``shape_expr``/``stride_expr`` keep the
    expressions). ``bytes_read``/``bytes_written`` are minimum traffic: distinct addresses times element size; ``None``
    is unknown. ``bytes_quality`` is ``"upper_bound"`` where addresses depend on data. ``fx_node`` names the node of the
    graph's ``fx_source`` whose value it holds, where the compiler kept one. ``bytes_read_expr`` and
    ``bytes_written_expr`` are the bytes as expressions in the symbols of a dynamic graph (a plain number where they are
    the same at all sizes; ``None`` where no expression is known): ``work.sizes_at`` evaluates them.
    """

    name: str
    role: Literal["input", "output", "inout", "workspace"]
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    offset: int = 0
    bytes_read: int | None = None
    bytes_written: int | None = None
    bytes_quality: Quality = "exact"
    shape_expr: tuple[str, ...] | None = None
    stride_expr: tuple[str, ...] | None = None
    argument: str | None = None
    fx_node: str | None = None
    bytes_read_expr: str | None = None
    bytes_written_expr: str | None = None


@dataclass(frozen=True)
class Kernel:
    """One emitted function or library entry point.

    ``key`` is the hash of the source with the kernel's own name taken out, so that two names of one source share it
    (for library calls, of the entry point's name). ``sub_kernels`` are the keys of what a MultiKernel or a combo
    kernel is made of. ``seal`` proves that this user wrote the record on this machine (``store.seal``).
    """

    key: str
    name: str
    category: Category
    backend: Literal["triton", "cpp", "aten", "python", "other"]
    source: str | None = None
    path: str | None = None
    sub_kernels: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    seal: str | None = None


@dataclass(frozen=True)
class Launch:
    """One call of a kernel in a graph's wrapper: the ledger's entry.

    ``flops`` are tensor FLOPs (matrix products, convolutions, attention; conserved against the model); ``vector_flops``
    count pointwise and reduction operations from the loop body and are kept apart. ``aten_ops`` are in the order of the
    FX graph, recomputed ones included (also listed in ``recomputed_ops``). ``reason`` says why something is unknown.
    ``compiler_estimate_us`` is the time that Inductor's own model gives the kernel; ``None`` where it has none (CPUs).
    In a dynamic graph ``flops_by_op_expr`` and ``vector_flops_expr`` are the FLOPs as expressions in the graph's
    symbols (an operator that none is known for is missing); both are ``None`` in a graph of one size.
    """

    graph: str
    order: int
    kernel: str
    kernel_name: str
    category: Category
    device: str
    buffers: tuple[Buffer, ...] = ()
    kwargs: Mapping[str, str] = field(default_factory=dict)
    aten_ops: tuple[str, ...] = ()
    recomputed_ops: tuple[str, ...] = ()
    fx_nodes: tuple[str, ...] = ()
    sources: tuple[SourceLine, ...] = ()
    modules: tuple[str, ...] = ()
    wrapper_line: int | None = None
    call: str | None = None
    flops: int | None = None
    flops_quality: Quality = "exact"
    flops_by_op: Mapping[str, int] = field(default_factory=dict)
    vector_flops: int | None = None
    loops: tuple[LoopNest, ...] = ()
    grid: tuple[str, ...] = ()
    reason: str | None = None
    flops_by_op_expr: Mapping[str, str] | None = None
    vector_flops_expr: str | None = None
    compiler_estimate_us: float | None = None

    @property
    def launch_id(self) -> str:
        """``"forward_0#12"``: the graph's name and the place in it."""
        return f"{self.graph}#{self.order}"

    @property
    def is_call(self) -> bool:
        """True when the wrapper has a line that calls it; no-ops and the unpacking of several outputs have none."""
        return self.category != "nop" and (self.call is not None or self.wrapper_line is not None)

    @property
    def source(self) -> str | None:
        """``"model.py:12"``: the last of its source lines, the one it was made for; those before were fused into it."""
        return f"{self.sources[-1].file}:{self.sources[-1].line}" if self.sources else None

    @property
    def module(self) -> str | None:
        """The last of its module paths, as for ``source``."""
        return self.modules[-1] if self.modules else None

    @property
    def bytes_read(self) -> int | None:
        """Minimum bytes read, or ``None`` if any buffer's are unknown."""
        return self._sum_over_buffers("bytes_read")

    @property
    def bytes_written(self) -> int | None:
        """Minimum bytes written, or ``None`` if any buffer's are unknown."""
        return self._sum_over_buffers("bytes_written")

    @property
    def bytes_moved(self) -> int | None:
        """Minimum bytes read plus written."""
        read, written = self.bytes_read, self.bytes_written
        return None if read is None or written is None else read + written

    def _sum_over_buffers(self, name: str) -> int | None:
        if not self.buffers and self.category != "nop":
            return None
        counts = [getattr(buffer, name) for buffer in self.buffers]
        return None if None in counts else sum(counts)

    @property
    def bytes_quality(self) -> Quality:
        """The weakest quality among its buffers; ``"exact"`` for none."""
        return max((buffer.bytes_quality for buffer in self.buffers), key=_QUALITY_RANK.index, default="exact")


@dataclass(frozen=True)
class FlopReference:
    """An independent FLOP count at one stage of compilation, by ATen op.

    ``stage`` is ``"model"``: this direction's part of the joint or inference graph before Inductor's passes, with
    decomposed products counted as what they were.
    """

    stage: Literal["model"]
    flops_by_op: Mapping[str, int]
    uncounted_ops: tuple[str, ...] = ()

    @property
    def flops(self) -> int:
        """Total over the ops."""
        return sum(self.flops_by_op.values())


@dataclass(frozen=True)
class Graph:
    """One compiled graph with its generated wrapper.

    ``name`` is unique in the ledger (``forward_0``); ``compile_id`` is Dynamo's (``"0/0"``). ``wrapper_calls`` are
    the kernel calls found in the generated code by a route that shares nothing with the entries. A backward shares the
    ``model_key`` of its forward; each carries the ``"model"`` FLOP reference of its own direction. ``fx_source`` is the
    FX graph that was lowered, as readable code of ATen calls. ``symbols`` are the sizes that a dynamic graph was
    compiled at, ``symbol_inputs`` say where among the inputs of a call their values stand (``"inputs[3].size(0)"``).
    ``lowered_again`` says that a program which nobody recorded had left the graph in the cache, without entries, and
    whether lowering it gave the same code, whose kernels were then in their caches. ``seal`` proves that this user
    wrote this record and its launches on this machine (``store.seal``). ``config`` are the settings of Inductor that
    were not torch's defaults when it was compiled (``"max_autotune": "True"``). A graph that ``is_ahead_of_time``
    (AOTInductor) runs from a library, often in another process: its calls are in no ledger.
    """

    name: str
    direction: Direction
    compile_id: str | None = None
    model_key: str | None = None
    cache_key: str | None = None
    cache_hit: bool = False
    lowered_again: Literal["same_code", "other_code"] | None = None
    wrapper_source: str | None = None
    wrapper_path: str | None = None
    wrapper_language: Literal["python", "cpp"] = "python"
    wrapper_calls: tuple[str, ...] = ()
    flop_references: tuple[FlopReference, ...] = ()
    symbols: Mapping[str, int] = field(default_factory=dict)
    is_dynamic: bool = False
    cudagraph_skip_reason: str | None = None
    devices: tuple[str, ...] = ()
    fx_source: str | None = None
    seal: str | None = None
    symbol_inputs: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    is_ahead_of_time: bool = False


_QUALITY_RANK: tuple[Quality, ...] = ("exact", "measured", "estimated", "upper_bound", "unavailable")
