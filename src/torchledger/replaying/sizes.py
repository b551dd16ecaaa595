"""What may stand in code that is made out of a ledger's fields: sizes, element types, devices and names.

Sizes are integer expressions with names for those that are symbolic. They are read by a grammar
(``work/expressions.py``); nothing of a ledger is handed to Python to be evaluated here.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from torchledger.errors import MeasureError
from torchledger.printable import ended
from torchledger.work.element_sizes import ELEMENT_SIZES
from torchledger.work.expressions import ARITHMETIC, ExpressionError, Grammar, evaluate, parse_expression, power


class CannotReplay(MeasureError):
    """This launch cannot be made alone; the message says why."""


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
_LARGEST = 2.0**63
"""Beyond any size."""
_LONGEST = 100_000
"""Characters of the sizes of one tensor, each an expression."""
_DEVICE = re.compile(r"[a-z]+(:\d+)?")


def sizes(text: str, symbols: Mapping[str, int]) -> tuple[int, ...] | None:
    """The numbers that a tuple of size expressions stands for; ``None`` if a symbol in it has no value.

    Raises ``CannotReplay`` for anything but integers, names, operators and a few functions of them.

    >>> sizes("(s0, (s0 + 7) // 8, max(1, 4))", {"s0": 20})
    (20, 3, 4)
    """
    try:
        values = [evaluate(part, lambda name: symbol_value(symbols, name), _SIZES) for part in _parts(text)]
    except ExpressionError as error:
        raise CannotReplay(f"{text[:80]!r} are no sizes: {ended(str(error))}") from error
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
    tree = parse_expression(text, longest=_LONGEST)
    if not isinstance(tree, (ast.Tuple, ast.List)):
        raise ExpressionError("they stand in parentheses")
    return tree.elts


def _power(base: float, exponent: Any) -> Any:
    if type(exponent) is not int or exponent < 0:
        raise ValueError(f"exponent {exponent} is no size")
    return power(base, exponent)


def _check(value: float) -> None:
    if isinstance(value, complex) or not -_LARGEST <= value <= _LARGEST:
        raise ValueError("beyond any size")


_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {**ARITHMETIC, ast.UAdd: operator.pos, ast.Pow: _power}
_SIZES = Grammar(_OPERATORS, _FUNCTIONS, numbers=(int, float), check=_check)
