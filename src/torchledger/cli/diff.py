"""``torchledger diff``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import click

from torchledger.cli.output import json_option, print_document, print_json, print_text, tell_rank
from torchledger.errors import UsageError
from torchledger.jobs.traces import is_ranks
from torchledger.store.job import is_job, shared_ranks


@click.command(name="diff")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option("--values", "of_values", is_flag=True, help="Compare what launches computed: where the runs first part.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="With --values: relative difference that is none. Default: 0.001.",
)
@click.option(
    "--fail-if", "limits", multiple=True, metavar="LIMIT", help="End with 3 if a change is beyond it: 'bytes > +2%'."
)
@click.option("--markdown", is_flag=True, help="Print a summary for a pull request, in Markdown.")
@click.option("--device", default="H200", show_default=True, help="What `predicted` is predicted for; or a model file.")
@click.option("--top", default=10, show_default=True, type=click.IntRange(min=1), help="Rows per list.")
@json_option
def command(
    first: Path,
    second: Path,
    of_values: bool,
    tolerance: float | None,
    limits: tuple[str, ...],
    markdown: bool,
    device: str,
    top: int,
    as_json: bool,
) -> None:
    """Compare two ledgers, or two jobs.

    Of two jobs (folders of ranks' ledgers or traces), say what changed and on which rank: compute, exposed
    communication, idle time by cause, waiting, memory, collectives, places that keep others waiting; and the launches
    of the rank whose compute changed most. A limit holds of jobs where it holds on every rank.

    With --fail-if, limit what may change: launches, bytes, flops, graphs, time or predicted; with a percent sign, in
    percent of the first run's.

    Without options, say where the time of a step went: launches of both runs are aligned by what they compute, not by
    name, and each split, merge and changed launch stands with its change in time, traffic and FLOPs.

    With --values, name the first tensor that differs between two runs recorded by `torchledger values`, also across
    torch versions, devices and settings: tensors are matched by the operators' graph, not by kernels. Of two jobs,
    rank by rank.
    """
    if not of_values:
        if tolerance is not None:
            raise UsageError("--tolerance is of --values: times are compared without one.")
        if limits or markdown:
            _check(first, second, limits, device=device, markdown=markdown, top=top, as_json=as_json)
        elif is_ranks(first) and is_ranks(second):
            _compare_jobs(first, second, top=top, as_json=as_json)
        else:
            tell_rank(first, second)
            _compare_launches(first, second, top=top, as_json=as_json)
        return
    if limits or markdown:
        raise UsageError("--fail-if and --markdown are of launches: leave --values out.")
    if is_job(first) and is_job(second):
        both = {f"rank{rank}.ledger": pair for rank, pair in shared_ranks(first, second).items()}
    else:
        tell_rank(first, second)
        both = {"": (first, second)}
    _compare_values(both, tolerance, top=top, as_json=as_json)


def _compare_values(both: Mapping[str, tuple[Path, Path]], tolerance: float | None, *, top: int, as_json: bool) -> None:
    """The values of a pair of ledgers, or of the pairs of two jobs' ranks by name."""
    from torchledger.comparing.run_diff import setting_changes
    from torchledger.reporting.document import joined
    from torchledger.reporting.values import values_diff_as_plain, values_diff_document
    from torchledger.store import open_ledger
    from torchledger.watching.compare import DEFAULT_TOLERANCE, compare_values

    found, documents = {}, []
    for name, (first, second) in both.items():
        with open_ledger(first) as one, open_ledger(second) as other:
            found[name] = compare_values(one, other, tolerance=DEFAULT_TOLERANCE if tolerance is None else tolerance)
            settings = setting_changes(one.run(), other.run())
        documents.append(values_diff_document(found[name], str(first), str(second), top=top, settings=settings))
    if as_json:
        plain = {name: values_diff_as_plain(each) for name, each in found.items()}
        print_json(plain.get("", {"ranks": plain}))
    else:
        print_document(joined(*documents))


def _check(
    first: Path, second: Path, limits: tuple[str, ...], *, device: str, markdown: bool, top: int, as_json: bool
) -> None:
    from torchledger.answers import check, check_ranks
    from torchledger.reporting.document import joined
    from torchledger.reporting.markdown import render_markdown
    from torchledger.reporting.run_diff import check_as_plain, limits_document

    are_jobs = is_job(first) and is_job(second)
    if are_jobs:
        checks = check_ranks(first, second, limits, device=device)
        found = {f"rank{rank}.ledger": each for rank, each in checks.items()}
    else:
        found = {"": check(first, second, limits, device=device)}
    if as_json:
        plain = {name: check_as_plain(each.diff, each.quantities, each.verdicts) for name, each in found.items()}
        print_json({"ranks": plain} if are_jobs else plain[""])
    else:
        documents = [
            limits_document(
                each.diff,
                str(first / name),
                str(second / name),
                known=each.quantities,
                verdicts=each.verdicts,
                top=top,
                folder=os.getcwd(),
            )
            for name, each in found.items()
        ]
        document = joined(*documents)
        print_text(render_markdown(document)) if markdown else print_document(document)
    if any(each.failed for each in found.values()):
        raise SystemExit(3)


def _compare_jobs(first: Path, second: Path, *, top: int, as_json: bool) -> None:
    from torchledger.cli.progress import progress_bar
    from torchledger.jobs.diff import diff_job_folders
    from torchledger.reporting.job_diff import job_diff_as_plain, job_diff_document

    with progress_bar("comparing") as progress:
        found = diff_job_folders(first, second, progress=progress)
    print_json(job_diff_as_plain(found)) if as_json else print_document(job_diff_document(found, top=top))


def _compare_launches(first: Path, second: Path, *, top: int, as_json: bool) -> None:
    from torchledger.cli.progress import progress_bar
    from torchledger.comparing.run_diff import diff_ledgers
    from torchledger.reporting.run_diff import run_diff_as_plain, run_diff_document

    with progress_bar("comparing") as progress:
        found = diff_ledgers(first, second, progress=progress)
    if as_json:
        print_json(run_diff_as_plain(found))
    else:
        print_document(run_diff_document(found, str(first), str(second), top=top, folder=os.getcwd()))
