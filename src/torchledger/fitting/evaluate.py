"""How wrong a fit is on rows that it never saw, on splits that cannot leak.

``grouped`` holds out shapes: no shape vector stands on both sides. ``extrapolation`` holds out the largest values of
one parameter. Baselines are measured on the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from torchledger.errors import FitError
from torchledger.expecting.machine import Machine
from torchledger.expecting.operator_features import reduce_features
from torchledger.fitting.baselines import forest_on_shapes, inductor_of_samples, scaled_roofline
from torchledger.fitting.fit import fit_entry
from torchledger.fitting.learning import Options
from torchledger.fitting.tables import SampleTable, shape_groups
from torchledger.fitting.time_model import Entry

Array = NDArray[np.float64]
Split = Literal["grouped", "extrapolation", "by model", "new rows"]

DESCRIPTIONS: Mapping[Split, str] = {
    "grouped": "no shape stands on both sides",
    "extrapolation": "the largest sizes are held out",
    "by model": "no kernel of a test model is in training",
    "new rows": "measured after the model was made",
}

TRAINING_SHARE = 0.8


@dataclass(frozen=True)
class Errors:
    """Errors of one predictor on held-out rows, in per cent: signed error is predicted over measured, less one."""

    count: int
    mape: float
    median_ape: float
    p90_ape: float
    bias: float
    coverage: float | None = None
    width: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """One operator's direction on one split: the model's errors and those of each baseline."""

    key: str
    split: Split
    model: Errors
    baselines: Mapping[str, Errors]

    @property
    def description(self) -> str:
        """What the split holds out, in words."""
        return DESCRIPTIONS[self.split]


def errors_of(
    predicted_us: Array, measured_us: Array, *, low_us: Array | None = None, high_us: Array | None = None
) -> Errors:
    """Errors of predictions against measurements; with an interval, the share it holds and its mean relative width."""
    signed = predicted_us / measured_us - 1
    relative = np.abs(signed)
    coverage = width = None
    if low_us is not None and high_us is not None:
        coverage = float(100 * np.mean((low_us <= measured_us) & (measured_us <= high_us)))
        width = float(100 * np.mean((high_us - low_us) / predicted_us))
    return Errors(
        count=len(measured_us),
        mape=float(100 * relative.mean()),
        median_ape=float(100 * np.median(relative)),
        p90_ape=float(100 * np.quantile(relative, 0.9)),
        bias=float(100 * signed.mean()),
        coverage=coverage,
        width=width,
    )


def grouped_split(groups: NDArray[np.int64], seed: int = 0) -> NDArray[np.bool_]:
    """Mask of the training rows: 80 % of the distinct shapes, in the order of first appearance, permuted."""
    count = int(groups.max()) + 1
    chosen = np.random.RandomState(seed).permutation(count)[: int(TRAINING_SHARE * count)]
    return np.asarray(np.isin(groups, chosen))


def extrapolation_split(table: SampleTable) -> NDArray[np.bool_]:
    """Mask of the training rows: ``dim`` (else ``l``, else the parameter with most values) up to its 80 % quantile."""
    named = [name for name in ("dim", "l") if name in table.parameters]
    name = named[0] if named else max(table.parameters, key=lambda key: len(np.unique(table.parameters[key])))
    value = table.parameters[name]
    return np.asarray(value <= np.quantile(value, TRAINING_SHARE))


def evaluate_table(
    table: SampleTable,
    machine: Machine,
    split: Split,
    *,
    options: Options | None = None,
    with_forest: bool = True,
    seed: int = 0,
) -> Evaluation:
    """Fit on one side of a split, ask about the other. Raises ``FitError`` where a side is too small."""
    options = options or Options()
    features = reduce_features(table.features(machine), options.physics, options.baseline)
    train = grouped_split(shape_groups(features), seed) if split == "grouped" else extrapolation_split(table)
    if not train.any() or train.all():
        raise FitError(f"{table.key}: the {split} split leaves one side empty")
    entry = fit_entry(table.select(train), machine, options)
    measured = table.times_us[~train]
    log_us, width = predict_rows(entry, features.values[~train], features.log_baseline[~train], table.units[~train])
    model = errors_of(np.exp(log_us), measured, low_us=np.exp(log_us - width), high_us=np.exp(log_us + width))
    bare = scaled_roofline(features.roofline_us, table.times_us, train)
    baselines = {"roofline": errors_of(bare, measured)}
    if (estimated := inductor_of_samples(table, machine)) is not None:
        baselines["inductor"] = errors_of(estimated[~train], measured)
    if with_forest:
        forest = forest_on_shapes(features.shape[train], table.times_us[train], features.shape[~train])
        baselines["random forest on shapes"] = errors_of(forest, measured)
    return Evaluation(table.key, split, model, baselines)


def predict_rows(
    entry: Entry, features: Array, log_baseline: Array, units: NDArray[np.str_] | Sequence[str]
) -> tuple[Array, Array]:
    """Log time and half width of its interval for rows, each of its own unit."""
    log_us, width = np.empty(len(features)), np.empty(len(features))
    labels = np.asarray(units)
    for unit in np.unique(labels):
        rows = labels == unit
        middle, half, _ = entry.predict(features[rows], str(unit) or None)
        log_us[rows], width[rows] = middle + log_baseline[rows], half
    return log_us, width


def evaluate_tables(
    tables: Sequence[SampleTable],
    machine: Machine,
    splits: Sequence[Split] = ("grouped", "extrapolation"),
    *,
    options: Options | None = None,
    with_forest: bool = True,
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[list[Evaluation], list[str]]:
    """Evaluate each table on each split; the second list says which could not be, and why."""
    evaluations, refused = [], []
    for done, table in enumerate(tables, start=1):
        for split in splits:
            try:
                evaluations.append(evaluate_table(table, machine, split, options=options, with_forest=with_forest))
            except FitError as error:
                refused.append(f"{table.key} {split}: {error}")
        if progress is not None:
            progress(done, len(tables), table.key)
    return evaluations, refused


def summarise(evaluations: Sequence[Evaluation], split: Split) -> dict[str, float]:
    """Means over the operators and directions of one split: MAPE of the model and the baselines, coverage, worst."""
    some = [evaluation for evaluation in evaluations if evaluation.split == split]
    if not some:
        return {}
    covered = [evaluation.model.coverage for evaluation in some if evaluation.model.coverage is not None]
    means = {
        "mape": float(np.mean([evaluation.model.mape for evaluation in some])),
        "worst": max(evaluation.model.mape for evaluation in some),
        "coverage": float(np.mean(covered)) if covered else float("nan"),
        "bias": float(np.mean([evaluation.model.bias for evaluation in some])),
    }
    for name in some[0].baselines:
        means[name] = float(np.mean([e.baselines[name].mape for e in some if name in e.baselines]))
    return means
