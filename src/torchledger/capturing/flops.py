"""Tensor FLOPs: of an FX graph by operator, of each launch by ownership, and what compilation changed in between.

The count is torch's own (``torch.utils.flop_counter``, completed in ``torchledger._torch.flops``), evaluated on the
shapes that stand in the FX graphs; nothing is run. Every FX node that has FLOPs is owned by exactly one launch, so that
the launches add up to the lowered graph; what differs between the model's graph and the lowered one is named.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchledger._torch.flops import formulas
from torchledger._torch.symbol_sizes import as_expression, hint
from torchledger._torch.tensors import is_higher_order, is_operator, operator_name, tree_map
from torchledger.capturing.provenance import SAVES_RANDOM_STATE, aten_op, called_operator
from torchledger.nouns import FlopReference, Launch
from torchledger.signals import let_through
from torchledger.work.flex import VISITED
from torchledger.work.flops import matmul_flops

log = logging.getLogger(__name__)

TORCH_NAMESPACES = frozenset(
    {"aten", "prims", "prim", "inductor", "_c10d_functional", "c10d_functional", "rngprims", "streams", "mkldnn", "mkl"}
)
"""Namespaces whose operators without a formula do no tensor FLOPs."""

_PRODUCTS = frozenset({"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"})
_DECOMPOSED = _PRODUCTS | {"aten.mv", "aten.dot", "aten.vdot", "aten.addmv"}


@dataclass(frozen=True)
class NodeFlops:
    """FLOPs of one FX node: ``op`` is what the model asked for.

    ``form`` is their expression in the symbols of a dynamic graph, a number elsewhere; ``None`` where there is none.
    """

    node: Any
    op: str
    flops: int
    is_backward: bool
    form: Any = None


@dataclass
class GraphFlops:
    """FLOPs of one FX graph, node by node, and the operators that no formula is known for."""

    nodes: list[NodeFlops] = field(default_factory=list)
    uncounted: Counter[str] = field(default_factory=Counter)
    uncounted_backward: Counter[str] = field(default_factory=Counter)

    def by_op(self) -> dict[str, int]:
        """Total per operator."""
        totals: Counter[str] = Counter()
        for node in self.nodes:
            totals[node.op] += node.flops
        return dict(totals)


def count_graph(graph_module: Any, graph: Any = None, *, with_subgraphs: bool = True) -> GraphFlops:
    """FLOPs of every call in an FX graph and in the distinct subgraphs that it calls (branches, loop bodies).

    A subgraph counts once, as its kernels stand once in the wrapper, however often it runs.
    """
    counted = GraphFlops()
    needs_gradient = _after_tangents(graph_module.graph)
    for node, outermost in _call_nodes(graph_module, set() if with_subgraphs else None):
        found = node_flops(node, graph)
        if found is not None and found.flops:
            is_backward = found.is_backward or _is_tagged_backward(outermost) or outermost in needs_gradient
            counted.nodes.append(replace(found, is_backward=is_backward))
        elif found is None and (name := _uncounted_name(node)) is not None:
            is_backward = _is_tagged_backward(outermost) or outermost in needs_gradient
            (counted.uncounted_backward if is_backward else counted.uncounted)[name] += 1
    return counted


def count_dead(graph: Any, calls: Sequence[Any]) -> tuple[dict[str, int], dict[str, int]]:
    """FLOPs by operator of calls of a joint graph that nothing reads: of its forward, and of its backward."""
    needs_gradient = _after_tangents(graph)
    found: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for node in calls:
        counted = node_flops(node)
        if counted is not None and counted.flops:
            found[counted.is_backward or node in needs_gradient][counted.op] += counted.flops
    return dict(found[0]), dict(found[1])


def past_last_saved(graph: Any) -> frozenset[tuple[int, int]]:
    """What an eager checkpoint does not run again though the program's graph is tagged for it: (region, autograd's
    number) of each such operator of a joint graph.

    Eager code stops where the last tensor is saved that the region's backward needs: a product saves its operands
    before it runs, attention its result after.
    """
    regions: dict[int, dict[int, set[Any]]] = {}
    reads: dict[int, set[Any]] = {}
    for node in graph.nodes:
        number, region = node.meta.get("seq_nr"), node.meta.get("ac_graph_id")
        if number is None:
            continue
        if _is_tagged_backward(node):
            reads.setdefault(number, set()).update(node.all_input_nodes)
        elif region is not None and node.meta.get("recompute") is not None:
            regions.setdefault(region, {}).setdefault(number, set()).add(node)
    found: set[tuple[int, int]] = set()
    for region, operators in regions.items():
        saves = [number for number in operators if any(map(_is_forward_value, reads.get(number, ())))]
        last = max(saves, default=-1)
        after = {number for number in operators if number > last}
        if saves and operators[last].isdisjoint(reads[last]):
            after.add(last)
        found.update((region, number) for number in after)
    return frozenset(found)


def _is_forward_value(node: Any) -> bool:
    is_tangent = node.op == "placeholder" and str(node.target).startswith("tangents")
    return not is_tangent and not _is_tagged_backward(node)


def split_reference(counted: GraphFlops) -> tuple[FlopReference, FlopReference]:
    """The forward and the backward part of a joint graph's count, as references."""
    parts = []
    for is_backward, uncounted in ((False, counted.uncounted), (True, counted.uncounted_backward)):
        part = GraphFlops([node for node in counted.nodes if node.is_backward is is_backward])
        parts.append(FlopReference("model", part.by_op(), tuple(sorted(uncounted))))
    return parts[0], parts[1]


