"""The loops of fused kernels: Inductor's ``LoopBody`` and template nodes as plain statements.

A loop body is a small program: statements in order, each with a name (``load``, ``mul``, ``reduction``, ``store``) and
arguments that refer to earlier statements. Masked sub-blocks are written out in place, their statements marked with
the masks around them. Symbolic sizes are replaced by their hints, so that what remains in an index are loops and
symbols that come from loaded data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

Hint = Callable[[Any], int | None]


class UnknownLoops(Exception):
    """A scheduler node whose loops cannot be read; the message says why."""


@dataclass(frozen=True)
class Ref:
    """The value of an earlier statement, by its place in ``LoopProgram.statements``."""

    place: int


@dataclass(frozen=True)
class Statement:
    """One operation of a loop body.

    Arguments are literals, ``Ref``, ``sympy`` index expressions, dtypes as text, or tuples of these:
    ``load(buffer, index)``, ``store(buffer, index, value, mode)``, ``store_reduction(buffer, index, value)``,
    ``reduction(dtype, source dtype, type, value)``, ``set_indirect(value, symbol)``, ``masked(mask, value, other)``.
    """

    name: str
    arguments: tuple[Any, ...] = ()
    masks: tuple[Ref, ...] = ()


@dataclass(frozen=True)
class LoopProgram:
    """One scheduler node's loops: pointwise loops, reduced loops (variable, extent), and the statements inside."""

    loops: tuple[tuple[sympy.Symbol, int], ...]
    reduced: tuple[tuple[sympy.Symbol, int], ...]
    statements: tuple[Statement, ...]
    indirect: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class TensorLayout:
    """Where a tensor lies in its buffer: sizes and strides in elements, as hints."""

    name: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    itemsize: int
    dtype: str


@dataclass(frozen=True)
class TemplateAccesses:
    """What a template kernel reads and writes by itself, without its fused epilogue."""

    reads: tuple[TensorLayout, ...]
    writes: tuple[TensorLayout, ...]
    is_sparse: bool = False


def has_loop_body(snode: Any) -> bool:
    """True for a node with loops of its own (not a template, library call or no-op)."""
    return getattr(snode, "_body", None) is not None


def is_template_node(snode: Any) -> bool:
    """True for a template's own node."""
    return isinstance(getattr(snode, "node", None), ir.TemplateBuffer)


def is_empty_node(snode: Any) -> bool:
    """True for a node that runs nothing in a kernel."""
    return type(snode).__name__ == "NopKernelSchedulerNode" or isinstance(getattr(snode, "node", None), ir.MultiOutput)


def node_name(snode: Any) -> str:
    """The name of a scheduler node, for messages."""
    try:
        return str(snode.get_name())
    except (AttributeError, NotImplementedError):
        return type(snode).__name__


def argument_name(name: str) -> str:
    """The name under which a kernel gets a buffer: that of the buffer that was mutated, where it stands for one."""
    scheduler = getattr(V.graph, "scheduler", None)
    return str(getattr(scheduler, "mutation_real_name", {}).get(name, name))


def is_register_only(name: str) -> bool:
    """True for a value that fusion took out of memory, even where it was to be written over an argument."""
    graph = V.graph
    return any(name in (getattr(graph, removed, None) or ()) for removed in ("removed_buffers", "inplaced_to_remove"))


def shared_memory(name: str, hint: Hint) -> tuple[str, int]:
    """The buffer whose memory ``name`` lies in, and at which element: parts of a concatenation lie in the whole."""
    offset = 0
    for _ in range(8):
        buffer = V.graph.try_get_buffer(name)
        layout = getattr(buffer, "layout", None)
        if not isinstance(layout, ir.NonOwningLayout):
            break
        inner = layout.view.get_layout()
        offset += _known(getattr(inner, "offset", 0), hint)
        name = str(layout.view.get_name())
    return argument_name(name), offset


def tensor_layout(name: str, hint: Hint) -> TensorLayout | None:
    """The layout of a buffer, graph input or constant by its name; ``None`` if it has none."""
    constants = getattr(V.graph, "constants", {})
    if name in constants:
        tensor = constants[name]
        return _layout_of(name, tensor.shape, tensor.stride(), 0, tensor.dtype, hint)
    buffer = V.graph.try_get_buffer(name)
    return None if buffer is None else _node_layout(buffer, name, hint)


def template_accesses(snode: Any, hint: Hint) -> TemplateAccesses:
    """The tensors that a template reads and writes.

    A Triton template with several outputs takes the others as inputs that it mutates: they are written, not read.
    """
    node = snode.node
    mutated = list(getattr(node, "mutated_inputs", None) or ())
    mutated_names = {str(value.get_name()) for value in mutated}
    reads = []
    for value in node.inputs:
        name = str(value.get_name())
        layout = _node_layout(value, argument_name(name), hint)
        if layout is None:
            raise UnknownLoops(f"the template {node_name(snode)} reads {name}, which has no layout")
        if name not in mutated_names:
            reads.append(layout)
    writes = []
    children = getattr(node, "_multi_output_children", {}).values()
    for value in (node, *children, *mutated):
        layout = _node_layout(value, argument_name(str(value.get_name())), hint)
        if layout is not None:
            writes.append(layout)
    # Attention templates with a score function skip blocks that their mask leaves out.
    return TemplateAccesses(tuple(reads), tuple(writes), is_sparse=bool(getattr(node, "subgraph_outs", None)))


