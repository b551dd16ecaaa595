"""How many turns of a program's loop a round of several optimizers takes, told from its text: tasks or networks that
take turns, each with an optimizer of its own, are one step."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from types import FrameType

from torchledger.program_text import LOOPS, place_of, statements_of_function

_MOST = 64
"""So many steps of optimizers are remembered."""


@dataclass(frozen=True)
class _Update:
    """A step of an optimizer: the lines that lead to it from the loop that it is made in, the statements around each of
    them, where that loop begins, and whether models were called since the step before."""

    lines: tuple[tuple[str, int], ...]
    around: tuple[ast.stmt, ...]
    loop: str | None
    has_models: bool

    def is_of_another_turn(self, before: _Update) -> bool:
        """Whether the loop has gone round since the step before: the same lines are reached again, or another
        branch."""
        if not self.has_models:
            return False
        return self.lines == before.lines or any(
            isinstance(each, ast.If) and each in before.around and self._branch(each) != before._branch(each)
            for each in self.around
        )

    def _branch(self, statement: ast.If) -> int | None:
        """Which side of a condition these lines stand on."""
        lines = {line for _, line in self.lines}
        for side, branch in enumerate((statement.body, statement.orelse)):
            if any(each.lineno <= line <= (each.end_lineno or each.lineno) for each in branch for line in lines):
                return side
        return None


class Rounds:
    """Told of a program's models and of its optimizers' steps."""

    def __init__(self) -> None:
        self._updates: list[_Update] = []
        self._has_models = False

    def model_called(self) -> None:
        """A module or a graph is about to be called."""
        self._has_models = True

    def optimizer_stepped(self, frames: Iterable[tuple[FrameType, int]]) -> None:
        """An optimizer has made its step, asked by these frames with their lines, innermost first."""
        lines, around, loop = list[tuple[str, int]](), list[ast.stmt](), None
        for frame, line in frames:
            file, statements = frame.f_code.co_filename, list(statements_of_function(frame.f_code, line))
            lines.append((file, line))
            around += statements
            inside = [each for each in statements if isinstance(each, LOOPS)]
            if inside:
                loop = place_of(file, inside[0])
                break
        update = _Update(tuple(lines), tuple(around), loop, self._has_models)
        self._updates, self._has_models = [*self._updates[1 - _MOST :], update], False

    def note(self, count: int) -> str | None:
        """That the last ``count`` steps, which were one round, took several turns; ``None`` where they did not."""
        steps = self._updates[-count:]
        turns = 1 + sum(later.is_of_another_turn(before) for before, later in pairwise(steps))
        if turns == 1 or steps[0].loop is None:
            return None
        return (
            f"a step is one round of {count} optimizers' steps, which takes {turns} turns of the loop at "
            f"{steps[0].loop}; end each turn with torchledger.step() to price one of them"
        )
