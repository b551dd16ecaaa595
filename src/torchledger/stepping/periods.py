"""What repeats in a sequence of tokens: its period, and where each round of it begins and ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

_MEMORY = 4096
"""How many tokens are kept; a sequence that has no period by then is looked at afresh."""

_CHECKED_EVERY = 8
"""After how many further tokens the end of a sequence without a period is searched for one of its own."""

_RUN = 8
"""How often a part must repeat in a row to be a period where the whole sequence has none."""


class TokenSequence:
    """A growing sequence that knows its period, at a cost per token that does not grow with its length."""

    def __init__(self) -> None:
        self.tokens: list[Hashable] = []
        self._borders: list[int] = []

    def add(self, token: Hashable) -> None:
        """Append a token."""
        if len(self.tokens) >= _MEMORY:
            self.clear()
        border = self._borders[-1] if self._borders else 0
        while border and self.tokens[border] != token:
            border = self._borders[border - 1]
        self._borders.append(border + 1 if self.tokens and self.tokens[border] == token else 0)
        self.tokens.append(token)

    def clear(self) -> None:
        """Forget everything."""
        self.tokens, self._borders = [], []

    def period(self) -> tuple[Hashable, ...] | None:
        """The shortest part of which the sequence is at least two repetitions; ``None`` if there is none.

        >>> sequence = TokenSequence()
        >>> for token in "babab":
        ...     sequence.add(token)
        >>> sequence.period()
        ('a', 'b')
        """
        if not self.tokens:
            return None
        length = len(self.tokens) - self._borders[-1]
        if len(self.tokens) >= 2 * length:
            return tuple(self.tokens[-length:])
        return None

    def run(self) -> tuple[Hashable, ...] | None:
        """The shortest part that the sequence ends with several repetitions of, where it has no period as a whole."""
        if len(self.tokens) % _CHECKED_EVERY:
            return None
        backwards = TokenSequence()
        for token in reversed(self.tokens):
            backwards.add(token)
            length = len(backwards.tokens) - backwards._borders[-1]
            if len(backwards.tokens) >= _RUN * length:
                return tuple(self.tokens[-length:])
        return None


class Round:
    """One period of a sequence, turned so that it begins with what the program did first of it.

    ``ranks`` holds the order in which tokens were met for the first time; ``begun`` tokens of the round under way have
    passed.
    """

    def __init__(self, period: tuple[Hashable, ...], ranks: Mapping[Hashable, int], *, begun: int = 0) -> None:
        places = [ranks.get(token, len(ranks)) for token in period]
        first = min(range(len(period)), key=lambda start: places[start:] + places[:start])
        self.tokens = period[first:] + period[:first]
        self._at: int | None = begun

    def begins_with(self, token: Hashable) -> bool:
        """Take the next token; True if a new round, or something else than a round, begins with it."""
        if self._at and token == self.tokens[self._at]:
            self._at = (self._at + 1) % len(self.tokens)
            return False
        if token == self.tokens[0]:
            self._at = 1 % len(self.tokens)
            return True
        is_between = self._at == 0
        self._at = None
        return is_between

    def ends_with(self, token: Hashable) -> bool:
        """Take the next token; True if a round ends with it."""
        at = self._at or 0
        if token != self.tokens[at]:  # one was left out: go on from where this one stands
            later = [place for place in range(at, len(self.tokens)) if self.tokens[place] == token]
            at = later[0] if later else self.tokens.index(token) if token in self.tokens else at - 1
        self._at = (at + 1) % len(self.tokens)
        return self._at == 0

    @property
    def is_whole(self) -> bool:
        """True between two rounds."""
        return self._at == 0


def most_frequent(tokens: list[Hashable], *, at_least: int = 1) -> tuple[Hashable, ...] | None:
    """The one token that stands for a sequence without a period; ``None`` if none came ``at_least`` so often.

    >>> most_frequent(list("abac"), at_least=2)
    ('a',)
    """
    ((token, times),) = Counter(tokens).most_common(1)
    return (token,) if times >= at_least else None


def turns_of(tokens: Sequence[T], longest: int) -> tuple[T, ...] | None:
    """The shortest part of several tokens, up to so many, that a sequence has repeated twice; empty if it has none, and
    ``None`` before that is known.

    >>> turns_of("abab", 4), turns_of("abcde", 4), turns_of("aba", 4)
    (('a', 'b'), (), None)
    """
    lengths = range(1, longest + 1)
    possible = [length for length in lengths if all(a == b for a, b in zip(tokens, tokens[length:], strict=False))]
    if not possible or (possible[0] == 1 and len(tokens) >= 2 * longest):
        return ()
    if possible[0] == 1 or len(tokens) < 2 * possible[0]:
        return None
    return tuple(tokens[-possible[0] :])
