"""What changed between two jobs, as data and as a document: parts of the step, ranks, collectives, launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchledger.nouns import RankSummary
from torchledger.nouns.job_diff import CollectiveTotals, JobDiff, PartChange, RankQuantity
from torchledger.printable import one_line
from torchledger.reporting.columns import format_bytes, format_share, format_us, signed
from torchledger.reporting.document import Block, Document, Facts, Section, Sentence, Table, as_plain, columns
from torchledger.reporting.run_diff import run_diff_as_plain, run_diff_document

_WORTH_SAYING = 0.01
"""Of a step: the least change that a sentence tells."""

_MOST_RANKS = 16
_DELTAS: tuple[RankQuantity, ...] = ("wall_us", "compute_us", "exposed_us", "idle_us", "waiting_us", "peak_bytes")


def job_diff_as_plain(diff: JobDiff) -> dict[str, Any]:
    """What ``--json`` prints: every field, with the ranks' differences computed; keys are stable."""
    plain: dict[str, Any] = as_plain(diff)
    plain["ranks"] = [
        as_plain(each) | {f"delta_{name}": each.delta(name) for name in ("plain_us", *_DELTAS)} for each in diff.ranks
    ]
    plain["launches"] = None if diff.launches is None else run_diff_as_plain(diff.launches)
    return plain


def job_diff_document(diff: JobDiff, *, top: int = 10) -> Document:
    """The comparison with at most ``top`` rows a table, the launches of one rank last."""
    sections = [
        Section(f"From {one_line(diff.first)} to {one_line(diff.second)}", (_facts(diff), *_notes(diff))),
        Section("What changed most, and on which rank", tuple(_sentences(diff, top))),
        Section("Ranks, a step under the profiler", _ranks_table(diff)),
        Section("Collectives of a step", _collectives_table(diff, top)),
        Section("Places that keep others waiting", _stragglers_table(diff, top)),
    ]
    if diff.launches is not None:
        names = [f"{path}/rank{diff.launches_rank}.ledger" for path in (diff.first, diff.second)]
        sections += run_diff_document(diff.launches, *names, top=top).sections
    return Document(tuple(section for section in sections if section.blocks))


def _facts(diff: JobDiff) -> Facts:
    first, second = ([rank for rank in ranks if rank is not None] for ranks in _sides(diff))
    rows = [("ranks", f"{len(first)} -> {len(second)}")] if first or second else []
    for name, quantity in (
        ("step", "plain_us"),
        ("under the profiler", "wall_us"),
        ("exposed communication", "exposed_us"),
        ("waiting for others", "waiting_us"),
        ("memory", "peak_bytes"),
    ):
        one, other = _most(first, quantity), _most(second, quantity)
        if one is None or other is None:
            continue
        form = format_bytes if quantity == "peak_bytes" else format_us
        share = f" ({'+' if other > one else ''}{format_share(other / one - 1)})" if one else ""
        rows.append((name, f"{form(one)} -> {form(other)}: {signed(other - one, form)}{share}"))
    counts = [sum(each.count for each in side) for side in _collective_sides(diff)]
    if first or second:
        rows.append(("collectives", " -> ".join(f"{count:g}" for count in counts)))
    return Facts(tuple(rows))


def _sides(diff: JobDiff) -> tuple[list[RankSummary | None], list[RankSummary | None]]:
    return [each.first for each in diff.ranks], [each.second for each in diff.ranks]


def _collective_sides(diff: JobDiff) -> tuple[list[CollectiveTotals], list[CollectiveTotals]]:
    return [each.first for each in diff.collectives], [each.second for each in diff.collectives]


def _most(ranks: Sequence[RankSummary], quantity: str) -> float | None:
    known = [getattr(rank, quantity) for rank in ranks if getattr(rank, quantity) is not None]
    return max(known, default=None)


def _notes(diff: JobDiff) -> list[Block]:
    texts = ["The rank with most of each stands for its job"] if len(diff.ranks) > 1 else []
    if diff.launches is not None:
        texts.append(f"Launches of rank {diff.launches_rank}, whose compute changed most, stand last")
    return [Sentence(f"{text[0].upper()}{text[1:]}.", "quiet") for text in (*texts, *diff.notes)]


