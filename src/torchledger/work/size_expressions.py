"""Sizes as expressions in a graph's symbols: as sympy prints them."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from torchledger.work.expressions import ARITHMETIC, ExpressionError, Grammar, evaluate, parse_expression, power

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
        value = evaluate(tree, lambda name: Fraction(operator.index(symbols[name])), _SIZES)
    except (LookupError, TypeError, ValueError):
        return None
    return int(value) if value.denominator == 1 else None


@functools.lru_cache(maxsize=8192)
def _parsed(text: str) -> ast.expr | None:
    try:
        return parse_expression(text.strip())
    except ExpressionError:
        return None


def _floor(value: Fraction, divisor: Fraction = Fraction(1)) -> Fraction:
    return Fraction(value // divisor)


def _ceiling(value: Fraction) -> Fraction:
    return Fraction(math.ceil(value))


def _modular(value: Fraction, divisor: Fraction, modulus: Fraction) -> Fraction:
    return value // divisor % modulus


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError(f"exponent {exponent} is no whole number")
    return Fraction(power(base, int(exponent)))


def _identity(value: Fraction) -> Fraction:
    return value


def _check(value: Fraction) -> None:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _LARGEST_BITS:
        raise ValueError("beyond any size")


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
_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    **ARITHMETIC,
    ast.UAdd: operator.pos,
    ast.FloorDiv: _floor,
    ast.Pow: _power,
}
_SIZES = Grammar(_OPERATORS, _FUNCTIONS, number=Fraction, check=_check)
