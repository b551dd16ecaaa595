"""Layouts of a model over a world of ranks: one row each, the quickest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torchledger.nouns import PlannedStep, PricedLayout
from torchledger.planning.composing import name_of
from torchledger.reporting.document import Block, Document, Section, Sentence, Table, columns
from torchledger.reporting.plan import plan_as_plain

_MOST_ROWS = 20
_MOST_LEFT_OUT = 5


def layouts_as_plain(found: Sequence[PricedLayout]) -> list[dict[str, Any]]:
    """All layouts for scripts: what fits first, each with its step; times in microseconds, sizes in bytes."""
    return [
        {
            "name": name_of(each.layout),
            "layout": asdict(each.layout),
            "peak_allocated_bytes": each.peak_allocated_bytes,
            "reason": each.reason,
            "plan": None if each.step is None else _composed(each.step),
        }
        for each in found
    ]


def _composed(step: PlannedStep) -> dict[str, Any]:
    """A step that was put together from a model's sizes: calls and launches are not counted one by one, and what they
    cost the host is in how long the parts take."""
    plain = plan_as_plain(step) | {"launches": None}
    plain["step"] |= {"host_us": None, "host_work_us": None, "decided_by_shares": dict(step.decided_by)}
    plain["communication"] |= {"collectives": None}
    return plain


def layouts_document(found: Sequence[PricedLayout]) -> Document:
    """The same for a reader: the quickest, and what does not fit with what it needs."""
    fitting = [(each, each.step) for each in found if each.step is not None]
    others = [each for each in found if each.step is None]
    blocks: list[Block] = []
    if fitting:
        best = fitting[0][1]
        rows = tuple(
            (
                name_of(each.layout),
                step.duration_us,
                step.duration_us / best.duration_us,
                each.peak_allocated_bytes,
                " ".join(f"{what} {share:.0%}" for what, share in step.decided_by.items() if share >= 0.05),
            )
            for each, step in fitting[:_MOST_ROWS]
        )
        blocks.append(
            Table(columns("layout", "layout_step_us", "over_best", "layout_peak_bytes", "layout_decided_by"), rows)
        )
        if len(fitting) > _MOST_ROWS:
            blocks.append(Sentence(f"And {len(fitting) - _MOST_ROWS} slower ones; --json holds all.", "quiet"))
        blocks += [Sentence(f"{note[0].upper()}{note[1:]}.", "quiet") for note in best.notes]
    else:
        blocks.append(Sentence("No layout fits into the device's memory.", "bad"))
    title = "Layouts"
    if fitting:
        title = f"Layouts of a step on {fitting[0][1].world_size} x {fitting[0][1].device}"
    sections = [Section(title, tuple(blocks))]
    if others:
        lines = [Sentence(f"{name_of(each.layout)}: {each.reason}", "quiet") for each in others[:_MOST_LEFT_OUT]]
        further = len(others) - len(lines)
        if further > 0:
            lines.append(Sentence(f"And {further} that need more.", "quiet"))
        sections.append(Section(f"Left out: {len(others)}", tuple(lines)))
    return Document(tuple(sections))
