"""Faults planted into functions of ours that run inside a user's process: one fault, one process, what became of both.

    python benchmarks/planted_faults.py [--mode profile] [--jobs 8] [--seconds 3600] [--outcomes FILE [--new]] [--list]
        [--output docs/results/faults.md]

With ``--outcomes FILE`` each outcome is kept as it is known, and what FILE says was harmless is not planted again; with
``--new`` nothing that it has an outcome of. ``--list`` says what is left.

A small training program, warm in every cache, is forked for each fault. In the child one function's code is replaced
before our hooks go in, so that everybody who holds the function has the faulty one; the program is then recorded as
``torchledger run``, ``run --profile``, ``values`` or ``capture`` would. It must give what it gives without us, end with
its own exit code and without a word of ours that is a traceback, and the ledger must be readable, marked as ended, and
say what it lacks.
"""

from __future__ import annotations

import argparse
import atexit
import builtins
import gc
import inspect
import json
import multiprocessing
import os
import random
import re
import sys
import tempfile
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import torch

from forked import ATTACHED, EXIT_CODE, PACKAGE, Mode, expected, make_forkable, record
from torchledger.balance import balance_books, open_books
from torchledger.nouns import Gap, Run, Step, StepMemory, WatchedGraph
from torchledger.store import open_ledger
from torchledger.store.schema import TABLES

Fault = Literal["raise", "none", "slow"]
FAULTS: tuple[Fault, ...] = ("raise", "none", "slow")
_SLEEP_S = 0.3
_SLEEP_TOGETHER = 20
_IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where ledgers are written: a transaction that waits for a disk takes longer than all else of a recording."""


class Planted(Exception):
    """The fault that was planted."""


@dataclass(frozen=True, order=True)
class Function:
    """A function of ours, by where its code stands; ``is_nested`` if it is made anew by each call of another."""

    module: str
    qualname: str
    line: int
    is_nested: bool

    @property
    def label(self) -> str:
        """``"capturing.recorder.Recorder.on_fault"``."""
        return f"{self.module}.{self.qualname.replace('<locals>.', '')}"

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What can be planted: what is nested fails at every call, and its variables are out of reach for a sleep."""
        if self.label in ENTRIES:
            return () if self.is_nested else ("slow",)
        return ("raise", "none") if self.is_nested else FAULTS


@dataclass(frozen=True)
class Outcome:
    """What became of one program under one fault."""

    mode: Mode
    function: str
    line: int
    fault: Fault
    is_right: bool
    is_readable: bool
    is_listed: bool
    detail: str = ""

    @property
    def is_harmless(self) -> bool:
        """The user's result is right, the ledger readable, and what it lacks is listed."""
        return self.is_right and self.is_readable and self.is_listed


# --- which functions ------------------------------------------------------------------------------------------------