def node_flops(node: Any, graph: Any = None) -> NodeFlops | None:
    """FLOPs of one FX call node, by the formula of its operator; ``None`` where there is none."""
    target, args = called_operator(node)
    packet = getattr(target, "overloadpacket", target)
    formula = formulas().get(packet) if is_operator(packet) else None
    is_backward = _is_tagged_backward(node)
    if formula is None:
        return _decomposed_product(node, is_backward, graph)
    arguments, keywords, out = tree_map(
        lambda value: _concrete(value, graph), (args, node.kwargs, node.meta.get("val"))
    )
    if getattr(node.target, "__name__", "") == SAVES_RANDOM_STATE and isinstance(out, tuple | list):
        out = out[-1]
    if target is not node.target:
        keywords = {name: value for name, value in keywords.items() if name != "rng_state"}
    flops = int(formula(*arguments, **keywords, out_val=out))
    form = _form(formula, args, node) if target is node.target else None
    return NodeFlops(node, operator_name(packet), flops, is_backward, form=form)


def _form(formula: Callable[..., Any], args: tuple[Any, ...], node: Any) -> Any:
    """The formula on shapes that stay symbolic: the expression that it gives, ``None`` where it asks for numbers."""
    try:
        arguments, keywords, out = tree_map(_symbolic, (args, node.kwargs, node.meta.get("val")))
        return formula(*arguments, **keywords, out_val=out)
    except Exception as error:  # torch's formulas are written for numbers
        let_through(error)
        log.debug("no expression for the FLOPs of %s", node, exc_info=error)
        return None


