"""Turns of a program's loop around calls that nothing updates: text is continued by a prefill and a loop of decodes.

What repeats most tightly is one call of the inner loop. Where a turn of the loop around it holds at least as much as
one of these beside them, again and again, it is what the program takes for a step; so it is where the calls inside go
on from each other (``carried_loops``), whatever stands beside them. A loop over batches with little beside it is none:
its turns are epochs.
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

from torchledger.followers import Follower
from torchledger.planning.carried_loops import carries
from torchledger.planning.turns import Turn
from torchledger.program_text import LOOPS, PACKAGES, place_of, statements_of_function

_MOST_CALLS, _MOST_CARRIED = 64, 1024
"""A turn of more calls is an epoch, or of more that go on from each other is too long to be heard."""

_ALIKE = 1.25
"""So many times another's may be what a turn computes, in operators."""

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_NO_LOOPS_OF = frozenset({"torch", "torchledger"})
"""Packages whose loops are none of the program: over the modules of a sequence, say."""

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
    """What a turn made so far, by the statements of the loop's body, how many calls were heard there, and how many of
    these a loop inside ``carried`` on."""

    made: Counter[int] = field(default_factory=Counter)
    calls: Counter[int] = field(default_factory=Counter)
    carried: int = 0

    @property
    def is_of_carried(self) -> bool:
        """Whether most calls go on from each other."""
        return 2 * self.carried > self.calls.total() > 1

    def is_turn_of_several(self) -> bool:
        """Whether a loop inside makes several calls, which go on from each other or beside which the rest makes at
        least as much as one of them."""
        if not self.calls:
            return False
        if self.is_of_carried:
            return self.calls.total() <= _MOST_CARRIED
        place, count = self.calls.most_common(1)[0]
        others = self.made.total() - self.made[place]
        return count > 1 and self.calls.total() <= _MOST_CALLS and others >= self.made[place] / count > 0

    def is_like(self, other: _Part) -> bool:
        """Whether another turn made as many calls, and about as much."""
        first, second = self.made.total(), other.made.total()
        return self.calls == other.calls and max(first, second) <= _ALIKE * max(1, min(first, second))


@dataclass
class _Watched:
    """A loop in the frame that runs it, the program's own or a package's: the next frame ``around`` it that runs one;
    how many loops are inside at most; which statement of its body and which instruction it is at; whether a loop inside
    that a function runs which it calls ``has_inner_returned`` since; whether calls of its last turn ``goes_on`` from
    each other; and its turns, the first of which is not known whole."""

    frame: FrameType
    loop: ast.stmt
    is_own: bool = True
    around: FrameType | None = None
    depth: int = 0
    at: int | None = None
    instruction: int = -1
    has_inner_returned: bool = False
    goes_on: bool = False
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
        if self.at is not None and (place < self.at or (place == self.at and self._is_again())):
            if self.n_begun:
                self.ended = [*self.ended[-1:], self.under_way]
            self.n_begun += 1
            self.goes_on = self.under_way.is_of_carried
            self.under_way = _Part()
        self.at, self.instruction, self.has_inner_returned = place, self.frame.f_lasti, False

    def _is_again(self) -> bool:
        """Whether the statement that the loop was at is run anew: what it calls has returned, and it calls it again."""
        if self.frame.f_lasti > self.instruction or not self.has_inner_returned:
            return False
        for each in statements_of_function(self.frame.f_code, self.frame.f_lineno):
            if each is self.loop:
                return True
            if isinstance(each, LOOPS) or any(isinstance(node, _COMPREHENSIONS) for node in ast.walk(each)):
                return False
        return False

    @property
    def is_found(self) -> bool:
        """Whether two turns one behind the other were of several calls, and alike."""
        return (
            self.is_own
            and len(self.ended) == 2
            and self.ended[1].is_turn_of_several()
            and self.ended[0].is_like(self.ended[1])
        )

    @property
    def is_likely(self) -> bool:
        """Whether the last turn that has ended was of several calls."""
        return self.is_own and bool(self.ended) and self.ended[-1].is_turn_of_several()

    @property
    def may_be_first(self) -> bool:
        """Whether no turn has ended that is known whole, and a loop inside makes the calls."""
        body: Sequence[ast.stmt] = self.loop.body  # type: ignore[attr-defined]
        if self.ended or self.at is None or not self.is_own:
            return False
        if self.goes_on or self.under_way.is_of_carried:
            return self.under_way.calls.total() <= _MOST_CARRIED
        is_inner = isinstance(body[self.at], LOOPS)
        return is_inner and len(body) > 1 and self.under_way.calls.total() <= _MOST_CALLS


