"""A predicted step: its parts, and its launches beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchledger.nouns import Launch, Prediction, StepPrediction
from torchledger.reporting.columns import format_us
from torchledger.reporting.document import Block, Document, Facts, Section, Sentence, Table, as_plain, columns


def step_document(
    step: StepPrediction,
    predictions: Sequence[Prediction],
    measured: Mapping[str, float],
    launches: Sequence[Launch],
    *,
    top: int = 15,
    sort_by: str = "time",
) -> Document:
    """The step's parts, then launches: the longest first, or those that are furthest off."""
    facts = [
        ("step", f"{format_us(step.duration_us)} ({format_us(step.low_us)} to {format_us(step.high_us)})"),
        ("kernels", f"{format_us(step.kernels_us)} in {step.launches:,} launches"),
        ("gaps between them", format_us(step.gaps_us)),
        ("host", f"{format_us(step.host_us)}{', which is what limits the step' if step.is_host_bound else ''}"),
    ]
    if step.sustained_us:
        facts.insert(3, ("power limit", f"{format_us(step.sustained_us)} more for products in a run that lasts"))
    if step.optimizer_us:
        facts.insert(3, ("optimizer", format_us(step.optimizer_us)))
    if step.measured_us is not None:
        error = 100 * (step.duration_us / step.measured_us - 1)
        facts.append(("measured step", f"{format_us(step.measured_us)} (predicted {error:+.1f} %)"))
    if step.measured_kernels_us is not None:
        known = {item.subject for item in predictions if item.subject in measured}
        same = sum(item.duration_us for item in predictions if item.subject in known)
        total = sum(measured[subject] for subject in known)
        facts.append(("measured kernels", f"{format_us(total)} (predicted {100 * (same / total - 1):+.1f} %)"))
    blocks: list[Block] = [Facts(tuple(facts))]
    if step.unlearned:
        blocks.append(Sentence(f"{step.unlearned} launches are of kinds that the model has not learned.", "bad"))
    if step.extrapolated:
        blocks.append(Sentence(f"{step.extrapolated} launches lie beyond what was measured.", "quiet"))
    names = {launch.launch_id: launch.kernel_name for launch in launches}
    rows = [
        (
            item.subject,
            names.get(item.subject, ""),
            item.duration_us,
            measured.get(item.subject),
            _error(item, measured),
            item.range,
        )
        for item in predictions
    ]
    rows.sort(
        key=lambda row: -abs(row[2] - (row[3] if row[3] is not None else row[2])) if sort_by == "error" else -row[2]
    )
    table = Table(
        columns("launch_id", "kernel_name", "predicted_us", "measured_us", "error_pct", "range"),
        tuple(rows[:top]),
    )
    mode = "as CUDA graphs" if step.mode == "graphs" else "launched one by one"
    return Document(
        (
            Section(f"{step.subject} on {step.device}, {mode}", tuple(blocks)),
            Section(f"{min(top, len(rows))} of {len(rows)} launches", (table,)),
        )
    )


def step_as_plain(
    step: StepPrediction,
    predictions: Sequence[Prediction],
    measured: Mapping[str, float],
    launches: Sequence[Launch],
) -> Mapping[str, Any]:
    """The same as plain data."""
    names = {launch.launch_id: launch.kernel_name for launch in launches}
    return {
        "step": as_plain(step),
        "launches": [
            {
                **as_plain(item),
                "kernel_name": names.get(item.subject),
                "measured_us": measured.get(item.subject),
                "error_pct": _error(item, measured),
            }
            for item in predictions
        ],
    }


def _error(item: Prediction, measured: Mapping[str, float]) -> float | None:
    time_us = measured.get(item.subject)
    return 100 * (item.duration_us / time_us - 1) if time_us else None