def _sentences(diff: JobDiff, top: int) -> list[Sentence]:
    walls = [rank.wall_us for side in _sides(diff) for rank in side if rank is not None]
    least_us = _WORTH_SAYING * max(walls, default=0.0)
    parts = [part for part in diff.parts if abs(part.delta_us) > least_us]
    common = [each.rank for each in diff.ranks if each.first is not None and each.second is not None]
    lines = [Sentence(_part_text(part, [rank for rank in common if rank != part.rank])) for part in parts[:top]]
    for each in diff.stragglers[:top]:
        if abs(each.second_us - each.first_us) <= least_us:
            continue
        if not each.first_us:
            said = f"now keeps others waiting for {format_us(each.second_us)}"
        elif not each.second_us:
            said = f"no longer keeps others waiting ({format_us(each.first_us)} before)"
        else:
            said = f"keeps others waiting for {format_us(each.second_us)} ({format_us(each.first_us)} before)"
        lines.append(Sentence(f"Rank {each.rank} {said}: {one_line(each.where)}."))
    if not lines and diff.parts:
        lines.append(Sentence(f"No part of a step changed by more than {_WORTH_SAYING:.0%} of it on any rank."))
    return lines


def _part_text(part: PartChange, others: Sequence[int]) -> str:
    text = f"{part.part[0].upper()}{part.part[1:]}: {signed(part.delta_us, format_us)} on rank {part.rank}"
    if part.others_us is None:
        return f"{one_line(text)}."
    least, most = (signed(us, format_us) for us in part.others_us)
    who = f"rank {others[0]}" if len(others) == 1 else "the other ranks"
    return f"{one_line(text)}, {least if least == most else f'{least} to {most}'} on {who}."


def _ranks_table(diff: JobDiff) -> tuple[Block, ...]:
    common = [each for each in diff.ranks if each.first is not None and each.second is not None]
    if not common:
        return ()
    shown = common
    if len(common) > _MOST_RANKS:
        shown = sorted(common, key=lambda each: -abs(each.delta("wall_us") or 0.0))[:_MOST_RANKS]
    rows = [
        (
            f"rank {each.rank}",
            None if each.first is None else each.first.wall_us,
            None if each.second is None else each.second.wall_us,
            *(each.delta(name) for name in _DELTAS),
        )
        for each in shown
    ]
    keys = ("rank", "first_wall_us", "second_wall_us", *(f"delta_{name}" for name in _DELTAS))
    rest = len(common) - len(shown)
    left = (Sentence(f"{rest} ranks that changed less are left out; --json has them.", "quiet"),) if rest else ()
    return (Table(columns(*keys), tuple(rows), optional=("delta_peak_bytes", "delta_waiting_us")), *left)


def _collectives_table(diff: JobDiff, top: int) -> tuple[Block, ...]:
    if not diff.collectives:
        return ()
    rows = tuple(
        (
            each.operation,
            each.group_size,
            each.message_bytes,
            round(each.first.count, 2),
            round(each.second.count, 2),
            each.first.in_collective_us,
            each.second.in_collective_us,
            each.second.waiting_us - each.first.waiting_us,
        )
        for each in diff.collectives[:top]
    )
    keys = ("operation", "group_size", "message_bytes", "first_calls", "second_calls", "first_in_us", "second_in_us")
    rest = len(diff.collectives) - len(rows)
    left = (Sentence(f"{rest} kinds more; --top shows them.", "quiet"),) if rest else ()
    return (Table(columns(*keys, "delta_waiting_us"), rows), *left)


def _stragglers_table(diff: JobDiff, top: int) -> tuple[Block, ...]:
    if not diff.stragglers:
        return ()
    rows = tuple((f"rank {each.rank}", each.first_us, each.second_us, each.where) for each in diff.stragglers[:top])
    return (Table(columns("rank", "first_cost_us", "second_cost_us", "late_at"), rows),)
