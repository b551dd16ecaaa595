"""For IPython and Jupyter: ``%load_ext torchledger``, then ``%%ledger`` on a cell; results draw themselves."""

from __future__ import annotations

import contextlib
import functools
import html
import os
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchledger.errors import TorchledgerError, UsageError
from torchledger.nouns import Breakdown, Prediction, RunDiff, StepPrediction

if TYPE_CHECKING:
    from torchledger.answers import Ledger
    from torchledger.planning.plan import Plan
    from torchledger.replaying.bench_report import BenchReport
    from torchledger.reporting.document import Document

USAGE = "%%ledger [-o FILE] [--profile] [--page] [--name VARIABLE]"


@dataclass(frozen=True)
class Page:
    """A ledger's page, drawn inside the notebook; ``path`` is the file, which opens in a browser by itself."""

    path: Path
    height: int = 640

    def _repr_html_(self) -> str:
        # The page is a document of its own: sandboxed, its script sees nothing of the notebook.
        text = html.escape(self.path.read_text(encoding="utf-8"), quote=True)
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{text}" width="100%" height="{self.height}" '
            'style="border:1px solid #ccc"></iframe>'
        )


def page(ledger: str | os.PathLike[str], *, height: int = 640) -> Page:
    """A ledger's page as a notebook shows it: ``page("cell.ledger")`` at the end of a cell. ``height`` is in pixels."""
    from torchledger.reporting.html import report

    output = Path(tempfile.mkdtemp(prefix="torchledger-")) / f"{Path(ledger).stem}.html"
    report(ledger, output=output)
    return Page(output, height)


def register(shell: Any) -> None:
    """Give an IPython shell the ``%%ledger`` magic, and ways to draw records that do not know HTML."""
    shell.register_magic_function(_make_magic(shell), magic_kind="cell", magic_name="ledger")
    told: dict[type, Callable[[Any], Document]] = {
        RunDiff: _tell_diff,
        Prediction: _tell_prediction,
        StepPrediction: _tell_step,
        Breakdown: _tell_breakdown,
    }
    # By name, as their rooms import torch.
    told_by_name: dict[tuple[str, str], Callable[[Any], Document]] = {
        ("torchledger.replaying.bench_report", "BenchReport"): _tell_bench,
        ("torchledger.planning.plan", "Plan"): _tell_plan,
    }
    drawing, writing = (shell.display_formatter.formatters[kind] for kind in ("text/html", "text/plain"))
    for kind, tell in told.items():
        drawing.for_type(kind, functools.partial(_draw, tell))
        writing.for_type(kind, functools.partial(_write, tell))
    for name, tell in told_by_name.items():
        drawing.for_type_by_name(*name, functools.partial(_draw, tell))
        writing.for_type_by_name(*name, functools.partial(_write, tell))


def _draw(tell: Callable[[Any], Document], record: Any) -> str:
    from torchledger.reporting.fragment import render_fragment

    return render_fragment(tell(record))


def _write(tell: Callable[[Any], Document], record: Any, printer: Any, cycle: bool) -> None:
    """The same as text, for a terminal, in place of the record's fields."""
    from torchledger.reporting.terminal import render

    printer.text(render(tell(record)))


def _make_magic(shell: Any) -> Any:
    def ledger(line: str, cell: str) -> Any:
        """%%ledger [-o FILE] [--profile] [--page] [--name VARIABLE]

        Record what the cell compiles, and show its ledger; the variable (`ledger` unless named) holds it afterwards.
        With --profile the cell is run once more as a step, several times, to time its kernels. With --page the whole
        page is drawn.
        """
        options = _parse(line)
        path = options.output or Path(tempfile.mkdtemp(prefix="torchledger-")) / "cell.ledger"
        try:
            found = _record(shell, cell, path, profile=options.profile)
        except TorchledgerError as error:
            raise UsageError(str(error)) from None
        shell.user_ns[options.name] = found
        return page(path) if options.page else found

    return ledger


def _record(shell: Any, cell: str, path: Path, *, profile: bool) -> Ledger:
    import torch

    import torchledger
    from torchledger.answers import load

    def run_cell() -> None:
        shell.run_cell(cell).raise_error()

    # What an earlier cell compiled is compiled again, so that this one's ledger is whole.
    torch.compiler.reset()
    with torchledger.capture(path, force=True, profile=profile) as run:
        run_cell()
        if profile:
            code = compile(shell.transform_cell(cell), "<%%ledger>", "exec")
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                run.profile(lambda: exec(code, shell.user_ns))
    return load(path)


@dataclass(frozen=True)
class _Options:
    output: Path | None = None
    profile: bool = False
    page: bool = False
    name: str = "ledger"


def _parse(line: str) -> _Options:
    words = shlex.split(line)
    given: dict[str, Any] = {}
    while words:
        word = words.pop(0)
        if word in ("--profile", "--page"):
            given[word[2:]] = True
        elif word in ("-o", "--name") and words:
            value = words.pop(0)
            given["output" if word == "-o" else "name"] = Path(value) if word == "-o" else value
        else:
            raise UsageError(f"{word!r} is no option of the magic: {USAGE}.")
    return _Options(**given)


def _tell_diff(diff: RunDiff) -> Document:
    from torchledger.reporting.run_diff import run_diff_document

    return run_diff_document(diff, "the first", "the second", folder=os.getcwd())


def _tell_prediction(prediction: Prediction) -> Document:
    from torchledger.reporting.fits import predictions_document

    return predictions_document([prediction])


def _tell_step(step: StepPrediction) -> Document:
    from torchledger.reporting.steps import step_document

    return step_document(step, [], {}, [])


def _tell_breakdown(breakdown: Breakdown) -> Document:
    from torchledger.reporting.time_breakdown import breakdown_document

    return breakdown_document(breakdown)


def _tell_bench(report: BenchReport) -> Document:
    from torchledger.reporting.benches import bench_document

    return bench_document(report)


def _tell_plan(plan: Plan) -> Document:
    from torchledger.reporting.plan import plan_document

    return plan_document(plan.step, plan.dry_run)
