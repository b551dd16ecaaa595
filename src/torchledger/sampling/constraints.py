"""Conditions on a shape in a sweep file: ``"h divides dim"``, ``"m * k <= 2**28"``.

Only arithmetic, comparisons, ``and``, ``or`` and ``not`` of parameter names and numbers: nothing else can be written,
so nothing else can run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

from torchledger.work.expressions import (
    ARITHMETIC,
    CONDITIONS,
    ExpressionError,
    Grammar,
    evaluate,
    parse_expression,
    parts_outside,
    power,
)

_DIVIDES = re.compile(r"(\w+)\s+divides\s+(\w+)")
_LARGEST_VALUE = 2.0**63  # beyond any size; a tower of powers would fill the memory
_LONGEST = 1_000


def compile_constraint(text: str, names: set[str]) -> Callable[[Mapping[str, Any]], bool]:
    """A function of the parameters that says whether they meet the condition.

    Raises ``ValueError`` for what is no condition, or names something that is no parameter.

    >>> compile_constraint("h divides dim and dim <= 64", {"h", "dim"})({"h": 4, "dim": 32})
    True
    """
    tree = _parse(text, names)
    return lambda p: bool(_value(tree, p))


def compile_expression(text: str, names: set[str]) -> Callable[[Mapping[str, Any]], int]:
    """A function of the parameters that gives a whole number: ``"kernel // 2"``.

    Raises ``ValueError`` as ``compile_constraint`` does.
    """
    tree = _parse(text, names)
    return lambda p: int(_value(tree, p))


_DEEPEST = 100
"""Levels of a condition: no honest one has ten, and Python's own limit depends on who calls."""


def _depth(tree: ast.AST) -> int:
    deepest, level = 0, [tree]
    while level:
        deepest, level = deepest + 1, [child for node in level for child in ast.iter_child_nodes(node)]
    return deepest


def _parse(text: str, names: set[str]) -> ast.expr:
    if len(text) > _LONGEST:
        raise ValueError(f"a condition of {len(text):,} characters is longer than {_LONGEST:,}: write several")
    tree = parse_expression(_DIVIDES.sub(r"(\2 % \1 == 0)", text), longest=2 * _LONGEST)
    if _depth(tree) > _DEEPEST:
        raise ValueError(f"{text[:40]!r}... is nested too deeply")
    if any(True for _ in parts_outside(tree, _GRAMMAR)):
        raise ValueError(f"{text!r} may hold parameters, numbers, + - * / // % **, comparisons, and, or, not, divides")
    if unknown := sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - names):
        raise ValueError(f"{text!r} names {unknown[0]!r}; the parameters are {sorted(names)}")
    return tree


def _check(value: Any) -> None:
    if isinstance(value, complex) or not -_LARGEST_VALUE <= value <= _LARGEST_VALUE:
        raise ValueError("no number of 64 bits")


_GRAMMAR = Grammar({**ARITHMETIC, **CONDITIONS, ast.Pow: power}, numbers=(int, float, bool), check=_check)


def _value(tree: ast.expr, p: Mapping[str, Any]) -> Any:
    try:
        return evaluate(tree, p.__getitem__, _GRAMMAR)
    except ExpressionError as error:
        values = ", ".join(f"{name}={value}" for name, value in p.items())
        raise ValueError(f"{error}, where {values}") from error