def _node_layout(node: Any, name: str, hint: Hint) -> TensorLayout | None:
    while isinstance(node, ir.MutableBox):
        node = node.data
    try:
        layout = node.get_layout() if isinstance(node, ir.IRNode) else None
    except NotImplementedError:
        return None
    if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        layout = layout.real_layout()
    if layout is None or not all(hasattr(layout, part) for part in ("size", "stride", "dtype")):
        return None
    # A part of another buffer is handed to the kernel as a pointer to its own start.
    offset = 0 if isinstance(layout, ir.NonOwningLayout) else getattr(layout, "offset", 0)
    return _layout_of(name, layout.size, layout.stride, offset, layout.dtype, hint)


def _layout_of(
    name: str, size: Iterable[Any], stride: Iterable[Any], offset: Any, dtype: torch.dtype, hint: Hint
) -> TensorLayout:
    return TensorLayout(
        name,
        tuple(_known(extent, hint) for extent in size),
        tuple(_known(step, hint) for step in stride),
        _known(offset, hint),
        dtype.itemsize,
        str(dtype).removeprefix("torch."),
    )


def _known(value: Any, hint: Hint) -> int:
    found = hint(value)
    if found is None:
        raise UnknownLoops(f"the size {value} is not known when compiling")
    return int(found)


# ---------------------------------------------------------------------------------------------------------------------
# Loop bodies


def loop_program(snode: Any, hint: Hint) -> LoopProgram:
    """The loops and statements of a scheduler node, after Inductor merged and reordered its loops."""
    body = snode._body
    loops = tuple((symbol, _known(body.var_ranges[symbol], hint)) for symbol in body.iter_vars)
    reduced = tuple((symbol, _known(body.var_ranges[symbol], hint)) for symbol in body.reduce_vars)
    reader = _BodyReader(body, hint)
    reader.read(body.root_block.graph, ())
    indirect = {str(symbol): hint(size) for symbol, size in body.indirect_var_ranges.items()}
    return LoopProgram(loops, reduced, tuple(reader.statements), indirect)


def loop_extents(snode: Any) -> list[sympy.Expr]:
    """Iterations of a scheduler node's loops, still symbolic: of all of them, and of those that are not reduced."""
    body = getattr(snode, "_body", None)
    if body is None:
        return []
    kept = sympy.Mul(*(body.var_ranges[symbol] for symbol in body.iter_vars))
    return [kept * sympy.Mul(*(body.var_ranges[symbol] for symbol in body.reduce_vars)), kept]


class _BodyReader:
    def __init__(self, body: Any, hint: Hint) -> None:
        self.body = body
        self.hint = hint
        self.statements: list[Statement] = []
        self._own_symbols = {*body.var_ranges, *body.indirect_vars}
        self._resolved: dict[str, sympy.Expr] = {}

    def read(self, graph: Any, masks: tuple[Ref, ...]) -> Any:
        """Append the statements of one block; returns the value that the block gives back."""
        values: dict[Any, Any] = {}
        result: Any = None
        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = None
            elif node.op == "output":
                result = self._value(node.args[0], values)
                if isinstance(result, tuple) and len(result) == 1:
                    result = result[0]
            elif node.op == "call_method":
                arguments = [self._value(argument, values) for argument in node.args[1:]]
                arguments += [self._value(argument, values) for argument in node.kwargs.values()]
                values[node] = self._append(str(node.target), tuple(arguments), masks)
            elif node.op == "call_module":
                values[node] = self._module(node, values, masks)
            elif node.op == "call_function":
                arguments = [self._value(argument, values) for argument in node.args]
                values[node] = self._append(getattr(node.target, "__name__", str(node.target)), tuple(arguments), masks)
            else:
                raise UnknownLoops(f"a loop body with {node.op} {node.target}")
        return result

    def _module(self, node: Any, values: Mapping[Any, Any], masks: tuple[Ref, ...]) -> Any:
        target = str(node.target)
        if target == "get_index":
            return self._index(str(node.args[0]))
        arguments = tuple(self._value(argument, values) for argument in node.args)
        if target.startswith("masked_subblock"):
            mask, other = arguments
            inner = (*masks, mask) if isinstance(mask, Ref) else masks
            value = self.read(self.body.subblocks[target].graph, inner)
            return self._append("masked", (mask, value, other), masks)
        if target.startswith("set_"):
            keywords = getattr(getattr(self.body.submodules[target], "clone", None), "keywords", {})
            symbol = str(keywords.get("var", target.removeprefix("set_")))
            return self._append("set_indirect", (arguments[0], symbol), masks)
        if target.startswith("scan"):
            return self._append("scan", arguments, masks)
        raise UnknownLoops(f"a loop body with a call of {target}")

    def _append(self, name: str, arguments: tuple[Any, ...], masks: tuple[Ref, ...]) -> Ref:
        self.statements.append(Statement(name, arguments, masks))
        return Ref(len(self.statements) - 1)

    def _value(self, argument: Any, values: Mapping[Any, Any]) -> Any:
        if isinstance(argument, torch.fx.Node):
            return values[argument]
        if isinstance(argument, (list, tuple)):
            return tuple(self._value(part, values) for part in argument)
        if isinstance(argument, dict):
            return tuple(self._value(part, values) for part in argument.values())
        if isinstance(argument, torch.dtype):
            return str(argument).removeprefix("torch.")
        return argument

    def _index(self, name: str) -> sympy.Expr:
        if name not in self._resolved:
            expression = sympy.sympify(self.body.indexing_exprs[name])
            sizes = expression.free_symbols - self._own_symbols
            if sizes:
                known = {symbol: sympy.Integer(_known(symbol, self.hint)) for symbol in sizes}
                expression = expression.xreplace(known)
            self._resolved[name] = expression
        return self._resolved[name]
