"""Whether a program makes several steps of its optimizer in each turn of a loop around them, told from its text.

A step that an optimizer ends is priced alone; who times a turn of the outer loop times several.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torchledger.frame_variables import local_of
from torchledger.program_text import LOOPS, place_of, statements_of_function

_MOST = 64
"""A loop of more turns is an epoch."""


@dataclass(frozen=True)
class StepsOfATurn:
    """A loop, at a line of a file, whose turns each make a step of an optimizer, ``count`` of them in each turn of the
    loop around it, which begins at ``around``."""

    loop: str
    count: int
    around: str

    def note(self) -> str:
        """That one of these steps is priced."""
        return (
            f"one step of the optimizer is priced: the loop at {self.loop} makes {self.count} in each turn of the loop "
            f"around it ({self.around}); end a whole turn with torchledger.step() to price it"
        )


def steps_of_a_turn(frames: Iterable[tuple[FrameType, int]]) -> StepsOfATurn | None:
    """The loops that an optimizer steps in, of the frames that lead to it with their lines, innermost first; ``None``
    where the text does not say how many steps a turn makes, and where it is one."""
    inner: tuple[str, int] | None = None
    for frame, line in frames:
        file = frame.f_code.co_filename
        for statement in statements_of_function(frame.f_code, line):
            place = place_of(file, statement)
            if inner is not None and isinstance(statement, LOOPS):
                return StepsOfATurn(*inner, place)
            if inner is None and isinstance(statement, (ast.If, ast.While, ast.Match)):
                return None  # it steps in some turns alone, or as often as values say
            if inner is None and isinstance(statement, (ast.For, ast.AsyncFor)):
                count = _turns(statement.iter, frame)
                if count is None or not 1 < count <= _MOST:
                    return None
                inner = place, count
    return None


def _turns(iterated: ast.expr, frame: FrameType) -> int | None:
    """How many turns a loop makes; ``None`` for all but ranges of known numbers, and what is written out."""
    if isinstance(iterated, (ast.Tuple, ast.List)):
        return len(iterated.elts)
    return None if (numbers := range_of(iterated, frame)) is None else len(numbers)


def range_of(expression: ast.expr, frame: FrameType) -> range | None:
    """The range that a call in a frame's text makes, where its numbers are known; ``None`` for any other expression.

    >>> import sys
    >>> range_of(ast.parse("range(2, 9, 3)", mode="eval").body, sys._getframe())
    range(2, 9, 3)
    """
    if not (
        isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.func.id == "range"
    ):
        return None
    numbers = [value_of(each, frame) for each in expression.args]
    is_known = numbers and all(isinstance(each, int) for each in numbers) and 0 not in numbers[2:]
    return range(*numbers) if is_known else None


def value_of(expression: ast.expr, frame: FrameType) -> Any:
    """What an expression of a frame's text is, where that is a constant, a variable, or what an object holds under a
    name; nothing is called, ``None`` stands for any other.

    >>> import sys
    >>> value_of(ast.parse("2", mode="eval").body, sys._getframe())
    2
    """
    if isinstance(expression, ast.Constant):
        return expression.value
    if isinstance(expression, ast.Name):
        return local_of(frame, expression.id, frame.f_globals.get(expression.id))
    if isinstance(expression, ast.Attribute):
        return getattr(value_of(expression.value, frame), "__dict__", {}).get(expression.attr)
    return None