def _symbolic(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return tree_map(_symbolic, value.meta.get("val"))
    if isinstance(value, torch.SymInt):
        return as_expression(value)
    return tuple(map(_symbolic, value.shape)) if isinstance(value, torch.Tensor) else value


def is_overcounted(owned: Mapping[str, int], launch: Launch) -> bool:
    """True for the backward of a grouped convolution, of which torch counts the weight's gradient as if it had one
    group, and for ``flex_attention`` whose mask leaves blocks out, or may, which all count.

    The sum stays torch's, which is what everybody compares with.
    """
    if "flex_attention" in owned or "flex_attention_backward" in owned:
        return float(launch.kwargs.get(VISITED, 0.0)) < 1
    if "aten.convolution_backward" not in owned:
        return False
    shapes = [buffer.shape for buffer in launch.buffers if buffer.role == "input" and len(buffer.shape) >= 3]
    if len(shapes) < 3:
        return False
    gradient, values, weight = shapes[:3]
    return weight[0] * weight[1] != gradient[1] * values[1]


def padding_flops(node: Any, graph: Any = None) -> int:
    """FLOPs that a product does only because Inductor padded its operands (``pad_mm``); 0 for others.

    The padded product reads a ``constant_pad_nd`` (or a concatenation with zeros) of the true operand; the true sizes
    are those in front of the pad.
    """
    packet = str(getattr(node.target, "overloadpacket", ""))
    if packet not in _PRODUCTS:
        return 0
    operands = node.args[-2:]
    padded_left, padded_right = (_size(operand, graph) for operand in operands)
    left, right = (_size(_unpadded(operand), graph) for operand in operands)
    if padded_left is None or padded_right is None or left is None or right is None:
        return 0
    (*batch_sizes, rows, inner), columns = padded_left, padded_right[-1]
    (true_rows, true_inner), (other_inner, true_columns) = left[-2:], right[-2:]
    batch = math.prod(batch_sizes)
    true_flops = matmul_flops(true_rows, min(true_inner, other_inner), true_columns, batch)
    return int(matmul_flops(rows, inner, columns, batch) - true_flops)


def assign_owners(
    counted: GraphFlops, candidates: Mapping[Any, Sequence[tuple[int, int]]]
) -> tuple[dict[int, list[NodeFlops]], list[NodeFlops]]:
    """Give each counted FX node to one launch.

    ``candidates`` maps an FX node to ``(rank, launch index)`` of the launches lowered from it; the lowest pair owns it
    (library calls and templates before reductions before pointwise kernels, then order). Returns the nodes per launch
    index, and those that no launch was lowered from.
    """
    owned: dict[int, list[NodeFlops]] = {}
    orphans = []
    for found in counted.nodes:
        pairs = candidates.get(found.node)
        if not pairs:
            orphans.append(found)
            continue
        _, index = min(pairs)
        owned.setdefault(index, []).append(found)
    return owned, orphans


def forms_by_op(owned: Sequence[NodeFlops]) -> dict[str, str]:
    """The FLOPs of a launch's nodes as expressions, by operator; one with a node without an expression is missing."""
    forms: dict[str, Any] = {}
    for found in owned:
        so_far = forms.get(found.op, 0)
        forms[found.op] = None if found.form is None or so_far is None else so_far + found.form
    return {op: str(form) for op, form in forms.items() if form is not None}


def _is_tagged_backward(node: Any) -> bool:
    return node.meta.get("partitioner_tag") in ("is_backward", "must_be_in_backward")


def _after_tangents(graph: Any) -> set[Any]:
    """The nodes of a joint graph that need an incoming gradient, and so run in the backward whatever their tag says.

    AOT tags what autograd recorded; the backward of a user's ``autograd.Function`` is traced without that tag.
    """
    found: set[Any] = set()
    for node in graph.nodes:
        is_tangent = node.op == "placeholder" and str(node.target).startswith("tangents")
        if is_tangent or any(operand in found for operand in node.all_input_nodes):
            found.add(node)
    return found


def _call_nodes(graph_module: Any, seen: set[int] | None, outermost: Any = None) -> Iterator[tuple[Any, Any]]:
    """Each call, and the call of the outermost graph that it belongs to."""
    for node in graph_module.graph.nodes:
        if node.op != "call_function":
            continue
        yield node, outermost or node
        if seen is not None and is_higher_order(node.target) and node.target not in formulas():
            for argument in (*node.args, *node.kwargs.values()):
                subgraph = _subgraph(graph_module, argument)
                if subgraph is not None and id(subgraph) not in seen:
                    seen.add(id(subgraph))
                    yield from _call_nodes(subgraph, seen, outermost or node)


def _subgraph(graph_module: Any, argument: Any) -> Any:
    if getattr(argument, "op", None) != "get_attr":
        return None
    found = graph_module
    for part in str(argument.target).split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, torch.fx.GraphModule) else None


def _decomposed_product(node: Any, is_backward: bool, graph: Any) -> NodeFlops | None:
    """A multiplication that stands for a matrix product which AOT decomposed: one multiply-add per element of it."""
    original = node.meta.get("original_aten")
    name = str(getattr(original, "overloadpacket", original))
    if name not in _DECOMPOSED or aten_op(node) != "aten.mul":
        return None
    if not all(isinstance(argument, torch.fx.Node) and _size(argument, graph) for argument in node.args[:2]):
        return None
    size = _size(node, graph)
    if size is None:
        return None
    form = 2 * math.prod(map(_symbolic, node.meta["val"].shape))
    return NodeFlops(node, name, 2 * math.prod(size), is_backward, form=form)


