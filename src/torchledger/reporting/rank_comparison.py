"""Several ranks of one job as one document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchledger.nouns import Breakdown
from torchledger.reporting.document import Document, Section, Sentence, Table, columns, joined
from torchledger.reporting.time_breakdown import breakdown_as_plain, breakdown_document
from torchledger.traces.ranks import collective_us, compare_ranks, rank_name


def ranks_as_plain(breakdowns: Sequence[Breakdown]) -> dict[str, Any]:
    """What ``--json`` prints for several traces: the comparison, and each breakdown under ``ranks``."""
    return {"verdict": list(compare_ranks(breakdowns)), "ranks": [breakdown_as_plain(b) for b in breakdowns]}


def ranks_document(breakdowns: Sequence[Breakdown], *, top: int = 10) -> Document:
    """A table with one row per rank, what differs in words, and then each rank's own report."""
    rows = tuple(
        (
            rank_name(breakdown),
            breakdown.wall_us,
            breakdown.device_us,
            breakdown.busy_share,
            collective_us(breakdown),
            breakdown.idle_us,
        )
        for breakdown in breakdowns
    )
    table = Table(columns("rank", "wall_us", "total_us", "busy_share", "collective_us", "idle_us"), rows)
    sentences = tuple(Sentence(sentence) for sentence in compare_ranks(breakdowns))
    overview = Document((Section(f"{len(breakdowns)} ranks", (table, *sentences)),))
    return joined(overview, *(breakdown_document(breakdown, top=top) for breakdown in breakdowns))
