"""Where the time went, as a document: of an imported trace or of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchledger.nouns import Breakdown, TimeRow
from torchledger.printable import counted, ended
from torchledger.reporting.ceilings import above_ceilings
from torchledger.reporting.columns import format_count, format_share, format_us
from torchledger.reporting.document import Block, Document, Facts, Section, Sentence, Table, as_plain, columns
from torchledger.traces.verdict import beside_a_step, time_words

_TIME_COLUMNS = ("calls", "total_us", "time_share", "median_us")
_WORK_COLUMNS = ("flops", "achieved_tflops_per_s", "bytes_moved", "achieved_gb_per_s", "roofline_fraction", "quality")
_OPTIONAL = ("quality", "bytes_moved", "flops", "iqr_us", "median_us", "known_share")


def breakdown_as_plain(breakdown: Breakdown) -> dict[str, Any]:
    """What ``--json`` prints: every field, with the rates computed; keys are stable."""
    plain: dict[str, Any] = as_plain(breakdown)
    for name in ("categories", "ops", "kernels", "graphs", "modules", "lines", "streams"):
        plain[name] = [_row_as_plain(row) for row in getattr(breakdown, name)]
    return plain | {
        "device_us": breakdown.device_us,
        "idle_us": breakdown.idle_us,
        "busy_share": breakdown.busy_share,
    }


def breakdown_document(breakdown: Breakdown, *, top: int = 10, is_of_step: bool = False) -> Document:
    """The breakdown with at most ``top`` rows a table; the others are one row, so that rows add to the total.

    With ``is_of_step`` it leaves out what the ledger's step tells of all recorded ones: idle time, and what to look at.
    """
    said = beside_a_step(breakdown.verdict) if is_of_step else breakdown.verdict
    sections = [
        Section(f"Time in {breakdown.source}", (Facts(tuple(_facts(breakdown))),)),
        Section("In short", tuple(map(Sentence, said))),
        _table_section("Time by category", "category", breakdown.categories, breakdown, top=max(top, 20)),
        _table_section("Time by graph", "graph", breakdown.graphs, breakdown, top=top),
        _table_section("Time by operator", "op", breakdown.ops, breakdown, top=top),
        _table_section("Time by module", "module", breakdown.modules, breakdown, top=top),
        _table_section("Time by source line", "source", breakdown.lines, breakdown, top=top),
        _kernel_section(breakdown, top=top),
    ]
    if len(breakdown.streams) > 1:
        sections.append(_table_section("Time by stream", "stream", breakdown.streams, breakdown, top=top))
    sections += [_idle_section(breakdown, top=top), _unknown_section(breakdown, top=top)]
    return Document(tuple(section for section in sections if section.blocks))


def _row_as_plain(row: TimeRow) -> dict[str, Any]:
    plain: dict[str, Any] = as_plain(row)
    return plain | {
        "achieved_tflops_per_s": row.achieved_tflops_per_s,
        "achieved_gb_per_s": row.achieved_gb_per_s,
        "roofline_fraction": row.roofline_fraction,
    }


def _facts(breakdown: Breakdown) -> list[tuple[str, str]]:
    rows = []
    for device in breakdown.devices:
        rows.append((f"device {device.kind}:{device.index}", device.name))
    if breakdown.rank is not None:
        rows.append(("rank", str(breakdown.rank)))
    kinds = [("kernels", breakdown.kernel_us), ("copies", breakdown.copy_us), ("fills", breakdown.fill_us)]
    parts = ", ".join(f"{name} {format_us(time)}" for name, time in kinds if time)
    of = "calls of operators" if breakdown.is_of_operators else f"events: {parts}"
    rows.append((time_words(breakdown), f"{format_us(breakdown.device_us)} in {format_count(breakdown.events)} {of}"))
    share = breakdown.busy_share
    busy = (
        "" if share is None else f", {format_share(share)} of {format_us(breakdown.wall_us)} from first to last event"
    )
    rows.append(("busy", f"{format_us(breakdown.busy_us)}{busy} (clock: {breakdown.clock})"))
    if breakdown.steps:
        times = sorted(breakdown.step_us)
        duration = f", median {format_us(times[len(times) // 2])} on the host" if times else ""
        rows.append(("steps", f"{breakdown.steps}{duration}"))
    if (overhead := breakdown.launch_overhead) is not None and overhead.launches:
        text = f"{format_count(overhead.launches)} calls, {format_us(overhead.host_us)} of host time"
        if overhead.median_us is not None:
            text += f", median {format_us(overhead.median_us)}"
        if overhead.queue_us is not None and overhead.queue_minimum_us is not None:
            text += (
                f"; call to start {format_us(overhead.queue_us)} median, {format_us(overhead.queue_minimum_us)} least"
            )
        if overhead.graph_launches:
            text += f"; {format_count(overhead.graph_launches)} of whole CUDA graphs"
        rows.append(("launching", text))
    if breakdown.kernel_us:
        known = breakdown.known_kernel_us / breakdown.kernel_us
        of = "the operators' time" if breakdown.is_of_operators else "kernel time"
        rows.append(("known", f"{format_share(known)} of {of} has FLOPs or bytes"))
    return rows


def _work_cells(row: TimeRow) -> tuple[Any, ...]:
    """FLOPs and bytes with their rates and quality; unknown where less than half of the row's time has them."""
    flops = row.flops if row.flops_us >= row.total_us / 2 else None
    bytes_moved = row.bytes_moved if row.bytes_us >= row.total_us / 2 else None
    qualities = [
        quality
        for quality, value in ((row.flops_quality, flops), (row.bytes_quality, bytes_moved))
        if value is not None and (value or quality != "exact")
    ]
    # A view moves nothing, which is known: 0 FLOPs alone say nothing.
    quality = "/".join(dict.fromkeys(qualities)) or ("unavailable" if bytes_moved is None else "exact")
    if qualities and row.known_us < 0.995 * row.total_us:
        quality += f", for {format_share(row.known_us / row.total_us)}"
    return (
        flops,
        "" if flops == 0 else row.achieved_tflops_per_s if flops else None,
        bytes_moved,
        row.achieved_gb_per_s if bytes_moved is not None else None,
        row.roofline_fraction,
        quality,
    )


