"""What a report consists of, before anything decides how it looks.

A ``Document`` holds raw values and columns; laying it out as terminal text (``terminal.py``) or a page is a later step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from torchledger.reporting.columns import COLUMNS, Column

Tone = Literal["good", "bad", "quiet"]


@dataclass(frozen=True)
class Facts:
    """Names and values, one pair a line."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Table:
    """Rows of raw values, one per column; ``total`` stands below a rule, ``tones`` colour whole rows.

    ``optional`` names the columns that a narrow terminal may leave out, the first to go first.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    total: tuple[Any, ...] | None = None
    tones: tuple[Tone | None, ...] = ()
    optional: tuple[str, ...] = ()

    def without(self, keys: Collection[str]) -> Table:
        """The same table without some columns."""
        kept = [position for position, column in enumerate(self.columns) if column.key not in keys]
        return dataclasses.replace(
            self,
            columns=tuple(self.columns[position] for position in kept),
            rows=tuple(tuple(row[position] for position in kept) for row in self.rows),
            total=None if self.total is None else tuple(self.total[position] for position in kept),
        )


@dataclass(frozen=True)
class Sentence:
    """Plain words."""

    text: str
    tone: Tone | None = None


@dataclass(frozen=True)
class Code:
    """Source text; ``language`` is a name that a syntax highlighter knows."""

    text: str
    language: Literal["python", "cpp", "text"] = "python"


Block: TypeAlias = Facts | Table | Sentence | Code


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """A report."""

    sections: tuple[Section, ...]


def joined(*documents: Document) -> Document:
    """One document of the sections of several, in order."""
    return Document(tuple(section for document in documents for section in document.sections))


def columns(*keys: str) -> tuple[Column, ...]:
    """The columns of these keys, out of the one table."""
    return tuple(COLUMNS[key] for key in keys)


def as_plain(value: Any) -> Any:
    """Records as dicts with every field present, tuples as lists: what ``--json`` prints."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_plain(item) for item in value]
    return value
