"""``torchledger run``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from torchledger.cli.output import as_typed, refuse_unknown_option, tell_misplaced


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "auto_envvar_prefix": None},
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The ledger to write. Default: SCRIPT's name.")
@click.option("-f", "--force", is_flag=True, help="Replace an existing ledger.")
@click.option("-m", "--module", "is_module", is_flag=True, help="SCRIPT is a module name, as in python -m.")
@click.option("--profile", "is_profiled", is_flag=True, help="Also time the steps and give every kernel's time to it.")
@click.option(
    "--warmup",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Steps without compilation before the profile.",
)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Steps to profile.")
@click.option(
    "--count-eager",
    "counts_eager",
    is_flag=True,
    help="With --profile: run one more of the script's steps with nothing compiled, and count its FLOPs.",
)
@click.option(
    "--stages", "keeps_stages", is_flag=True, help="Also keep each graph's FX graphs and IR, for show --stage."
)
@click.option("--save-inputs", is_flag=True, help="Save what each launch of the first step reads, for bench.")
@click.option(
    "--inputs-gb",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="How much --save-inputs may write, in 1e9 bytes.",
)
@click.argument("script", nargs=1)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    output: Path | None,
    force: bool,
    is_module: bool,
    is_profiled: bool,
    warmup: int,
    repeats: int,
    counts_eager: bool,
    keeps_stages: bool,
    save_inputs: bool,
    inputs_gb: float,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT and record every kernel launch of its compiled graphs.

    The script runs as under plain `python`: its own arguments, exit code and traceback. Processes that it starts write
    ledgers of their own beside the first one.
    """
    from torchledger.capturing.process import run_script

    refuse_unknown_option(script)
    stem = script.rsplit(".", 1)[-1] if is_module else Path(script).stem
    if counts_eager and not is_profiled:
        raise click.UsageError("--count-eager counts a step of the profile: add --profile.")
    settings = {"warmup": warmup, "repeats": repeats, "counts_eager": counts_eager}
    attached: dict[str, Any] = {"torchledger.profiling.profile": settings} if is_profiled else {}
    if keeps_stages:
        attached["torchledger.capturing.stages"] = {}
    if save_inputs:
        from torchledger.watching.options import ValueOptions

        options = ValueOptions(level="save", calls="0", budget_bytes=int(inputs_gb * 1e9), prints=False)
        attached["torchledger.watching.session"] = options.as_plain()
    if not is_module:
        tell_misplaced(script, arguments)
    outcome = run_script(
        (script, *arguments),
        output or Path(f"{stem}.ledger"),
        is_module=is_module,
        force=force,
        attached=attached,
        is_profiled=is_profiled,
    )
    for warning in outcome.warnings:
        click.echo(f"torchledger: {warning}", err=True)
    for written in (outcome.path, *outcome.child_paths):
        path = as_typed(written)
        click.echo(
            f"torchledger: wrote {path}; look at it with `torchledger show {path}`, or "
            f"in a browser with `torchledger report {path}`",
            err=True,
        )
    sys.exit(outcome.exit_code)
