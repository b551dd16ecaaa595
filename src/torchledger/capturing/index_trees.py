"""Index expressions: sympy's trees as plain tuples, which are quick to take apart, evaluate and write."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

Tree = tuple[Any, ...]


class Unsupported(Exception):
    """An index expression outside integer arithmetic."""


@functools.lru_cache(maxsize=16384)
def parse_index(expression: Any) -> Tree:
    """Turn a sympy expression (with torch's integer functions, known by name) into nested tuples."""
    if isinstance(expression, int):
        return ("int", expression)
    if expression.is_Integer:
        return ("int", int(expression))
    if expression.is_Symbol:
        return ("symbol", expression.name)
    if expression.is_Add:
        return ("add", *map(parse_index, expression.args))
    if expression.is_Mul:
        if any(factor.is_Rational and not factor.is_Integer for factor in expression.args):
            raise Unsupported(str(expression))
        return ("multiply", *map(parse_index, expression.args))
    if expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
        return ("multiply", *([parse_index(expression.base)] * int(expression.exp)))
    name, arguments = expression.func.__name__, expression.args
    if name in ("FloorDiv", "CleanDiv"):
        return ("divide", parse_index(arguments[0]), _positive(arguments[1]))
    if name == "ModularIndexing":
        return ("modulo", ("divide", parse_index(arguments[0]), _positive(arguments[1])), _positive(arguments[2]))
    if name in ("Mod", "PythonMod"):
        return ("modulo", parse_index(arguments[0]), _positive(arguments[1]))
    if name in ("Max", "Min"):
        return (name.lower(), *map(parse_index, arguments))
    if name == "Abs":
        inner = parse_index(arguments[0])
        return ("max", inner, ("multiply", ("int", -1), inner))
    if name == "Identity":
        return parse_index(arguments[0])
    if name in ("floor", "FloorToInt"):
        numerator, denominator = arguments[0].together().as_numer_denom()
        return ("divide", parse_index(numerator), _positive(denominator))
    raise Unsupported(str(expression))


def _positive(expression: Any) -> int:
    if not (isinstance(expression, int) or expression.is_Integer) or int(expression) <= 0:
        raise Unsupported(f"division by {expression}")
    return int(expression)


@functools.lru_cache(maxsize=16384)
def symbols_of(tree: Tree) -> frozenset[str]:
    if tree[0] == "symbol":
        return frozenset((tree[1],))
    return frozenset().union(*(symbols_of(part) for part in tree[1:] if isinstance(part, tuple)))


def evaluate_tree(tree: Tree, values: Mapping[str, Any]) -> Any:
    kind, *parts = tree
    if kind == "int":
        return parts[0]
    if kind == "symbol":
        return values[parts[0]]
    if kind == "divide":
        return evaluate_tree(parts[0], values) // parts[1]
    if kind == "modulo":
        return evaluate_tree(parts[0], values) % parts[1]
    operands = [evaluate_tree(part, values) for part in parts]
    combine = {"add": np.add, "multiply": np.multiply, "max": np.maximum, "min": np.minimum}[kind]
    return functools.reduce(combine, operands)


def evaluate_index(expression: Any, values: Mapping[str, Any]) -> Any:
    """An index expression at numbers (or whole arrays of them) for its symbols; ``None`` outside integer arithmetic."""
    try:
        return evaluate_tree(parse_index(expression), values)
    except Unsupported:
        return None


@functools.lru_cache(maxsize=16384)
def index_text(expression: Any) -> str:
    """An index expression as a Python expression (sympy's own printer is slow).

    >>> import sympy
    >>> index_text(sympy.sympify("64*x + y - 1"))
    '64*x + y - 1'
    """
    try:
        return _text(parse_index(expression))
    except Unsupported:
        return str(expression)


def _text(tree: Tree) -> str:
    kind, *parts = tree
    if kind in ("int", "symbol"):
        return str(parts[0])
    if kind == "add":
        return " + ".join(map(_text, sorted(parts, key=_reading_order))).replace("+ -", "- ")
    if kind == "multiply":
        factors = [_operand(part) for part in parts]
        return "*".join(factors).removeprefix("1*").replace("-1*", "-", 1 if parts[0] == ("int", -1) else 0)
    if kind in ("divide", "modulo"):
        return f"({_operand(parts[0])} {'//' if kind == 'divide' else '%'} {parts[1]})"
    return f"{kind}({', '.join(map(_text, parts))})"


def _operand(tree: Tree) -> str:
    return f"({_text(tree)})" if tree[0] == "add" else _text(tree)


def _reading_order(term: Tree) -> tuple[bool, bool, int, str]:
    """Widest stride first, what is taken away after what is added, the constant last."""
    factor = term[1][1] if term[0] == "multiply" and term[1][0] == "int" else 1
    return term[0] == "int", factor < 0, -abs(factor), _text(term)
