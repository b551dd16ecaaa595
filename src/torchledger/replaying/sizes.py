"""What may stand in code that is made out of a ledger's fields: sizes, element types, devices and names.

Sizes are integer expressions with names for those that are symbolic. They are parsed by a grammar of their own; nothing
of a ledger is handed to Python to be evaluated here.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from torchledger.errors import MeasureError
from torchledger.work.element_sizes import ELEMENT_SIZES


class CannotReplay(MeasureError):
    """This launch cannot be made alone; the message says why."""


_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "max": max,
    "min": min,
    "int": int,
    "float": float,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.trunc": math.trunc,
    "math.sqrt": math.sqrt,
}
_LARGEST_POWER = 64
_DEVICE = re.compile(r"[a-z]+(:\d+)?")


def sizes(text: str, symbols: Mapping[str, int]) -> tuple[int, ...] | None:
    """The numbers that a tuple of size expressions stands for; ``None`` if a symbol in it has no value.

    Raises ``CannotReplay`` for anything but integers, names, operators and a few functions of them.

    >>> sizes("(s0, (s0 + 7) // 8, max(1, 4))", {"s0": 20})
    (20, 3, 4)
    """
    values = [_value(part, symbols, text) for part in _parts(text)]
    return None if None in values else tuple(int(value) for value in values)


def symbol_value(symbols: Mapping[str, int], name: str) -> int | None:
    """A symbol's value, ``None`` where the ledger has none. Raises ``CannotReplay`` if it is no integer."""
    value = symbols.get(name)
    if value is not None and type(value) is not int:
        raise CannotReplay(f"the size {name} is {value!r} in the ledger, which is no integer.")
    return value


def check_dtype(name: str) -> None:
    """Raise ``CannotReplay`` unless this is the name of an element type (``"torch.float32"``)."""
    kind, _, dtype = name.partition(".") if isinstance(name, str) else ("", "", "")
    if kind != "torch" or dtype not in ELEMENT_SIZES:
        raise CannotReplay(f"{name!r} is no element type that a tensor could be made of.")


def check_device(name: str) -> None:
    """Raise ``CannotReplay`` unless this is the name of a device (``"cuda:0"``)."""
    if not isinstance(name, str) or not _DEVICE.fullmatch(name):
        raise CannotReplay(f"{name!r} is no device that a tensor could be made on.")


def check_name(name: str) -> None:
    """Raise ``CannotReplay`` unless this can be a name in code."""
    if not isinstance(name, str) or not name.isidentifier():
        raise CannotReplay(f"{name!r} is no name of a tensor or function.")


def _parts(text: str) -> list[ast.expr]:
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CannotReplay(f"{text[:80]!r} are no sizes: {type(error).__name__}.") from error
    if not isinstance(tree, (ast.Tuple, ast.List)):
        raise CannotReplay(f"{text[:80]!r} are no sizes: they stand in parentheses.")
    return tree.elts


def _value(node: ast.expr, symbols: Mapping[str, int], text: str) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.Name):
        return symbol_value(symbols, node.id)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        operands, function = [node.left, node.right], _OPERATORS[type(node.op)]
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        operands, function = [node.operand], _OPERATORS[type(node.op)]
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in _FUNCTIONS and not node.keywords:
        operands, function = node.args, _FUNCTIONS[ast.unparse(node.func)]
    else:
        raise CannotReplay(f"{ast.unparse(node)[:80]!r} in {text[:80]!r} is no size.")
    values = [_value(operand, symbols, text) for operand in operands]
    if None in values:
        return None
    if function is operator.pow and not (isinstance(values[1], int) and 0 <= values[1] <= _LARGEST_POWER):
        raise CannotReplay(f"{ast.unparse(node)[:80]!r} is no size.")
    try:
        return function(*values)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise CannotReplay(f"{ast.unparse(node)[:80]!r} has no value: {error}.") from error
