"""Further records that the page of a ledger shows: the timeline of a step, values, and predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchledger.nouns import (
    Measurement,
    Prediction,
    StepPrediction,
    Timeline,
    ValueComparison,
    ValueFinding,
    ValueStats,
)
from torchledger.predicting.launches import was_measured_elsewhere
from torchledger.predicting.step import ran_elsewhere
from torchledger.reporting.html_texts import Texts, clean, finite, in_words, looked_up, rounded, sizes_text
from torchledger.store import LedgerReader
from torchledger.store.latest import latest
from torchledger.store.value_stats import iterate_value_stats

MOST_PREDICTIONS = 20_000
MOST_VALUES = 20_000
MOST_FINDINGS = 500


def timeline_plain(reader: LedgerReader, texts: Texts) -> dict[str, Any] | None:
    """The last timeline that was recorded; names and launches by their texts' places."""
    timeline = latest(reader, Timeline)
    if timeline is None:
        return None
    return {
        "clock": clean(timeline.clock),
        "step": timeline.step,
        "left_out": timeline.left_out,
        "start_ns": timeline.start_ns,
        "duration_ns": timeline.duration_ns,
        "name": looked_up(timeline.name, texts.places(timeline.names)),
        "category": looked_up(timeline.category, texts.places(timeline.categories)),
        "launch": looked_up(timeline.launch, texts.places(timeline.launch_ids)),
        "lane": timeline.lane,
        "lanes": [clean(lane) for lane in timeline.lanes],
        "phase": looked_up(timeline.phase, texts.places(timeline.phases)),
    }


def values_plain(reader: LedgerReader, texts: Texts) -> dict[str, Any] | None:
    """Value statistics, those with NaN or Inf always, the others while there is room."""
    rows: list[ValueStats] = []
    left_out = 0
    for stats in iterate_value_stats(reader):
        if len(rows) < MOST_VALUES or stats.n_nan or stats.n_inf:
            rows.append(stats)
        else:
            left_out += 1
    findings = reader.read(ValueFinding)
    comparisons = reader.read(ValueComparison)
    if not (rows or findings or comparisons):
        return None
    return {
        "left_out": left_out,
        "findings": [
            [
                texts.place(each.question),
                texts.place(each.verdict),
                texts.place(each.subject),
                each.call_index,
                texts.place(each.buffer),
                texts.place(each.dtype),
                each.count,
                texts.place(each.note),
            ]
            for each in findings[:MOST_FINDINGS]
        ],
        "comparisons": [
            [
                texts.place(each.subject),
                texts.place(each.buffer),
                texts.place(each.dtype),
                finite(each.compiled_error),
                finite(each.eager_error),
                texts.place(each.further),
                each.is_within,
                texts.place(each.note),
            ]
            for each in sorted(comparisons, key=_how_far)[:MOST_FINDINGS]
        ],
        "findings_left_out": max(0, len(findings) - MOST_FINDINGS) + max(0, len(comparisons) - MOST_FINDINGS),
        "rows": [
            [
                texts.place(each.subject),
                each.call_index,
                texts.place(each.buffer),
                texts.place(each.moment),
                texts.place(each.dtype),
                texts.place(sizes_text(None, each.shape)),
                each.n_nan,
                each.n_inf,
                *(finite(value) for value in (each.minimum, each.maximum, each.mean, each.std)),
                texts.place(each.note),
            ]
            for each in rows
        ],
    }


def _how_far(comparison: ValueComparison) -> tuple[bool, float]:
    """Those outside their tolerance first, then the larger error."""
    return comparison.is_within is not False, -(comparison.compiled_error or 0.0)


def predictions_plain(
    reader: LedgerReader,
    texts: Texts,
    measured: Mapping[str, Sequence[Measurement]],
    further: Sequence[Prediction | StepPrediction],
) -> dict[str, Any] | None:
    """What was predicted of launches and of steps, beside what was measured."""
    rows: list[list[Any]] = []
    left_out = elsewhere = 0
    for each in (*reader.iterate(Prediction), *(one for one in further if isinstance(one, Prediction))):
        if len(rows) >= MOST_PREDICTIONS:
            left_out += 1
            continue
        times = measured.get(each.subject, ())
        truth = next((time for time in times if time.kind == "profile"), None) or next(iter(times), None)
        if truth is not None and was_measured_elsewhere(each):
            truth, elsewhere = None, elsewhere + 1
        rows.append(
            [
                texts.place(each.subject),
                rounded(each.duration_us),
                rounded(each.low_us),
                rounded(each.high_us),
                each.coverage,
                texts.place(each.range),
                texts.place(each.device),
                texts.place(each.model),
                rounded(truth.duration_us) if truth is not None else None,
                rounded(each.roofline_us),
                texts.place(each.note),
            ]
        )
    steps = [
        {
            "mode": clean(each.mode),
            "device": clean(each.device),
            "us": each.duration_us,
            "low_us": each.low_us,
            "high_us": each.high_us,
            "coverage": each.coverage,
            "kernels_us": each.kernels_us,
            "gaps_us": each.gaps_us,
            "host_us": each.host_us,
            "optimizer_us": each.optimizer_us,
            "eager_us": each.eager_us,
            "collectives_us": each.collectives_us,
            "notes": [in_words(note) for note in each.notes],
            "priced": each.launches + each.eager_calls,
            "extrapolated": each.extrapolated,
            "measured_us": each.measured_us,
            "is_comparable": not ran_elsewhere(each),
            "is_host_bound": each.is_host_bound,
        }
        for each in (*reader.iterate(StepPrediction), *(one for one in further if isinstance(one, StepPrediction)))
    ]
    if not rows and not steps:
        return None
    return {"rows": rows, "left_out": left_out, "elsewhere": elsewhere, "steps": steps}
