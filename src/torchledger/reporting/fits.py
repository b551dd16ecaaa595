"""What was predicted, what a fit learned, and how wrong it is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchledger.nouns import Prediction
from torchledger.printable import ended
from torchledger.reporting.document import Block, Document, Section, Sentence, Table, as_plain, columns

if TYPE_CHECKING:
    from torchledger.expecting.constants import Constants
    from torchledger.fitting.evaluate import Evaluation
    from torchledger.fitting.fit_constants import GroupFit
    from torchledger.fitting.tables import LeftOut
    from torchledger.fitting.time_model import TimeModel
    from torchledger.predicting.encoder import PricedCalls

_MOST_NAMED = 12
_KEYS = (
    "entry",
    "rows",
    "mape",
    "median_ape",
    "p90_ape",
    "bias_pct",
    "coverage_pct",
    "roofline_mape",
    "inductor_mape",
    "forest_mape",
)


_STATES = {
    "warm": "Warm: just after the kernel's own repeats, what fits still in the cache.",
    "swept": "Swept: after other work has swept the cache.",
    "turns": "In turns: forward and backward one after the other, as a training loop runs them.",
    "graph": "Graph: in the replay of a CUDA graph, where kernels follow one another at once.",
}


def predictions_document(predictions: Sequence[Prediction]) -> Document:
    """Predicted times with their intervals, and what is to be doubted about them."""
    table = Table(
        columns("subject", "duration_us", "low_us", "high_us", "roofline_us", "range"),
        tuple((p.subject, p.duration_us, p.low_us, p.high_us, p.roofline_us, p.range) for p in predictions),
    )
    blocks: list[Block] = [table]
    blocks += [Sentence(ended(f"{p.subject}: {p.note}"), "bad") for p in predictions if p.note]
    blocks += _below_roofline(predictions)
    first = predictions[0]
    if first.state is not None:
        blocks.append(Sentence(_STATES[first.state], "quiet"))
    models = "; ".join(dict.fromkeys(prediction.model for prediction in predictions))
    beyond = " inside what was measured, and are a guess beyond" if any(p.is_extrapolated for p in predictions) else ""
    blocks.append(Sentence(f"Intervals hold {first.coverage:.0%} of measurements{beyond}. Model: {models}.", "quiet"))
    return Document((Section(f"Predicted on {first.device}", tuple(blocks)),))


def _below_roofline(predictions: Sequence[Prediction]) -> list[Block]:
    """What to think of times that are less than memory and arithmetic allow."""
    below = [p for p in predictions if p.is_below_roofline]
    as_measured = [p.subject for p in below if not p.is_extrapolated]
    doubted = [p.subject for p in below if p.is_extrapolated]
    blocks: list[Block] = []
    if as_measured:
        blocks.append(
            Sentence(
                f"Quicker than the roofline: {'; '.join(as_measured)}. Some measured times are: the roofline is at "
                "what long copies and products reached, which data still in the cache and higher clocks can beat.",
                "quiet",
            )
        )
    if doubted:
        blocks.append(
            Sentence(
                f"Quicker than the roofline, beyond what was measured: {'; '.join(doubted)}. No measured time bears "
                "that out.",
                "bad",
            )
        )
    return blocks


def predictions_as_plain(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [as_plain(each) | {"is_below_roofline": each.is_below_roofline} for each in predictions]


def encoder_document(priced: Sequence[PricedCalls]) -> Document:
    """What a step of an encoder runs, with the predicted time of a call in each direction and of all calls."""
    rows = []
    for each in priced:
        by_direction = {p.subject.split()[1]: p.duration_us for p in each.predictions}
        shape = " ".join(f"{name}={value}" for name, value in each.call.parameters.items())
        forward, backward = by_direction.get("forward"), by_direction.get("backward")
        rows.append(
            (each.call.operator.removeprefix("guide."), shape, each.call.calls, forward, backward, each.total_us)
        )
    total = ("total", "", sum(each.call.calls for each in priced), "", "", sum(each.total_us for each in priced))
    first = priced[0].predictions[0]
    doubted: dict[str, list[str]] = defaultdict(list)
    for each in priced:
        for note in dict.fromkeys(p.note or "" for p in each.predictions if p.is_extrapolated):
            doubted[note].append(each.call.operator.removeprefix("guide."))
    blocks: list[Block] = [
        Table(columns("operator", "parameters", "calls", "forward_us", "backward_us", "total_us"), tuple(rows), total)
    ]
    blocks += [Sentence(ended(f"{', '.join(operators)}: {note}"), "bad") for note, operators in doubted.items()]
    blocks.append(
        Sentence(
            "A sum over operators, each forward and backward once: what compilation fuses, gaps between kernels, the "
            "optimizer and collectives are not in it.",
            "quiet",
        )
    )
    return Document((Section(f"An encoder's step on {first.device}", tuple(blocks)),))


def fit_document(model: TimeModel, left_out: Sequence[LeftOut], size_bytes: int) -> Document:
    """What a model holds, its held-out error per entry, and what was left out."""
    entries = [model.entries[key] for key in model.entries]
    table = Table(
        columns("entry", "rows", "shapes", "mape"),
        tuple((entry.key, entry.n_rows, entry.n_shapes, entry.mape) for entry in entries),
    )
    mean = sum(entry.mape or 0.0 for entry in entries) / len(entries)
    blocks: list[Block] = [
        table,
        Sentence(
            f"{len(entries)} entries, {size_bytes / 1e6:.1f} MB; "
            f"mean error on shapes held out while fitting {mean:.2f} %."
        ),
    ]
    blocks += [Sentence(f"{note}.", "quiet") for note in model.notes]
    reasons = Counter(item.reason for item in left_out)
    blocks += [Sentence(f"left out: {item.subject}: {item.reason}", "quiet") for item in left_out[:_MOST_NAMED]]
    if len(left_out) > _MOST_NAMED:
        blocks.append(Sentence(f"... {len(left_out)} samples left out in all, for {len(reasons)} reasons.", "quiet"))
    return Document((Section(f"Model of {model.device}", tuple(blocks)),))


def fit_as_plain(model: TimeModel, left_out: Sequence[LeftOut], size_bytes: int) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "device": model.device,
        "size_bytes": size_bytes,
        "entries": [
            {"entry": entry.key, "rows": entry.n_rows, "shapes": entry.n_shapes, "mape": entry.mape}
            for entry in (model.entries[key] for key in model.entries)
        ],
        "notes": list(model.notes),
        "left_out": [{"subject": item.subject, "reason": item.reason} for item in left_out],
    }


def constants_document(constants: Constants, groups: Sequence[GroupFit]) -> Document:
    """What each group of constants was fitted to, and its error on held-out rows before and after."""
    table = Table(
        columns("constants", "rows", "held_out_rows", "mape_before", "mape"),
        tuple((item.group, item.rows, item.held_out, item.before_pct, item.after_pct) for item in groups),
    )
    kept = [item.group for item in groups if not item.is_taken]
    blocks: list[Block] = []
    if groups:
        blocks = [table, Sentence("Errors are of the formulas alone: what regressors learn comes on top.", "quiet")]
    if (draws := constants.power) is not None and "power" in constants.made_of:
        blocks.append(
            Sentence(
                f"At full clocks products draw {draws.product_j_per_tflop:.2f} J for 10^12 FLOP, attention "
                f"{draws.attention_w:.0f} W and others {draws.other_w:.0f} W, beside {draws.idle_w:.0f} W at rest."
            )
        )
    if kept:
        blocks.append(
            Sentence(f"Left as they were, for they err no less on held-out rows: {'; '.join(kept)}.", "quiet")
        )
    return Document((Section(f"Constants of {constants.reference.device.name}", tuple(blocks)),))


def constants_as_plain(constants: Constants, groups: Sequence[GroupFit]) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "device": constants.reference.device.name,
        "groups": [
            {
                "constants": item.group,
                "rows": item.rows,
                "held_out_rows": item.held_out,
                "mape_before": item.before_pct,
                "mape": item.after_pct,
                "is_taken": item.is_taken,
            }
            for item in groups
        ],
    }


def evaluation_document(
    evaluations: Sequence[Evaluation], refused: Sequence[str], left_out: Sequence[LeftOut]
) -> Document:
    """Errors per operator and direction with the baselines, a mean per split."""
    sections = []
    for split in dict.fromkeys(evaluation.split for evaluation in evaluations):
        some = [evaluation for evaluation in evaluations if evaluation.split == split]
        rows = tuple(_evaluation_row(evaluation) for evaluation in some)
        table = Table(
            columns(*_KEYS),
            rows,
            total=(
                "mean",
                sum(row[1] for row in rows),
                *(_mean(column) for column in list(zip(*rows, strict=True))[2:]),
            ),
        )
        sections.append(Section(f"{split}: {some[0].description}", (table,)))
    notes: list[Block] = [Sentence(f"not evaluated: {reason}", "quiet") for reason in refused]
    quarantined = list(left_out)
    if quarantined:
        notes.append(Sentence(f"{len(quarantined)} samples left out of both sides:", "quiet"))
        by_kind = Counter(" ".join(item.subject.split(" ")[:2]) for item in quarantined)
        notes += [Sentence(f"{count} of {kind}", "quiet") for kind, count in by_kind.most_common(_MOST_NAMED)]
    if notes:
        sections.append(Section("Left out", tuple(notes)))
    return Document(tuple(sections))


def evaluation_as_plain(
    evaluations: Sequence[Evaluation], refused: Sequence[str], left_out: Sequence[LeftOut]
) -> Mapping[str, Any]:
    """The same as plain data."""
    return {
        "evaluations": [
            {"split": evaluation.split, **dict(zip(_KEYS, _evaluation_row(evaluation), strict=True))}
            for evaluation in evaluations
        ],
        "not_evaluated": list(refused),
        "left_out": [{"subject": item.subject, "reason": item.reason} for item in left_out],
    }


def _evaluation_row(evaluation: Evaluation) -> tuple[Any, ...]:
    model, baselines = evaluation.model, evaluation.baselines
    return (
        evaluation.key,
        model.count,
        model.mape,
        model.median_ape,
        model.p90_ape,
        model.bias,
        model.coverage,
        baselines["roofline"].mape if "roofline" in baselines else None,
        baselines["inductor"].mape if "inductor" in baselines else None,
        baselines["random forest on shapes"].mape if "random forest on shapes" in baselines else None,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
