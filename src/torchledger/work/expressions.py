"""Arithmetic written as text: read by a grammar, nothing is handed to Python to be run.

Sizes of a graph (``size_expressions.py``), of a launch that is made alone, indices of an access and conditions on a
shape each have a ``Grammar`` of their own; they are parsed and evaluated here.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Names = Callable[[str], Any]
"""What a name stands for: its value, or ``None`` where that is not known."""

ARITHMETIC: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
}
CONDITIONS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.And: all,
    ast.Or: any,
    ast.Not: operator.not_,
}

_LARGEST_POWER = 64
_SHOWN = 80  # characters that a message repeats


class ExpressionError(ValueError):
    """Text that is no expression of a grammar, or has no value; the message says which part and why."""


@dataclass(frozen=True)
class Grammar:
    """What an expression may hold: operators by their class in ``ast``, functions by name, numbers of these types.

    ``check`` is called with the value of each part and raises ``ValueError`` for one that no honest expression has;
    ``number`` makes the values to compute with out of what is written.
    """

    operators: Mapping[type[ast.AST], Callable[..., Any]]
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    numbers: tuple[type, ...] = (int,)
    number: Callable[[Any], Any] = lambda written: written
    check: Callable[[Any], None] = lambda value: None


def power(base: Any, exponent: Any) -> Any:
    """``base`` to the ``exponent``; raises ``ValueError`` for exponents that no size has."""
    if abs(exponent) > _LARGEST_POWER:
        raise ValueError(f"exponent {exponent} is too large")
    return base**exponent


def parse_expression(text: str, *, longest: int = 2000) -> ast.expr:
    """The tree of an expression of at most ``longest`` characters. Raises ``ExpressionError`` if it is none."""
    if len(text) > longest:
        raise ExpressionError(f"{text[:_SHOWN]!r}... has {len(text):,} characters, of at most {longest:,}")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ExpressionError(f"{text[:_SHOWN]!r} cannot be read: {reason}") from error
    except (RecursionError, MemoryError) as error:
        raise ExpressionError(f"{text[:_SHOWN]!r}... is nested too deeply") from error


def parts_outside(tree: ast.expr, grammar: Grammar) -> Iterator[ast.AST]:
    """The parts of an expression that are not of the grammar, without computing anything."""
    if isinstance(tree, ast.Name):
        return
    if isinstance(tree, ast.Constant):
        if type(tree.value) not in grammar.numbers:
            yield tree
        return
    found = _applied(tree, grammar)
    if found is None:
        yield tree
        return
    for operand in found[1]:
        yield from parts_outside(operand, grammar)


def evaluate(tree: ast.expr, names: Names, grammar: Grammar) -> Any:
    """The value of an expression; ``None`` if that of a name in it is not known.

    Raises ``ExpressionError`` for a part that is not of the grammar and for one without a value (a division by zero);
    what ``names`` raises comes through.
    """
    try:
        return _value(tree, names, grammar)
    except RecursionError as error:
        raise ExpressionError("the expression is nested too deeply") from error


def _value(tree: ast.expr, names: Names, grammar: Grammar) -> Any:
    if isinstance(tree, ast.Name):
        return names(tree.id)
    if isinstance(tree, ast.Constant) and type(tree.value) in grammar.numbers:
        return grammar.number(tree.value)
    found = _applied(tree, grammar)
    if found is None:
        raise ExpressionError(f"{_written(tree)} is not of the grammar")
    if isinstance(tree, ast.BoolOp):
        # Lazily: what stands behind an answer that is certain need not have a value.
        return found[0](_value(part, names, grammar) for part in tree.values)
    if isinstance(tree, ast.Compare):
        return _compared(tree, names, grammar)
    operands = [_value(operand, names, grammar) for operand in found[1]]
    if any(operand is None for operand in operands):
        return None
    try:
        value = found[0](*operands)
        grammar.check(value)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ExpressionError(f"{_written(tree)} has no value: {error}") from error
    return value


def _compared(tree: ast.Compare, names: Names, grammar: Grammar) -> bool:
    left = _value(tree.left, names, grammar)
    for comparison, part in zip(tree.ops, tree.comparators, strict=True):
        right = _value(part, names, grammar)
        if not grammar.operators[type(comparison)](left, right):
            return False
        left = right
    return True


def _applied(tree: ast.expr, grammar: Grammar) -> tuple[Callable[..., Any], list[ast.expr]] | None:
    """The function that a part applies and its operands; ``None`` where the grammar has none such."""
    function: Callable[..., Any] | None = None
    operands: list[ast.expr] = []
    if isinstance(tree, ast.BinOp):
        function, operands = grammar.operators.get(type(tree.op)), [tree.left, tree.right]
    elif isinstance(tree, ast.UnaryOp):
        function, operands = grammar.operators.get(type(tree.op)), [tree.operand]
    elif isinstance(tree, ast.BoolOp):
        function, operands = grammar.operators.get(type(tree.op)), tree.values
    elif isinstance(tree, ast.Compare) and all(type(each) in grammar.operators for each in tree.ops):
        function, operands = grammar.operators[type(tree.ops[0])], [tree.left, *tree.comparators]
    elif isinstance(tree, ast.Call) and not tree.keywords:
        function, operands = grammar.functions.get(_dotted(tree.func)), tree.args
    return None if function is None else (function, operands)


def _dotted(function: ast.expr) -> str:
    """``"math.ceil"``; empty for what is no name."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def _written(tree: ast.AST) -> str:
    return repr(ast.unparse(tree)[:_SHOWN])
