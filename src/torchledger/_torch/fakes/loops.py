"""Values made up for loops that go round as long as a value says: without one, some would end before they begin, and
others never.

A truth has such a loop go round once. Of numbers it is not known what they are compared with: those that a line reads
fall far below any tolerance behind the first, and where a loop still goes on, rise far above any goal, and below zero.
Loops that train go on, for they go round once for each step, and so do those that count their rounds and those over
something that has an end: a number by which such a loop would be left early, as the text tells, is another. A solver
that asks whether to take its step takes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain, cycle, repeat
from types import FrameType

from torchledger._torch.user_lines import user_stack
from torchledger.loop_ends import Comparison, ValueLoop, may_end_a_loop, value_loop

_SMALL, _LARGE = 1e-9, 1e9
_AT_MOST = 32
"""Rounds of a loop after which another number is tried."""


class FakeLoops:
    """What the program's loops are told; ``generated`` files are none of its own."""

    def __init__(self, generated: Collection[str]) -> None:
        self._generated = generated
        self._found: dict[tuple[str, ...], ValueLoop | None] = {}
        self._may_end: dict[tuple[str, ...], bool] = {}
        self._inside: set[str] = set()
        self._numbers: dict[str, Iterator[float]] = {}

    def truth(self) -> bool | None:
        """The truth value for the line that asks; ``None`` where no loop ends by it."""
        frame, lines = user_stack(self._generated)
        loop = self._loop(lines)
        if loop is not None and loop.advances:
            return True
        if loop is None or loop.goes_on is None:
            return None
        if loop.ends_anyway:
            return loop.goes_on
        line = lines[-1]
        if not loop.is_test:
            return not loop.goes_on
        is_first = _is_first_round(frame) if frame is not None else None
        if is_first is None:
            is_first = line not in self._inside
        (self._inside.add if is_first else self._inside.discard)(line)
        return loop.goes_on if is_first else not loop.goes_on

    def may_end(self) -> bool:
        """Whether a loop may end by what the line reads that asks."""
        _, lines = user_stack(self._generated)
        if lines not in self._may_end:
            self._may_end[lines] = may_end_a_loop(lines)
        return self._may_end[lines]

    def number(self) -> float | None:
        """The number for the line that asks; ``None`` where no loop ends by it."""
        _, lines = user_stack(self._generated)
        loop = self._loop(lines)
        if loop is None:
            return None
        if loop.ends_anyway:
            return None if loop.left is None else _that_stays(loop.left)
        line = lines[-1]
        if line not in self._numbers:
            tried = chain.from_iterable(repeat(each, _AT_MOST) for each in (_SMALL, _LARGE, -_LARGE))
            self._numbers[line] = chain((1.0,), cycle(tried))
        return next(self._numbers[line])

    def _loop(self, lines: tuple[str, ...]) -> ValueLoop | None:
        if lines not in self._found:
            self._found[lines] = value_loop(lines)
        return self._found[lines]


def _that_stays(left: Comparison) -> float | None:
    """A number by which a loop is not left that ends anyway; ``None`` where any that is usual will do."""
    if left.above:
        return left.bound - 1.0 if left.bound is not None and left.bound <= 0 else _SMALL
    if left.bound is None:
        return _LARGE
    return None if left.bound < 1.0 else max(_LARGE, 2 * left.bound)


def _is_first_round(frame: FrameType) -> bool | None:
    """Whether a ``while`` is entered by the condition that a frame asks for; ``None`` where its code has only one.

    The interpreter's compiler writes a condition twice, before the loop and behind its body.
    """
    places = list(frame.f_code.co_positions())
    at = frame.f_lasti // 2
    alike = [place for place, each in enumerate(places) if each == places[at]]
    others = [place for place, each in enumerate(places) if each[0] not in (None, places[at][0])]
    is_repeated = any(alike[0] < place < alike[-1] for place in others)
    return not any(alike[0] < place < at for place in others) if is_repeated else None
