"""Symbolic sizes of a graph that is lowered: their numbers, expressions, and other sizes that they may have."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from torchledger._torch.inductor import current_graph, layout_of


def hint(value: Any, graph: Any = None) -> int | None:
    """The number that a (symbolic) size stands for in this compilation, without adding a guard; ``None`` if unknown."""
    if isinstance(value, int):
        return value
    shape_env = None
    if isinstance(value, torch.SymInt):
        shape_env = value.node.shape_env
        value = value.node.expr
    if getattr(value, "is_Integer", False):
        return int(value)
    graph = graph if graph is not None else current_graph()
    if shape_env is not None or graph is None:
        value = value.xreplace(_known_sizes(shape_env)) if hasattr(value, "xreplace") else value
        if getattr(value, "is_Integer", False):
            return int(value)
    sizevars = getattr(graph, "sizevars", None)
    if sizevars is not None:
        for name in ("optimization_hint", "size_hint"):
            function = getattr(sizevars, name, None)
            if function is None:
                continue
            try:
                return int(function(value, fallback=None) if name == "size_hint" else function(value))
            except (TypeError, ValueError, KeyError, RuntimeError):
                continue
    return None


def depends_on_data(value: Any) -> bool:
    """True for a size that only running decides (the rows of ``nonzero``): its hint is invented."""
    return bool(free_unbacked_symbols(value))


def symbol_hints(graph: Any) -> dict[str, int]:
    """Name and hint of each size symbol of a dynamically shaped graph."""
    values = _known_sizes(getattr(getattr(graph, "sizevars", None), "shape_env", None))
    return {str(symbol): int(value) for symbol, value in values.items() if str(value).lstrip("-").isdigit()}


def _known_sizes(shape_env: Any) -> dict[Any, Any]:
    name = "backed_var_to_val" if hasattr(shape_env, "backed_var_to_val") else "var_to_val"  # 2.9 knows only the latter
    return dict(getattr(shape_env, name, None) or {})


def as_expression(value: Any) -> Any:
    """A symbolic size as the expression behind it; anything else as it is."""
    return value.node.expr if isinstance(value, torch.SymInt) else value


def size_with(value: Any, sizes: Mapping[Any, int], graph: Any) -> int | None:
    """The number that a (symbolic) size is where the graph's symbols are ``sizes``; ``None`` if that does not tell."""
    if isinstance(value, int):
        return value
    expression = sympy.sympify(as_expression(value))
    precomputed = getattr(graph.sizevars, "inv_precomputed_replacements", None) or {}
    expression = expression.xreplace(precomputed).xreplace(graph.sizevars.replacements)
    expression = expression.xreplace({symbol: sympy.Integer(size) for symbol, size in sizes.items()})
    return int(expression) if expression.is_Integer else None


def possible_sizes(graph: Any, count: int) -> list[dict[Any, int]]:
    """Up to ``count`` sizes that a dynamically shaped graph may be called with, by symbol: its hints, then others.

    Empty for a graph of one size. The others lie from the least that its guards allow to some thousand times the hint.
    Sizes that only running decides have no hint: theirs is made up.
    """
    shape_env = getattr(getattr(graph, "sizevars", None), "shape_env", None)
    hints = {symbol: int(size) for symbol, size in _known_sizes(shape_env).items() if str(size).isdigit()}
    unbacked = data_dependent_symbols(graph)
    for symbol in unbacked:
        least, most = _ends(shape_env, symbol)
        hints[symbol] = _MADE_UP if most is None else max(min(_MADE_UP, most), least)
    free = sorted(({*_input_symbols(graph)} & {*hints}) | unbacked, key=str)
    if not free:
        return []
    guards = [guard.expr for guard in shape_env.guards if guard.expr.free_symbols & {*free}]
    draw = random.Random(0)
    found = [hints]
    for attempt in range(2 * _ATTEMPTS):
        if len(found) == count:
            break
        point = dict(hints)
        for symbol in free:
            least, most = _ends(shape_env, symbol)
            reach = max(hints[symbol], 2) * _REACHES[attempt % len(_REACHES)]
            reach = reach if most is None else min(reach, most)
            # Guards may ask for multiples of something; then so is what the graph was compiled at.
            step = 1 if attempt < _ATTEMPTS else hints[symbol]
            point[symbol] = step * draw.randint(min(-(-least // step), reach // step), reach // step)
        values = {symbol: sympy.Integer(size) for symbol, size in point.items()}
        if point not in found and all(guard.xreplace(values) != sympy.false for guard in guards):
            found.append(point)
    return found


_ATTEMPTS = 60
_MADE_UP = 24


_REACHES = (2000, 4, 300, 8, 30, 15)


def _ends(shape_env: Any, symbol: Any) -> tuple[int, int | None]:
    allowed = shape_env.var_to_range[symbol]
    least, most = _finite(allowed.lower, 2), _finite(allowed.upper, None)
    # Of an unbacked size the range is what its operator can give; none is empty where launches are compared.
    return max(least, 1), None if most is not None and most >= _NO_END else most


_NO_END = 1 << 62


def data_dependent_symbols(graph: Any) -> set[Any]:
    """Sizes that only running decides in a graph that is lowered: those that it makes, or that it is given."""
    shape_env = getattr(getattr(graph, "sizevars", None), "shape_env", None)
    renamed = getattr(shape_env, "unbacked_renamings", None) or {}
    made = [
        symbol
        for node in getattr(getattr(graph, "graph", None), "nodes", ())
        for symbol in node.meta.get("unbacked_bindings") or ()
    ]
    given = [symbol for symbol in _input_symbols(graph) if depends_on_data(symbol)]
    return {renamed.get(symbol, symbol) for symbol in made} | {*given}


def _finite(end: Any, fallback: Any) -> Any:
    return int(end) if getattr(end, "is_Integer", False) or isinstance(end, int) else fallback


def _input_symbols(graph: Any) -> Iterator[Any]:
    for _, extent in _input_extents(graph):
        yield from extent.free_symbols


def _input_extents(graph: Any) -> Iterator[tuple[str, sympy.Expr]]:
    """Each symbolic number among a graph's inputs, and where it stands there."""
    for place, value in enumerate(graph.graph_inputs.values()):
        if isinstance(value, sympy.Expr):
            yield f"inputs[{place}]", value
        elif isinstance(value, ir.IRNode) and (layout := layout_of(value)) is not None:
            for what in ("size", "stride"):
                for axis, extent in enumerate(getattr(layout, what, ())):
                    if isinstance(extent, sympy.Expr):
                        yield f"inputs[{place}].{what}({axis})", extent


def symbol_inputs(graph: Any) -> dict[str, str]:
    """Where among a call's inputs the value of each size symbol stands: ``{"s77": "inputs[3].size(0)"}``."""
    found: dict[str, str] = {}
    for place, extent in _input_extents(graph):
        if extent.is_Symbol:
            found.setdefault(str(extent), place)
    return found
