"""The front door for Python: what can be asked of ledgers and models. None of it imports torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from torchledger.balance import balance_books
from torchledger.books import open_books
from torchledger.errors import UsageError
from torchledger.nouns import (
    BalanceSheet,
    Breakdown,
    Graph,
    Kernel,
    Launch,
    Measurement,
    Prediction,
    Profile,
    Run,
    RunDiff,
    StepPrediction,
)
from torchledger.store import open_ledger
from torchledger.store.latest import latest, latest_measurements

if TYPE_CHECKING:
    import pandas

    from torchledger.comparing.limits import Quantity, Verdict
    from torchledger.nouns.job_diff import JobDiff
    from torchledger.reporting.document import Document

Format = Literal["inductor-json", "parquet", "chrome", "step"]
FORMATS: tuple[str, ...] = get_args(Format)


@dataclass(frozen=True)
class Ledger:
    """What a ledger holds, in memory. ``profile`` and ``breakdown`` are the latest, ``None`` without a profile."""

    path: str
    run: Run
    graphs: tuple[Graph, ...]
    kernels: tuple[Kernel, ...]
    launches: tuple[Launch, ...]
    measurements: tuple[Measurement, ...]
    balance: BalanceSheet
    profile: Profile | None = None
    breakdown: Breakdown | None = None

    def duration_us(self, launch: Launch) -> float | None:
        """Median time of a launch inside the step, in microseconds; ``None`` if no profile saw it."""
        for measured in self.measurements:
            if measured.subject == launch.launch_id and measured.kind == "profile":
                return measured.duration_us
        return None

    def export(
        self, target: str | os.PathLike[str], *, format: Format | None = None, force: bool = False
    ) -> list[Path]:
        """Write it in another format, as ``export_ledger`` does.

        >>> torchledger.load("gpt.ledger").export("Data_gpt.json")  # doctest: +SKIP
        [PosixPath('Data_gpt.json')]
        """
        return export_ledger(self.path, target, format=format, force=force)

    def to_frame(self) -> pandas.DataFrame:
        """The launches as a data frame. Raises ``UsageError`` where pandas is not installed."""
        from torchledger.integrations.frames import launch_frame

        return launch_frame(self.launches, self.duration_us)

    def _repr_html_(self) -> str:
        from torchledger.reporting.fragment import render_fragment

        return render_fragment(self._document())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        _write(printer, self._document())

    def _document(self) -> Document:
        from torchledger.reporting.overview import ledger_document

        with open_ledger(self.path) as reader:
            return ledger_document(reader)


@dataclass(frozen=True)
class Check:
    """Two runs compared under limits: their difference, the sums of either, and whether each limit holds."""

    diff: RunDiff
    quantities: Mapping[str, Quantity]
    verdicts: tuple[Verdict, ...]

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """The limits that do not hold, those that ask for what is not known among them."""
        return tuple(verdict for verdict in self.verdicts if not verdict.holds)

    def _repr_html_(self) -> str:
        from torchledger.reporting.fragment import render_fragment

        return render_fragment(self._document())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        _write(printer, self._document())

    def _document(self) -> Document:
        from torchledger.reporting.run_diff import limits_document

        sides, folder = ("the first", "the second"), os.getcwd()
        return limits_document(self.diff, *sides, known=self.quantities, verdicts=self.verdicts, folder=folder)


class StepAnswer(NamedTuple):
    """The prediction of a step, and those of its launches."""

    step: StepPrediction
    launches: list[Prediction]

    def _repr_html_(self) -> str:
        from torchledger.reporting.fragment import render_fragment

        return render_fragment(self._document())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        _write(printer, self._document())

    def _document(self) -> Document:
        from torchledger.reporting.steps import step_document

        return step_document(self.step, self.launches, {}, [])


def _write(printer: Any, document: Document) -> None:
    """What an interactive session in a terminal shows, in place of a record's fields."""
    from torchledger.reporting.terminal import render

    printer.text(render(document))


