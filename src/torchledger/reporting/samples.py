"""Sets of samples in the terminal: how far, at what cost, and what the sanity gates say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchledger.nouns import Sample
from torchledger.printable import counted
from torchledger.reporting.columns import format_seconds
from torchledger.reporting.document import Block, Document, Facts, Section, Sentence, Table, columns
from torchledger.sampling.progress import OperatorProgress, SetProgress

_KEYS = (
    "operator",
    "dtype",
    "planned",
    "finished",
    "labels",
    "failed",
    "cost_s",
    "timed_s",
    "shortest_us",
    "longest_us",
    "spread",
)
_MOST_REASONS = 20


def progress_document(progress: SetProgress, file: str) -> Document:
    """The set in a sentence, its facts, and a row per operator and element type."""
    left_out = {
        key
        for key, is_known in (
            ("planned", progress.planned is not None),
            ("cost_s", progress.wall_s is not None),
            ("failed", set(progress.statuses) - {"ok"}),
        )
        if not is_known
    }
    table = Table(
        columns(*_KEYS),
        tuple(_cells(row) for row in progress.operators),
        optional=("spread", "timed_s", "shortest_us", "finished"),
    ).without(left_out)
    first: list[Block] = [Sentence(text) for text in progress_sentences(progress)]
    first.append(Facts(tuple(progress_facts(progress))))
    sections = [Section(f"Samples {file}", tuple(first)), Section("By operator", (table,))]
    if progress.failures:
        reasons = list(progress.failures.items())
        lines = [Sentence(f"{count:,} x {reason}", "bad") for reason, count in reasons[:_MOST_REASONS]]
        if len(reasons) > _MOST_REASONS:
            lines.append(
                Sentence(f"{counted(len(reasons) - _MOST_REASONS, 'further reason')}; --json has all.", "quiet")
            )
        sections.append(Section("Why labels failed", tuple(lines)))
    return Document(tuple(sections))


def progress_sentences(progress: SetProgress) -> list[str]:
    """The set in one sentence, and what is left or went wrong in further ones."""
    on = f" on {', '.join(progress.devices)}" if progress.devices else ""
    operators = len({row.operator for row in progress.operators})
    cost = "" if progress.wall_s is None else f", measured in {format_seconds(progress.wall_s)}"
    speed = "" if progress.points_per_s is None else f" ({progress.points_per_s:,.1f} shapes a second)"
    found = [
        f"{progress.labels:,} labels of {progress.finished:,} shapes of {counted(operators, 'operator')}{on}"
        f"{cost}{speed}."
    ]
    if progress.planned is not None:
        left = progress.planned - progress.finished
        share = progress.finished / progress.planned * 100 if progress.planned else 0.0
        more = (
            "."
            if progress.remaining_s is None
            else f"; the others take {format_seconds(progress.remaining_s)} more at that speed."
        )
        found.append(
            f"All {progress.planned:,} planned shapes are finished."
            if left <= 0
            else f"{progress.finished:,} of {progress.planned:,} planned shapes are finished ({share:.1f} %){more}"
        )
    bad = progress.labels - progress.statuses.get("ok", 0)
    if bad:
        found.append(f"{counted(bad, 'label')} without a time to learn from: {_statuses(progress.statuses)}.")
    return found


def progress_facts(progress: SetProgress) -> list[tuple[str, str]]:
    """Status, cost, groups and versions."""
    rows = [("labels", _statuses(progress.statuses, with_ok=True))]
    if progress.wall_s is not None:
        pauses = f"; {counted(progress.pauses, 'pause')} of over a minute not counted" if progress.pauses else ""
        rows.append(("cost", f"{format_seconds(progress.wall_s)} from the first finished group to the last{pauses}"))
        share = (
            f"; {progress.device_within_s / progress.wall_s * 100:.0f} % of the cost, without the first group's"
            if progress.wall_s
            else ""
        )
        rows.append(("timed iterations", f"{format_seconds(progress.device_s)} on the device{share}"))
    rows += [
        (f"after {each['points_measured']:,} shapes", f"error {each['error_pct']:.1f} % on new ones")
        for each in progress.rounds[-1:]
    ]
    rows.append(("groups", ", ".join(f"{name} {count:,}" for name, count in progress.groups.items())))
    rows.append(("versions", ", ".join(f"{name} {text}" for name, text in progress.versions.items())))
    return [(name, text) for name, text in rows if text]


def judgement_document(judged: Mapping[str, Any], file: str) -> Document:
    """What the sanity gates say of a set (``sampling.sets.judge``): per operator and direction, with an example."""
    verdict = f"{judged['quarantined']:,} of {judged['samples']:,} samples quarantined (ceilings: {judged['ceilings']})"
    blocks: list[Block] = [Sentence(f"{verdict}.", "bad" if judged["quarantined"] else "good")]
    for group in judged["groups"]:
        example = group["example"]
        shape = ", ".join(f"{name}={value}" for name, value in example["parameters"].items())
        blocks.append(
            Sentence(
                f"{group['operator']} {group['direction']}: {group['quarantined']:,} of {group['samples']:,}; "
                f"for one, {shape}: {example['reason']}"
            )
        )
    return Document((Section(f"Samples {file}", tuple(blocks)),))


def failed_text(statuses: Mapping[str, int]) -> str:
    """``"3 failed, 1 out of memory"``; empty if every label is ok."""
    return _statuses({status: count for status, count in statuses.items() if status != "ok"}, with_ok=True)


def _statuses(statuses: Mapping[str, int], *, with_ok: bool = False) -> str:
    shown = ((status, count) for status, count in statuses.items() if with_ok or status != "ok")
    return ", ".join(f"{count:,} {status.replace('_', ' ')}" for status, count in shown)


def _cells(row: OperatorProgress) -> tuple[Any, ...]:
    return (
        row.operator,
        row.dtype,
        row.planned,
        row.finished,
        row.labels,
        failed_text(row.statuses),
        row.wall_s,
        row.device_s,
        row.shortest_us,
        row.longest_us,
        row.spread,
    )


def sample_word(sample: Sample) -> str:
    """``"linear forward bfloat16 (m=64, k=64)"``."""
    shape = ", ".join(f"{name}={value}" for name, value in sample.parameters.items())
    return f"{sample.operator} {sample.direction} {sample.dtype} ({shape})"
