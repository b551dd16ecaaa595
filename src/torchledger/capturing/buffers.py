"""The tensors that a launch touches, each with its role and minimum traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from torchledger._torch import inductor, symbol_sizes
from torchledger.capturing.loops import BufferTraffic, Hint, LoopFacts, describe_loops, library_traffic
from torchledger.nouns import Buffer
from torchledger.nouns.launch import Quality
from torchledger.work.element_sizes import element_size

Role = Literal["input", "output", "inout", "workspace"]


def fused_buffers(
    graph: Any, snodes: list[Any], kernel_args: Any, size: Hint | None = None
) -> tuple[tuple[Buffer, ...], LoopFacts]:
    """The buffers among a fused kernel's arguments, and the loop nests behind them.

    ``size`` says how large each symbolic size is; without it they are as large as the graph is compiled at.
    """
    is_asked, size = size is not None, size or (lambda value: symbol_sizes.hint(value, graph))
    arguments = inductor.argument_buffers(kernel_args)
    names = {alias for argument in arguments for alias in argument.aliases}
    shared = [argument.aliases for argument in arguments]

    def known_size(value: Any) -> int | None:
        return None if not is_asked and symbol_sizes.depends_on_data(value) else size(value)

    facts = describe_loops(snodes, names, known_size, shared=shared)
    buffers = []
    for argument in arguments:
        buffer = _buffer(graph, argument.name, argument.role, argument.argument, size)  # type: ignore[arg-type]
        if buffer is None:
            continue
        parts = [facts.traffic[alias] for alias in argument.aliases if alias in facts.traffic]
        buffers.append(_with_traffic(buffer, parts))
    for workspace in inductor.workspace_arguments(kernel_args):
        buffers.append(_workspace(workspace, facts, size))
    return _split_by_role(buffers), facts


def _workspace(workspace: inductor.Workspace, facts: LoopFacts, size: Hint) -> Buffer:
    count, itemsize = size(workspace.count), element_size(workspace.dtype)
    nbytes = None if count is None or itemsize is None else count * itemsize
    # Partial results that a later line of the wrapper adds up are only written; other scratch memory may go both ways.
    is_written_only = facts.holds_partial_results
    return Buffer(
        name=workspace.name,
        role="workspace",
        dtype=workspace.dtype,
        shape=() if count is None else (count,),
        stride=(1,),
        device=workspace.device,
        bytes_read=0 if is_written_only else nbytes,
        bytes_written=nbytes,
        bytes_quality="unavailable" if nbytes is None else "exact" if is_written_only else "upper_bound",
        shape_expr=None if str(workspace.count).isdigit() else (str(workspace.count),),
        argument=workspace.argument,
    )


def _split_by_role(buffers: list[Buffer]) -> tuple[Buffer, ...]:
    """A tensor that is read through one argument and written through another counts each way once."""
    times = Counter(buffer.name for buffer in buffers)
    result = []
    for buffer in buffers:
        if times[buffer.name] > 1 and buffer.bytes_quality != "unavailable":
            is_read = buffer.role == "input"
            buffer = replace(buffer, bytes_written=0) if is_read else replace(buffer, bytes_read=0)
        result.append(buffer)
    return tuple(result)


def extern_buffers(graph: Any, snode: Any, *, is_launch: bool, size: Hint | None = None) -> tuple[Buffer, ...]:
    """The tensors that a library call gets (as the views it gets) and writes; ``size`` as in ``fused_buffers``."""
    if getattr(snode, "node", None) is None:
        return ()
    is_asked, size = size is not None, size or (lambda value: symbol_sizes.hint(value, graph))
    mutated = inductor.mutated_names(snode)
    buffers: list[Buffer] = []
    unsized: set[str] = set()
    for node in [*inductor.extern_inputs(snode), *inductor.extern_outputs(snode)]:
        facts = inductor.tensor_facts(node)
        is_sized = facts is None or not any(map(symbol_sizes.depends_on_data, (*facts.size, *facts.stride)))
        if facts is not None and not is_asked and not is_sized:
            unsized.add(facts.name)
    for node in inductor.extern_inputs(snode):
        facts = inductor.tensor_facts(node)
        if facts is not None:
            role: Role = "inout" if facts.name in mutated else "input"
            buffers.append(_from_facts(graph, facts, role, None, size))
    for node in inductor.extern_outputs(snode):
        facts = inductor.tensor_facts(node)
        if facts is not None and facts.name not in mutated:
            buffers.append(_from_facts(graph, facts, "output", None, size))
    if not is_launch:
        return tuple(replace(buffer, bytes_read=0, bytes_written=0) for buffer in buffers)
    traffic = library_traffic(buffers, call=inductor.extern_kernel_name(snode) or "")
    return tuple(
        replace(buffer, bytes_quality="unavailable")
        if buffer.name in unsized
        else replace(buffer, bytes_read=read, bytes_written=written, bytes_quality=quality)
        for buffer, (read, written, quality) in zip(buffers, traffic, strict=True)
    )


def _with_traffic(buffer: Buffer, parts: list[BufferTraffic]) -> Buffer:
    if not parts:
        return replace(buffer, bytes_quality="unavailable")
    # The names of an in-place pair are one piece of memory: what both touch is the same addresses.
    read = _largest([read for read, _, _ in parts])
    written = _largest([written for _, written, _ in parts])
    quality: Quality = "upper_bound" if any(quality == "upper_bound" for _, _, quality in parts) else "exact"
    if read is None or written is None:
        quality = "unavailable"
    return replace(buffer, bytes_read=read, bytes_written=written, bytes_quality=quality)


def _largest(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _buffer(graph: Any, name: str, role: Role, argument: str, size: Hint) -> Buffer | None:
    facts = inductor.buffer_facts(graph, name)
    return None if facts is None else _from_facts(graph, facts, role, argument, size)


def _from_facts(graph: Any, facts: inductor.TensorFacts, role: Role, argument: str | None, size: Hint) -> Buffer:
    shape, stride = _known(map(size, facts.size)), _known(map(size, facts.stride))
    is_symbolic = any(not str(extent).lstrip("-").isdigit() for extent in (*facts.size, *facts.stride))
    return Buffer(
        name=facts.name,
        role=role,
        dtype=facts.dtype,
        shape=shape if shape is not None else (),
        stride=stride if stride is not None else (),
        device=facts.device,
        offset=size(facts.offset) or 0,
        bytes_read=None,
        bytes_written=None,
        shape_expr=tuple(str(extent) for extent in facts.size) if is_symbolic else None,
        stride_expr=tuple(str(extent) for extent in facts.stride) if is_symbolic else None,
        argument=argument,
        fx_node=inductor.fx_value_name(graph, facts.name),
    )


def _known(sizes: Iterable[int | None]) -> tuple[int, ...] | None:
    found = tuple(sizes)
    return None if None in found else found  # type: ignore[return-value]
