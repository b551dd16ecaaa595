"""Faults planted into functions of ours that a compile calls: one fault, one compile, and what became of both.

    python benchmarks/planted_faults.py [--seconds 900] [--seed 0] [--output docs/results/faults.md]

Each function of ``_torch``, ``capturing``, ``nouns`` and the ledger's writer that a small compile calls is replaced,
one at a time, by one that raises, answers ``None`` or is slow. The compiled model must give what it gives without us,
and the ledger must be readable, marked as ended, and say what it lacks.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import logging
import pkgutil
import random
import sys
import tempfile
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import torchledger
from torchledger.nouns import Gap, Graph, Launch
from torchledger.store import open_ledger

Fault = Literal["raise", "none", "slow"]
FAULTS: tuple[Fault, ...] = ("raise", "none", "slow")
ROOMS = ("torchledger._torch", "torchledger.capturing", "torchledger.nouns", "torchledger.store")


class Planted(Exception):
    """The fault that was planted."""


@dataclass(frozen=True)
class Function:
    """A function of ours: the module or class that holds it, and its name there."""

    owner: Any
    name: str

    @property
    def label(self) -> str:
        """``"torchledger.capturing.recorder.Recorder.on_fault"``."""
        is_module = inspect.ismodule(self.owner)
        holder = self.owner.__name__ if is_module else f"{self.owner.__module__}.{self.owner.__qualname__}"
        return f"{holder}.{self.name}"


@dataclass(frozen=True)
class Outcome:
    """What became of one compile under one fault."""

    function: str
    fault: Fault
    was_called: bool
    is_right: bool
    is_readable: bool
    is_listed: bool
    detail: str = ""

    @property
    def is_harmless(self) -> bool:
        """The user's result is right, the ledger readable, and what it lacks is listed."""
        return self.is_right and self.is_readable and self.is_listed


def model(x: Tensor, weight: Tensor) -> Tensor:
    """A library call, a fused kernel and a reduction."""
    return torch.nn.functional.gelu(x @ weight).softmax(-1)


