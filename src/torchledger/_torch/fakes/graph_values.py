"""Values that a compiled graph's results are known to have, and those of its own that it asks for.

Kernels compute nothing in a plan. What lengths, masks and counters become in a graph is told by those of its operators
that work on whole numbers, truths and single numbers: they are followed before each call as they would be outside a
graph, from what is known of its inputs. Of all else there are shapes alone. What a generated wrapper asks of tensors
that its kernels filled (``u0 = buf3.item()``) is what its operator would have been asked.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch._guards import detect_fake_mode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import key_get

from torchledger._torch.fakes.host_operands import MASKS
from torchledger._torch.fakes.operators import CHOOSES
from torchledger._torch.fakes.shares import count_shares, follow_known, forget_floats, origin_of, value_of
from torchledger._torch.fakes.tensors import KEPT, Asked, FakeTensors
from torchledger._torch.flex_masks import MaskOfData, mask_of_data
from torchledger._torch.patching import Patches, pass_through
from torchledger._torch.symbol_sizes import as_expression
from torchledger._torch.tensors import tensors_in
from torchledger.signals import let_through

log = logging.getLogger(__name__)

_FOLLOWED = "_torchledger_values"
"""The attribute of a ``CompiledFxGraph`` that holds what is followed of it."""

_MOST_NODES = 4096
"""Operators of a graph that are followed in each of its calls at most."""

_UNKNOWN = object()
"""What stands for a number that nobody knows, or for what an operator makes that is not followed."""

_DRAWS = "prims.inductor_random.default"
_NUMBER = torch.ops.aten._local_scalar_dense.default


def follow_values_of_graphs(patches: Patches, mode: FakeTensors) -> None:
    """Have what is compiled from now on pass on values that are known, until the patches are undone."""
    from torch._inductor import compile_fx, output_code

    def compiled(original: Callable[..., Any], gm: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            followed = _followed(gm)  # now: passes change the graph
        except Exception as error:  # the program compiles all the same
            let_through(error)
            log.debug("the values of a graph are not followed", exc_info=error)
            followed = None
        made = original(gm, *args, **kwargs)
        if followed is not None:
            setattr(made, _FOLLOWED, followed)
        return made

    def call(original: Callable[..., Any], graph: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, (list, tuple)):
            written = getattr(graph, "mutated_input_idxs", None) or ()
            forget_floats([inputs[place] for place in written if place < len(inputs)])
        followed: _Followed | None = getattr(graph, _FOLLOWED, None)
        if followed is None or mode.is_over or not isinstance(inputs, (list, tuple)):
            return original(graph, inputs, *args, **kwargs)
        values = followed.values(mode, inputs)
        with mode.asked_by_graph(values.asked):
            result = original(graph, inputs, *args, **kwargs)
        values.keep(result)
        return result

    pass_through(patches, compile_fx, "fx_codegen_and_compile", compiled)
    pass_through(patches, output_code.CompiledFxGraph, "__call__", call)


@dataclass(frozen=True)
class _Result:
    """The result of a node, by its place."""

    place: int


@dataclass(frozen=True)
class _Shape:
    """A tensor of which only this is known; sizes may be of symbols."""

    sizes: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class _Node:
    """A node that is followed (``is_followed``), or of whose result shapes alone are known."""

    place: int
    kind: str
    target: Any
    args: Any = ()
    kwargs: Any = field(default_factory=dict)
    shape: Any = _UNKNOWN
    symbols: Mapping[Any, Any] = field(default_factory=dict)
    is_followed: bool = False
    writes: bool = False
    asks: bool = False


class _Values:
    """What is known of one call of a graph."""

    def __init__(self, results: Sequence[Any] = (), written: Sequence[tuple[Any, Any]] = ()) -> None:
        self.asked: deque[Asked] = deque()
        self.results = results
        self.written = written

    def keep(self, made: Any) -> None:
        """Let the results of the call, and what it wrote into, have their values."""
        for tensor, known in zip(made if isinstance(made, (list, tuple)) else (), self.results, strict=False):
            if isinstance(tensor, torch.Tensor) and isinstance(known, torch.Tensor) and tensor is not known:
                for name, value in _attributes(known).items():
                    setattr(tensor, name, value)
        for target, source in self.written:
            count_shares(torch.ops.aten.copy_.default, (target, source), {}, target)


def _attributes(known: Any) -> dict[str, Any]:
    return {name: value for name in KEPT if (value := getattr(known, name, None)) is not None}


class _Followed:
    """What of a graph is followed: its ``nodes`` in order, and the places of its ``results``."""

    def __init__(
        self,
        nodes: Sequence[_Node],
        results: Sequence[Any],
        inputs: Sequence[Any],
        renamed: Mapping[Any, Any],
        masks: Sequence[MaskOfData],
    ) -> None:
        self._nodes, self._results, self._inputs, self._renamed = nodes, results, inputs, renamed
        self._masks = masks
        self._made = {symbol for node in nodes for symbol in node.symbols}

    def values(self, mode: FakeTensors, inputs: Sequence[Any]) -> _Values:
        """What is known of a call with ``inputs``."""
        values = _Values()
        found: dict[int, Any] = {}
        written: list[tuple[Any, Any]] = []
        symbols = dict(_symbols_of(self._inputs, inputs))
        with _disable_current_modes(), mode, mode.unheard(), torch.no_grad():
            for node in self._nodes:
                try:
                    found[node.place] = self._value(node, found, inputs, symbols, values, written)
                except Exception as error:  # what is not known of it is not kept
                    let_through(error)
                    log.debug("%s of a graph is not followed", node.target, exc_info=error)
                    found[node.place] = _UNKNOWN
        mode.tell_sizes({self._name(each): symbols[each] for each in self._made & symbols.keys()})
        for mask in self._masks:
            mode.tell_sizes(_told_by(mask, found, symbols))
        values.results = [found.get(each.place) if isinstance(each, _Result) else None for each in self._results]
        values.written = written
        return values

    def _name(self, symbol: Any) -> str:
        """What the graph's kernels call a size that it makes."""
        return str(self._renamed.get(symbol, symbol))

    def _value(
        self,
        node: _Node,
        found: Mapping[int, Any],
        inputs: Sequence[Any],
        symbols: dict[Any, int],
        values: _Values,
        written: list[tuple[Any, Any]],
    ) -> Any:
        if node.kind == "placeholder":
            return inputs[node.target]
        if node.kind == "get_attr":
            return node.target
        if not node.is_followed:
            return _made(node.shape, symbols)
        given = torch.utils._pytree.tree_map(
            lambda each: found.get(each.place, _UNKNOWN) if isinstance(each, _Result) else each,
            (node.args, node.kwargs),
            is_leaf=lambda each: isinstance(each, _Result),
        )
        args, kwargs = list(given[0]), dict(given[1])
        if node.writes:
            written.append((args[0], None if args[1] is _UNKNOWN else args[1]))
            return args[0]
        is_unknown = _has_unknown((args, kwargs))
        number = next(map(self._name, node.symbols), None) if node.target is _NUMBER else None
        if node.asks and (number is not None or not is_unknown):
            tensors = () if is_unknown else tuple(tensors_in((args, kwargs)))
            values.asked.append(Asked(str(node.target), tensors, number))
        if is_unknown:
            return _UNKNOWN
        result = _called(node.target, args, kwargs)
        for symbol, path in node.symbols.items():
            number = key_get(result, path)
            if type(number) is int:
                symbols[symbol] = number
        return result


