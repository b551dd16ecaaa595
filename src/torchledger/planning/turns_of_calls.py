"""Turns of a program's loop around calls that nothing updates: text is continued by a prefill and a loop of decodes.

What repeats most tightly is one call of the inner loop. Where a turn of the loop around it holds at least as much as
one of these beside them, again and again, it is what the program takes for a step. A loop over batches with little
beside it is none: its turns are epochs.
"""

from __future__ import annotations

import ast
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torchledger.planning.turns import Turn
from torchledger.program_text import place_of, statements_of_function

_MOST_CALLS = 64
"""A turn of more calls is an epoch."""

_ALIKE = 1.25
"""So many times another's may be what a turn computes, in operators."""

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_PACKAGES = "-packages/"
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Functions that stop halfway, whose frames are no others' to let go."""


@dataclass(frozen=True)
class TurnOfCalls(Turn):
    """Turns of the loop at ``around``, in each of which ``count`` calls are made at ``inner``."""

    def note(self) -> str:
        """What the step that is priced is made of."""
        return (
            f"a step is one turn of the loop at {self.around}: {self.count} calls at {self.inner} and the work around "
            "them; end a step elsewhere with torchledger.step()"
        )


@dataclass
class _Part:
    """What a turn made so far, by the statements of the loop's body, and how many calls were heard there."""

    made: Counter[int] = field(default_factory=Counter)
    calls: Counter[int] = field(default_factory=Counter)

    def is_turn_of_several(self) -> bool:
        """Whether a loop inside makes several calls, and the rest at least as much as one of these."""
        if not self.calls:
            return False
        place, count = self.calls.most_common(1)[0]
        others = self.made.total() - self.made[place]
        return count > 1 and self.calls.total() <= _MOST_CALLS and others >= self.made[place] / count > 0

    def is_like(self, other: _Part) -> bool:
        """Whether another turn made as many calls, and about as much."""
        first, second = self.made.total(), other.made.total()
        return self.calls == other.calls and max(first, second) <= _ALIKE * max(1, min(first, second))


@dataclass
class _Watched:
    """A loop in the frame that runs it: its body's statements, and its turns, the first of which is not known whole."""

    frame: FrameType
    loop: ast.stmt
    at: int | None = None
    ended: list[_Part] = field(default_factory=list)
    under_way: _Part = field(default_factory=_Part)
    n_begun: int = 0

    def place(self) -> int | None:
        """The statement of the body that the program is at; ``None`` outside of it."""
        body: Sequence[ast.stmt] = self.loop.body  # type: ignore[attr-defined]
        line = self.frame.f_lineno
        return next((place for place, each in enumerate(body) if each.lineno <= line <= (each.end_lineno or 0)), None)

    def has_returned(self) -> bool:
        """Whether the frame's function has returned; what it held is let go then."""
        if self.frame.f_code.co_name == "<module>":
            return False
        try:
            self.frame.clear()
        except RuntimeError:  # it runs
            return False
        return True

    def reaches(self, place: int) -> None:
        """The program is at a statement of the body."""
        if self.at is not None and place < self.at:
            if self.n_begun:
                self.ended = [*self.ended[-1:], self.under_way]
            self.n_begun += 1
            self.under_way = _Part()
        self.at = place

    @property
    def is_found(self) -> bool:
        """Whether two turns one behind the other were of several calls, and alike."""
        return len(self.ended) == 2 and self.ended[1].is_turn_of_several() and self.ended[0].is_like(self.ended[1])

    @property
    def is_likely(self) -> bool:
        """Whether the last turn that has ended was of several calls."""
        return bool(self.ended) and self.ended[-1].is_turn_of_several()

    @property
    def may_be_first(self) -> bool:
        """Whether no turn has ended that is known whole, and a loop inside makes the calls."""
        body: Sequence[ast.stmt] = self.loop.body  # type: ignore[attr-defined]
        is_inner = self.at is not None and isinstance(body[self.at], _LOOPS)
        return not self.ended and is_inner and len(body) > 1 and self.under_way.calls.total() <= _MOST_CALLS


class TurnsOfCalls:
    """Told of calls (``called``, with the frames that lead to one, and what it makes) and of all other operators
    (``worked``), says where turns of a loop around several of them end."""

    def __init__(self) -> None:
        self.turn: TurnOfCalls | None = None
        self._thread = threading.get_ident()
        self._watched: dict[tuple[int, int], _Watched] = {}
        self._found: _Watched | None = None
        self._n_marked = 0

    def called(self, frames: Iterable[tuple[FrameType, int]]) -> bool:
        """A model or a graph is about to be called from these frames with their lines, innermost first; whether it is
        the first call of a turn, once it is known what a turn is."""
        if threading.get_ident() != self._thread:
            return False
        for frame, line in frames:
            if _PACKAGES in frame.f_code.co_filename:
                continue
            for each in statements_of_function(frame.f_code, line):
                if isinstance(each, _LOOPS) and not frame.f_code.co_flags & _SUSPENDED:
                    key = id(frame.f_code), each.lineno
                    if key not in self._watched or self._watched[key].frame is not frame:
                        self._watched[key] = _Watched(frame, each)
        self.worked(0)
        for watched in self._watched.values():
            if watched.at is not None:
                watched.under_way.calls[watched.at] += 1
        if self._found is None:
            self._find()
        if self._found is None or self._found.n_begun == self._n_marked:
            return False
        self._n_marked = self._found.n_begun
        return True

    def worked(self, count: int = 1) -> None:
        """The program has called so many operators, or launched so many kernels."""
        if threading.get_ident() != self._thread:
            return
        for key, watched in list(self._watched.items()):
            if watched.has_returned():
                del self._watched[key]
                self._found = None if self._found is watched else self._found
                continue
            place = watched.place()
            if place is not None:
                watched.reaches(place)
                watched.under_way.made[place] += count

    def end(self) -> None:
        """Nothing is watched any more."""
        self._watched, self._found = {}, None

    @property
    def is_likely(self) -> bool:
        """Whether a turn of several calls is under way that may be the step."""
        return self._found is not None or any(each.is_likely for each in self._watched.values())

    @property
    def is_possible(self) -> bool:
        """Whether the first turn may be."""
        return any(each.may_be_first for each in self._watched.values())

    def _find(self) -> None:
        """The innermost loop whose turns are known."""
        found = [each for each in self._watched.values() if each.is_found]
        if not found:
            return
        self._found = max(found, key=lambda each: each.loop.lineno)
        loop: Any = self._found.loop
        file = self._found.frame.f_code.co_filename
        place, count = self._found.ended[-1].calls.most_common(1)[0]
        self.turn = TurnOfCalls(place_of(file, loop), place_of(file, loop.body[place]), count)


class WorkOfCalls:
    """Among what follows the program's operators: tells ``turns`` of each outside of graphs. ``is_inside`` says that a
    graph is at work."""

    def __init__(self, turns: TurnsOfCalls, is_inside: Callable[[], bool]) -> None:
        self._turns, self._is_inside = turns, is_inside

    def called(self, *_: Any) -> None:
        """An operator has been called."""
        if not self._is_inside():
            self._turns.worked()

    def graph_begins(self, *_: Any) -> None:
        """A compiled graph is about to be called."""

    def graph_called(self, *_: Any) -> None:
        """A compiled graph has been called; its launches are counted elsewhere."""
