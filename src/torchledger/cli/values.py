"""``torchledger values``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from torchledger.cli.output import (
    as_typed,
    force_option,
    json_option,
    print_document,
    print_json,
    refuse_unknown_option,
    tell_misplaced,
    tell_rank,
)

STDERR = 2
"""The descriptor of this process's stderr."""


@click.command(
    "values",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "auto_envvar_prefix": None},
)
@click.option("--level", type=click.Choice(["off", "save", "stats", "names"]), help="What to record of each launch.")
@click.option("--find", metavar="WHAT", help="nan, inf, overflow, or a predicate as module:function.")
@click.option("--beyond", metavar="DTYPE", help="With --find overflow: the range of this float type.")
@click.option("--against", type=click.Choice(["eager"]), help="Replay every launch eagerly and in float64.")
@click.option(
    "--tolerance", type=click.FloatRange(min=0), help="Relative error allowed by --against. Default: by dtype."
)
@click.option("--kernel", multiple=True, metavar="PATTERN", help="Only launches of these kernels.")
@click.option("--category", multiple=True, metavar="PATTERN", help="Only launches of these categories.")
@click.option("--in-module", "module", multiple=True, metavar="PATTERN", help="Only launches of these nn.Modules.")
@click.option("--source", multiple=True, metavar="PATTERN", help="Only launches of these source lines (model.py:12).")
@click.option("--graph", multiple=True, metavar="PATTERN", help="Only these graphs, or forward, backward, inference.")
@click.option("--calls", metavar="LIST", help="Only these calls of each graph: 0, 2-4 or 0,7-.")
@click.option("--save-to", "folder", type=click.Path(path_type=Path), help="Where level save puts tensors.")
@click.option("--files", type=click.Choice(["launch", "tensor"]), help="Save one file a launch (default) or a tensor.")
@click.option(
    "--elements", type=click.IntRange(min=0), help="Print tensors of up to so many elements whole. Default 64."
)
@click.option(
    "--budget-gb",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="How much level save may write, in 1e9 bytes.",
)
@click.option("--quiet", is_flag=True, help="Do not print statistics while the script runs.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The ledger to write. Default: SCRIPT's name.")
@force_option
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module name, as in python -m.")
@click.option("--script", "is_script", is_flag=True, help="SCRIPT is Python although its name does not end in .py.")
@click.option("--top", default=10, show_default=True, type=click.IntRange(min=1), help="Rows per list.")
@json_option
@click.argument("script", nargs=1)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    level: str | None,
    find: str | None,
    beyond: str | None,
    against: str | None,
    tolerance: float | None,
    kernel: tuple[str, ...],
    category: tuple[str, ...],
    module: tuple[str, ...],
    source: tuple[str, ...],
    graph: tuple[str, ...],
    calls: str | None,
    folder: Path | None,
    files: str | None,
    elements: int | None,
    budget_gb: float,
    quiet: bool,
    output: Path | None,
    force: bool,
    is_module: bool,
    is_script: bool,
    top: int,
    as_json: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT and look at what every kernel launch reads and writes, or show a ledger of such a run.

    The default records statistics of every tensor before and after each launch. --find names the first launch that
    makes bad values, --against eager the first that computes something else. If SCRIPT is a ledger, it is only shown.
    """
    from torchledger.errors import UsageError, ValuesError
    from torchledger.printable import one_line, sentence
    from torchledger.reporting.values import summarize_values, values_as_plain, values_document, why_empty
    from torchledger.store import is_ledger, open_ledger
    from torchledger.store.job import is_job
    from torchledger.watching.process import run_watched

    refuse_unknown_option(script)
    path, exit_code = Path(script), 0
    if not is_module and path.is_file() and path.suffix != ".py" and not is_ledger(path) and not is_script:
        raise UsageError(
            f"{path} is no ledger, and its name does not end in .py. If it is a Python script that shall be run, pass "
            "--script."
        )
    is_shown = not is_module and (is_ledger(path) or is_job(path))
    if is_shown and arguments:
        raise UsageError(
            f"{path} is a ledger, which is shown and takes no arguments. Options come before it: "
            f"torchledger values {shlex.join(arguments)} {path}"
        )
    if not is_shown:
        if not is_module:
            tell_misplaced(script, arguments)
        given = {
            "level": level, "find": find, "beyond": beyond, "tolerance": tolerance, "calls": calls,
            "against_eager": against is not None, "kernel": kernel, "category": category, "module": module,
            "source": source, "graph": graph, "folder": str(folder) if folder is not None else None,
            "files": files, "elements": elements, "budget_bytes": int(budget_gb * 1e9), "prints": not quiet,
        }  # fmt: skip
        # What the script prints is no part of the JSON.
        stdout = STDERR if as_json else None
        outcome = run_watched((script, *arguments), output, given, is_module=is_module, force=force, stdout=stdout)
        path, exit_code = as_typed(outcome.path), outcome.exit_code
        for child in outcome.child_paths:
            click.echo(f"torchledger: a child process wrote {as_typed(child)}", err=True)
        for warning in outcome.warnings:
            click.echo(f"torchledger: {warning}", err=True)
    tell_rank(path)
    with open_ledger(path) as reader:
        summary = summarize_values(reader)
    if is_shown and (reason := why_empty(summary)) is not None:
        notes = (one_line(sentence(note)) for note in summary.notes)
        raise ValuesError(" ".join((f"{path} holds no values.", reason, *notes)))
    print_json(values_as_plain(summary)) if as_json else print_document(values_document(summary, top=top))
    sys.exit(exit_code or summary.exit_code)
