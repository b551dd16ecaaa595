"""Plant a fault into each function of ours that runs inside a program, and see that it goes on and the loss is said.

    python -m benchmarks.robustness.planted_faults [--mode profile] [--jobs 8] [--seconds 3600]
        [--outcomes FILE [--new]] [--list]
        [--output docs/results/faults.md]

With ``--outcomes FILE`` each outcome is kept as it is known, and what FILE says was harmless is not planted again; with
``--new`` nothing that it has an outcome of. ``--list`` says what is left.
Of the page it writes the part between the marks ``<!-- faults -->``. Needs no GPU, and uses none.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch

from benchmarks.shared.marked import write_between_marks
from forked import ATTACHED, Mode, make_forkable
from plant_faults import (
    FAULTS,
    Case,
    Fault,
    Function,
    Outcome,
    check_names,
    every_case,
    plant,
    sound_counts,
    sound_notes,
    sound_unbalanced,
)

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--output", "docs/results/faults.md"),)
QUICK: tuple[tuple[str, ...], ...] = (("--seconds", "60", "--output", "{out}/faults.md"),)

_SLEEP_TOGETHER = 20
_IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where ledgers are written: a transaction that waits for a disk takes longer than all else of a recording."""

Work = tuple[Mode, tuple[Function, ...], Fault]
"""Functions whose faults are planted into one recording."""


def main() -> int:
    """Plant them all, as far as the time goes, in a random order; those that sleep last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=tuple(ATTACHED), action="append", help="Default: all.")
    parser.add_argument("--fault", choices=FAULTS, action="append", help="Default: all.")
    parser.add_argument("--only", default="", help="Functions with this in their names.")
    parser.add_argument("--every", type=int, default=1, help="Each so-manyth of the faults.")
    parser.add_argument("--jobs", type=int, default=1, help="Recordings at a time.")
    parser.add_argument("--seconds", type=float, default=7200.0, help="After which no further recording begins.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--outcomes", type=Path, help="A JSON-lines file to go on from and to add to.")
    parser.add_argument("--new", action="store_true", help="Only what --outcomes has no outcome of, harmless or not.")
    parser.add_argument("--list", action="store_true", help="Say what would be planted, and plant nothing.")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    started = time.monotonic()
    make_forkable(options.mode or tuple(ATTACHED))
    check_names()
    gc.freeze()
    cases = [case for case in every_case(options.mode or tuple(ATTACHED)) if options.only in case[1].label]
    random.Random(options.seed).shuffle(cases)
    cases = cases[:: options.every]
    earlier = _earlier(options.outcomes, cases)
    outcomes = [outcome for outcome in earlier.values() if outcome.is_harmless or options.new]
    rest = [
        case
        for case in cases
        if case[2] in (options.fault or FAULTS)
        and (case not in earlier or not (options.new or earlier[case].is_harmless))
    ]
    rest.sort(key=lambda case: case in earlier)  # what was never planted first
    print(f"{len(cases)} faults, {len(earlier)} planted before, {len(rest)} to plant", file=sys.stderr, flush=True)
    if options.list:
        print("\n".join(f"{mode} {fault} {function.label}" for mode, function, fault in rest))
        return 0
    for mode in {mode for mode, _, _ in rest}:
        sound_counts(mode), sound_notes(mode), sound_unbalanced(mode)
    planted = 0
    for found in _at_a_time(options.jobs, _together(rest), started + options.seconds):
        outcomes += found
        planted += len(found)
        for outcome in found:
            if not outcome.is_harmless:
                print(outcome, flush=True)
        if options.outcomes is not None:
            with options.outcomes.open("a") as file:
                file.writelines(json.dumps(asdict(outcome)) + "\n" for outcome in found)
        if planted // 25 > (planted - len(found)) // 25:
            print(f"{planted} of {len(rest)}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    text = report(outcomes, cases, time.monotonic() - started, options.jobs)
    print(text)
    if options.output is not None:
        write_between_marks(options.output, "faults", text)
    return 0 if all(outcome.is_harmless for outcome in outcomes) else 1


def _at_a_time(jobs: int, work: Iterator[Work], until: float) -> Iterator[list[Outcome]]:
    """The outcomes of the work, so many recordings at a time, each asked for by a fork of this process."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY) as scratch:
        under_way: dict[Connection, Work] = {}

        def give(pipe: Connection) -> None:
            piece = next(work, None) if time.monotonic() < until else None
            pipe.send(piece)
            if piece is not None:
                under_way[pipe] = piece

        workers = []
        for number in range(jobs):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            ours, theirs = context.Pipe()
            workers.append(context.Process(target=_serve, args=(theirs, folder), daemon=True))
            workers[-1].start()
            theirs.close()
            give(ours)
        while under_way:
            for pipe in wait(list(under_way)):
                assert isinstance(pipe, Connection)
                mode, functions, fault = under_way.pop(pipe)
                try:
                    found = pipe.recv()
                except EOFError:
                    lost = "what planted it has ended"
                    yield [Outcome(mode, each.label, each.line, fault, False, False, False, lost) for each in functions]
                    continue
                give(pipe)
                yield found
        for worker in workers:
            worker.join()


