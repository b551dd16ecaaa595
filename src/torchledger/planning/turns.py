"""Turns of a program's loop that hold several steps of an optimizer and the work whose results these use.

A policy is rolled out or a teacher asked, and what comes of it is learned from in a loop of its own: a turn of the loop
around that is what the program takes for a step. Told from where in the loop's text models are called and optimizers
step, turn after turn, and from what the steps read. A loop over batches with an evaluation before or behind it is none:
nothing that was computed there is used in it.
"""

from __future__ import annotations

import ast
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Protocol

from torchledger.program_text import FUNCTIONS, LOOPS, place_of, statements_of_function

_MOST_STEPS = 32
"""A turn of more steps is an epoch."""

_ALIKE = 1.25
"""So many times another's may be what a turn computes before its steps, in operators."""


_Place = tuple[int, int]
"""The code of a function, by its ``id``, and a line of it: code behind a graph break of Dynamo's, which may hold a
slice or a dict, has no hash."""


class Followed(Protocol):
    """What models compute from some time on, until ``behind`` is called, and whether it is read behind that."""

    is_used: bool

    def behind(self) -> None:
        """What models compute from now on is not followed."""

    def end(self) -> None:
        """Nothing is followed any more."""


@dataclass(frozen=True)
class Turn:
    """Turns of the loop at ``around``, a line of a file, each of which makes ``count`` steps of an optimizer at
    ``inner``, behind work that these use."""

    around: str
    inner: str
    count: int

    def note(self) -> str:
        """What the step that is priced is made of."""
        return (
            f"a step is one turn of the loop at {self.around}: {self.count} steps of its optimizer (at {self.inner}) "
            "and the work before them that they use; end a step elsewhere with torchledger.step()"
        )


@dataclass(frozen=True)
class _Loop:
    """A loop around an optimizer's step, or a function that one calls: its lines, and those of what makes the step in
    it; ``around`` and ``at`` are the places of the loop and of that."""

    code: CodeType
    lines: tuple[int, int]
    inner: tuple[int, int]
    around: str
    at: str

    def is_before(self, line: int) -> bool:
        """Whether a line of it comes before what makes the step."""
        return self.lines[0] <= line < self.inner[0]


@dataclass
class _Watched:
    """What the turns of a loop held so far: in the one under way steps with their operators, and what came ``before``;
    of those that have ended how many steps, and what came before them. ``begins_before`` says that models were called
    before the first step there is."""

    loop: _Loop
    steps: list[int] = field(default_factory=list)
    before: int = 0
    ended: list[tuple[int, int]] = field(default_factory=list)
    is_other: bool = False
    begins_before: bool = False
    flow: Followed | None = None

    def turn_begins(self, follow: Callable[[], Followed]) -> None:
        """Something is called before the steps again."""
        if not self.steps:
            return
        self.ended.append((len(self.steps), self.before))
        self.steps, self.before = [], 0
        self.end()
        if not self.is_other and 1 < self.ended[-1][0] <= _MOST_STEPS:
            self.flow = follow()

    def steps_begin(self) -> None:
        """What comes now makes the steps."""
        if self.flow is not None:
            self.flow.behind()

    def end(self) -> None:
        """Follow nothing."""
        if self.flow is not None:
            self.flow.end()
        self.flow = None

    @property
    def is_likely(self) -> bool:
        """Whether the turn under way may hold several steps that use what came before them."""
        if self.is_other or self.flow is None or not self.is_long:
            return False
        return len(self.steps) <= self.ended[-1][0] and (self.flow.is_used or len(self.steps) == 1)

    @property
    def may_be_first(self) -> bool:
        """Whether the steps so far may be the first turn's, of which it is not known how many it holds."""
        return self.begins_before and not self.is_other and not self.ended and len(self.steps) <= _MOST_STEPS

    @property
    def is_long(self) -> bool:
        """Whether as much was computed before the steps of this turn as one of them computes."""
        usual = [*self.steps[1:], *self.steps[:1]][: max(1, len(self.steps) - 1)]
        return self.before >= statistics.median(usual or [1])

    @property
    def count(self) -> int | None:
        """How many steps a turn makes, by the one that has ended last and the one before which the first is not known
        whole; ``None`` where that is no turn of several."""
        if self.is_other or len(self.ended) < 2 or not self.before:
            return None
        (first, _), (count, before) = self.ended[-2:]
        apart = max(before, self.before) / max(1, min(before, self.before))
        return count if first == count and 1 < count <= _MOST_STEPS and apart <= _ALIKE else None


