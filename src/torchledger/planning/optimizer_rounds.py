"""How many turns of a program's loop a round of several optimizers takes, told from its text: tasks or networks that
take turns, each with an optimizer of its own, are one step."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import FrameType

from torchledger.program_text import LOOPS, place_of, statements_of_function

_MOST = 64
"""So many steps of optimizers are remembered."""


@dataclass(frozen=True)
class _Update:
    """A step of an optimizer: the lines that lead to it, innermost first, the statements around each of them, as the
    place of the line, and whether models were called since the step before."""

    lines: tuple[tuple[str, int], ...]
    around: tuple[tuple[int, ast.stmt], ...]
    has_models: bool

    def loops(self) -> list[ast.stmt]:
        """The loops that it is made in, innermost first."""
        return [each for _, each in self.around if isinstance(each, LOOPS)]

    def within(self, loop: ast.stmt) -> _Update:
        """What of it lies inside one of its loops."""
        last = next(place for place, (_, each) in enumerate(self.around) if each is loop)
        return _Update(self.lines[: self.around[last][0] + 1], self.around[:last], self.has_models)

    def file_of(self, loop: ast.stmt) -> str:
        """Where one of its loops is."""
        return next(self.lines[place][0] for place, each in self.around if each is loop)

    def is_of_another_turn(self, before: _Update) -> bool:
        """Whether a loop that both are ``within`` has gone round since the step before: the same lines are reached
        again, or another branch, and that in no loop that both are made in inside it."""
        if not self.has_models or _common_loop((self, before)) is not None:
            return False
        return self.lines == before.lines or any(
            isinstance(each, ast.If) and (place, each) in before.around and self._branch(each) != before._branch(each)
            for place, each in self.around
        )

    def _branch(self, statement: ast.If) -> int | None:
        """Which side of a condition these lines stand on."""
        lines = {line for _, line in self.lines}
        for side, branch in enumerate((statement.body, statement.orelse)):
            if any(each.lineno <= line <= (each.end_lineno or each.lineno) for each in branch for line in lines):
                return side
        return None


class Rounds:
    """Told of a program's models, of its optimizers' steps, and of where one that ends a step was recorded."""

    def __init__(self) -> None:
        self._updates: list[_Update] = []
        self._recorded: tuple[_Update, ...] = ()
        self._has_models = False

    def model_called(self) -> None:
        """A module or a graph is about to be called."""
        self._has_models = True

    def optimizer_stepped(self, frames: Iterable[tuple[FrameType, int]]) -> None:
        """An optimizer has made its step, asked by these frames with their lines, innermost first."""
        lines, around = list[tuple[str, int]](), list[tuple[int, ast.stmt]]()
        for place, (frame, line) in enumerate(frames):
            lines.append((frame.f_code.co_filename, line))
            around += [(place, each) for each in statements_of_function(frame.f_code, line)]
        update = _Update(tuple(lines), tuple(around), self._has_models)
        self._updates, self._has_models = [*self._updates[1 - _MOST :], update], False

    def hearing_ended(self) -> None:
        """The step that ended last was recorded."""
        self._recorded = tuple(self._updates)

    def note(self, count: int) -> str | None:
        """That the last ``count`` steps before the recorded one ended, which were one round, took several turns of a
        loop; ``None`` where they did not, and where not as many are remembered."""
        steps = self._recorded[-count:]
        loop = _common_loop(steps) if len(steps) == count else None
        if loop is None:
            return None
        inside = [each.within(loop) for each in steps]
        turns = 1 + sum(later.is_of_another_turn(before) for before, later in pairwise(inside))
        outer, round_of = place_of(steps[0].file_of(loop), loop), f"a step is one round of {count} optimizers' steps"
        if turns > 1:
            return (
                f"{round_of}, which takes {turns} turns of the loop at {outer}; end each turn with torchledger.step() "
                "to price one of them"
            )
        inner, turns = _inner_turns(inside)
        if turns == 1:
            return None
        return (
            f"{round_of}: one turn of the loop at {outer}, in which that at {inner} makes {turns}; end each of these "
            "with torchledger.step() to price one of them"
        )


def _common_loop(steps: Sequence[_Update]) -> ast.stmt | None:
    """The innermost loop that all are made in."""
    loops = [each.loops() for each in steps]
    return next((loop for loop in loops[0] if all(loop in others for others in loops)), None) if loops else None


def _inner_turns(steps: Sequence[_Update]) -> tuple[str, int]:
    """How many turns the loop inside makes that makes most of them, and where it is: as often the same lines are
    reached, with models called before."""
    turns = Counter(
        (step.lines, place_of(step.file_of(loop), loop))
        for step in steps
        for loop in step.loops()[:1]
        if step.has_models
    )
    (_, place), count = max(turns.items(), key=lambda each: each[1], default=((None, ""), 1))
    return place, count
