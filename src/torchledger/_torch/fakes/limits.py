"""Truths that a limit of the program's own decides in the end: a decoder stops behind its last token at the latest,
whatever ends each of its lines.

Such a limit is known (``torch.full((8,), length >= longest)``), and until it is reached says nothing: what it is joined
with has no values. Its contrary decides the whole, and a loop that asks for the whole goes on until then.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from torchledger._torch.fakes.shares import DECIDED_BY, origin_of, shares_of
from torchledger._torch.user_lines import user_line
from torchledger.program_text import parsed, statements_around

_AT_LIMIT = "_at_limit"
"""The attribute of a fake tensor that says what all of its elements are once its limit is reached."""

_PASSES_ON = frozenset(
    f"aten::{name}"
    for name in (
        "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "select", "slice", "clone", "_to_copy", "detach",
        "alias", "expand", "flatten", "max", "min", "amax", "amin",
    )
)  # fmt: skip
_ASKS_ALL = frozenset({"aten::all", "aten::any"})
_NEGATES = frozenset({"aten::bitwise_not", "aten::logical_not"})
_DECIDED_BY = {**DECIDED_BY, "aten::mul": 0}
_COMPARISONS = {f"aten::{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def at_limit(tensor: Any) -> int | None:
    """What a truth, or each of some whole numbers, is once a limit of the program's own is reached; ``None`` where none
    decides it."""
    return getattr(tensor, _AT_LIMIT, None)


def follow_limits(func: Any, args: Sequence[Any], result: Any) -> None:
    """Keep with what an operator makes of truths what decides it in the end."""
    if not isinstance(result, FakeTensor) or result.dtype.is_floating_point or not args:
        return
    found = _found(func._schema.name.removesuffix("_"), args, result)
    if found is not None:
        setattr(result, _AT_LIMIT, found)
    elif func._schema.is_mutable and at_limit(result) is not None:
        delattr(result, _AT_LIMIT)


def _found(name: str, args: Sequence[Any], result: Any) -> int | None:
    first = at_limit(args[0])
    if name in _DECIDED_BY:
        return _joined(_DECIDED_BY[name], args[:2])
    if name == "aten::full" or (name in _COMPARISONS and first is None):
        known = _uniform(result) if result.dtype is torch.bool else None
        return None if known is None or (name == "aten::full" and _is_written_out()) else int(not known)
    if first is None:
        return None
    if name in _PASSES_ON:
        return int(bool(first)) if result.dtype is torch.bool else first
    if name in _ASKS_ALL:
        return int(bool(first))
    if name in _NEGATES:
        return int(not first) if result.dtype is torch.bool else None
    if name == "aten::sum":
        return 0 if first == 0 else None
    if name in _COMPARISONS and (other := _uniform(args[1])) is not None:
        return int(_COMPARISONS[name](first, other))
    return None


def _joined(deciding: int, parts: Sequence[Any]) -> int | None:
    """Of two parts, one of which decides where it is the ``deciding`` one: what they make at the limit of either."""
    limits = [at_limit(each) for each in parts]
    if deciding in limits:
        return deciding
    at_end = [_uniform(part) if limit is None else limit for part, limit in zip(parts, limits, strict=True)]
    is_limited = any(limit is not None for limit in limits)
    return 1 - deciding if is_limited and at_end == [1 - deciding] * len(at_end) else None


def _uniform(value: Any) -> int | None:
    """The known truth or whole number that all elements are."""
    if isinstance(value, int):
        return int(value)
    known = shares_of(value)
    if known is None or origin_of(known) is not None or known.dtype.is_floating_point or not known.numel():
        return None
    with _disable_current_modes():
        first = known.flatten()[0]
        return int(first) if bool((known == first).all()) else None


def _is_written_out() -> bool:
    """Whether the line that fills a tensor says with which truth: where a loop begins, and no limit."""
    file, _, number = user_line().rpartition(":")
    tree = parsed(file)
    if tree is None:
        return True
    line = int(number)
    for statement in list(statements_around(tree, line))[-1:]:
        for call in ast.walk(statement):
            if isinstance(call, ast.Call) and call.lineno <= line <= (call.end_lineno or line):
                given = (*call.args, *(each.value for each in call.keywords))
                if any(isinstance(each, ast.Constant) and isinstance(each.value, bool) for each in given):
                    return True
    return False
