"""What is known of a graph's entries while Inductor still knows them: heard calls become launches."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torchledger._torch import inductor, symbol_sizes
from torchledger._torch.flex_masks import facts_of_flex
from torchledger._torch.flops import formulas
from torchledger.capturing import flops as flop_count
from torchledger.capturing import provenance
from torchledger.capturing.buffers import extern_buffers, fused_buffers
from torchledger.capturing.inline_lines import read_reduction, reduction_buffers
from torchledger.capturing.loops import Hint, LoopFacts
from torchledger.capturing.size_forms import SizeForms
from torchledger.nouns import Buffer, Category, Difference, Gap, Kernel, Launch, Quality
from torchledger.signals import let_through

log = logging.getLogger(__name__)

_OWNER_RANK: dict[str, int] = {"extern": 0, "template": 0, "user_triton": 0, "multi_kernel": 1, "reduction": 1}


@dataclass
class Definition:
    """The latest meaning of a kernel name: one name is defined anew for each launch of de-duplicated source."""

    snodes: list[Any]
    kernel_args: Any


@dataclass
class Entry:
    """A launch as heard; details are filled in when its graph has been written."""

    kind: Literal["fused", "extern", "inline", "nop"]
    name: str
    call: str | None
    graph: Any
    snodes: list[Any]
    kernel_args: Any = None
    device: str | None = None
    line: str | None = None


@dataclass
class Recording:
    """What was heard of one root graph."""

    entries: list[Entry] = field(default_factory=list)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    definitions: dict[str, Definition] = field(default_factory=dict)
    launches: dict[int, Launch] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    counted: list[tuple[Any, flop_count.NodeFlops]] = field(default_factory=list)
    not_lowered: Counter[str] = field(default_factory=Counter)
    """FLOPs by operator that the graph holds and no launch does."""


def describe_entries(graph: Any, recording: Recording) -> None:
    """Fill in provenance, buffers and FLOPs of the entries of one graph while Inductor still knows them."""
    order = {node: index for index, node in enumerate(graph.graph.nodes)}
    candidates: dict[Any, list[tuple[int, int]]] = {}
    forms = SizeForms(graph)
    indices = [index for index, entry in enumerate(recording.entries) if entry.graph is graph]
    for index in indices:
        if index in recording.launches:
            continue
        entry = recording.entries[index]
        try:
            launch, origins = _launch(entry, index, graph, order, recording, forms)
        except Exception as error:
            let_through(error)
            log.debug("describing %s failed", entry.name, exc_info=error)
            recording.gaps.append(
                Gap("launches", entry.name, f"could not be described: {type(error).__name__}: {error}")
            )
            launch = Launch("", index, _key(entry, recording), entry.name, _entry_category(entry, recording), "")
            origins = []
        recording.launches[index] = launch
        rank = 3 if launch.category in ("nop", "inline") else _OWNER_RANK.get(launch.category, 2)
        exact = set(inductor.exact_origins(entry.snodes)) if entry.kind == "extern" else set()
        for origin in origins:
            candidates.setdefault(origin, []).append((rank if origin not in exact else -1, index))
    counted = flop_count.count_graph(graph, graph, with_subgraphs=False)
    recording.counted.extend((graph, node) for node in counted.nodes)
    owned, orphans = flop_count.assign_owners(counted, candidates)
    for index in indices:
        launch = _with_flops(recording.launches[index], recording.entries[index], owned.get(index, []))
        if forms.points:
            launch = replace(launch, flops_by_op_expr=flop_count.forms_by_op(owned.get(index, [])))
        recording.launches[index] = launch
    for orphan in orphans:
        recording.not_lowered[orphan.op] += orphan.flops
        recording.gaps.append(
            Gap("flops", orphan.node.name, f"no launch was lowered from this {orphan.op}", orphan.flops)
        )


def _launch(
    entry: Entry,
    index: int,
    graph: Any,
    order: dict[Any, int],
    recording: Recording,
    forms: SizeForms,
) -> tuple[Launch, list[Any]]:
    snodes = entry.snodes
    origins = sorted(inductor.fx_origins(snodes), key=lambda node: order.get(node, len(order)))
    shown = _library_origins(entry, origins) if entry.kind == "extern" else origins
    calls = [(node, op) for node in shown if (op := provenance.aten_op(node)) is not None]
    is_backward_graph = inductor.direction(inductor.root_graph(graph)) == "backward"
    recomputed = [op for node, op in calls if is_backward_graph and node.meta.get("partitioner_tag") == "is_forward"]
    category = _entry_category(entry, recording)
    buffers, facts = _buffers(entry, graph)
    vector_flops = facts.vector_flops if facts is not None else 0 if entry.kind == "nop" else None
    buffers, vector_form = forms.of(snodes, buffers, vector_flops, lambda size: _counts(*_buffers(entry, graph, size)))
    if entry.line is not None:
        buffers = _inline_buffers(entry.line, graph, recording)
        vector_flops = math.prod(buffers[0].shape) if buffers else None
    sources = provenance.sources(shown) or provenance.sources(origins)
    modules = provenance.modules(shown) or provenance.modules(origins)
    reason = facts.reason if facts is not None else None
    if not sources and not modules and category != "nop":
        # A copy into another layout comes from no line of the model but serves one: that of its reader.
        served = inductor.fx_origins(inductor.consumers(snodes))
        sources, modules = provenance.sources(served), provenance.modules(served)
        cause = next((f" for {op}" for node in served if (op := provenance.aten_op(node)) is not None), "")
        reason = _join(reason, f"no line of the model asks for this: the compiler made it{cause}")
    if entry.kind == "fused" and not snodes:
        reason = _join(reason, "the compiler gave no schedule for this kernel")
    device = entry.device or next((buffer.device for buffer in buffers), None) or _device(snodes) or ""
    launch = Launch(
        graph="",
        order=index,
        kernel=_key(entry, recording),
        kernel_name=entry.name,
        category=category,
        device=device,
        buffers=buffers,
        kwargs=_constants(entry, category, origins),
        aten_ops=tuple(op for _, op in calls),
        recomputed_ops=tuple(recomputed),
        fx_nodes=tuple(node.name for node in shown),
        sources=sources,
        modules=modules,
        call=entry.call,
        vector_flops=vector_flops,
        vector_flops_expr=vector_form,
        loops=facts.loops if facts is not None else (),
        reason=reason,
        compiler_estimate_us=_estimate(graph, snodes) if entry.kind in ("fused", "extern") else None,
    )
    return launch, origins


def _constants(entry: Entry, category: Category, origins: list[Any]) -> Mapping[str, str]:
    """What a library call is given beside tensors, and what a template of attention leaves out."""
    if category == "template":
        return facts_of_flex(origins)
    return inductor.extern_constants(entry.snodes[0]) if entry.kind == "extern" and entry.snodes else {}


def _estimate(graph: Any, snodes: list[Any]) -> float | None:
    try:
        return inductor.estimated_us(graph, snodes)
    except Exception as error:  # the compiler's opinion is no part of the books
        let_through(error)
        log.debug("no estimate of %s", snodes, exc_info=error)
        return None


def _buffers(entry: Entry, graph: Any, size: Hint | None = None) -> tuple[tuple[Buffer, ...], LoopFacts | None]:
    if entry.kind == "fused" and entry.kernel_args is not None:
        return fused_buffers(graph, entry.snodes, entry.kernel_args, size)
    if entry.snodes and entry.kind != "inline":
        return extern_buffers(graph, entry.snodes[0], is_launch=entry.kind != "nop", size=size), None
    return (), None


def _inline_buffers(line: str, graph: Any, recording: Recording) -> tuple[Buffer, ...]:
    """What an eager line that adds up the latest launch's partial results reads and writes."""
    reduction = read_reduction(line)
    if reduction is None:
        return ()
    for index in sorted(recording.launches, reverse=True):
        for buffer in recording.launches[index].buffers:
            if (buffer.name, buffer.role) == (reduction.source, "workspace"):
                output = inductor.buffer_facts(graph, reduction.target)
                dtype = None if output is None else output.dtype
                return reduction_buffers(reduction, buffer, dtype, symbol_sizes.symbol_hints(graph))
    return ()