class Text(str):
    """A report as text, which an interactive session shows as it is and not between quotes."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def load(path: str | os.PathLike[str]) -> Ledger:
    """Read a ledger; nothing in it is executed. For a large one, ``open_ledger`` reads record by record.

    Raises ``StoreError`` if the file is absent, damaged, or no ledger.

    >>> torchledger.load("gpt.ledger").launches[0].bytes_moved  # doctest: +SKIP
    197120
    """
    with open_ledger(path) as reader:
        return Ledger(
            path=str(path),
            run=reader.run(),
            graphs=tuple(reader.read(Graph)),
            kernels=tuple(reader.read(Kernel)),
            launches=tuple(reader.read(Launch)),
            measurements=tuple(latest_measurements(reader)),
            balance=balance_books(open_books(reader)),
            profile=latest(reader, Profile),
            breakdown=latest(reader, Breakdown),
        )


def show(path: str | os.PathLike[str], kernel: str | None = None, *, top: int = 10) -> Text:
    """The text that ``torchledger show`` prints: of a ledger, or of one ``kernel`` (a launch id, a name or a part).

    Raises ``StoreError`` for a file that cannot be read, ``UsageError`` for a kernel that it does not hold.
    """
    from torchledger.reporting.overview import ledger_document
    from torchledger.reporting.story import story_document, tell_story
    from torchledger.reporting.terminal import render

    with open_ledger(path) as reader:
        if kernel is None:
            return Text(render(ledger_document(reader, top=top)))
        return Text(render(story_document(tell_story(reader, kernel), top=top)))


def export_ledger(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    format: Format | None = None,
    force: bool = False,
) -> list[Path]:
    """Write a ledger, or all ranks of a job, in another format and return the paths of what was written.

    ``target`` is a folder for inductor-json and parquet, or one ``.json`` file for inductor-json; a file for chrome and
    step. Without ``format`` its name tells: ``Data_*.json`` is inductor-json, ``*.trace.json`` step. Raises
    ``StoreError`` for a ledger that cannot be read or a file that exists (without ``force``), ``UsageError`` where the
    format is not told.
    """
    from torchledger.jobs.export import export_job
    from torchledger.stepping.export import TRACE_SUFFIXES, export_step
    from torchledger.store.inductor_json import export_inductor_json
    from torchledger.store.job import is_job
    from torchledger.store.parquet import export_parquet
    from torchledger.traces.chrome_export import export_chrome

    target = Path(target)
    if format is None and target.name.endswith(TRACE_SUFFIXES):
        format = "step"
    elif format is None and target.name.startswith("Data_") and target.suffix == ".json":
        format = "inductor-json"
    writers: dict[str, Callable[..., list[Path]]] = {
        "inductor-json": export_inductor_json,
        "parquet": export_parquet,
        "chrome": export_chrome,
        "step": export_step,
    }
    if format not in writers:
        asked = f"{target} does not tell what to write" if format is None else f"{format!r} is no format"
        raise UsageError(f"--format is needed: {asked}. One of {', '.join(writers)}.")
    if is_job(path):
        return export_job(path, target, format=format, force=force)
    with open_ledger(path) as reader:
        return writers[format](reader, target, force=force)


def diff(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> RunDiff:
    """What changed from one ledger to another, by groups of launches that compute the same.

    Raises ``StoreError`` for a file that cannot be read, ``MeasureError`` for a ledger without launches.
    """
    from torchledger.comparing.run_diff import diff_ledgers

    return diff_ledgers(first, second)


def check(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    limits: Sequence[str],
    *,
    device: str | os.PathLike[str] = "H200",
) -> Check:
    """Compare two ledgers and say which limits hold: ``["launches > +0", "bytes > +2%", "predicted > +3%"]``.

    ``device`` is what ``predicted`` is predicted for; it may also be a model file. Raises ``UsageError`` for a limit
    that cannot be read, and what ``diff`` and ``predict_step`` raise.

    >>> check("main.ledger", "branch.ledger", ["launches > +0"]).failed  # doctest: +SKIP
    ()
    """
    from torchledger.comparing.limits import Quantity, check_limits, parse_limit, quantities
    from torchledger.comparing.run_diff import diff_ledgers

    asked = [parse_limit(text) for text in limits]
    found = diff_ledgers(first, second)
    known = quantities(found)
    if any(limit.name == "predicted" for limit in asked):
        times = [predict_step(path, device=device)[0].duration_us for path in (first, second)]
        known["predicted"] = Quantity("predicted", *times)
    return Check(found, known, tuple(check_limits(asked, known)))


def check_ranks(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    limits: Sequence[str],
    *,
    device: str | os.PathLike[str] = "H200",
) -> dict[int, Check]:
    """``check`` of each rank that two jobs share: a limit holds of jobs where it holds on every rank.

    Raises ``StoreError`` for a folder that is no job, and for two jobs without a common rank; else as ``check``.
    """
    from torchledger.store.job import shared_ranks

    both = shared_ranks(first, second)
    return {rank: check(one, other, limits, device=device) for rank, (one, other) in both.items()}


def diff_jobs(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> JobDiff:
    """What changed from one job to another, and on which rank; each is a folder of ranks' ledgers, or of their traces.

    Raises ``StoreError`` for a folder that is neither, ``MeasureError`` for a trace that cannot be read.
    """
    from torchledger.jobs.diff import diff_job_folders

    return diff_job_folders(first, second)


def predict(
    operator: str,
    parameters: Mapping[str, int],
    *,
    device: str | os.PathLike[str] = "H200",
    direction: str = "forward",
    dtype: str = "bfloat16",
    state: Literal["warm", "swept", "turns", "graph"] = "warm",
) -> Prediction:
    """The time of an operator at a shape, without running it; ``device`` may also be a model file.

    ``state``: just after the kernel's own repeats, after other work has swept the cache, with forward and backward
    in turns, or in the replay of a CUDA graph.

    Raises ``PredictError`` for an unknown device, operator, parameter, direction or element type.

    >>> predict("linear", {"m": 4096, "k": 4096, "n": 11008}).is_extrapolated  # doctest: +SKIP
    False
    """
    from torchledger.predicting import find_model
    from torchledger.predicting import predict as predict_with

    return predict_with(find_model(device), operator, parameters, direction=direction, dtype=dtype, state=state)


def predict_step(
    path: str | os.PathLike[str],
    *,
    device: str | os.PathLike[str] = "H200",
    graphs: bool | None = None,
    optimizer: str | None = None,
    host: str | None = None,
) -> StepAnswer:
    """The time of the step that a ledger recorded on another device, and that of each of its launches, as a pair.

    ``graphs``: launched as CUDA graphs (``None``: if they were so where recorded); ``optimizer`` adds a fused one
    (``"adamw:124000000"``) where the ledger's step holds none. ``host`` says whose costs of launching count:
    ``"ledger"``, ``"usual"`` or the name of a host that `torchledger doctor` kept; without it the ledger's where it
    holds any. Raises ``StoreError`` for a file that cannot be read,
    ``PredictError`` for an unknown device, host or optimizer, or one beside the step's own.
    """
    from torchledger.predicting import find_model
    from torchledger.predicting.step import asked_mode, predict_ledger

    step, predictions, *_ = predict_ledger(
        find_model(device), path, mode=asked_mode(graphs), optimizer=optimizer, host=host
    )
    return StepAnswer(step, predictions)
