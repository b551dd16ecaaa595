"""Turns of a program's loop that hold several steps of an optimizer and the work whose results these use.

A policy is rolled out or a teacher asked, and what comes of it is learned from in a loop of its own: a turn of the loop
around that is what the program takes for a step. Told from where in the loop's text models are called and optimizers
step, turn after turn. A loop over batches with an evaluation behind it is none: nothing that was computed before it is
used in it.
"""

from __future__ import annotations

import ast
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any

from torchledger.program_text import parsed, statements_around

_MOST_STEPS = 32
"""A turn of more steps is an epoch."""

_ALIKE = 1.25
"""So many times another's may be what a turn computes before its steps, in operators."""

_LOOPS = (ast.For, ast.AsyncFor, ast.While)


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
    """A loop around an optimizer's step: its lines, and those of what makes the step in it. ``given`` are the names
    that are assigned in it before that, and that this reads and leaves as they are."""

    code: CodeType
    file: str
    lines: tuple[int, int]
    inner: tuple[int, int]
    given: frozenset[str]

    def is_before(self, line: int) -> bool:
        """Whether a line of it comes before what makes the step."""
        return self.lines[0] <= line < self.inner[0]


@dataclass
class _Watched:
    """What the turns of a loop held so far: in the one under way steps with their operators, and what came ``before``;
    of those that have ended how many steps, and what came before them."""

    loop: _Loop
    steps: list[int] = field(default_factory=list)
    before: int = 0
    ended: list[tuple[int, int]] = field(default_factory=list)
    is_other: bool = False

    def turn_begins(self) -> None:
        """Something is called before the steps again."""
        if self.steps:
            self.ended.append((len(self.steps), self.before))
            self.steps, self.before = [], 0

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

    ``made`` asks how many operators the program has called so far, ``has_tensors`` whether a value holds tensors.
    """

    def __init__(self, made: Callable[[], int], has_tensors: Callable[[Any], bool]) -> None:
        self._made, self._has_tensors = made, has_tensors
        self._watched: dict[tuple[CodeType, int], _Watched] = {}
        self._last, self._in_step, self._where = 0, 0, frozenset[tuple[CodeType, int]]()
        self._found: _Watched | None = None
        self.turn: Turn | None = None
        self.is_likely = False

    def model_called(self) -> None:
        """A module or a graph is about to be called by what is on the stack."""
        if not self._watched or self.turn is not None:
            return
        self._count()
        lines = _lines_of({code for code, _ in self._watched})
        if not lines:
            return  # a thread of autograd's
        where = {key for key, each in self._watched.items() if key[0] in lines and each.loop.is_before(lines[key[0]])}
        for key in where - self._where:
            self._watched[key].turn_begins()
        self._where = frozenset(where)

    def optimizer_stepped(self, frames: Iterable[tuple[FrameType, int]], *, beyond: int | None = 1) -> bool:
        """An optimizer has made its step, in these frames with their lines, innermost first; whether a turn ends with
        it that holds more of them than ``beyond``, as many as are known to belong together; ``None`` where that is not
        known yet."""
        if self._found is not None and self.turn is not None:
            return self._goes_on(self._found)
        self._count()
        made, self._in_step, self.is_likely = self._in_step, 0, False
        for frame, loop in _loops_around(frames):
            watched = self._watched.setdefault((loop.code, loop.lines[0]), _Watched(loop))
            watched.is_other = watched.is_other or watched.loop.inner != loop.inner
            watched.steps.append(made)
            if self.turn is None and self._is_likely(watched, frame):
                self.is_likely = True
                if beyond is not None and beyond < len(watched.steps) == watched.count:
                    self._find(watched)
        self._where = frozenset()
        return self.turn is not None

    def _is_likely(self, watched: _Watched, frame: FrameType) -> bool:
        loop = watched.loop
        if watched.is_other or not watched.ended or watched.ended[-1][0] < 2 or not watched.is_long:
            return False
        if len(watched.steps) > watched.ended[-1][0] or watched.ended[-1][0] > _MOST_STEPS:
            return False
        values = (frame.f_locals.get(name) for name in loop.given)
        return any(self._has_tensors(value) for value in values)

    def _find(self, watched: _Watched) -> None:
        name = Path(watched.loop.file).name
        around, inner = (f"{name}:{each[0]}" for each in (watched.loop.lines, watched.loop.inner))
        self.turn, self._found = Turn(around, inner, len(watched.steps)), watched
        watched.steps = []

    def _goes_on(self, watched: _Watched) -> bool:
        assert self.turn is not None
        watched.steps.append(0)
        if len(watched.steps) < self.turn.count:
            return False
        watched.steps = []
        return True

    def _count(self) -> None:
        """Give the operators since the last call to where the program was then."""
        now = self._made()
        made, self._last = now - self._last, now
        for key in self._where:
            self._watched[key].before += made
        self._in_step += 0 if self._where else made


def _lines_of(codes: set[CodeType]) -> dict[CodeType, int]:
    """The lines that functions on the stack stand at, of these alone, by the innermost call of each."""
    lines: dict[CodeType, int] = {}
    for frame, line in walk_stack(None):
        if frame.f_code in codes:
            lines.setdefault(frame.f_code, line)
    return lines


def _loops_around(frames: Iterable[tuple[FrameType, int]]) -> Iterator[tuple[FrameType, _Loop]]:
    """The loops that frames stand in, innermost first, each with its frame."""
    for frame, line in frames:
        file = frame.f_code.co_filename
        tree = parsed(file)
        inner: ast.stmt | None = None
        for each in reversed(list(statements_around(tree, line)) if tree is not None else []):
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
                break
            if inner is not None and isinstance(each, _LOOPS):
                yield frame, _Loop(frame.f_code, file, _span(each), _span(inner), _given(each, inner))
            if inner is None or isinstance(each, _LOOPS):
                inner = each


def _span(statement: ast.stmt) -> tuple[int, int]:
    return statement.lineno, statement.end_lineno or statement.lineno


def _given(loop: ast.stmt, inner: ast.stmt) -> frozenset[str]:
    """Names that a loop assigns before what is inside it, which reads them and assigns none of them."""
    names = [each for each in ast.walk(inner) if isinstance(each, ast.Name)]
    assigned = {each.id for each in names if isinstance(each.ctx, ast.Store)}
    before = {
        each.id
        for each in ast.walk(loop)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and each.lineno < inner.lineno
    }
    return frozenset(each.id for each in names if isinstance(each.ctx, ast.Load)) & (before - assigned)
