"""What a fused kernel does: its loop nests, the operations in them, and the minimum traffic of each buffer.

Enters: the scheduler nodes behind one kernel, while Inductor still knows them. Leaves: plain records and numbers.

The statements of the loop bodies are followed backwards from what they store, so that dead loads do not count, and
forwards from index comparisons, so that a masked load (concatenation, padding) counts what its mask lets through.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy

from torchledger._torch import loops as adapter
from torchledger._torch.loops import LoopProgram, Statement, TemplateAccesses, TensorLayout
from torchledger.capturing.loop_bodies import Body
from torchledger.capturing.traffic import Extent, IndexedAccess, count_addresses, count_traffic
from torchledger.nouns import Buffer, LoopNest
from torchledger.nouns.launch import Quality
from torchledger.signals import let_through
from torchledger.work.categories import operator_name
from torchledger.work.element_sizes import element_size
from torchledger.work.views import makes_view

log = logging.getLogger(__name__)

Hint = Callable[[Any], int | None]
BufferTraffic = tuple[int | None, int | None, Quality]
"""Bytes read, bytes written (``None``: unknown) and how sure they are."""

UNKNOWN_TRAFFIC: BufferTraffic = (None, None, "unavailable")


@dataclass(frozen=True)
class LoopFacts:
    """What a fused kernel's loops say.

    ``traffic`` maps each of the kernel's buffers to ``BufferTraffic``. ``vector_flops`` are pointwise and reduction
    operations times their iterations: one for each operation (an ``exp`` too), none for loads, stores, casts,
    comparisons, selections and index arithmetic. ``holds_partial_results`` says that the kernel leaves partial sums in
    a workspace for a later line to add up. ``reason`` says why something is unknown.
    """

    loops: tuple[LoopNest, ...] = ()
    vector_flops: int | None = None
    traffic: Mapping[str, BufferTraffic] = field(default_factory=dict)
    reason: str | None = None
    holds_partial_results: bool = False


def describe_loops(
    snodes: Iterable[Any],
    call_buffer_names: Collection[str],
    hint: Hint,
    *,
    shared: Iterable[Sequence[str]] = (),
) -> LoopFacts:
    """Describe the kernel that the scheduler nodes ``snodes`` became, in the order in which it runs them.

    ``call_buffer_names`` are the buffers that the kernel really gets as arguments: values that stay in registers are
    no traffic. ``shared`` groups those that are one argument because one is written over the other; a group's traffic
    stands at its first name. ``hint`` turns a symbolic size into a number. Never raises: what cannot be read is
    unknown, with the reason.
    """
    try:
        return _describe(list(snodes), call_buffer_names, hint, [tuple(group) for group in shared])
    except Exception as error:  # guards the user's compilation; the reason is recorded with the launch
        let_through(error)
        log.debug("describing loops failed", exc_info=error)
        unknown = dict.fromkeys(call_buffer_names, UNKNOWN_TRAFFIC)
        return LoopFacts((), None, unknown, f"loops not described: {type(error).__name__}: {error}")


def library_traffic(buffers: Sequence[Buffer], *, call: str = "") -> list[BufferTraffic]:
    """Minimum traffic of each tensor of a library call: every element of the view that it gets, once; elements that
    several views share count for the first. A call that only makes a view moves nothing.

    A tensor that is mutated is read and written as a whole, which is the most that the call may do.
    ``call`` is the call's name: where its data decides which elements it reads (``aten.index``), all of them are an
    upper bound.
    """
    picks_by_data = any(word in call for word in _PICKING_BY_DATA)
    if makes_view(operator_name(call)[1], buffers):
        return [(0, 0, "exact")] * len(buffers)
    result: list[BufferTraffic] = []
    seen: dict[str, list[IndexedAccess]] = {}
    for buffer in buffers:
        itemsize = element_size(buffer.dtype)
        if itemsize is None or len(buffer.shape) != len(buffer.stride):
            result.append(UNKNOWN_TRAFFIC)
            continue
        view = _view_access(buffer.shape, buffer.stride, buffer.offset)
        read = written = 0
        quality: Quality = "exact"
        if buffer.role in ("input", "inout"):
            earlier = seen.setdefault(buffer.name, [])
            before, after = count_addresses(earlier), count_addresses([*earlier, view])
            earlier.append(view)
            read = (after.count - before.count) * itemsize
            quality = "upper_bound" if picks_by_data else after.quality
        if buffer.role != "input":
            written = count_addresses([view]).count * itemsize
        if buffer.role == "inout":
            quality = "upper_bound"
        result.append((read, written, quality))
    if _GIVEN_A_WEIGHT_TWICE in call and [buffer.role for buffer in buffers[:3]] == ["input"] * 3:
        # Packed by MKL, into a buffer whose size says nothing (megabytes for a 16 x 10 weight), and as it was. One of
        # them is read, and either holds the same elements.
        result[1], result[2] = result[2], (0, 0, "exact")
    return result


_GIVEN_A_WEIGHT_TWICE = "mkl._mkl_linear"
_PICKING_BY_DATA = ("index", "gather", "scatter", "embedding", "take", "grouped_mm", "grid_sampler", "searchsorted")


# ---------------------------------------------------------------------------------------------------------------------
# One kernel


@dataclass
class _Found:
    """What was found in the nodes of one kernel so far; ``accesses`` are in the order of the kernel.

    ``leaders`` maps each buffer among the kernel's arguments to the name at which its traffic is counted.
    """

    leaders: Mapping[str, str]
    nests: list[LoopNest] = field(default_factory=list)
    vector_flops: int = 0
    accesses: list[tuple[str, IndexedAccess]] = field(default_factory=list)
    mentioned: set[str] = field(default_factory=set)
    sparse: set[str] = field(default_factory=set)
    has_template: bool = False
    holds_partial_results: bool = False
    layouts: dict[str, TensorLayout | None] = field(default_factory=dict)

    def layout(self, name: str, hint: Hint) -> TensorLayout | None:
        if name not in self.layouts:
            self.layouts[name] = adapter.tensor_layout(name, hint)
        return self.layouts[name]


def _describe(snodes: list[Any], names: Collection[str], hint: Hint, shared: Sequence[tuple[str, ...]]) -> LoopFacts:
    in_memory = {name for name in names if not adapter.is_register_only(name)}
    groups = [[adapter.argument_name(name) for name in group if name in in_memory] for group in shared]
    leaders = {name: group[0] for group in groups for name in group}
    found = _Found({real: leaders.get(real, real) for real in map(adapter.argument_name, in_memory)})
    reasons = [] if snodes else ["no schedule is known for this kernel"]
    for snode in snodes:
        try:
            if adapter.has_loop_body(snode):
                program = adapter.loop_program(snode, hint)
                _add_program(found, program, hint)
            elif adapter.is_template_node(snode):
                _add_template(found, adapter.template_accesses(snode, hint))
            elif not adapter.is_empty_node(snode):
                reasons.append(f"{adapter.node_name(snode)} has no loops that can be read")
        except adapter.UnknownLoops as error:
            reasons.append(str(error))
    if reasons:
        return LoopFacts(
            tuple(_merge_equal(found.nests)), None, dict.fromkeys(names, UNKNOWN_TRAFFIC), "; ".join(reasons)
        )
    blocks = _by_memory(found.accesses, hint)
    traffic = {name: _traffic(name, found, blocks, hint) for name in sorted(names)}
    unknown = [name for name, (read, written, _) in traffic.items() if read is None or written is None]
    reason = f"no access found to {', '.join(unknown)}" if unknown else None
    return LoopFacts(tuple(_merge_equal(found.nests)), found.vector_flops, traffic, reason, found.holds_partial_results)


_Blocks = Mapping[str, Sequence[tuple[str, int, IndexedAccess]]]
"""Accesses by the memory that they go to: the buffer, where it starts in the memory, and the access."""


def _by_memory(accesses: Iterable[tuple[str, IndexedAccess]], hint: Hint) -> _Blocks:
    blocks: dict[str, list[tuple[str, int, IndexedAccess]]] = {}
    places: dict[str, tuple[str, int]] = {}
    for name, access in accesses:
        if name not in places:
            places[name] = adapter.shared_memory(name, hint)
        memory, start = places[name]
        blocks.setdefault(memory, []).append((name, start, access))
    return blocks


def _traffic(name: str, found: _Found, blocks: _Blocks, hint: Hint) -> BufferTraffic:
    real = adapter.argument_name(name)
    if found.leaders.get(real) != real:
        return 0, 0, "exact"  # kept in registers, or counted at the first name of the argument
    layout = found.layout(real, hint)
    if layout is None or (real not in found.mentioned and not found.has_template):
        return UNKNOWN_TRAFFIC
    extent = Extent(layout.size, layout.stride, layout.offset)
    if real not in found.mentioned:
        # An argument of a template that its own inputs do not name: a captured tensor of a score function.
        return extent.count() * layout.itemsize, 0, "upper_bound"
    memory, start = adapter.shared_memory(real, hint)
    accesses = []
    for other, other_start, access in blocks.get(memory, ()):
        if other == real:
            accesses.append(access)
        elif access.kind == "store":
            # A part of a concatenation that this launch wrote through its own argument needs no read.
            accesses.append(replace(access, kind="cover", index=access.index + (other_start - start)))
    count = count_traffic(accesses, extent)
    quality: Quality = "upper_bound" if real in found.sparse else count.quality
    return count.read * layout.itemsize, count.written * layout.itemsize, quality


def _add_template(found: _Found, template: TemplateAccesses) -> None:
    found.has_template = True
    for layout in template.reads:
        name = found.leaders.get(layout.name, layout.name)
        found.mentioned.add(name)
        found.accesses.append((name, _view_access(layout.size, layout.stride, layout.offset)))
        if template.is_sparse:
            found.sparse.add(name)
    for layout in template.writes:
        name = found.leaders.get(layout.name, layout.name)
        found.mentioned.add(name)
        access = replace(_view_access(layout.size, layout.stride, layout.offset), kind="store")
        found.accesses.append((name, access))


def _view_access(size: Sequence[int], stride: Sequence[int], offset: int) -> IndexedAccess:
    symbols = [sympy.Symbol(f"dimension{axis}", integer=True, nonnegative=True) for axis in range(len(size))]
    index = sum((step * symbol for step, symbol in zip(stride, symbols, strict=True)), sympy.Integer(offset))
    return IndexedAccess(index, tuple(zip(symbols, size, strict=True)))


def _merge_equal(nests: Sequence[LoopNest]) -> list[LoopNest]:
    """Nests that run over the same extents one after the other are one nest, as fusion made them."""
    merged: list[LoopNest] = []
    for nest in nests:
        last = merged[-1] if merged else None
        if last is None or (last.extents, last.reduction_extents) != (nest.extents, nest.reduction_extents):
            merged.append(nest)
            continue
        types = [part.reduction_type for part in (last, nest) if part.reduction_type]
        merged[-1] = LoopNest(
            last.extents,
            last.reduction_extents,
            dict(Counter(last.ops) + Counter(nest.ops)),
            tuple(dict.fromkeys((*last.accesses, *nest.accesses))),
            "+".join(dict.fromkeys(types)) or None,
        )
    return merged


# ---------------------------------------------------------------------------------------------------------------------
# One loop body


def _add_program(found: _Found, program: LoopProgram, hint: Hint) -> None:
    body = Body(program)
    extents = tuple(size for _, size in program.loops)
    reduced = tuple(size for _, size in program.reduced)
    found.vector_flops += body.vector_flops()
    found.holds_partial_results |= any(s.name == "partial_accumulate" for s in program.statements)
    accesses = []
    for place in body.memory_statements():
        for buffer in _buffers_of(body.statements[place]):
            name = adapter.argument_name(buffer)
            if name not in found.leaders:
                continue
            leader = found.leaders[name]
            found.mentioned.add(leader)
            if place not in body.live:
                continue
            layout = found.layout(name, hint)
            found.accesses.append((leader, body.indexed_access(place, layout)))
            accesses.append(body.access(place, name, layout.dtype if layout is not None else None))
    found.nests.append(
        LoopNest(extents, reduced, dict(body.operations()), tuple(dict.fromkeys(accesses)), body.reduction_type())
    )


def _buffers_of(statement: Statement) -> list[str]:
    if statement.name == "bucketize":
        # The boundaries, and the order in which to read them if they are not sorted.
        tables = [part for part in statement.arguments[1:] if isinstance(part, tuple) and part]
        return [str(table[0]) for table in tables]
    return [str(statement.arguments[0])]