def _time_cells(row: TimeRow) -> tuple[Any, ...]:
    return row.calls, row.total_us, row.share, row.median_us


def _table_section(title: str, column: str, rows: Sequence[TimeRow], breakdown: Breakdown, *, top: int) -> Section:
    if not rows:
        return Section(title, ())
    shown, rest = (rows, ()) if len(rows) <= top + 1 else (rows[:top], rows[top:])
    cells = [(row.name, *_time_cells(row), *_work_cells(row)) for row in shown]
    if rest:
        cells.append((f"({len(rest):,} others)", *_sum_cells(rest), "", *[""] * len(_WORK_COLUMNS)))
    total = ("total", *_sum_cells(rows), "", *[""] * len(_WORK_COLUMNS))
    table = Table(columns(column, *_TIME_COLUMNS, *_WORK_COLUMNS), tuple(cells), total, optional=_OPTIONAL)
    return Section(title, (_without_roofline(table, breakdown),))


def _sum_cells(rows: Sequence[TimeRow]) -> tuple[Any, ...]:
    return sum(row.calls for row in rows), sum(row.total_us for row in rows), sum(row.share for row in rows)


def _kernel_section(breakdown: Breakdown, *, top: int) -> Section:
    rows = breakdown.kernels
    if not rows or breakdown.is_of_operators:  # whose table by operator has all of them
        return Section("Time by kernel", ())
    shown, rest = (rows, ()) if len(rows) <= top + 1 else (rows[:top], rows[top:])
    cells: list[tuple[Any, ...]] = [
        (
            row.detail.get("label", row.name),
            row.category or "",
            _ops_text(row.ops),
            *_time_cells(row),
            row.iqr_us if row.iqr_us is not None else "",
            *_work_cells(row),
        )
        for row in shown
    ]
    blank = [""] * (len(_WORK_COLUMNS) + 2)
    if rest:
        cells.append((f"({len(rest):,} others)", "", "", *_sum_cells(rest), *blank))
    total = ("total", "", "", *_sum_cells(rows), *blank)
    keys = ("symbol", "category", "op", *_TIME_COLUMNS, "iqr_us", *_WORK_COLUMNS)
    table = Table(columns(*keys), tuple(cells), total, optional=("category", *_OPTIONAL, "op"))
    return Section("Time by kernel", (_without_roofline(table, breakdown),))


def _ops_text(ops: Sequence[str]) -> str:
    return "" if not ops else ops[0] if len(ops) == 1 else f"{ops[0]} and {len(ops) - 1} more"


def _without_roofline(table: Table, breakdown: Breakdown) -> Table:
    return table if _has_roofline(breakdown) else table.without(("roofline_fraction",))


def _has_roofline(breakdown: Breakdown) -> bool:
    return any(row.roofline_us is not None for row in breakdown.categories)


def _idle_section(breakdown: Breakdown, *, top: int) -> Section:
    if breakdown.idle_us <= 0 or not breakdown.gaps:
        return Section("Idle", ())
    blocks: list[Block] = []
    if breakdown.idle_causes:
        rows = tuple((cause, time, time / breakdown.idle_us) for cause, time in breakdown.idle_causes.items())
        total = ("total", breakdown.idle_us, 1.0)
        blocks.append(Table(columns("cause", "idle_us", "idle_share"), rows, total))
    if breakdown.host_during_idle:
        host = list(breakdown.host_during_idle.items())[:top]
        blocks.append(
            Table(
                columns("host_activity", "idle_us", "idle_share"),
                tuple((doing, time, time / breakdown.idle_us) for doing, time in host),
            )
        )
    longest = tuple(
        (gap.duration_us, gap.cause, gap.host or "", gap.after or "") for gap in breakdown.gaps[: min(top, 5)]
    )
    blocks.append(Table(columns("idle_us", "cause", "host_activity", "after"), longest, optional=("after",)))
    return Section("Idle: by cause, by what the host did, and the longest pauses", tuple(blocks))


def _unknown_section(breakdown: Breakdown, *, top: int) -> Section:
    lines = [Sentence(ended(problem), "bad") for problem in breakdown.problems]
    lines += [
        Sentence(f"{format_us(time)} without FLOPs or bytes: {ended(reason)}", "quiet")
        for reason, time in list(breakdown.unknown_us.items())[:top]
    ]
    if len(breakdown.unknown_us) > top:
        lines.append(
            Sentence(f"{counted(len(breakdown.unknown_us) - top, 'further reason')}; --json has all.", "quiet")
        )
    lines += [Sentence(ended(note), "quiet") for note in breakdown.notes]
    if not _has_roofline(breakdown):
        lines.append(
            Sentence(
                "No roofline: nobody had measured this device's ceilings (`torchledger doctor` does), and data sheets "
                "are not used.",
                "quiet",
            )
        )
    above = above_ceilings(
        (row.detail.get("label", row.name), row.roofline_fraction, row.bound) for row in breakdown.kernels
    )
    lines += [Sentence(f"{text}.", "quiet") for text in above]
    return Section("What is not known", tuple(lines))