def _counts(buffers: tuple[Buffer, ...], facts: LoopFacts | None) -> tuple[tuple[Buffer, ...], int | None]:
    return buffers, None if facts is None else facts.vector_flops


def _library_origins(entry: Entry, origins: list[Any]) -> list[Any]:
    """What a library call computes, without what its operands were computed from."""
    exact = inductor.exact_origins(entry.snodes)
    if exact:
        return exact
    packet = str(flop_count.packet_of(entry.name))
    named = [node for node in origins if provenance.aten_op(node) == packet]
    # Under another name (scatter_add as scatter_reduce_) it is the latest: the others made what it reads.
    called = [node for node in origins if provenance.aten_op(node) is not None]
    return named or called[-1:] or origins


def _with_flops(launch: Launch, entry: Entry, owned: Sequence[flop_count.NodeFlops]) -> Launch:
    if owned:
        by_op = flop_count.GraphFlops(list(owned)).by_op()
        quality: Quality = "upper_bound" if flop_count.is_overcounted(by_op, launch) else "exact"
        return replace(launch, flops=sum(by_op.values()), flops_by_op=by_op, flops_quality=quality)
    if entry.kind == "extern":
        packet = flop_count.packet_of(entry.name)
        found = flop_count.extern_flops(packet, launch) if packet is not None else None
        if found:
            return replace(launch, flops=found[1], flops_by_op={found[0]: found[1]})
        is_known = packet in formulas()
        if packet is None or is_known or str(packet).split(".")[0] in flop_count.TORCH_NAMESPACES:
            return replace(launch, flops=0)
        reason = _join(launch.reason, f"no FLOP formula for {packet}")
        return replace(launch, flops=None, flops_quality="unavailable", reason=reason)
    if launch.category == "user_triton":
        reason = "the FLOPs of a user's Triton kernel are not known to the compiler"
        return replace(launch, flops=None, flops_quality="unavailable", reason=_join(launch.reason, reason))
    return replace(launch, flops=0)


def _entry_category(entry: Entry, recording: Recording) -> Category:
    if entry.kind == "fused":
        kernel = recording.kernels.get(entry.name)
        return kernel.category if kernel is not None else "user_triton"
    return entry.kind


def _key(entry: Entry, recording: Recording) -> str:
    kernel = recording.kernels.get(entry.name) if entry.kind == "fused" else None
    if kernel is None or not kernel.key:
        backend: Literal["triton", "aten", "python"] = (
            "triton" if kernel is not None else "python" if entry.kind == "inline" else "aten"
        )
        source = kernel.source if kernel is not None else None
        kernel = Kernel(
            hashed(source or entry.name),
            entry.name,
            _entry_category(entry, recording),
            backend,
            source,
            kernel.path if kernel is not None else None,
        )
        recording.kernels[entry.name] = kernel
    return kernel.key


def _device(snodes: list[Any]) -> str | None:
    for snode in snodes:
        device = getattr(snode, "get_device", lambda: None)()
        if device is not None:
            return str(device)
    return None


def _join(first: str | None, second: str) -> str:
    return f"{first}; {second}" if first else second


def hashed(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