def _serve(pipe: Connection, folder: Path) -> None:
    while (work := pipe.recv()) is not None:
        pipe.send(plant(*work, folder))


def _earlier(path: Path | None, cases: Sequence[Case]) -> dict[Case, Outcome]:
    """The last outcome that the file has of each of these cases.

    A function is known by its name, so that it may have moved in its file; by its line too if another has its name.
    """
    if path is None or not path.exists():
        return {}
    lines: dict[str, set[int]] = {}
    for _, function, _ in cases:
        lines.setdefault(function.label, set()).add(function.line)

    def key(label: str, line: int, fault: Fault) -> tuple[str, int | None, Fault]:
        return label, line if len(lines.get(label, ())) > 1 else None, fault

    known = [Outcome(**json.loads(line)) for line in path.read_text().splitlines()]
    found = {key(each.function, each.line, each.fault): each for each in known}
    keys = {case: key(case[1].label, case[1].line, case[2]) for case in cases}
    return {
        (mode, function, fault): replace(found[each], mode=mode, line=function.line)
        for (mode, function, fault), each in keys.items()
        if each in found
    }


def _together(cases: Sequence[Case]) -> Iterator[Work]:
    """The cases, those that sleep in groups: a sleep keeps no other function from being called."""
    sleeping: dict[Mode, list[Function]] = {}
    for mode, function, fault in cases:
        if fault == "slow":
            sleeping.setdefault(mode, []).append(function)
        else:
            yield mode, (function,), fault
    for mode, functions in sleeping.items():
        for first in range(0, len(functions), _SLEEP_TOGETHER):
            yield mode, tuple(functions[first : first + _SLEEP_TOGETHER]), "slow"


def report(outcomes: Sequence[Outcome], cases: Sequence[Case], seconds: float, jobs: int) -> str:
    """The result as the part of a page."""
    functions = {function for _, function, _ in cases}
    lines = [
        f"{time.strftime('%Y-%m-%d')}, Python {sys.version.split()[0]}, torch {torch.__version__}, "
        f"{os.cpu_count()} cores, `python -m benchmarks.robustness.planted_faults --jobs {jobs}`: "
        f"{len(functions)} functions, {len(outcomes)} of {len(cases)} faults planted in {seconds:.0f} s.",
        "",
        "| mode | fault | planted | result right | ledger readable | loss listed |",
        "|---|---|---|---|---|---|",
    ]
    for mode in ATTACHED:
        for fault in FAULTS:
            some = [outcome for outcome in outcomes if (outcome.mode, outcome.fault) == (mode, fault)]
            if some:
                right, readable, listed = (
                    sum(getattr(outcome, what) for outcome in some) for what in ("is_right", "is_readable", "is_listed")
                )
                lines.append(f"| {mode} | {fault} | {len(some)} | {right} | {readable} | {listed} |")
    harmless = sum(outcome.is_harmless for outcome in outcomes)
    lines.append(f"| all | all | {len(outcomes)} | harmless: {harmless} | | |")
    bad = sorted((each for each in outcomes if not each.is_harmless), key=lambda each: (each.mode, each.function))
    if bad:
        lines += ["", "What is not harmless yet:", ""]
        lines += [f"- `{each.function}` ({each.mode}, {each.fault}): {_lost(each)}" for each in bad]
    return "\n".join(lines) + "\n"


def _lost(outcome: Outcome) -> str:
    said = (
        ("result lost", outcome.is_right),
        ("ledger unfinished or unreadable", outcome.is_readable),
        ("loss not listed", outcome.is_listed),
    )
    return ", ".join(text for text, fine in said if not fine) + (f" ({outcome.detail})" if outcome.detail else "")


if __name__ == "__main__":
    sys.exit(main())