def _uncounted_name(node: Any) -> str | None:
    """Whose FLOPs were not counted: operators from outside torch and user kernels, which neither this count nor torch's
    knows, and operators with a formula, which gave none."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet in formulas():
        return str(packet)
    if packet is None:
        name = getattr(node.target, "__name__", "")
        return name if "triton_kernel_wrapper" in name else None
    namespace = str(packet).split(".")[0]
    return None if namespace in TORCH_NAMESPACES else str(packet)


def _unpadded(operand: Any) -> Any:
    """The operand before ``pad_mm`` widened it, behind a transposition too."""
    if not isinstance(operand, torch.fx.Node):
        return operand
    name = aten_op(operand)
    if name == "aten.constant_pad_nd":
        return operand.args[0]
    if name == "aten.cat" and isinstance(operand.args[0], list | tuple) and len(operand.args[0]) == 2:
        first, second = operand.args[0]
        if aten_op(second) in ("aten.full", "aten.new_zeros", "aten.zeros"):
            return first
    if name in ("aten.permute", "aten.t") and isinstance(operand.args[0], torch.fx.Node):
        inner = _unpadded(operand.args[0])
        order: Any = operand.args[1] if len(operand.args) > 1 else (1, 0)
        return operand if inner is operand.args[0] else _Permuted(inner, order)
    return operand


@dataclass(frozen=True)
class _Permuted:
    """The unpadded operand behind a permutation."""

    inner: Any
    order: Sequence[int]


def _size(value: Any, graph: Any) -> tuple[int, ...] | None:
    if isinstance(value, _Permuted):
        inner = _size(value.inner, graph)
        return None if inner is None else tuple(inner[axis] for axis in value.order)
    tensor = value.meta.get("val") if isinstance(value, torch.fx.Node) else value
    if not isinstance(tensor, torch.Tensor):
        return None
    sizes = [hint(extent, graph) for extent in tensor.shape]
    return None if None in sizes else tuple(sizes)  # type: ignore[arg-type]


def _concrete(value: Any, graph: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        value = value.meta.get("val")
        return tree_map(lambda item: _concrete(item, graph), value)
    if isinstance(value, torch.SymInt):
        return hint(value, graph)
    if isinstance(value, torch.Tensor) and any(isinstance(extent, torch.SymInt) for extent in value.shape):
        sizes = [hint(extent, graph) for extent in value.shape]
        return torch.empty([extent if extent is not None else 1 for extent in sizes], dtype=value.dtype, device="meta")
    return value


def packet_of(kernel_name: str) -> Any:
    """The operator packet behind a library call's name in the wrapper; ``None`` for kernels that are no operator."""
    name = kernel_name.removeprefix("torch.ops.")
    if name.startswith("extern_kernels."):
        name = "aten." + name.removeprefix("extern_kernels.")
    parts = name.split(".")
    if len(parts) < 2:
        return None
    namespace = getattr(torch.ops, parts[0], None)
    try:
        return getattr(namespace, parts[1])
    except AttributeError:
        return None


def extern_flops(packet: Any, launch: Launch) -> tuple[str, int] | None:
    """FLOPs of a library call from its buffers alone, for calls whose FX node was rewritten beyond recognition.

    The formula sees the input shapes in order and the first output's shape; what it needs beyond that (a mask of wanted
    gradients) is not in the buffers, and then the answer is ``None``.
    """
    formula = formulas().get(packet)
    inputs = [torch.empty(buffer.shape, device="meta") for buffer in launch.buffers if buffer.role != "output"]
    outputs = [torch.empty(buffer.shape, device="meta") for buffer in launch.buffers if buffer.role == "output"]
    if formula is None or not inputs or not outputs or "backward" in str(packet):
        return None
    if str(packet) in ("aten.addmm", "aten.baddbmm") and len(inputs) == 2:
        inputs.insert(0, outputs[0])
    try:
        return str(packet), int(formula(*inputs, out_val=outputs[0]))
    except (TypeError, ValueError, IndexError, AssertionError):
        return None
