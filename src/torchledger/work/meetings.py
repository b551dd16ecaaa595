"""Values that are added up at places, where several may meet: the gradient of rows that were taken by numbers.

The numbers are sorted; then a warp goes through all values of one place, one after the other, while those of other
places, and parts of them, are gone through by other warps (torch 2.11: ``indexing_backward_kernel`` and its like for
narrow values in ``Indexing.cu``). A few places at which many values meet leave most of the device without work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchledger.nouns import TensorArgument
from torchledger.work.categories import operator_name
from torchledger.work.settings import Settings, setting
from torchledger.work.walks import WARP, WARPS_AT_ONCE

_ADDING = frozenset(("index_put", "_index_put_impl", "_unsafe_index_put"))
_READ_AT_ONCE = 4
"""Elements of a value that a thread has at once."""

_LEFT_IDLE = 8
"""How many values of narrow meetings take as long as one that a warp goes through alone: a warp works on some of its
threads, and a block waits for the longest of its four (of 165 calls: 8 leaves the least error, of 0.5 to 12)."""


@dataclass(frozen=True)
class Meeting:
    """``taken`` values of ``width`` elements each are added up at ``places``, in each of ``outer`` parts. Places are
    told by their numbers in ``named`` dimensions, which have ``spread`` dimensions themselves."""

    outer: int
    places: int
    taken: int
    width: int
    named: int = 1
    spread: int = 1

    @property
    def kind(self) -> str:
        """By which of the kernels."""
        return "of single elements" if self.width == 1 else "of narrow values" if self.width <= WARP else "of values"

    @property
    def steps(self) -> int:
        """What is done one after the other: values at one place, or all that do not run at once.

        >>> Meeting(1, 10, 5120, 576).steps, Meeting(7_368_128, 3, 9, 1).steps
        (512, 62797)
        """
        meeting = max(1.0, self.taken / self.places)
        each = _LEFT_IDLE if self.width <= WARP else -(-self.width // (WARP * _READ_AT_ONCE))
        return math.ceil(max(meeting, each * self.taken * self.outer / WARPS_AT_ONCE))


def meeting_of(name: str, arguments: Sequence[TensorArgument], settings: Settings | None) -> Meeting | None:
    """What an operator adds up; ``None`` for others, and for values that are put and not added.

    Dimensions that it was given places for are the first ones, unless its settings say which (``indices``); what a
    profiler recorded does not, and there it is those in which its tensor and the values differ.

    >>> rows = [TensorArgument((10, 8), "float32", (8, 1)), TensorArgument((64, 8), "float32", (8, 1))]
    >>> meeting_of("aten::_index_put_impl_", rows, (("accumulate", (1,)),))
    Meeting(outer=1, places=10, taken=64, width=8, named=1, spread=1)
    """
    if operator_name(name)[1] not in _ADDING or len(arguments) < 2 or setting(settings, "accumulate") != (1,):
        return None
    into, added = arguments[0].shape, arguments[-1].shape
    if not into or not added or min(*into, *added) < 1:
        return None
    given = setting(settings, "indices")
    if given is not None and max(given) < len(into):
        return _along(given, into, added)
    if into == added:
        return Meeting(1, into[0], into[0], math.prod(into[1:]))
    before = 0
    while before < min(len(into), len(added)) and into[before] == added[before]:
        before += 1
    after = 0
    while after < min(len(into), len(added)) - before and into[-1 - after] == added[-1 - after]:
        after += 1
    places, taken = into[before : len(into) - after], added[before : len(added) - after]
    outer, width = math.prod(into[:before]), math.prod(into[len(into) - after :])
    return Meeting(outer, math.prod(places), math.prod(taken), width, max(1, len(places)), max(1, len(taken)))


def _along(given: Sequence[int], into: tuple[int, ...], added: tuple[int, ...]) -> Meeting:
    """Places along dimensions that are ``given``; what lies around such that do not follow one another is as wide."""
    places = math.prod(into[dim] for dim in given)
    follow = len(given) == max(given) - min(given) + 1
    outer = math.prod(into[: min(given)]) if follow else 1
    width = math.prod(into) // places // outer
    spread = max(1, len(added) - (len(into) - len(given)))
    return Meeting(outer, places, max(1, math.prod(added) // (outer * width)), width, len(given), spread)