def called_functions(mode: Mode) -> tuple[Function, ...]:
    """The functions of ours that the recorded program calls in its own process, in order of their names."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "called"
        ours: set[types.CodeType] = set()

        def note(frame: types.FrameType, event: str, argument: object) -> None:
            is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # the body of a class or module is none
            if event == "call" and is_function and frame.f_code.co_filename.startswith(str(PACKAGE)):
                ours.add(frame.f_code)

        def save() -> None:
            sys.setprofile(None)
            out.write_text(json.dumps([(code.co_filename, code.co_qualname, code.co_firstlineno) for code in ours]))

        def begin() -> None:
            atexit.register(save)  # first in, so last out
            threading.setprofile(note)
            sys.setprofile(note)

        record(mode, Path(folder), begin)
        called = json.loads(out.read_text())
    found = set()
    for file, qualname, line in called:
        name = qualname.rpartition(".")[2]
        if name.startswith("<") and name != "<lambda>":
            continue
        found.add(Function(_module(file), qualname, line, "<locals>" in qualname))
    return tuple(sorted(each for each in found if each.label not in ASKED_FOR.get(mode, ())))


def _module(file: str) -> str:
    """``"capturing.recorder"``."""
    return ".".join(Path(file).relative_to(PACKAGE).with_suffix("").parts)


ENTRIES = frozenset(
    {
        "_torch.eager_calls.EagerCalls.__torch_dispatch__",
        "_torch.eager_calls.keep_modes_over_compiled_calls.Guard.__enter__",
        "_torch.eager_calls.keep_modes_over_compiled_calls.Guard.__exit__",
        "_torch.eager_calls.keep_modes_over_compiled_calls.Guard.__init__",
        "_torch.kernel_marks._Marked.__call__",
        "_torch.module_calls.ModuleCalls._begins",
        "_torch.module_calls.ModuleCalls._ends",
        "_torch.optimizers.OptimizerWatch.__init__.hook",
        "_torch.patching.Patches.around.wrapper",
        "claims.claim.asked",
        "_torch.storages.StorageWatch._freed",
        "_torch.storages.StorageWatch._heard_allocation",
        "capturing.process._end",
        "capturing.process.start_in_process",
        "stepping.thread_end._Last.__del__",
        "watching.graph_watch.GraphWatch.__call__",
        "watching.graph_watch.GraphWatch._allocate",
        "watching.graph_watch.GraphWatch._launch",
    }
)
"""What torch, Python or generated code calls with nothing of ours around it: the guards themselves."""

ASKED_FOR: Mapping[Mode, frozenset[str]] = {
    "capture": frozenset(
        {
            "__init__.__getattr__",
            "api.capture",
            "capturing.session.Capture.__init__",
            "capturing.session.Capture.__enter__",
            "capturing.session.Capture.__exit__",
            "capturing.session.Capture.close",
            "capturing.session.Capture._open",
            "store.ledger.LedgerWriter.__init__",
            "store.ledger.open_ledger",
            "store.output.check_output",
        }
    ),
}
"""What the user calls by name: ``with capture(...)`` answers with its error before anything is compiled."""


# --- planting -------------------------------------------------------------------------------------------------------


def plant_in_process(function: Function, fault: Fault) -> None:
    """Put the fault into this process, at the first call of the function, or at every call of a nested one."""
    code = _code_of(function)
    if function.is_nested:
        _replace_constant(code, _stub(code, f"{fault}_always"))
        builtins.torchledger_raise_always = _raise  # type: ignore[attr-defined]
        builtins.torchledger_none_always = lambda *args, **kwargs: None  # type: ignore[attr-defined]
        return
    for original in [each for each in _our_functions() if each.__code__ is code]:
        sound = types.FunctionType(
            code, original.__globals__, original.__name__, original.__defaults__, original.__closure__
        )
        sound.__kwdefaults__ = original.__kwdefaults__
        setattr(builtins, f"torchledger_{id(original)}", _once(sound, fault))
        original.__code__ = _stub(code, str(id(original)))


def _once(sound: Callable[..., Any], fault: Fault) -> Callable[..., Any]:
    calls: list[int] = []

    def planted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            return sound(*args, **kwargs)
        if fault == "slow":
            time.sleep(_SLEEP_S)
            return sound(*args, **kwargs)
        return None if fault == "none" else _raise()

    return planted


def _raise(*args: Any, **kwargs: Any) -> Any:
    raise Planted("planted")


def _stub(code: types.CodeType, what: str) -> types.CodeType:
    """Code that hands its arguments to ``builtins.torchledger_<what>``, in the place of ``code``."""
    source = f"def planted(*args, **kwargs):\n    return torchledger_{what}(*args, **kwargs)\n"
    (stub,) = (each for each in compile(source, code.co_filename, "exec").co_consts if inspect.iscode(each))
    return stub.replace(
        co_freevars=code.co_freevars,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_firstlineno=code.co_firstlineno,
    )


def _code_of(function: Function) -> types.CodeType:
    file = str(PACKAGE.joinpath(*function.module.split(".")).with_suffix(".py"))
    key = (file, function.qualname, function.line)
    for code in _codes():
        if (code.co_filename, code.co_qualname, code.co_firstlineno) == key:
            return code
    raise LookupError(f"{function.label} is not there before the fork")


@cache
def _our_functions() -> tuple[types.FunctionType, ...]:
    """Every function of ours that is there before the first fork."""
    return tuple(
        each
        for each in gc.get_objects()
        if type(each) is types.FunctionType and each.__code__.co_filename.startswith(str(PACKAGE))
    )


@cache
def _codes() -> set[types.CodeType]:
    """All code of ours, with what is nested in it."""
    found: set[types.CodeType] = set()
    rest = [each.__code__ for each in _our_functions()]
    while rest:
        code = rest.pop()
        if code not in found:
            found.add(code)
            rest += [each for each in code.co_consts if inspect.iscode(each)]
    return found


def _replace_constant(old: types.CodeType, new: types.CodeType) -> None:
    """Have every function of ours make the ``new`` nested function where it made the ``old`` one."""

    def changed(code: types.CodeType) -> types.CodeType:
        constants = tuple(
            new if each is old else changed(each) if inspect.iscode(each) else each for each in code.co_consts
        )
        is_same = all(one is other for one, other in zip(constants, code.co_consts, strict=True))
        return code if is_same else code.replace(co_consts=constants)

    for each in _our_functions():
        if each.__code__.co_filename == old.co_filename:
            each.__code__ = new if each.__code__ is old else changed(each.__code__)


# --- judging --------------------------------------------------------------------------------------------------------


def plant(mode: Mode, functions: Sequence[Function], fault: Fault, folder: Path) -> list[Outcome]:
    """Record the program once with the faults, and look at what came of it; functions that sleep can do so together."""
    outcome = _plant(mode, functions, fault, folder)
    if len(functions) > 1 and not outcome.is_harmless:
        return [_plant(mode, (function,), fault, folder) for function in functions]
    return [replace(outcome, function=function.label, line=function.line) for function in functions]


def _plant(mode: Mode, functions: Sequence[Function], fault: Fault, folder: Path) -> Outcome:
    code, warnings = record(mode, folder, lambda: [plant_in_process(function, fault) for function in functions])
    said = (folder / "messages").read_text()
    result = folder / "result"
    is_right = (
        code == EXIT_CODE and result.exists() and result.read_bytes() == expected(mode) and "Traceback" not in said
    )
    detail = "" if is_right else f"exit code {code}; {' | '.join(_last_words(said))}"[:300]
    try:
        with open_ledger(folder / "a.ledger") as reader:
            runs = [run.status for run in reader.read(Run)]
            is_readable = "running" not in runs and (bool(runs) or "nothing is captured" in said)
            is_listed = (
                _counts(folder / "a.ledger") == sound_counts(mode)
                or reader.count(Gap) > 0
                or bool(_notes(folder / "a.ledger") - sound_notes(mode))
                or bool(_unbalanced(folder / "a.ledger") - sound_unbalanced(mode))
                or bool(warnings)
            )
            lacks = sound_counts(mode) - _counts(folder / "a.ledger")
            detail = detail or ("" if is_listed else f"lacks {dict(lacks)}")
    except Exception as error:
        is_readable = is_listed = False
        detail = detail or f"{type(error).__name__}: {error}"[:300]
    first = functions[0]
    return Outcome(mode, first.label, first.line, fault, is_right, is_readable, is_listed, detail)


def _last_words(said: str) -> list[str]:
    """The last three lines of the messages, without the advice in which torch wraps an error of a compile."""
    return [line for line in said.splitlines() if line.strip() and "TORCHDYNAMO_VERBOSE" not in line][-3:]


@cache
def sound_counts(mode: Mode) -> Counter[str]:
    """Records of each kind that a recording without a fault holds."""
    with tempfile.TemporaryDirectory() as folder:
        code, _ = record(mode, Path(folder))
        said = (Path(folder) / "messages").read_text()
        assert code == EXIT_CODE and (Path(folder) / "result").read_bytes() == expected(mode), said
        return _counts(Path(folder) / "a.ledger")


@cache
def sound_notes(mode: Mode) -> frozenset[str]:
    """Notes of a recording without a fault, without their numbers."""
    with tempfile.TemporaryDirectory() as folder:
        record(mode, Path(folder))
        return _notes(Path(folder) / "a.ledger")


def _notes(path: Path) -> frozenset[str]:
    with open_ledger(path) as reader:
        notes = [note for kind in (Run, Step, StepMemory) for each in reader.read(kind) for note in each.notes]
        notes += [graph.note for graph in reader.read(WatchedGraph) if graph.note is not None]
    return frozenset(re.sub(r"[\d.,]+", "#", note) for note in notes)


@cache
def sound_unbalanced(mode: Mode) -> frozenset[str]:
    """Accounts of a recording without a fault that do not balance."""
    with tempfile.TemporaryDirectory() as folder:
        record(mode, Path(folder))
        return _unbalanced(Path(folder) / "a.ledger")


def _unbalanced(path: Path) -> frozenset[str]:
    """Accounts of counts that do not balance, which every report says; those of times differ by chance."""
    with open_ledger(path) as reader:
        accounts = balance_books(open_books(reader)).accounts.values()
    return frozenset(each.name for each in accounts if each.unit != "us" and each.is_balanced is False)


def _counts(path: Path) -> Counter[str]:
    with open_ledger(path) as reader:
        return Counter({kind.__name__: reader.count(kind) for kind in TABLES if kind is not Gap})


# --- all of them ----------------------------------------------------------------------------------------------------

Case = tuple[Mode, Function, Fault]
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
    make_forkable()
    _check_names()
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
        options.output.write_text(text)
    return 0 if all(outcome.is_harmless for outcome in outcomes) else 1


def _check_names() -> None:
    """Raises ``LookupError`` if what is left out of the planting names a function that the code does not have."""
    labels = {Function(_module(code.co_filename), code.co_qualname, 0, False).label for code in _codes()}
    unknown = sorted(ENTRIES.union(*ASKED_FOR.values()) - labels)
    if unknown:
        raise LookupError(f"not in the code: {', '.join(unknown)}")


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


def every_case(modes: Sequence[Mode]) -> list[Case]:
    """Each function with each of its faults, in the first of the modes that calls it."""
    found: dict[Function, Mode] = {}
    for mode in modes:
        for function in called_functions(mode):
            found.setdefault(function, mode)
    return [(mode, function, fault) for function, mode in found.items() for fault in function.faults]


def report(outcomes: Sequence[Outcome], cases: Sequence[Case], seconds: float, jobs: int) -> str:
    """The result as a page."""
    functions = {function for _, function, _ in cases}
    lines = [
        "# Faults planted into our own functions",
        "",
        "`make faults`: a small training program is recorded once for each fault, in a process of its own. One",
        "function of ours that runs inside it raises, answers `None` or sleeps 0.3 s at its first call (those that",
        "sleep do so twenty at a time); one that is made anew by each call of another (a closure) raises or answers",
        "`None` at every call. Each function is planted in the first of these recordings that calls it: `inference`,",
        "a `run` of one call; `run`, `run --profile` (to the end of the step's records), `values` (`--find nan",
        "--against eager`), `capture` (the call from Python) of the training.",
        "",
        f"{len(ENTRIES)} functions are called by torch, by Python or by generated code with nothing of ours around",
        "them: they are made of the guard itself (`ENTRIES` in `tests/plant_faults.py`), and what they answer is the",
        "user's result. They are planted with the sleep alone. What the user calls by name (`ASKED_FOR`) is not",
        "planted under `capture`: its error is the answer.",
        "",
        "Right: the program's weights to the bit, its exit code (3), and no traceback of ours. Readable: the ledger",
        "opens and is marked as ended. Listed: it holds as many records of each kind as without the fault, or a gap,",
        "a note or a message says what is missing.",
        "",
        f"Python {sys.version.split()[0]}, torch {torch.__version__}; {len(functions)} functions, "
        f"{len(outcomes)} of {len(cases)} faults planted in {seconds:.0f} s",
        f"({time.strftime('%Y-%m-%d')}, a virtual machine of {os.cpu_count()} cores, "
        f"`python benchmarks/planted_faults.py --jobs {jobs}`).",
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
