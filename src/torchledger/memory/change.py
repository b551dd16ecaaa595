"""What a change adds to a step's peak: two live sets beside each other, by purpose and by module."""

from __future__ import annotations

from collections.abc import Mapping

from torchledger.memory.live_set import MemoryTotals
from torchledger.nouns.memory import MemoryChange, MemoryRow


def memory_change(first: MemoryTotals, second: MemoryTotals) -> MemoryChange:
    """The peaks of two steps; rows that did not change are left out, the largest change comes first."""
    return MemoryChange(
        first_peak_bytes=first.peak_allocated_bytes,
        second_peak_bytes=second.peak_allocated_bytes,
        by_category=_rows(
            *({str(name): nbytes for name, nbytes in each.by_category.items()} for each in (first, second))
        ),
        by_module=_rows(first.by_module, second.by_module),
    )


def _rows(first: Mapping[str, int], second: Mapping[str, int]) -> tuple[MemoryRow, ...]:
    rows = [MemoryRow(name, first.get(name, 0), second.get(name, 0)) for name in dict.fromkeys((*first, *second))]
    return tuple(sorted((row for row in rows if row.delta_bytes), key=lambda row: -abs(row.delta_bytes)))
