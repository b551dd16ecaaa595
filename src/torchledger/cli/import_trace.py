"""``torchledger import``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from torchledger.cli.output import force_option, json_option, print_document, print_json
from torchledger.errors import UsageError
from torchledger.profiling.records import add_trace_to_ledger
from torchledger.reporting.rank_comparison import ranks_as_plain, ranks_document
from torchledger.reporting.time_breakdown import breakdown_as_plain, breakdown_document
from torchledger.traces.breakdown import import_trace
from torchledger.traces.chrome_export import annotate_trace, facts_by_row
from torchledger.traces.nsight import is_report
from torchledger.traces.ranks import import_ranks
from torchledger.traces.stream import Progress
from torchledger.traces.trace_ledger import write_trace_ledger

PARTIAL = 3


@click.command(name="import")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Also write a ledger.")
@click.option(
    "--chrome", type=click.Path(path_type=Path), metavar="FILE", help="Also write the trace with what was found in it."
)
@click.option(
    "--ledger", type=click.Path(path_type=Path), metavar="FILE", help="Give the times to the entries of this ledger."
)
@click.option("--top", default=10, show_default=True, type=click.IntRange(min=1), help="Rows per table.")
@force_option
@json_option
def command(
    traces: tuple[Path, ...],
    output: Path | None,
    chrome: Path | None,
    ledger: Path | None,
    top: int,
    force: bool,
    as_json: bool,
) -> None:
    """Say where the time of somebody's trace went.

    TRACE is what torch.profiler's export_chrome_trace wrote, .json or .json.gz, eager or compiled, NVIDIA, AMD or CPU;
    or a report of Nsight Systems, as `nsys export --type sqlite` writes it.
    The exit code is 3 when the trace was cut off or events had to be left out; the report names them. With --ledger,
    the trace must be of the same compiled graphs; its times become part of that ledger (of a report, those of kernels
    whose names tell the entry). Several traces are the ranks of
    one job: they are compared, and each is reported.
    """
    if len(traces) > 1:
        if output or chrome or ledger:
            raise UsageError("-o, --chrome and --ledger take one trace at a time.")
        with _progress(f"{len(traces)} traces") as progress:
            breakdowns = import_ranks(traces, progress=progress)
        print_json(ranks_as_plain(breakdowns)) if as_json else print_document(ranks_document(breakdowns, top=top))
        sys.exit(PARTIAL if any(breakdown.is_partial for breakdown in breakdowns) else 0)
    (trace,) = traces
    if chrome is not None and is_report(trace):
        raise UsageError("--chrome annotates a trace of torch.profiler; this is a report of Nsight Systems.")
    if ledger is not None:
        if output or chrome:
            raise UsageError("with --ledger the times go into that ledger: leave -o and --chrome out.")
        with _progress(trace.name) as progress:
            breakdown = add_trace_to_ledger(trace, ledger, progress=progress)
        print_json(breakdown_as_plain(breakdown)) if as_json else print_document(breakdown_document(breakdown, top=top))
        sys.exit(PARTIAL if breakdown.is_partial else 0)
    with _progress(trace.name) as progress:
        breakdown, events = import_trace(trace, progress=progress)
    if output is not None:
        write_trace_ledger(output, breakdown, events, force=force)
    if chrome is not None:
        annotate_trace(trace, chrome, facts_by_row(events), force=force)
    print_json(breakdown_as_plain(breakdown)) if as_json else print_document(breakdown_document(breakdown, top=top))
    for written, what in (
        (output, "as a ledger"),
        (chrome, "with what is known of each kernel, for a viewer of traces"),
    ):
        if written is not None:
            click.echo(f"{written}: the trace {what}.", err=True)
    if breakdown.is_partial:
        sys.exit(PARTIAL)


@contextmanager
def _progress(name: str) -> Iterator[Progress | None]:
    """A bar on stderr while a terminal is there to see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    parts = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bars(*parts, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(f"reading {name}", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
