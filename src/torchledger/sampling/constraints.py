"""Conditions on a shape in a sweep file: ``"h divides dim"``, ``"m * k <= 2**28"``.

Only arithmetic, comparisons, ``and``, ``or`` and ``not`` of parameter names and numbers: nothing else can be written,
so nothing else can run.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_DIVIDES = re.compile(r"(\w+)\s+divides\s+(\w+)")
_LARGEST_EXPONENT = 64
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
    plain = _DIVIDES.sub(r"(\2 % \1 == 0)", text)
    try:
        tree = ast.parse(plain, mode="eval").body
        if _depth(tree) > _DEEPEST:
            raise ValueError(f"{text[:40]!r}... is nested too deeply")
        _check(tree, text, names)
    except SyntaxError as error:
        raise ValueError(f"{text!r} cannot be read: {error.msg}") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"{text[:40]!r}... is nested too deeply") from error
    return tree


def _check(node: ast.AST, text: str, names: set[str]) -> None:
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise ValueError(f"{text!r} names {node.id!r}; the parameters are {sorted(names)}")
        return
    if isinstance(node, ast.Constant):
        if not isinstance(node.value, (int, float)):
            raise ValueError(f"{text!r}: {node.value!r} is no number")
        return
    allowed = (ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare)
    if not isinstance(node, allowed):
        raise ValueError(f"{text!r} may hold parameters, numbers, + - * / // % **, comparisons, and, or, not, divides")
    operators = [node.op] if isinstance(node, (ast.BinOp, ast.UnaryOp)) else []
    if isinstance(node, ast.Compare):
        operators = list(node.ops)  # type: ignore[arg-type]
    known = (*_BINARY, *_COMPARE, ast.USub, ast.Not)
    if any(type(part) not in known for part in operators):
        raise ValueError(f"{text!r} holds an operator that conditions do not know")
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.operator, ast.cmpop, ast.boolop, ast.unaryop)):
            _check(child, text, names)


def _value(node: ast.AST, p: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return p[node.id]
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.BoolOp):
        values = (_value(part, p) for part in node.values)
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, p)
        return not value if isinstance(node.op, ast.Not) else -value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, p), _value(node.right, p)
        if isinstance(node.op, ast.Pow) and abs(right) > _LARGEST_EXPONENT:
            raise ValueError(f"exponent {right} is too large")
        try:
            value = _BINARY[type(node.op)](left, right)
        except (ArithmeticError, TypeError) as error:
            raise ValueError(f"{ast.unparse(node)!r} has no value where {_values(p)}: {error}") from error
        if isinstance(value, complex) or not -_LARGEST_VALUE <= value <= _LARGEST_VALUE:
            raise ValueError(f"{ast.unparse(node)!r} is no number of 64 bits where {_values(p)}")
        return value
    assert isinstance(node, ast.Compare)
    left = _value(node.left, p)
    for comparison, part in zip(node.ops, node.comparators, strict=True):
        right = _value(part, p)
        if not _COMPARE[type(comparison)](left, right):
            return False
        left = right
    return True


def _values(p: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in p.items())
