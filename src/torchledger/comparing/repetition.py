"""Where a sequence repeats inside a longer one: the operators of one layer in a graph of many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_SKIP = 0.1
"""What it costs to pass over one element of the repeated sequence; an equal element gives 1. A lone equal element
between repetitions is then not worth half a round."""


def align_repeated(layer: Sequence[str], whole: Sequence[str]) -> list[int | None]:
    """For each element of ``whole`` the place in ``layer`` that it repeats, or ``None``.

    The best alignment in which ``layer`` is gone through in its order, round and round, from any place on; elements of
    either may be passed over. Takes time and memory for the product of both lengths.

    >>> align_repeated(["mm", "add"], ["embedding", "mm", "add", "mm", "relu", "add"])
    [None, 0, 1, 0, None, 1]
    """
    if not layer or not whole:
        return [None] * len(whole)
    count = len(layer)
    codes = {op: code for code, op in enumerate(dict.fromkeys((*layer, *whole)))}
    ops = np.array([codes[op] for op in layer])
    ramp = _SKIP * np.arange(2 * count)
    score = np.zeros(count, dtype=np.float64)  # by the place in the layer that comes next
    before = np.empty((len(whole), count))
    matched = np.empty((len(whole), count), dtype=bool)
    for place, op in enumerate(whole):
        # A place is reached from each one before it, once around, at the cost of what is passed over.
        reached = np.maximum.accumulate(np.tile(score, 2) + ramp)[count:] - ramp[count:]
        before[place] = score
        equal = np.where(ops == codes[op], reached + 1.0, -np.inf)
        after = np.roll(equal, 1)
        matched[place] = after > score
        score = np.maximum(score, after)
    found: list[int | None] = [None] * len(whole)
    following = int(score.argmax())
    for place in range(len(whole) - 1, -1, -1):
        if matched[place, following]:
            found[place] = (following - 1) % count
            back = np.arange(count)
            following = (
                following - 1 - int((before[place, (following - 1 - back) % count] - _SKIP * back).argmax())
            ) % count
    return found
