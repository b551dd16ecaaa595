"""What a block mask of ``flex_attention`` leaves to compute, by the function that says which pairs attend."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchledger._torch import symbol_sizes
from torchledger.signals import let_through
from torchledger.work.flex import HARD, MOST_VISITED, PARTIAL, SIMPLE, TOLD_BY, VISITED, told_blocks

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
    ``MOST_VISITED`` says what the rest of the mask leaves; a plan's calls may tell more (``TOLD_BY``).
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
                    facts |= {MOST_VISITED: f"{found[0]:.6g}", TOLD_BY: node.name}
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


@dataclass(frozen=True)
class MaskOfData:
    """A block mask that closes over tensors or numbers: those of an FX graph's call ``name``.

    Of ``rows`` and ``columns``, and of the ``samples`` and ``heads`` that the mask tells apart, each is a size or an
    expression of symbols.
    """

    name: str
    function: Any
    rows: Any
    columns: Any
    samples: Any
    heads: Any
    block_rows: int
    block_columns: int
    closed_over: tuple[Any, ...]

    def told(self, sizes: tuple[int, int, int, int], closed_over: Sequence[Any]) -> dict[str, int]:
        """What a call with these rows, columns, samples and heads, and with these values, tells of its blocks."""
        rows, columns, samples, heads = sizes
        held = tuple(map(_fingerprint, closed_over))
        asked = self.function.code, rows, columns, self.block_rows, self.block_columns, samples, heads, held
        if asked not in _KNOWN:
            if len(_KNOWN) >= _MOST_KNOWN:
                _KNOWN.clear()

            def attends(*places: torch.Tensor) -> Any:
                return self.function(*places, *closed_over)

            places = [(sample, head) for sample in _some(samples, 8) for head in _some(heads, 2)]
            _KNOWN[asked] = _shares_of_blocks(attends, *asked[1:5], places)
        return told_blocks(self.name, *_KNOWN[asked])


def mask_of_data(node: Any) -> MaskOfData | None:
    """The mask of a call of ``flex_attention`` whose blocks depend on what it closes over; ``None`` of all else."""
    if node.op != "call_function" or str(node.target) not in _OPERATORS or not node.args[-1]:
        return None
    mask = _mask_of(node)
    if mask is None:
        return None
    function = getattr(node.graph.owning_module, mask[-1].target)
    counts = next((each for each in mask if isinstance(each, torch.fx.Node) and not _is_function(each)), None)
    counted = getattr(counts, "meta", {}).get("val")
    if not isinstance(counted, torch.Tensor) or counted.ndim < 2 or _holds_constants(function):
        return None
    lengths = (node.args[place].meta["val"].shape[-2] for place in (0, 1))
    rows, columns, samples, heads = map(symbol_sizes.as_expression, (*lengths, *counted.shape[:2]))
    return MaskOfData(
        node.name, function, rows, columns, samples, heads, *_block_sizes(mask), closed_over=tuple(node.args[-1])
    )


def _fingerprint(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    with _disable_current_modes():
        held = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return tuple(value.shape), value.dtype, held


def _some(count: int, most: int) -> range:
    return range(0, count, max(1, -(-count // most)))


def _mask_of(node: Any) -> Any:
    return next(
        (each for each in node.args if isinstance(each, (tuple, list)) and len(each) > 4 and _is_function(each[-1])),
        None,
    )


def _block_sizes(mask: Sequence[Any]) -> tuple[int, int]:
    rows, columns = (each if isinstance(each, int) else _USUAL_BLOCK for each in mask[-3:-1])
    return rows, columns


def _holds_constants(function: Any) -> bool:
    return any(each.op == "get_attr" for each in function.graph.nodes)


def _shares(node: Any, *, of_known: bool) -> tuple[float, float] | None:
    mask = _mask_of(node)
    if mask is None:
        return None
    function = getattr(node.graph.owning_module, mask[-1].target)
    # Without a guard: the graph is the program's, and stays as dynamic as it is.
    rows, columns = (symbol_sizes.hint(node.args[place].meta["val"].shape[-2]) for place in (0, 1))
    if rows is None or columns is None or min(rows, columns) < 1 or _holds_constants(function):
        return None
    asked = function.code, rows, columns, *_block_sizes(mask)
    if asked not in _KNOWN:  # one mask serves all layers, forward and backward
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[asked] = _shares_of_blocks(_may_attend(function) if of_known else function, *asked[1:])
    return _KNOWN[asked]


_KNOWN: dict[tuple[Any, ...], tuple[float, float]] = {}
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
    function: Callable[..., Any],
    rows: int,
    columns: int,
    block_rows: int,
    block_columns: int,
    places: Sequence[tuple[int, int]] = ((0, 0),),
) -> tuple[float, float]:
    """The shares of blocks with any pair, and of those with some pairs and not all; of long masks some rows of blocks
    stand for all. ``places`` are the samples and heads that are looked at, each at other rows."""
    starts = range(0, rows, block_rows)
    step = max(1, -(-len(starts) * len(places) // _MOST_ROWS_OF_BLOCKS))
    step = min(step, max(1, -(-len(starts) // 8)))
    any_of, all_of = list[bool](), list[bool]()
    with _disable_current_modes(), torch.no_grad(), torch.device("cpu"):
        keys = torch.arange(columns, dtype=torch.int32)
        looked_at = [(place, start) for turn, place in enumerate(places) for start in starts[turn % step :: step]]
        for place, start in looked_at:
            sample, head = (torch.tensor(each, dtype=torch.int32) for each in place)
            queries = torch.arange(start, min(start + block_rows, rows), dtype=torch.int32)
            seen = function(sample, head, queries[:, None], keys[None, :])
            seen = seen[0] if isinstance(seen, (tuple, list)) else seen
            blocks = seen.broadcast_to((len(queries), columns)).split(block_columns, dim=1)
            any_of += [bool(block.any()) for block in blocks]
            all_of += [bool(block.all()) for block in blocks]
    visited, whole = fmean(any_of), fmean(all_of)
    return visited, visited - whole


def _is_function(value: Any) -> bool:
    return isinstance(value, torch.fx.Node) and value.op == "get_attr"
