"""The process groups of a job, by what a trace says of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchledger.traces.trace import Trace

if TYPE_CHECKING:
    pass


_MOST_RANKS = 1_000_000


class ProcessGroups:
    """The process groups that a trace's head names."""

    def __init__(self, trace: Trace) -> None:
        self._ranks: dict[str, tuple[int, ...]] = {}
        self._sizes: dict[str, int] = {}
        held = trace.metadata.get("distributedInfo")
        configured = held.get("pg_config") if isinstance(held, Mapping) else None
        for group in configured if isinstance(configured, list) else ():
            if not isinstance(group, Mapping) or (name := text_of(group.get("pg_name"))) is None:
                continue
            ranks = group.get("ranks")
            if isinstance(ranks, list) and all(type(rank) is int for rank in ranks):
                self._ranks[name] = tuple(ranks)
            if (size := whole_number(group.get("pg_size"))) is not None:
                self._sizes[name] = size
        self.only = next(iter(self._sizes)) if len(self._sizes) == 1 else None

    def of(self, group: str | None, facts: Mapping[str, Any]) -> tuple[int | None, tuple[int, ...]]:
        """Size and ranks of a group, by what the trace says of the call or of the group."""
        name = group or self.only or ""
        size = whole_number(facts.get("Group size")) or self._sizes.get(name)
        ranks = self._ranks.get(name, ()) or _rank_list(facts.get("Process Group Ranks")) or _strided(size, facts)
        return size or len(ranks) or None, ranks


def _rank_list(value: Any) -> tuple[int, ...]:
    """``"[0, 1, 2]"``; a long list is cut by its writer, and says nothing then."""
    text = str(value or "")
    if not re.fullmatch(r"\[\d+(, *\d+)*\]", text):
        return ()
    return tuple(int(part) for part in text[1:-1].split(","))


def _strided(size: int | None, facts: Mapping[str, Any]) -> tuple[int, ...]:
    """The ranks of a group of regular distances, which stand beside a list that was too long to write."""
    start, stride = whole_number(facts.get("Global rank start")), whole_number(facts.get("Global rank stride"))
    if size is None or not 0 < size <= _MOST_RANKS or start is None or stride is None or start < 0 or stride < 1:
        return ()
    return tuple(range(start, start + size * stride, stride))


def text_of(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def whole_number(value: Any) -> int | None:
    if type(value) is int:
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,15}", value) else None
