"""Texts of a page: made harmless, cut to a length that a browser bears, each written once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torchledger.printable import printable, shorten

LONGEST_TEXT = 2_000
LONGEST_LINE = 4_000
LONGEST_SOURCE = 200_000
SOURCES_IN_ALL = 6_000_000

_MICROSECONDS = re.compile(r"(?<=\d) us\b")


def clean(text: object) -> str:
    """Any value as harmless text of bearable length."""
    return printable(shorten(str(text), LONGEST_TEXT))


def in_words(text: str) -> str:
    """A sentence that holds times, in the page's spelling.

    >>> in_words("3.1 us of us")
    '3.1 µs of us'
    """
    return _MICROSECONDS.sub(" µs", clean(text))


class Texts:
    """Texts by place, each once."""

    def __init__(self) -> None:
        self.all: list[str] = [""]
        self._places: dict[str, int] = {"": 0}

    def place(self, text: object) -> int:
        """Where the text is; ``None`` and "" are 0."""
        if text is None:
            return 0
        key = str(text)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self.all)
            self.all.append(clean(key))
        return place

    def places(self, texts: Iterable[object]) -> list[int]:
        """The place of each."""
        return [self.place(text) for text in texts]


def looked_up(places: Iterable[int | None], table: Sequence[int]) -> list[int]:
    """Places of a table's entries; 0, which is no text, for none."""
    return [0 if place is None else table[place] for place in places]


def cut_source(source: str | None, room: int = SOURCES_IN_ALL) -> tuple[str | None, str]:
    """A source that a browser can show, and what was cut from it ("" for nothing).

    >>> cut_source("x = 1"), cut_source("x" * 9_000)[1]
    (('x = 1', ''), '1 long line is cut; the ledger has all 9,000 characters.')
    """
    if source is None:
        return None, "no source was recorded"
    limit = min(LONGEST_SOURCE, max(room, 0))
    text, notes = source, []
    if len(text) > limit:
        text = text[:limit]
        notes.append(f"the first {limit:,} characters are shown")
    lines = text.splitlines()
    long = sum(len(line) > LONGEST_LINE for line in lines)
    if long:
        text = "\n".join(shorten(line, LONGEST_LINE) if len(line) > LONGEST_LINE else line for line in lines)
        notes.append(f"{long:,} long line{'s are' if long > 1 else ' is'} cut")
    note = f"{'; '.join(notes)}; the ledger has all {len(source):,} characters." if notes else ""
    return printable(text), note


def rounded(value: float | None) -> float | None:
    """To a thousandth: times are whole nanoseconds."""
    return None if value is None else round(value, 3)


def finite(value: float | None) -> float | str | None:
    """JSON has no NaN and no infinity."""
    if value is None or value - value == 0:
        return value
    return str(value)


def sizes_text(expression: Sequence[str] | None, hint: Sequence[int]) -> str:
    """``"s0=32, 64"``: symbolic sizes with their value in the recorded step, else with that which was compiled for."""
    if expression is None:
        return ", ".join(map(str, hint))
    pairs = zip(expression, hint, strict=False)
    return ", ".join(str(value) if text == str(value) else f"{text}={value}" for text, value in pairs)