def _told_by(mask: MaskOfData, found: Mapping[int, Any], symbols: Mapping[Any, int]) -> Mapping[str, int]:
    """What is known of the blocks of a mask that closes over values; nothing where one of these is not known."""
    sizes = tuple(_number(each, symbols) for each in (mask.rows, mask.columns, mask.samples, mask.heads))
    given = [found.get(each.place, _UNKNOWN) if isinstance(each, _Result) else each for each in mask.closed_over]
    known = [value_of(each) if isinstance(each, torch.Tensor) else each for each in given]
    is_unknown = any(each is None or each is _UNKNOWN or origin_of(each) is not None for each in (*known, *sizes))
    if is_unknown or min(sizes) < 1:
        return {}
    try:
        return mask.told(sizes, known)
    except Exception as error:  # a mask of the program's own, asked for places that it may not expect
        let_through(error)
        log.debug("the blocks of %s are not known", mask.name, exc_info=error)
        return {}


def _called(target: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if target is _NUMBER:
        return _number_of(args[0])
    if str(target) == _DRAWS:
        return torch.rand(args[0], device=args[1].device) if args[2] == "rand" else _UNKNOWN
    result = target(*args, **kwargs)
    if isinstance(target, torch._ops.OpOverload):
        follow_known(target, args, kwargs, result)
    return result


def _number_of(tensor: Any) -> Any:
    known = value_of(tensor)
    if known is None or origin_of(known) is not None:
        return _UNKNOWN
    with _disable_current_modes():
        return known.item()


def _has_unknown(values: Any) -> bool:
    return any(each is _UNKNOWN for each in torch.utils._pytree.tree_leaves(values))


def _symbols_of(expected: Sequence[Any], inputs: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    for expressions, given in zip(expected, inputs, strict=False):
        numbers = tuple(given.shape) if isinstance(given, torch.Tensor) else (given,)
        for expression, number in zip(expressions, numbers, strict=False):
            if isinstance(expression, sympy.Symbol) and type(number) is int:
                yield expression, number


def _made(shape: Any, symbols: Mapping[Any, int]) -> Any:
    """A tensor without values of this shape, or a number."""
    if isinstance(shape, _Shape):
        sizes = [_number(each, symbols) for each in shape.sizes]
        if any(each is _UNKNOWN for each in sizes):
            return _UNKNOWN
        return torch.empty(sizes, dtype=shape.dtype, device=shape.device)
    if isinstance(shape, tuple):
        return tuple(_made(each, symbols) for each in shape)
    return _number(shape, symbols)


def _number(value: Any, symbols: Mapping[Any, int]) -> Any:
    if isinstance(value, sympy.Expr):
        value = value.xreplace({symbol: sympy.Integer(number) for symbol, number in symbols.items()})
        return int(value) if value.is_Integer else _UNKNOWN
    return value if isinstance(value, (int, float, bool)) else _UNKNOWN


# --- what is followed of a graph ------------------------------------------------------------------------------------


def _followed(gm: Any) -> _Followed | None:
    """What is followed of an FX graph; ``None`` where nothing that it makes can be known."""
    nodes = list(gm.graph.nodes)
    inputs = [each for each in nodes if each.op == "placeholder"]
    places = {node: place for place, node in enumerate(nodes)}
    candidates: set[Any] = set()
    useful: set[Any] = set()
    for node in nodes:
        if node.op != "output" and _is_candidate(node, candidates):
            candidates.add(node)
            if node.op != "call_function" or _tells(node) or any(each in useful for each in node.all_input_nodes):
                useful.add(node)
    output = next(each for each in reversed(nodes) if each.op == "output")
    results = output.args[0] if isinstance(output.args[0], (list, tuple)) else (output.args[0],)
    targets = [each for each in results if each in useful and each.op != "placeholder"]
    targets += [each for each in nodes if _asks(each) or (each in candidates and _writes(each))]
    masks = [found for each in nodes if (found := _mask(each, useful)) is not None]
    targets += [each for mask in masks for each in mask.closed_over if isinstance(each, torch.fx.Node)]
    needed: set[Any] = set()
    waiting = list(targets)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            if _is_run(node, useful):
                waiting.extend(node.all_input_nodes)
    is_any_known = any(_is_run(node, useful) for node in needed) or any(each.op == "get_attr" for each in targets)
    if not (is_any_known or masks) or len(needed) > _MOST_NODES:
        return None
    kept = [_node(gm, node, places, inputs, useful) for node in nodes if node in needed]
    return _Followed(
        kept,
        [_Result(places[each]) if each in needed else None for each in results],
        [_expressions(each.meta.get("val")) for each in inputs],
        _renamings(nodes),
        [replace(mask, closed_over=_mapped(mask.closed_over, places)) for mask in masks],
    )


def _mask(node: Any, useful: set[Any]) -> MaskOfData | None:
    """A mask of a graph that closes over what may be known."""
    mask = mask_of_data(node)
    is_known = mask is not None and all(
        each in useful or not isinstance(each, torch.fx.Node) for each in mask.closed_over
    )
    return mask if is_known else None


def _renamings(nodes: Sequence[Any]) -> Mapping[Any, Any]:
    """What sizes are called that a graph makes; lowering it may add to this."""
    mode = detect_fake_mode([each.meta.get("val") for each in nodes if _symbols(each)])
    return getattr(getattr(mode, "shape_env", None), "unbacked_renamings", None) or {}


def _is_run(node: Any, useful: set[Any]) -> bool:
    return node.op == "call_function" and (node in useful or _writes(node) or _asks(node))


def _node(gm: Any, node: Any, places: Mapping[Any, int], inputs: Sequence[Any], useful: set[Any]) -> _Node:
    place = places[node]
    if node.op == "placeholder":
        return _Node(place, node.op, inputs.index(node))
    if node.op == "get_attr":
        return _Node(place, node.op, getattr(gm, node.target))
    if not _is_run(node, useful):
        return _Node(place, node.op, node.target, shape=_shape(node.meta.get("val")))
    args, kwargs = _mapped((node.args, node.kwargs), places)
    return _Node(
        place,
        node.op,
        node.target,
        args,
        kwargs,
        symbols=_symbols(node),
        is_followed=True,
        writes=_writes(node),
        asks=_asks(node),
    )


def _mapped(given: Any, places: Mapping[Any, int]) -> Any:
    """The arguments of a node, with places for what they are made by."""

    def result_of(node: Any) -> Any:
        return _Result(places[node])

    return torch.fx.node.map_arg(given, result_of)


def _is_candidate(node: Any, candidates: set[Any]) -> bool:
    """Whether what a node makes may be known: whole numbers, truths, single numbers, and what is made of these."""
    if node.op == "get_attr":
        return isinstance(getattr(node.graph.owning_module, node.target, None), torch.Tensor)
    value = node.meta.get("val")
    if node.op == "placeholder":
        return _is_whole(value)
    if node.op != "call_function" or isinstance(node.target, torch._ops.HigherOrderOperator):
        return False
    if _writes(node):
        return node.args[0].op == "placeholder" and _is_whole(node.args[0].meta.get("val"))
    made = list(tensors_in(value))
    if any(_is_whole(each) for each in made) or not made:
        return True
    return all(each in candidates for each in node.all_input_nodes)


def _is_whole(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        if not value.dtype.is_floating_point and not value.dtype.is_complex:
            return True
        return all(type(size) is int and size == 1 for size in value.shape)
    return isinstance(value, (int, torch.SymInt))


def _tells(node: Any) -> bool:
    """Whether something is known of a result whatever it is made of."""
    name = str(node.target).removesuffix(".default")
    if name == _DRAWS.removesuffix(".default") or not node.all_input_nodes:
        return True
    if f"aten::{name.removeprefix('aten.').partition('.')[0]}" in CHOOSES:
        return True
    # What ``isfinite`` is made of.
    is_compared = name.startswith(("aten.eq.", "aten.ne.")) and len(node.args) > 1
    return is_compared and (node.args[1] is node.args[0] or node.args[1] == float("inf"))


def _writes(node: Any) -> bool:
    return node.target is torch.ops.aten.copy_.default


def _asks(node: Any) -> bool:
    """Whether values decide how large a result is, or are the result."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return False
    if node.target is torch.ops.aten.index.Tensor:
        return any(each is not None and each.meta["val"].dtype in MASKS for each in node.args[1])
    return bool(_symbols(node)) or node.target in _SIZED


_SIZED = frozenset(
    (
        *(torch.ops.aten.nonzero.default, torch.ops.aten.masked_select.default),
        *(torch.ops.aten.repeat_interleave.Tensor, _NUMBER),
    )
)


def _symbols(node: Any) -> Mapping[Any, Any]:
    return node.meta.get("unbacked_bindings") or {}


def _expressions(value: Any) -> tuple[Any, ...]:
    sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
    return tuple(as_expression(each) for each in sizes)


def _shape(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _Shape(_expressions(value), value.dtype, value.device)
    if isinstance(value, (list, tuple)):
        return tuple(_shape(each) for each in value)
    return as_expression(value)
