"""Faults planted into functions of ours that run inside a user's process: one fault, one process, what became of both.

A small training program, warm in every cache, is forked for each fault. In the child one function's code is replaced
before our hooks go in, so that everybody who holds the function has the faulty one; the program is then recorded as
``torchledger run``, ``run --profile``, ``values`` or ``capture`` would. It must give what it gives without us, end with
its own exit code and without a word of ours that is a traceback, and the ledger must be readable, marked as ended, and
say what it lacks.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import inspect
import json
import re
import sys
import tempfile
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from forked import EXIT_CODE, PACKAGE, Mode, expected, record
from torchledger.balance import balance_books
from torchledger.books import open_books
from torchledger.nouns import Gap, Run, Step, StepMemory, WatchedGraph
from torchledger.store import open_ledger
from torchledger.store.schema import TABLES

Fault = Literal["raise", "none", "slow"]
FAULTS: tuple[Fault, ...] = ("raise", "none", "slow")
_SLEEP_S = 0.3


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


Case = tuple[Mode, Function, Fault]


def every_case(modes: Sequence[Mode]) -> list[Case]:
    """Each function with each of its faults, in the first of the modes that calls it."""
    found: dict[Function, Mode] = {}
    for mode in modes:
        for function in called_functions(mode):
            found.setdefault(function, mode)
    return [(mode, function, fault) for function, mode in found.items() for fault in function.faults]


def check_names() -> None:
    """Raises ``LookupError`` if what is left out of the planting names a function that the code does not have."""
    labels = {Function(_module(code.co_filename), code.co_qualname, 0, False).label for code in _codes()}
    unknown = sorted(ENTRIES.union(*ASKED_FOR.values()) - labels)
    if unknown:
        raise LookupError(f"not in the code: {', '.join(unknown)}")


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
