"""Testing models: on splits of the data they are fitted on, or a finished model on rows it never saw."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from torchledger.device.datasheets import device_of_name
from torchledger.errors import FitError
from torchledger.fitting.baselines import forest_on_shapes, inductor_of_samples
from torchledger.fitting.carrying import answer
from torchledger.fitting.data import gate_public_labels, of_group, read_devices, read_operator_samples
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
    paths = list(paths)
    everything = gate_public_labels(read_operator_samples(paths))
    samples = of_group(everything, group)
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
        others = [sample for sample in everything if group is not None and sample.group != group]
        learned = build_tables(others)[0] if with_forest else {}
        evaluations, refused = ask_about(load_model(model), list(tables.values()), learned)
        return evaluations, refused, left_out
    record = read_devices(paths).get(samples[0].device) or device_of_name(samples[0].device)
    machine = machine_of_tables(record, list(tables.values()))
    evaluations, refused = evaluate_tables(
        list(tables.values()),
        machine,
        [split for split in _SPLITS if not splits or split in splits],  # type: ignore[misc]
        with_forest=with_forest,
        progress=progress,
    )
    return evaluations, refused, left_out


def ask_about(
    model: TimeModel, tables: Sequence[SampleTable], learned: Mapping[str, SampleTable]
) -> tuple[list[Evaluation], list[str]]:
    """Ask a finished model about measured rows; ``learned`` are those that the forest beside it may learn from."""
    evaluations, refused = [], []
    for given in tables:
        table, general = given, to_general(given)
        if table.key not in model.entries and general is not None and general.key in model.entries:
            table = general
        if table.key not in model.entries:
            refused.append(f"{table.key}: the model does not know it")
            continue
        features = table.features(model.machine)
        entry = model.entries[table.key]
        if entry.origins:
            features, middle, width, _ = answer(entry, model.machine, table.features)
            log_us = features.log_baseline + middle
        else:
            log_us, width = predict_rows(entry, features.values, features.log_baseline, table.units)
        errors = errors_of(
            np.exp(log_us), table.times_us, low_us=np.exp(log_us - width), high_us=np.exp(log_us + width)
        )
        # The one factor of the bare roofline is fitted on the very rows that it is tested on, in its favour.
        factor = np.median(table.times_us / np.maximum(features.roofline_us, 1e-9))
        bare = errors_of(np.maximum(features.roofline_us, 1e-9) * factor, table.times_us)
        baselines = {"roofline": bare}
        if (estimated := inductor_of_samples(given, model.machine)) is not None:
            baselines["inductor"] = errors_of(estimated, given.times_us)
        if given.key in learned:
            own = learned[given.key]
            asked, known = given.features(model.machine).shape, own.features(model.machine).shape
            baselines["random forest on shapes"] = errors_of(
                forest_on_shapes(known, own.times_us, asked), given.times_us
            )
        evaluations.append(Evaluation(given.key, "new rows", errors, baselines))
    return evaluations, refused