class TurnsOfCalls:
    """Told of calls (``called``, with the frames that lead to one, and what it makes) and of all other operators
    (``worked``), says where turns of a loop around several of them end. ``is_lengthened`` once what was taken for a
    turn has shown to be a part of a longer one."""

    def __init__(self) -> None:
        self.turn: TurnOfCalls | None = None
        self.is_lengthened = self._is_carried = False
        self._thread = threading.get_ident()
        self._watched: dict[tuple[int, int], _Watched] = {}
        self._found: _Watched | None = None
        self._n_marked = 0

    def called(self, frames: Iterable[tuple[FrameType, int]], *, keeps_gradients: bool = False) -> bool:
        """A model or a graph is about to be called from these frames with their lines, innermost first; whether it is
        the first call of a turn, once it is known what a turn is. What ``keeps_gradients`` may be a step of training,
        whose weights go on from the last."""
        if threading.get_ident() != self._thread:
            return False
        carrying = self._watch(frames)
        self.worked(0)
        for key, watched in self._watched.items():
            if watched.at is not None:
                watched.under_way.calls[watched.at] += 1
                watched.under_way.carried += key in carrying and not keeps_gradients
        if self._found is None or carries(self._found.loop):
            self._find()
        if self._found is None or self._found.n_begun == self._n_marked:
            return False
        self._n_marked = self._found.n_begun
        return True

    def _watch(self, frames: Iterable[tuple[FrameType, int]]) -> set[tuple[int, int]]:
        """Watch the program's loops in these frames; returns those with a loop inside whose turns go on from each
        other."""
        carrying, is_carried, depth = set[tuple[int, int]](), False, 0
        inside: list[_Watched] = []
        for frame, line in frames:
            is_own = PACKAGES not in frame.f_code.co_filename
            if not is_own and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _NO_LOOPS_OF:
                continue
            for each in statements_of_function(frame.f_code, line):
                if not isinstance(each, LOOPS):
                    continue
                key = id(frame.f_code), each.lineno
                if not frame.f_code.co_flags & _SUSPENDED:
                    if key not in self._watched or self._watched[key].frame is not frame:
                        self._watched[key] = _Watched(frame, each, is_own)
                    watched = self._watched[key]
                    watched.depth = max(depth, watched.depth)
                    for each_inside in inside:
                        if each_inside.frame is not frame:
                            each_inside.around = frame
                    inside = [*(one for one in inside if one.frame is frame), watched]
                if is_carried:
                    carrying.add(key)
                is_carried, depth = is_carried or carries(each), depth + 1
        return carrying

    def worked(self, count: int = 1) -> None:
        """The program has called so many operators, or launched so many kernels."""
        if threading.get_ident() != self._thread:
            return
        for key, watched in list(self._watched.items()):
            if watched.has_returned():
                del self._watched[key]
                for around in self._watched.values():  # what those further out have called has not returned with it
                    around.has_inner_returned = around.has_inner_returned or around.frame is watched.around
                self._found = None if self._found is watched else self._found
        for watched in self._watched.values():
            place = watched.place()
            if place is not None:
                watched.reaches(place)
                watched.under_way.made[place] += count

    def end(self) -> None:
        """Nothing is watched any more."""
        self._watched, self._found = {}, None

    @property
    def may_be_a_part(self) -> bool:
        """Whether turns that are known go on from each other, and those of a loop around them may be the step."""
        around = [each for each in self._watched.values() if not carries(each.loop)] if self._is_carried else []
        return any(each.is_likely or each.may_be_first for each in around)

    @property
    def goes_on(self) -> bool:
        """Whether calls under way go on from each other."""
        return any(each.goes_on or each.under_way.is_of_carried for each in self._watched.values())

    @property
    def is_likely(self) -> bool:
        """Whether a turn of several calls is under way that may be the step."""
        return self._found is not None or any(each.is_likely for each in self._watched.values())

    @property
    def is_possible(self) -> bool:
        """Whether the first turn may be."""
        return any(each.may_be_first for each in self._watched.values())

    def _find(self) -> None:
        """The innermost loop whose turns are known, of those whose turns do not go on from each other if there are
        any."""
        found = [each for each in self._watched.values() if each.is_found]
        best = min(found, key=lambda each: (carries(each.loop), each.depth), default=None)
        if best is None or best is self._found:
            return
        self._found, self._n_marked = best, 0
        loop: Any = best.loop
        file = best.frame.f_code.co_filename
        place, count = best.ended[-1].calls.most_common(1)[0]
        turn = TurnOfCalls(place_of(file, loop), place_of(file, loop.body[place]), count)
        self.is_lengthened = self.turn is not None and self.turn.around != turn.around
        self.turn, self._is_carried = turn, carries(loop)


class WorkOfCalls(Follower):
    """Among what follows the program's operators: tells ``turns`` of each outside of graphs, whose launches are
    counted elsewhere. ``is_inside`` says that a graph is at work."""

    def __init__(self, turns: TurnsOfCalls, is_inside: Callable[[], bool]) -> None:
        self._turns, self._is_inside = turns, is_inside

    def called(self, *_: Any) -> None:
        """An operator has been called."""
        if not self._is_inside():
            self._turns.worked()
