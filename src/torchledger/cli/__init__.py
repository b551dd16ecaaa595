"""The front door: commands that are options, one library call and one report.

Only this room prints. Commands are imported when they are called, so that ``torchledger --help`` stays quick.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from torchledger.cli.examples import add_examples
from torchledger.errors import TorchledgerError
from torchledger.printable import printable

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("torchledger.cli.run", "Run a script and record every kernel launch of its compiled graphs."),
    "show": ("torchledger.cli.show", "Show a ledger: balance, launches, one kernel's story, generated code."),
    "report": ("torchledger.cli.report", "Write a ledger as one HTML page, or two side by side."),
    "import": ("torchledger.cli.import_trace", "Say where the time of somebody's profiler trace went."),
    "bench": ("torchledger.cli.bench", "Run kernels of a ledger alone: time, bandwidth, distance to the limit."),
    "extract": ("torchledger.cli.extract", "Write a kernel or a graph as a module that runs by itself."),
    "doctor": ("torchledger.cli.doctor", "Measure what this machine's devices reach: the ceilings of every roofline."),
    "values": ("torchledger.cli.values", "See what every launch reads and writes; find the first that goes wrong."),
    "diff": ("torchledger.cli.diff", "Compare two ledgers: where time went, or where values first part."),
    "export": ("torchledger.cli.export", "Write a ledger in another format."),
    "devices": ("torchledger.cli.devices", "List the devices whose times can be predicted, and how well."),
    "calibrate": ("torchledger.cli.calibrate", "Make a model of this machine's GPU in ten minutes."),
    "fit": ("torchledger.cli.fit", "Learn a device's times from samples and measured launches."),
    "fit-constants": ("torchledger.cli.fit_constants", "Fit the constants under a device's baselines."),
    "predict": ("torchledger.cli.predict", "Predict an operator's time at a shape, without running it."),
    "predict-step": ("torchledger.cli.predict_step", "Predict the time of a recorded step on another device."),
    "plan": ("torchledger.cli.plan", "Price a script's step on a device that is not here."),
    "evaluate": ("torchledger.cli.evaluate", "Measure the error of a fit on rows that it did not see."),
    "sample": ("torchledger.cli.sample", "Time operators over sweeps of shapes."),
    "samples": ("torchledger.cli.samples", "Show, merge, check and export sets of samples."),
}
"""Command name to (module, one-line help); the module holds a click command named ``command``."""


class _LazyGroup(click.Group):
    """Knows the names and help of its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        add_examples(cmd_name, command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and name not in COMMANDS and not name.startswith("-"):
            if name.endswith(".py"):
                ctx.fail(f"{name!r} is a script, not a command: torchledger run {' '.join(args)}")
            if Path(name).suffix in (".ledger", ".job"):
                ctx.fail(f"{name!r} is a ledger, not a command: torchledger show {' '.join(args)}")
            near = difflib.get_close_matches(name, COMMANDS, n=2)
            guess = f": did you mean {' or '.join(near)}?" if near else "."
            ctx.fail(f"No such command {name!r}{guess}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="torchledger", message="%(version)s")
@click.option("-v", "--verbose", is_flag=True, help="Log what the library does to stderr.")
def cli(verbose: bool) -> None:
    """A ledger of every kernel that a compiled PyTorch model runs."""
    click.get_current_context().call_on_close(_log_to_stderr(logging.DEBUG if verbose else logging.WARNING))


def _log_to_stderr(level: int) -> Callable[[], None]:
    """Have what the library logs on stderr, until what this returns is called; logging that a program sets up for
    itself (``logging.basicConfig`` does nothing where the root has a handler) stays its own."""
    ours, handler = logging.getLogger("torchledger"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("torchledger: %(message)s"))
    former = ours.level, ours.propagate
    ours.addHandler(handler)
    ours.setLevel(level)
    ours.propagate = False

    def undo() -> None:
        ours.removeHandler(handler)
        ours.level, ours.propagate = former

    return undo


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; our own errors become one line on stderr and their exit code."""
    try:
        return cli.main(args=arguments, prog_name="torchledger")
    except TorchledgerError as error:
        click.echo(f"torchledger: {printable(str(error))}", err=True)
        sys.exit(error.exit_code)
