"""Whether calls that look alike come from several places of a program in turns.

A sampler asks its network twice a step, a solver updates one factor and then the other by the same graph: told apart by
graph and parameters, each of these calls is a round of its own. Where rounds that look alike are called from two or
more lines in a fixed turn, a step is all of them. One line that is called again and again (a loop over tokens behind a
prompt) is no turn.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise

from torchledger.stepping.periods import TokenSequence

_LOOKED_AT = 24
"""After how many rounds without a turn there is none."""

_SURE = 4
"""How often a turn must have come."""

_MOST = 512
"""How many calls are looked at before a round is known."""


class CallSites:
    """Told of calls and where each was made, says whether they take turns; ``is_decided`` once that is known."""

    def __init__(self) -> None:
        self._calls = TokenSequence()
        self.is_decided = False

    def add(self, call: Hashable, site: Hashable) -> None:
        """Another call, by what tells it apart, and where it was made."""
        self._calls.add((call, site))
        self.is_decided = self.is_decided or len(self._calls.tokens) >= _MOST

    def take_turns(self, round_length: int) -> bool:
        """True if rounds of so many calls come from several places in turns."""
        tokens, length = self._calls.tokens, round_length
        if any(first == second for first, second in zip(tokens, tokens[length:], strict=False)):
            self.is_decided = True
            return False
        turn = self._calls.period()
        if turn is not None and len(tokens) >= _SURE * len(turn) and len(turn) % length == 0:
            self.is_decided = True
            return len(turn) > length and _are_alike(turn, length)
        self.is_decided = self.is_decided or len(tokens) >= _LOOKED_AT * length
        return False


def _are_alike(turn: tuple[Hashable, ...], length: int) -> bool:
    """True for rounds of the same calls; they are from places of their own, or a later would be as one before."""
    calls = [token[0] for token in turn if isinstance(token, tuple)]
    rounds = [calls[start : start + length] for start in range(0, len(calls), length)]
    return all(first == second for first, second in pairwise(rounds))
