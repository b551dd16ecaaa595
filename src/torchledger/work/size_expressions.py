"""Sizes as expressions in a graph's symbols: read by a grammar of their own, nothing is handed to Python to be run."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction

_LONGEST = 2000
_LARGEST_POWER = 64
_LARGEST_BITS = 4096
"""Far beyond any count, and small enough that arithmetic on it takes no time."""


def size_at(text: str | None, symbols: Mapping[str, int]) -> int | None:
    """The whole number that an expression is with ``symbols`` for its names; ``None`` where it is none.

    Reads what sympy prints of sizes: integers, names, ``+ - * / // % **``, minima, maxima, and floors, ceilings and
    remainders by their names in sympy and torch. ``None`` also stands for a name without value, a fraction, a division
    by zero and for all that is no such expression.

    >>> size_at("32*s0*((s1 + 1)//4)", {"s0": 5, "s1": 8}), size_at("Max(1, s0)", {"s0": 0}), size_at("s0/2", {"s0": 3})
    (320, 1, None)
    """
    tree = _parsed(text) if text is not None else None
    if tree is None:
        return None
    try:
        value = _value(tree, symbols)
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError):
        return None
    return int(value) if value.denominator == 1 else None


@functools.lru_cache(maxsize=8192)
def _parsed(text: str) -> ast.expr | None:
    if len(text) > _LONGEST:
        return None
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _floor(value: Fraction, divisor: Fraction = Fraction(1)) -> Fraction:
    return Fraction(value // divisor)


def _ceiling(value: Fraction) -> Fraction:
    return Fraction(math.ceil(value))


def _modular(value: Fraction, divisor: Fraction, modulus: Fraction) -> Fraction:
    return value // divisor % modulus


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > _LARGEST_POWER:
        raise ValueError(exponent)
    return Fraction(base ** int(exponent))


def _identity(value: Fraction) -> Fraction:
    return value


_OPERATORS: Mapping[type[ast.AST], Callable[..., Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: _floor,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: Mapping[str, Callable[..., Fraction]] = {
    **dict.fromkeys(("Max", "max"), max),
    **dict.fromkeys(("Min", "min"), min),
    **dict.fromkeys(("FloorDiv", "CleanDiv", "floor", "FloorToInt"), _floor),
    **dict.fromkeys(("ceiling", "CeilToInt"), _ceiling),
    **dict.fromkeys(("Mod", "PythonMod"), operator.mod),
    **dict.fromkeys(("IntTrueDiv", "FloatTrueDiv"), operator.truediv),
    **dict.fromkeys(("Pow", "PowByNatural"), _power),
    **dict.fromkeys(("Identity", "ToFloat"), _identity),
    "ModularIndexing": _modular,
    "Abs": abs,
}


def _value(node: ast.expr, symbols: Mapping[str, int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.Name):
        return Fraction(operator.index(symbols[node.id]))
    if isinstance(node, ast.BinOp):
        function, operands = _OPERATORS[type(node.op)], [node.left, node.right]
    elif isinstance(node, ast.UnaryOp):
        function, operands = _OPERATORS[type(node.op)], [node.operand]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        function, operands = _FUNCTIONS[node.func.id], node.args
    else:
        raise ValueError(type(node).__name__)
    value = function(*(_value(operand, symbols) for operand in operands))
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _LARGEST_BITS:
        raise ValueError("beyond any size")
    return value
