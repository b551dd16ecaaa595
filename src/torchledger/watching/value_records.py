"""What was seen of a call's values, as records."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

from torchledger.nouns import (
    ValueCall,
    ValueStats,
    ValueTable,
)


def stats_of(record: Any) -> list[ValueStats]:
    """The statistics of one call as records."""
    found: list[ValueStats] = []
    name = record.graph.name or "unrecorded graph"
    for seen in record.inputs:
        found.append(_record(record, name, "input", seen, None, None, None))
    for event in record.events:
        subject = record.graph.subject(event.site)
        nodes = {buffer.name: buffer.fx_node for buffer in event.launch.buffers} if event.launch is not None else {}
        for moment, many in (("before", [*event.scalars, *event.before]), ("after", event.after)):
            for seen in many:
                path = event.path or event.paths.get(f"{moment}.{seen.name}")
                found.append(_record(record, subject, moment, seen, event.sequence, path, nodes.get(seen.name)))
    return found


def table_of(planned: Any) -> ValueTable:
    """What the statistics of all calls that follow a plan share."""
    plan, record = planned.plan, planned.record
    row_of = {reduction.ticket: row for row, reduction in enumerate(plan.reductions)}
    seen = [
        *record.inputs,
        *(item for event in record.events for item in (*event.scalars, *event.before, *event.after)),
    ]
    template = dataclasses.replace(record, index=-1, summaries=plan.done)
    entries = [
        dataclasses.replace(
            stats,
            sequence=None if stats.sequence is None else stats.sequence - planned.first_sequence,
            elements=None if item.tickets else stats.elements,  # a tensor's are those of the first call
        )
        for stats, item in zip(stats_of(template), seen, strict=True)
    ]
    rows = [row_of.get(item.tickets[0], -1) if item.tickets else -1 for item in seen]
    return ValueTable(planned.key, tuple(entries), tuple(rows))


def call_of(record: Any) -> ValueCall:
    from torchledger.watching.planned import numbers_of

    numbers = numbers_of(record.planned.plan, record.rows).astype("<f8").tobytes()
    return ValueCall(record.planned.key, record.index, record.sequence, base64.b64encode(numbers).decode())


def _record(
    record: Any, subject: str, moment: Any, seen: Any, sequence: int | None, path: str | None, node: str | None
) -> ValueStats:
    summary = record.summaries.get(seen.tickets[0]) if seen.tickets else None
    place = (subject, record.index, seen.name, moment, seen.dtype, seen.shape)
    if summary is None:
        return ValueStats(*place, path=path, sequence=sequence, fx_node=node, elements=seen.elements)
    return ValueStats(
        *place,
        summary.n_nan,
        summary.n_inf,
        summary.minimum,
        summary.maximum,
        summary.mean,
        summary.std,
        summary.n_zero,
        summary.n_subnormal,
        path,
        summary.note,
        sequence,
        node,
        seen.elements,
    )
