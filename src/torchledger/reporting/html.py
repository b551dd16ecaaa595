"""``torchledger report``: a ledger, two, or a set of samples as one HTML file for any browser, without a network."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchledger.errors import UsageError
from torchledger.nouns import Launch, Prediction, RunDiff, Step, StepPrediction
from torchledger.store import open_ledger
from torchledger.store.job import is_job
from torchledger.store.output import check_output, write_output

Progress = Callable[[int, int, str], None]


def report(
    file: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    against: str | os.PathLike[str] | None = None,
    predict: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write the report of a ledger, of ``file`` beside ``against``, or of a set of samples, and return its path.

    A set of samples is a folder of ``torchledger sample``, a Parquet file or the guide's CSV files. ``predict`` names a
    device whose model is at hand, or a model file: then each launch and the step, or each sample, are predicted, and
    stand beside what was measured. Without ``output`` the page lies beside the ledger, as ``NAME.html``. Raises
    ``StoreError`` if that exists (without ``force``) or cannot be written, ``StoreError`` or ``SampleError`` if a file
    cannot be read.

    >>> torchledger.report("gpt.ledger")  # doctest: +SKIP
    PosixPath('gpt.html')
    """
    path = Path(output) if output is not None else _default_output(Path(file), against)
    check_output(path, force=force)
    text = render_report(file, against=against, predict=predict, progress=progress)
    write_output(path, text.encode("utf-8", "backslashreplace"), force=force)
    return path


def render_report(
    file: str | os.PathLike[str],
    *,
    against: str | os.PathLike[str] | None = None,
    predict: str | None = None,
    progress: Progress | None = None,
) -> str:
    """The page as text; arguments as for ``report``. ``UsageError`` for a comparison with predictions."""
    if against is not None and predict is not None:
        raise UsageError("Two ledgers side by side hold no predictions. Ask for one of the two.")
    from torchledger.reporting.html_comparison import comparison_data
    from torchledger.reporting.html_page import render_page

    if is_set_of_samples(file):
        if against is not None:
            raise UsageError(f"{file} is a set of samples; two ledgers can stand side by side, sets cannot.")
        from torchledger.reporting.html_samples import samples_data

        data = samples_data(file, predict=predict, progress=progress)
        return render_page(data, {}, title=f"torchledger: {data['title']}", file=data["file"])
    if is_job(file) and against is None and predict is None:
        from torchledger.reporting.html_job import render_job

        return render_job(file)
    page = _read(file, progress, _predictions(file, predict) if predict is not None else ())
    if against is None:
        data, details = page["data"], page["details"]
    else:
        data, details = (
            comparison_data(page, _read(against, progress), _compare(file, against, progress), folder=os.getcwd()),
            {},
        )
    return render_page(data, details, title=f"torchledger: {data['title']}", file=data["file"])


def is_set_of_samples(path: str | os.PathLike[str]) -> bool:
    """Whether a path is one that ``torchledger samples`` reads, and no ledger, by what it is called."""
    return (os.path.isdir(path) and not is_job(path)) or Path(path).suffix in (".parquet", ".csv")


def _compare(
    file: str | os.PathLike[str], against: str | os.PathLike[str], progress: Progress | None
) -> RunDiff | None:
    """Both runs aligned by what they compute; ``None`` where one holds no launches, and not both a step."""
    from torchledger.comparing.run_diff import diff_ledgers

    with open_ledger(file) as first, open_ledger(against) as second:
        have_steps = first.count(Step) and second.count(Step)
        if not (first.count(Launch) and second.count(Launch)) and not have_steps:
            return None
    return diff_ledgers(file, against, progress=progress)


def _predictions(file: str | os.PathLike[str], device: str) -> Sequence[Prediction | StepPrediction]:
    from torchledger.predicting.devices import find_model
    from torchledger.predicting.step import predict_ledger

    model = find_model(device)
    step, launches, _, _ = predict_ledger(model, file, mode="eager")
    as_graphs, _, _, _ = predict_ledger(model, file, mode="graphs")
    return (step, as_graphs, *launches)


def _read(
    file: str | os.PathLike[str],
    progress: Progress | None,
    predictions: Sequence[Prediction | StepPrediction] = (),
) -> dict[str, Any]:
    from torchledger.reporting.html_data import page_data

    with open_ledger(file) as reader:
        return page_data(reader, folder=os.getcwd(), predictions=predictions, progress=progress)


def _default_output(file: Path, against: str | os.PathLike[str] | None) -> Path:
    file = file.resolve() if not file.name else file  # "." is the folder that one is in
    if against is None:
        return file.with_suffix(".html")
    return file.with_name(f"{file.stem}-{Path(against).stem}.html")