def compile_once(path: Path | None) -> Tensor:
    """The model's result, compiled anew, forward and backward; recorded into ``path``."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, weight = torch.randn(6, 16), torch.randn(16, 24, requires_grad=True)
    with torch._inductor.config.patch(force_disable_caches=True):
        if path is None:
            result = torch.compile(model)(x, weight)
            result.sum().backward()
        else:
            with torchledger.capture(path, force=True):
                result = torch.compile(model)(x, weight)
                result.sum().backward()
    assert weight.grad is not None
    return torch.cat([result.detach().flatten(), weight.grad.flatten()])


@cache
def expected() -> Tensor:
    """What the model gives without us."""
    return compile_once(None)


@cache
def sound_counts() -> tuple[int, int]:
    """Graphs and launches of a recording without a fault."""
    with tempfile.TemporaryDirectory() as folder:
        compile_once(Path(folder) / "sound.ledger")
        return counts(Path(folder) / "sound.ledger")


def counts(path: Path) -> tuple[int, int]:
    """Graphs and launches of a ledger."""
    with open_ledger(path) as reader:
        return reader.count(Graph), sum(launch.is_call for launch in reader.read(Launch))


def functions() -> Iterator[Function]:
    """Every function and method of the rooms that a compile passes through."""
    for room in ROOMS:
        package = importlib.import_module(room)
        for found in pkgutil.iter_modules(package.__path__, f"{room}."):
            module = importlib.import_module(found.name)
            for name, value in vars(module).items():
                if isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
                    yield Function(module, name)
                if inspect.isclass(value) and value.__module__ == module.__name__:
                    yield from (
                        Function(value, key)
                        for key, method in vars(value).items()
                        if isinstance(method, types.FunctionType) and not key.startswith("__")
                    )


@cache
def planted_functions() -> tuple[Function, ...]:
    """The functions that are called between the first hook and the end of a capture, in order of their names."""
    called: set[types.CodeType] = set()

    def note(frame: types.FrameType, event: str, argument: object) -> None:
        if event == "call":
            called.add(frame.f_code)

    expected()
    with tempfile.TemporaryDirectory() as folder:
        sys.setprofile(note)
        try:
            compile_once(Path(folder) / "all.ledger")
        finally:
            sys.setprofile(None)
    found = {each.label: each for each in functions() if vars(each.owner)[each.name].__code__ in called}
    return tuple(found[label] for label in sorted(found) if each_is_ours(found[label]))


def each_is_ours(function: Function) -> bool:
    """False for what the user calls by name: an error of theirs is an answer."""
    return function.label not in ASKED_FOR


ASKED_FOR = frozenset(
    {
        "torchledger.capturing.session.Capture.close",
        "torchledger.capturing.session.Capture._open",
        "torchledger.store.ledger.open_ledger",
        "torchledger.store.output.check_output",
    }
)
"""Without these there is no capture: ``with capture(...)`` answers with their error before anything is compiled."""


def faulty(original: Callable[..., Any], fault: Fault, calls: list[int]) -> Callable[..., Any]:
    """``original`` with a fault at its first call after the capture has begun."""

    @wraps(original)
    def planted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            return original(*args, **kwargs)
        if fault == "slow":
            time.sleep(0.2)
            return original(*args, **kwargs)
        if fault == "none":
            return None
        raise Planted(original.__qualname__)

    return planted


def plant(function: Function, fault: Fault, path: Path) -> Outcome:
    """Compile once with a fault, and look at what came of it."""
    wanted = expected()
    graphs, launches = sound_counts()
    held = vars(function.owner)[function.name]
    calls: list[int] = []
    setattr(function.owner, function.name, faulty(held, fault, calls))
    holders = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("torchledger") and vars(module).get(function.name) is held and module is not function.owner
    ]
    for module in holders:
        setattr(module, function.name, vars(function.owner)[function.name])
    detail = ""
    try:
        is_right = bool(torch.equal(compile_once(path), wanted))
    except Exception as error:
        is_right, detail = False, f"{type(error).__name__}: {error}"[:160]
    finally:
        setattr(function.owner, function.name, held)
        for module in holders:
            setattr(module, function.name, held)
    try:
        with open_ledger(path) as reader:
            is_readable = reader.run().status != "running"
            lacks = counts(path) != (graphs, launches)
            is_listed = not lacks or reader.count(Gap) > 0 or bool(reader.run().notes)
    except Exception as error:
        is_readable = is_listed = False
        detail = detail or f"{type(error).__name__}: {error}"[:160]
    return Outcome(function.label, fault, bool(calls), is_right, is_readable, is_listed, detail)


def main() -> int:
    """Plant them all, as far as the time goes, in a random order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    cases = [(function, fault) for function in planted_functions() for fault in FAULTS]
    random.Random(options.seed).shuffle(cases)
    started, outcomes = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        for number, (function, fault) in enumerate(cases):
            if time.monotonic() - started > options.seconds:
                break
            outcomes.append(plant(function, fault, Path(folder) / f"{number}.ledger"))
            if not outcomes[-1].is_harmless:
                print(outcomes[-1], flush=True)
    text = report(outcomes, len(cases), time.monotonic() - started)
    print(text)
    if options.output is not None:
        options.output.write_text(text)
    return 0 if all(outcome.is_harmless for outcome in outcomes) else 1


def report(outcomes: list[Outcome], planned: int, seconds: float) -> str:
    """The result as a page."""
    lines = [
        "# Faults planted into our own functions",
        "",
        "`make faults`: each function of ours that a small compile calls, replaced one at a time by one that raises,",
        "answers `None` or is slow at its first call. Those whose error is the answer to who asks (opening a ledger,",
        "ending a capture; named in `tests/plant_faults.py`) are left out. Profiled steps and watched values are not",
        "planted yet.",
        "",
        f"Python {sys.version.split()[0]}, torch {torch.__version__}; {len(planted_functions())} functions, "
        f"{len(outcomes)} of {planned} faults planted in {seconds:.0f} s",
        f"({time.strftime('%Y-%m-%d')}, `python benchmarks/planted_faults.py`).",
        "",
        "| fault | planted | result right | ledger readable | loss listed |",
        "|---|---|---|---|---|",
    ]
    for fault in FAULTS:
        some = [outcome for outcome in outcomes if outcome.fault == fault]
        total = Counter(
            {
                "right": sum(outcome.is_right for outcome in some),
                "readable": sum(outcome.is_readable for outcome in some),
                "listed": sum(outcome.is_listed for outcome in some),
            }
        )
        lines.append(f"| {fault} | {len(some)} | {total['right']} | {total['readable']} | {total['listed']} |")
    bad = [outcome for outcome in outcomes if not outcome.is_harmless]
    if bad:
        lines += ["", "What is not harmless yet:", ""]
        lines += [
            f"- `{each.function}`, {each.fault}: "
            + ", ".join(
                text
                for text, fine in (
                    ("result lost", each.is_right),
                    ("ledger unfinished or unreadable", each.is_readable),
                    ("loss not listed", each.is_listed),
                )
                if not fine
            )
            + (f" ({each.detail})" if each.detail else "")
            for each in bad
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
