"""What the page shows of a step's memory: the live set call by call, and the heaviest tensors at its peak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchledger.memory.advice import Recomputation
from torchledger.memory.live_set import CATEGORIES, Area, MemoryTotals, areas, rounded
from torchledger.nouns import StepCall
from torchledger.reporting.memory import CATEGORY_WORDS, advice_sentence, entry_name, storage_name

MOST_POINTS = 1500
"""Points of the chart; of more, the highest of each run of neighbours is drawn."""

_MOST_TENSORS = 200


def memory_of_step(
    totals: MemoryTotals | None,
    calls: Sequence[StepCall],
    advice: Sequence[Recomputation],
    *,
    words: Callable[[str], str],
    shorten: Callable[[str], str],
) -> dict[str, Any] | None:
    """The memory as plain data; ``None`` where no step's was watched.

    Bytes throughout; ``levels`` holds one list for each category, beside ``entries``. ``words`` makes a text harmless,
    ``shorten`` a source line short.
    """
    if totals is None:
        return None
    memory, peak = totals.memory, totals.curve.peak
    every = areas(totals)
    drawn = _highest_of_neighbours(every)
    used = [category for category in CATEGORIES if any(area.by_category.get(category) for area in drawn)]
    counted = {int(order): nbytes for order, nbytes in memory.counted.items()}
    heaviest = totals.at_peak[:_MOST_TENSORS]
    return {
        "device": words(memory.device),
        "peak_bytes": totals.peak_live_bytes,
        "peak_at": words(entry_name(peak.order, peak.launch, calls)),
        "measured_bytes": memory.measured_peak_bytes,
        "reserved_bytes": memory.reserved_peak_bytes,
        "categories": [[category, CATEGORY_WORDS[category], totals.by_category.get(category, 0)] for category in used],
        "entries": [words(entry_name(area.order, area.launch, calls)) for area in drawn],
        "levels": [[area.by_category.get(category, 0) for area in drawn] for category in used],
        "counted": [counted.get(area.order) for area in drawn] if counted else [],
        "left_out": len(every) - len(drawn),
        "advice": [words(advice_sentence(each)) for each in advice[:5]],
        "tensors": [
            [
                words(storage_name(each)),
                CATEGORY_WORDS[each.category],
                rounded(each.nbytes, memory.rounding),
                words(f"{each.dtype} {list(each.shape)}") if each.dtype else "",
                words(each.module or ""),
                words(shorten(each.source)) if each.source else "",
            ]
            for each in heaviest
        ],
        "tensors_left_out": len(totals.at_peak) - len(heaviest),
        "notes": [words(note) for note in memory.notes],
    }


def _highest_of_neighbours(every: Sequence[Area]) -> list[Area]:
    length = -(-len(every) // MOST_POINTS)
    return [max(every[start : start + length], key=lambda area: area.nbytes) for start in range(0, len(every), length)]