class Turns:
    """Told of calls of models and steps of optimizers, says where turns of several steps end.

    ``made`` asks how many operators the calling thread has called so far, ``follow`` begins to follow what it computes.
    Where the turn is ``given``, as another rank has found it, its steps are counted from the first.

    ``is_likely`` says that a turn of several is under way that may be the step, ``is_possible`` that the first may be.
    """

    def __init__(self, made: Callable[[], int], follow: Callable[[], Followed], given: Turn | None = None) -> None:
        self._made, self._follow, self._given = made, follow, given
        self._watched: dict[_Place, _Watched] = {}
        self._last: defaultdict[int, int] = defaultdict(int)
        self._in_step, self._where = 0, frozenset[_Place]()
        self._found: _Loop | None = None
        self._n_steps = 0
        self._called_at: dict[_Place, CodeType] = {}
        self.turn: Turn | None = None
        self.is_likely = self.is_possible = False

    def model_called(self) -> None:
        """A module or a graph is about to be called by what is on the stack."""
        if self.turn is not None or self._given is not None:
            return
        if not self._watched:
            self._called_at |= {(id(frame.f_code), line): frame.f_code for frame, line in walk_stack(None)}
            return
        lines = _lines_of({code for code, _ in self._watched})
        if not lines:
            return  # another thread
        self._count()
        where = {key for key, each in self._watched.items() if key[0] in lines and each.loop.is_before(lines[key[0]])}
        for key in where - self._where:
            self._watched[key].turn_begins(self._follow)
        self._leave(where)

    def optimizer_stepped(self, frames: Iterable[tuple[FrameType, int]], *, beyond: int | None = 1) -> bool:
        """An optimizer has made its step, in these frames with their lines, innermost first; whether a turn ends with
        it that holds more of them than ``beyond``, as many as are known to belong together; ``None`` where that is not
        known yet."""
        if self._given is not None:
            return self._counts_to(self._given, frames)
        if self._found is not None and self.turn is not None:
            return self._goes_on(self.turn)
        self._count()
        made, self._in_step, self.is_likely, self.is_possible = self._in_step, 0, False, False
        for loop in _loops_around(frames):
            watched = self._watched.setdefault((id(loop.code), loop.lines[0]), _Watched(loop))
            watched.begins_before = watched.begins_before or self._began_in(loop)
            self.is_possible = self.is_possible or watched.may_be_first
            watched.is_other = watched.is_other or watched.loop.inner != loop.inner
            watched.steps.append(made)
            if self.turn is None and watched.is_likely:
                self.is_likely = True
                if beyond is not None and beyond < len(watched.steps) == watched.count:
                    self._find(watched)
        self._leave(set())
        self._called_at = {}
        return self.turn is not None

    def _began_in(self, loop: _Loop) -> bool:
        """Whether models were called in a loop before its first step, which is the program's first."""
        return any(code is loop.code and loop.is_before(line) for (_, line), code in self._called_at.items())

    def _leave(self, where: set[_Place]) -> None:
        for key in self._where - where:
            self._watched[key].steps_begin()
        self._where = frozenset(where)

    def _find(self, watched: _Watched) -> None:
        self.turn, self._found = Turn(watched.loop.around, watched.loop.at, len(watched.steps)), watched.loop
        for each in self._watched.values():
            each.end()

    def _counts_to(self, turn: Turn, frames: Iterable[tuple[FrameType, int]]) -> bool:
        if not any((loop.around, loop.at) == (turn.around, turn.inner) for loop in _loops_around(frames)):
            return False
        self.turn, self.is_likely = turn, True
        return self._goes_on(turn)

    def _goes_on(self, turn: Turn) -> bool:
        self._n_steps = (self._n_steps + 1) % turn.count
        return self._n_steps == 0

    def _count(self) -> None:
        """Give the operators since the last call to where the program was then."""
        now, thread = self._made(), threading.get_ident()
        made, self._last[thread] = now - self._last[thread], now
        for key in self._where:
            self._watched[key].before += made
        self._in_step += 0 if self._where else made


def _lines_of(codes: set[int]) -> dict[int, int]:
    """The lines that functions on the stack stand at, of these alone, by the innermost call of each."""
    lines: dict[int, int] = {}
    for frame, line in walk_stack(None):
        if id(frame.f_code) in codes:
            lines.setdefault(id(frame.f_code), line)
    return lines


def _loops_around(frames: Iterable[tuple[FrameType, int]]) -> Iterator[_Loop]:
    """The loops that frames stand in, innermost first, and functions that make steps in loops of their own and that
    such a loop calls: a trainer that rolls out and updates in one method has no loop around both in it."""
    in_loops, called = False, list[_Loop]()
    for frame, line in frames:
        file, code = frame.f_code.co_filename, frame.f_code
        inner: ast.stmt | None = None
        for each in statements_of_function(code, line):
            if inner is not None and in_loops and isinstance(each, FUNCTIONS) and each.name == code.co_name:
                called.append(_Loop(code, _span(each), _span(inner), "", place_of(file, inner)))
            if inner is not None and isinstance(each, LOOPS):
                around, in_loops = place_of(file, each), True
                yield from (replace(other, around=around) for other in called)
                called = []
                yield _Loop(code, _span(each), _span(inner), around, place_of(file, inner))
            if inner is None or isinstance(each, LOOPS):
                inner = each


def _span(statement: ast.stmt) -> tuple[int, int]:
    return statement.lineno, statement.end_lineno or statement.lineno
