"""Whether a program's steps are those of one turn of a loop over sizes, told from its text: a benchmark that goes
through batch sizes has steps of each, and the plan ends with those of the first."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torchledger.planning.steps_of_a_turn import range_of, value_of
from torchledger.program_text import LOOPS, PACKAGES, place_of, statements_of_function

_MOST_NAMED = 8


@dataclass(frozen=True)
class Sweep:
    """A loop, which begins at ``around``, over ``sizes`` that it gives a ``name``; ``size`` is that of the step."""

    around: str
    name: str
    size: Any
    sizes: tuple[Any, ...]

    def note(self) -> str:
        """Of which turn of the loop the step is.

        >>> Sweep("bench.py:9", "batch", 1, (1, 8, 64)).note().partition("; ")[0]
        'the step is of one turn of the loop at bench.py:9, that with batch = 1 of 1, 8, 64'
        """
        named = ", ".join(str(each) for each in self.sizes[:_MOST_NAMED])
        further = f" and {len(self.sizes) - _MOST_NAMED} more" if len(self.sizes) > _MOST_NAMED else ""
        return (
            f"the step is of one turn of the loop at {self.around}, that with {self.name} = {self.size} of {named}"
            f"{further}; where others make steps of other sizes, these are not priced"
        )


def sweeps_around(frames: Iterable[tuple[FrameType, int]], step: str | None = None) -> list[Sweep]:
    """The sweeps that the loop around a step stands in, of the frames that lead to it with their lines, innermost
    first. That loop is the one that begins at ``step``, or else the innermost."""
    loops = [
        (frame, each)
        for frame, line in frames
        for each in statements_of_function(frame.f_code, line)
        if isinstance(each, LOOPS)
    ]
    places = [place_of(frame.f_code.co_filename, each) for frame, each in loops]
    first = places.index(step) + 1 if step in places else 1
    found = [_sweep(frame, each, place) for (frame, each), place in list(zip(loops, places, strict=True))[first:]]
    return [each for each in found if each is not None]


def _sweep(frame: FrameType, loop: ast.stmt, place: str) -> Sweep | None:
    """What a loop of the program's own goes through, where that is several sizes."""
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name) or PACKAGES in frame.f_code.co_filename:
        return None
    sizes, size = _sizes(loop.iter, frame), value_of(loop.target, frame)
    return Sweep(place, loop.target.id, size, tuple(sizes)) if len(sizes) > 1 and size in sizes else None


def _sizes(iterated: ast.expr, frame: FrameType) -> Sequence[Any]:
    """What a loop goes through, if it is sizes, alone or several together: numbers from 1 on, but for ranges of all
    numbers, which count something."""
    sizes = _written(iterated, frame)
    if not isinstance(sizes, (tuple, list, range)) or (isinstance(sizes, range) and sizes.step == 1):
        return ()
    return sizes if all(_is_size(each) for each in sizes) else ()


def _written(expression: ast.expr, frame: FrameType) -> Any:
    """What an expression is, where its text says that without calling anything but ``range``."""
    if isinstance(expression, (ast.Tuple, ast.List)):
        made = [_written(each, frame) for each in expression.elts]
        return tuple(made) if isinstance(expression, ast.Tuple) else made
    return value_of(expression, frame) if (numbers := range_of(expression, frame)) is None else numbers


def _is_size(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return bool(value) and all(_is_size(each) for each in value)
    return type(value) is int and value > 0
