"""A script in a process of its own, with its values watched."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchledger.capturing.process import RunOutcome, run_script
from torchledger.store import LedgerWriter, open_ledger
from torchledger.watching.last_launch import take_last_launch
from torchledger.watching.options import FILTER_VARIABLE, PRINTER_VARIABLE, ValueOptions, from_environment


def run_watched(
    arguments: Sequence[str],
    output: Path | None,
    given: Mapping[str, Any],
    *,
    is_module: bool = False,
    force: bool = False,
    stdout: int | None = None,
) -> RunOutcome:
    """Run ``python ARGUMENTS`` and record launches and values into ``output``.

    ``given`` are fields of ``ValueOptions``; what is ``None`` or empty comes from the variables of Inductor's printer,
    which the script itself does not get to see, then from the defaults: statistics, or nothing but the answer where a
    question is asked. ``stdout`` is ``run_script``'s.
    """
    chosen = from_environment() | {name: value for name, value in given.items() if value not in (None, ())}
    if "level" not in chosen and (chosen.get("find") or chosen.get("against_eager")):
        chosen["level"] = "off"
    options = ValueOptions(**chosen)
    stem = arguments[0].rsplit(".", 1)[-1] if is_module else Path(arguments[0]).stem
    outcome = run_script(
        arguments,
        output or Path(f"{stem}.ledger"),
        is_module=is_module,
        force=force,
        attached={"torchledger.watching.session": options.as_plain()},
        environment={PRINTER_VARIABLE: None, FILTER_VARIABLE: None},
        stdout=stdout,
    )
    for path in (outcome.path, *outcome.child_paths):
        if (launch := take_last_launch(path)) is not None:
            _note(path, f"the process ended in {launch}, which did not return")
    return outcome


def _note(path: Path, text: str) -> None:
    """Keep a sentence with a run whose process could not."""
    with open_ledger(path) as reader:
        run = reader.run()
    with LedgerWriter(path, append=True) as writer:
        writer.add(dataclasses.replace(run, notes=(*run.notes, text)), replace=True)
