"""A set of samples as plain data for a page: how far it is, what it cost, what failed, and what a model predicts."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from torchledger.nouns import Sample
from torchledger.reporting.html_texts import Texts, clean, in_words
from torchledger.reporting.samples import progress_facts, progress_sentences, sample_word
from torchledger.sampling.progress import OperatorProgress, set_progress
from torchledger.sampling.sets import load_set

Progress = Callable[[int, int, str], None]

_MOST_FAILURES = 50
_MOST_PREDICTIONS = 4_000


def samples_data(
    path: str | os.PathLike[str], *, predict: str | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """The page's data for a data folder, a Parquet file or the guide's CSV files.

    ``predict`` names a device whose model is at hand or a model file: its times then stand beside the measured ones.
    """
    tell = progress or (lambda done, total, what: None)
    steps = 2 if predict is None else 3
    tell(0, steps, "samples")
    samples = load_set(path)
    tell(1, steps, "samples")
    state = set_progress(path, samples)
    texts = Texts()
    predictions = None
    if predict is not None:
        tell(2, steps, "predictions")
        predictions = _predictions(samples, predict, texts)
    tell(steps, steps, "samples")
    return {
        "kind": "samples",
        "title": clean(os.path.basename(os.path.normpath(path))),
        "file": clean(os.fspath(path)),
        "graphs": [],
        "weight": "time",
        "sentences": [in_words(text) for text in progress_sentences(state)],
        "samples": {
            "facts": [[name, in_words(text)] for name, text in progress_facts(state)],
            "operators": [_row(row) for row in state.operators],
            "curve": state.curve,
            "planned": state.planned,
            "finished": state.finished,
            "rounds": [dict(each) for each in state.rounds],
            "failures": [[clean(reason), count] for reason, count in list(state.failures.items())[:_MOST_FAILURES]],
            "failures_left_out": max(0, len(state.failures) - _MOST_FAILURES),
        },
        "predictions": predictions,
        "texts": texts.all,
    }


def _row(row: OperatorProgress) -> dict[str, Any]:
    return {
        "operator": clean(row.operator),
        "dtype": clean(row.dtype),
        "planned": row.planned,
        "finished": row.finished,
        "labels": row.labels,
        "bad": [[clean(status.replace("_", " ")), n] for status, n in row.statuses.items() if status != "ok"],
        "wall_s": row.wall_s,
        "device_s": row.device_s,
        "shortest_us": row.shortest_us,
        "longest_us": row.longest_us,
        "spread": row.spread,
    }


def _predictions(samples: Sequence[Sample], device: str, texts: Texts) -> dict[str, Any]:
    """Rows as those of a ledger's predictions (``html_data``): the model asked about every label that has a time.

    Of many labels, evenly chosen ones become rows; ``families`` counts all of them: operator, labels, microseconds
    measured and predicted, mean absolute and mean signed error.
    """
    from torchledger.errors import PredictError
    from torchledger.fitting.learning import COVERAGE
    from torchledger.predicting.devices import find_model
    from torchledger.predicting.operators import predict_table

    model = find_model(device)
    groups: dict[tuple[Any, ...], list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.status == "ok" and sample.times_us:
            groups[sample.operator, sample.direction, sample.dtype, tuple(sample.parameters)].append(sample)
    step = max(1, -(-sum(map(len, groups.values())) // _MOST_PREDICTIONS))
    rows: list[list[Any]] = []
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    refused, count = [], 0
    for (operator, direction, dtype, names), members in groups.items():
        asked = {name: [sample.parameters[name] for sample in members] for name in names}
        try:
            table = predict_table(model, operator, asked, direction=direction, dtype=dtype)
        except PredictError as error:
            refused.append(f"{operator} {direction} {dtype}: {error}")
            continue
        measured = [statistics.median(sample.times_us) for sample in members]
        pairs[operator] += zip(measured, map(float, table.duration_us), strict=True)
        for place, (sample, where) in enumerate(zip(members, table.ranges, strict=True)):
            count += 1
            if count % step:
                continue
            rows.append(
                [
                    texts.place(sample_word(sample)),
                    *(round(float(each[place]), 3) for each in (table.duration_us, table.low_us, table.high_us)),
                    COVERAGE,
                    texts.place(where),
                    texts.place(model.device),
                    texts.place(f"the model of {model.device}"),
                    round(measured[place], 3),
                    round(float(table.roofline_us[place]), 3),
                    0,
                ]
            )
    families = [
        [
            clean(operator),
            len(group),
            *(sum(column) for column in zip(*group, strict=True)),
            statistics.fmean(abs(predicted / true - 1) for true, predicted in group),
            statistics.fmean(predicted / true - 1 for true, predicted in group),
        ]
        for operator, group in pairs.items()
    ]
    return {
        "rows": rows,
        "left_out": count - len(rows),
        "steps": [],
        "families": sorted(families, key=lambda row: -row[2]),
        "refused": [clean(text) for text in refused],
    }
