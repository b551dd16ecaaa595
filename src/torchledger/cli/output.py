"""What the reading commands share: options, and where text and JSON go."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import orjson

from torchledger.errors import UsageError
from torchledger.printable import counted
from torchledger.reporting.document import Document

json_option: Callable[[Any], Any] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON with stable keys instead of text."
)
force_option: Callable[[Any], Any] = click.option("-f", "--force", is_flag=True, help="Replace an existing output.")


def check_order(command: str, file: Path, *names: str | None) -> None:
    """Raise ``UsageError`` where a kernel's name stands in the file's place, or a ledger where a name should."""
    from torchledger.store import is_ledger

    ledger = next((name for name in names if name is not None and is_ledger(name)), None)
    if ledger is None:
        return
    if file.exists():
        raise UsageError(f"{ledger} is a ledger too: `torchledger diff {file} {ledger}` compares the two.")
    others = [name for name in names if name is not None and name != ledger]
    raise UsageError(f"the ledger comes first: torchledger {command} {' '.join([ledger, str(file), *others])}")


def refuse_unknown_option(script: str) -> None:
    """Raise ``click.NoSuchOption`` where what stands in SCRIPT's place is an option that this command does not have."""
    if script.startswith("-") and script != "-" and not Path(script).is_file():
        context = click.get_current_context()
        option = script.partition("=")[0]
        own = [each for param in context.command.params for each in param.opts if each.startswith("--")]
        raise click.NoSuchOption(option, possibilities=get_close_matches(option, own), ctx=context)


def tell_misplaced(script: str, arguments: Sequence[str]) -> None:
    """Say, on stderr, where an option of this command stands behind the script's name and so goes to the script."""
    context = click.get_current_context()
    own = {option for each in context.command.params for option in each.opts}
    first = arguments[0].partition("=")[0] if arguments else ""
    ledgers = [word for word, value in pairwise(arguments) if word in ("-o", "--output") and value.endswith(".ledger")]
    for option in dict.fromkeys([*([first] if first in own else ()), *ledgers]):
        click.echo(
            f"torchledger: {option} stands behind {script} and goes to it; what is for torchledger comes before: "
            f"torchledger {context.info_name} {option} ... {script}",
            err=True,
        )


def as_typed(path: Path) -> Path:
    """A path below the working folder from there on, as a person would type it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def tell_rank(*paths: Path) -> None:
    """Say, on stderr, which rank stands for a job where one ledger is looked at, and how to look at another's."""
    from torchledger.store.job import is_job, ledgers_of_job

    for path in paths:
        if is_job(path):
            taken, *others = ledgers_of_job(path).values()
            another = f"; for another rank, name its ledger: {others[0]}" if others else ""
            ranks = counted(1 + len(others), "rank")
            click.echo(f"torchledger: {path} is a job of {ranks}, this is {taken.name}{another}", err=True)


def print_document(document: Document) -> None:
    """To stdout: as wide as the terminal and coloured there, plain and uncut in a pipe."""
    from torchledger.reporting.terminal import render

    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else None
    print_text(render(document, width=width, color=is_terminal and "NO_COLOR" not in os.environ))


def print_text(text: str) -> None:
    """To stdout, with what its encoding cannot write as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False)


def print_json(plain: Any) -> None:
    """Plain data as indented JSON."""
    click.echo(orjson.dumps(plain, option=orjson.OPT_INDENT_2).decode())
