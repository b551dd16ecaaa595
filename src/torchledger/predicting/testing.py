"""Testing models: on splits of the data they are fitted on, or a finished model on rows it never saw."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from torchledger.errors import FitError
from torchledger.fitting.data import gate_public_labels, read_operator_samples
from torchledger.fitting.evaluate import Evaluation, errors_of, evaluate_tables, predict_rows
from torchledger.fitting.tables import LeftOut, SampleTable, build_tables, machine_of_tables, to_general
from torchledger.fitting.time_model import TimeModel
from torchledger.predicting.model_file import load_model

_SPLITS = ("grouped", "extrapolation")


def evaluate_data(
    paths: Iterable[str | os.PathLike[str]],
    *,
    device: str | None = None,
    group: str | None = None,
    operators: Sequence[str] = (),
    splits: Sequence[str] = (),
    model: str | os.PathLike[str] | None = None,
    with_forest: bool = True,
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[list[Evaluation], list[str], list[LeftOut]]:
    """Evaluations of the data's operators, what could not be evaluated and why, and the samples left out of both sides.

    Raises ``FitError`` for data of several devices, an unknown split, or nothing to evaluate.
    """
    for split in splits:
        if split not in _SPLITS:
            raise FitError(f"split {split!r} is unknown; there are {', '.join(_SPLITS)}.")
    samples = gate_public_labels(read_operator_samples(paths, group=group))
    names = sorted({sample.device for sample in samples})
    if device is None and len(names) > 1:
        raise FitError(f"the samples come from {', '.join(names)}. Choose one with --device.")
    samples = [sample for sample in samples if device in (None, sample.device)]
    if operators:
        wanted = {*operators, *(f"guide.{name}" for name in operators)}
        samples = [sample for sample in samples if sample.operator in wanted]
    if not samples:
        raise FitError(f"no samples to evaluate; the data are of {', '.join(names) or 'no device'}.")
    tables, left_out = build_tables(samples)
    if model is not None:
        evaluations, refused = ask_about(load_model(model), list(tables.values()))
        return evaluations, refused, left_out
    machine = machine_of_tables(samples[0].device, list(tables.values()))
    evaluations, refused = evaluate_tables(
        list(tables.values()),
        machine,
        [split for split in _SPLITS if not splits or split in splits],  # type: ignore[misc]
        with_forest=with_forest,
        progress=progress,
    )
    return evaluations, refused, left_out


def ask_about(model: TimeModel, tables: Sequence[SampleTable]) -> tuple[list[Evaluation], list[str]]:
    """Ask a finished model about measured rows."""
    evaluations, refused = [], []
    for given in tables:
        table, general = given, to_general(given)
        if table.key not in model.entries and general is not None and general.key in model.entries:
            table = general
        if table.key not in model.entries:
            refused.append(f"{table.key}: the model does not know it")
            continue
        features = table.features(model.machine)
        log_us, width = predict_rows(model.entries[table.key], features.values, features.log_baseline, table.units)
        errors = errors_of(
            np.exp(log_us), table.times_us, low_us=np.exp(log_us - width), high_us=np.exp(log_us + width)
        )
        # The one factor of the bare roofline is fitted on the very rows that it is tested on, in its favour.
        factor = np.median(table.times_us / np.maximum(features.roofline_us, 1e-9))
        bare = errors_of(np.maximum(features.roofline_us, 1e-9) * factor, table.times_us)
        evaluations.append(Evaluation(given.key, "new rows", errors, {"roofline": bare}))
    return evaluations, refused
