"""What a block mask of ``flex_attention`` leaves to compute, by the function that says which pairs attend."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchledger._torch import symbol_sizes
from torchledger.signals import let_through
from torchledger.work.flex import HARD, MOST_VISITED, PARTIAL, SIMPLE, VISITED

log = logging.getLogger(__name__)

_HARD = frozenset(
    {"tanh", "exp", "exp2", "log", "log2", "log1p", "sin", "cos", "pow", "sigmoid", "erf", "sqrt", "rsqrt"}
)

_OPERATORS = ("flex_attention", "flex_attention_backward")
_MOST_ROWS_OF_BLOCKS = 32
_USUAL_BLOCK = 128


def facts_of_flex(origins: Iterable[Any]) -> Mapping[str, str]:
    """What the call of ``flex_attention`` among FX nodes does, as text; empty where there is none.

    Where they depend on tensors that the mask closes over ``VISITED`` and ``PARTIAL`` are missing, and
    ``MOST_VISITED`` says what the rest of the mask leaves.
    """
    for node in origins:
        if str(getattr(node, "target", "")) in _OPERATORS and node.op == "call_function":
            facts: dict[str, str] = {}
            try:
                names = _score_operators(node)
                hard = sum(name in _HARD for name in names)
                facts |= {SIMPLE: str(len(names) - hard), HARD: str(hard)}
                closes_over = bool(node.args[-1])  # tensors that the mask closes over come last
                found = _shares(node, of_known=closes_over)
                if found is not None and closes_over:
                    facts |= {MOST_VISITED: f"{found[0]:.6g}"}
                elif found is not None:
                    facts |= {VISITED: f"{found[0]:.6g}", PARTIAL: f"{found[1]:.6g}"}
            except Exception as error:  # a mask of the program's own, asked for places that it may not expect
                let_through(error)
                log.debug("a call of flex_attention could not be read", exc_info=error)
            return facts
    return {}


def _score_operators(node: Any) -> list[str]:
    """The operators that make a score another one."""
    function = next((each for each in node.args if _is_function(each)), None)
    if function is None:
        return []
    graph = getattr(node.graph.owning_module, function.target).graph
    return [str(each.target).split(".")[1] for each in graph.nodes if str(each.target).startswith("aten.")]


def _shares(node: Any, *, of_known: bool) -> tuple[float, float] | None:
    mask = next(
        (each for each in node.args if isinstance(each, (tuple, list)) and len(each) > 4 and _is_function(each[-1])),
        None,
    )
    if mask is None:
        return None
    function = getattr(node.graph.owning_module, mask[-1].target)
    # Without a guard: the graph is the program's, and stays as dynamic as it is.
    rows, columns = (symbol_sizes.hint(node.args[place].meta["val"].shape[-2]) for place in (0, 1))
    holds_constants = any(each.op == "get_attr" for each in function.graph.nodes)
    if rows is None or columns is None or min(rows, columns) < 1 or holds_constants:
        return None
    block_rows, block_columns = (each if isinstance(each, int) else _USUAL_BLOCK for each in mask[-3:-1])
    asked = function.code, rows, columns, block_rows, block_columns
    if asked not in _KNOWN:  # one mask serves all layers, forward and backward
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[asked] = _shares_of_blocks(_may_attend(function) if of_known else function, *asked[1:])
    return _KNOWN[asked]


_KNOWN: dict[tuple[str, int, int, int, int], tuple[float, float]] = {}
_MOST_KNOWN = 64


_UNKNOWN = object()
"""A value of a mask that depends on tensors which it closes over."""

_PLACES = 4
"""What a mask is first given: the numbers of a sample, a head, a query and a key."""


def _may_attend(function: Any) -> Callable[..., torch.Tensor]:
    """Which pairs may attend, whatever the tensors hold that a mask closes over."""

    def may_attend(*places: torch.Tensor) -> torch.Tensor:
        values: dict[Any, Any] = {}
        n_given = 0
        for node in function.graph.nodes:
            if node.op == "placeholder":
                values[node] = places[n_given] if n_given < _PLACES else _UNKNOWN
                n_given += 1
            elif node.op == "call_function":
                given, named = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                asked = [values[each] for each in node.all_input_nodes]
                if any(value is _UNKNOWN or isinstance(value, tuple) for value in asked):
                    values[node] = _bounds_of(str(node.target), given)
                else:
                    values[node] = node.target(*given, **named)
            elif node.op == "output":
                result = node.args[0]
                return _bounds(values[result[0] if isinstance(result, (tuple, list)) else result])[1]
        raise ValueError("a mask without a result")

    return may_attend


_Bounds = tuple[torch.Tensor, torch.Tensor]
"""Where a truth holds for certain, and where it may hold."""


def _bounds(value: Any) -> _Bounds:
    if isinstance(value, tuple):
        return value
    if isinstance(value, torch.Tensor) and value.dtype == torch.bool:
        return value, value
    return torch.zeros((), dtype=torch.bool), torch.ones((), dtype=torch.bool)


def _bounds_of(target: str, given: Any) -> Any:
    """What is known of an operator's result of which an operand is not known, or only within bounds."""
    name = target.removeprefix("aten.").partition(".")[0].removeprefix("bitwise_").removeprefix("logical_")
    if name not in ("and", "or", "not") or any(_is_number(each) for each in given):
        return _UNKNOWN
    bounds = [_bounds(each) for each in given]
    if name == "not":
        return ~bounds[0][1], ~bounds[0][0]
    combine = torch.logical_and if name == "and" else torch.logical_or
    return combine(bounds[0][0], bounds[1][0]), combine(bounds[0][1], bounds[1][1])


def _is_number(value: Any) -> bool:
    return not (value is _UNKNOWN or isinstance(value, tuple)) and getattr(value, "dtype", None) != torch.bool


def _shares_of_blocks(
    function: Callable[..., Any], rows: int, columns: int, block_rows: int, block_columns: int
) -> tuple[float, float]:
    """The shares of blocks with any pair, and of those with some pairs and not all; of long masks some rows of blocks
    stand for all."""
    starts = range(0, rows, block_rows)
    starts = starts[:: max(1, -(-len(starts) // _MOST_ROWS_OF_BLOCKS))]
    any_of, all_of = list[bool](), list[bool]()
    with _disable_current_modes(), torch.no_grad(), torch.device("cpu"):
        first = torch.zeros((), dtype=torch.int32)
        keys = torch.arange(columns, dtype=torch.int32)
        for start in starts:
            queries = torch.arange(start, min(start + block_rows, rows), dtype=torch.int32)
            seen = function(first, first, queries[:, None], keys[None, :])
            seen = seen[0] if isinstance(seen, (tuple, list)) else seen
            blocks = seen.broadcast_to((len(queries), columns)).split(block_columns, dim=1)
            any_of += [bool(block.any()) for block in blocks]
            all_of += [bool(block.all()) for block in blocks]
    visited, whole = fmean(any_of), fmean(all_of)
    return visited, visited - whole


def _is_function(value: Any) -> bool:
    return isinstance(value, torch.fx.Node) and value.op == "get_attr"
