"""Signals of the program that come while our code runs."""

from __future__ import annotations

import ast
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
import torch
import torch._inductor.config

import torchledger
from captured import read
from interrupted import Lines, ToldToEndError, raise_told, told_at
from torchledger.capturing import session
from torchledger.capturing.session import Capture
from torchledger.errors import StoreError
from torchledger.signals import let_through, signals_deferred
from torchledger.store import LedgerWriter

SCRIPT = """
import os, signal, sys
from torchledger.signals import signals_deferred
with signals_deferred(at_end=True):
    os.kill(os.getpid(), signal.SIGTERM)
    print("written", flush=True)
print("still there", flush=True)
"""


def test_what_is_being_written_is_written_and_then_the_process_ends_as_it_was_told() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(torchledger.__file__).parent.parent)}
    ended = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
    assert ended.stdout == "written\n"
    assert ended.returncode == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGUSR1])
def test_a_handler_of_the_program_hears_it_afterwards_and_is_there_again(number: signal.Signals) -> None:
    heard: list[str] = []
    former = signal.signal(number, lambda *_: heard.append("program"))
    try:
        own = signal.getsignal(number)
        with signals_deferred():
            os.kill(os.getpid(), number)
            heard.append("written")
        assert heard == ["written", "program"]
        assert signal.getsignal(number) is own
    finally:
        signal.signal(number, former)


def test_a_second_one_is_not_held_back() -> None:
    former = signal.signal(signal.SIGINT, raise_told)
    reached = []
    try:
        with pytest.raises(ToldToEndError), signals_deferred():
            signal.raise_signal(signal.SIGINT)
            reached.append("first")
            signal.raise_signal(signal.SIGINT)
            reached.append("second")
        assert reached == ["first"]
        assert signal.getsignal(signal.SIGINT) is raise_told
    finally:
        signal.signal(signal.SIGINT, former)


def test_each_of_two_is_heard_also_where_the_handler_of_the_first_raises() -> None:
    heard: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        raise_told(number, frame)

    numbers = (signal.SIGTERM, signal.SIGUSR1)
    former = {number: signal.signal(number, handler) for number in numbers}
    try:
        with pytest.raises(ToldToEndError), signals_deferred():
            for number in numbers:
                signal.raise_signal(number)
        assert sorted(heard) == sorted(numbers)
        assert all(signal.getsignal(number) is handler for number in numbers)
    finally:
        for number, handler_before in former.items():
            signal.signal(number, handler_before)


def test_what_the_program_left_to_the_system_stays_there_but_at_the_end() -> None:
    former = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with signals_deferred():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with signals_deferred(at_end=True):
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, former)


def test_another_thread_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def work() -> None:
        with signals_deferred(at_end=True):
            seen.append(signal.getsignal(signal.SIGTERM))

    seen: list[object] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


class _Method:
    def handler(self, number: int, frame: FrameType | None) -> None:
        raise ToldToEndError(number)


def _any_arguments(*arguments: object) -> None:
    raise ToldToEndError(arguments[0])


def _with_more(more: str, number: int, frame: FrameType | None) -> None:
    raise_told(number, frame)


@pytest.mark.parametrize(
    "handler", [raise_told, _Method().handler, _any_arguments, functools.partial(_with_more, "more")]
)
def test_what_a_handler_raised_is_no_fault_of_ours(handler: Callable[..., None]) -> None:
    former = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(ToldToEndError):
            _guarded(lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(ToldToEndError):
            _guarded(_explained)
    finally:
        signal.signal(signal.SIGTERM, former)


def _guarded(action: Callable[[], object]) -> Exception:
    try:
        action()
        os.getpid()  # a handler runs before the next call at the latest
    except Exception as error:
        let_through(error)
        return error
    raise AssertionError("nothing was raised")


def _explained() -> None:
    try:
        signal.raise_signal(signal.SIGTERM)
        os.getpid()
    except ToldToEndError as error:
        raise StoreError("cannot be read") from error


def test_a_fault_of_ours_is_none_of_a_handler() -> None:
    def given(number: int, frame: FrameType) -> None:
        raise ValueError(f"{number} {frame.f_lineno}")

    def handled_before() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            os.getpid()
        except ToldToEndError:  # the program's own affair, in which it calls us
            raise ValueError("ours") from None

    former = signal.signal(signal.SIGTERM, raise_told)
    try:
        assert isinstance(_guarded(lambda: {}["absent"]), KeyError)
        assert isinstance(_guarded(lambda: given(3, sys._getframe(1))), ValueError)
        assert isinstance(_guarded(handled_before), ValueError)
    finally:
        signal.signal(signal.SIGTERM, former)


# --- the guards of the house ---------------------------------------------------------------------------------------

HOUSE = Path(torchledger.__file__).parent
IN_THE_USERS_PROCESS = ("_torch", "capturing", "stepping", "memory", "profiling", "watching")
NOBODY_COULD_HEAR_IT = {("_torch/storages.py", "_freed"), ("stepping/thread_end.py", "__del__")}
"""What Python calls when something goes: an exception that leaves these is printed, whoever raised it."""

OF_PLANS = "_torch/fakes/"
THE_PROGRAMS_OWN = "if call is not None and error is call.error:\n    raise"


def _deaf_guards() -> Iterator[str]:
    for path in (each for room in IN_THE_USERS_PROCESS for each in (HOUSE / room).rglob("*.py")):
        name = str(path.relative_to(HOUSE))
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef) or (name, function.name) in NOBODY_COULD_HEAR_IT:
                continue
            for guard in (each for each in ast.walk(function) if isinstance(each, ast.ExceptHandler)):
                if guard.type is None or ast.unparse(guard.type) != "Exception" or name.startswith(OF_PLANS):
                    continue
                first, last = ast.unparse(guard.body[0]), guard.body[-1]
                if first == THE_PROGRAMS_OWN:
                    first = ast.unparse(guard.body[1])
                is_raised_again = isinstance(last, ast.Raise) and last.exc is None
                if first != f"let_through({guard.name})" and not is_raised_again:
                    yield f"{name}:{guard.lineno}"


def test_no_guard_keeps_what_a_handler_of_the_program_raised() -> None:
    assert not list(_deaf_guards())


@pytest.mark.parametrize("moment", ["named", "made", "begun", "written"])
def test_a_signal_while_a_ranks_ledger_is_begun_loses_no_graph_and_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Killed with its fellow rank, a program that goes on found its graphs in a second ledger, or nowhere."""
    monkeypatch.setenv("RANK", "1")
    waiting = [moment]

    def told(original: Callable[..., object], at: str) -> Callable[..., object]:
        def wrapper(*arguments: object, **keywords: object) -> object:
            result = original(*arguments, **keywords)
            if waiting == [at]:
                waiting.clear()
                signal.raise_signal(signal.SIGTERM)
            elif waiting == ["written"] and at == "begun":
                monkeypatch.setattr(LedgerWriter, "add", told(add, "written"))
            return result

        return wrapper

    add = LedgerWriter.add
    monkeypatch.setattr(session, "child_path", told(session.child_path, "named"))
    monkeypatch.setattr(LedgerWriter, "__init__", told(LedgerWriter.__init__, "made"))
    monkeypatch.setattr(LedgerWriter, "add", told(add, "begun"))
    heard: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        raise_told(number, frame)

    former = signal.signal(signal.SIGTERM, handler)
    torch._dynamo.reset()
    try:
        with Capture(tmp_path / "j.ledger", argv=("train.py",), is_child=True):
            with pytest.raises(Exception, match="told to end"):
                torch.compile(lambda x: x.sin() + 1)(torch.ones(3))
            torch.compile(lambda x: x.cos() + 1)(torch.ones(3))
    finally:
        signal.signal(signal.SIGTERM, former)
    assert heard == [signal.SIGTERM]
    assert [path.name for path in (tmp_path / "j.job").iterdir()] == ["rank1.ledger"]
    found = read(tmp_path / "j.job" / "rank1.ledger")
    assert len({launch.graph for launch in found.launches}) == 2
    assert not [gap for gap in found.gaps if gap.account == "launches"]


def test_a_ranks_ledger_that_could_not_be_begun_is_begun_again_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    add = LedgerWriter.add

    def broken(self: LedgerWriter, *records: object, **keywords: bool) -> None:
        monkeypatch.setattr(LedgerWriter, "add", add)
        raise KeyError("planted")

    monkeypatch.setattr(LedgerWriter, "add", broken)
    torch._dynamo.reset()
    with Capture(tmp_path / "j.ledger", argv=("train.py",), is_child=True):
        torch.compile(lambda x: x.sin() + 1)(torch.ones(3))
        torch.compile(lambda x: x.cos() + 1)(torch.ones(3))
    assert [path.name for path in (tmp_path / "j.job").iterdir()] == ["rank1.ledger"]
    found = read(tmp_path / "j.job" / "rank1.ledger")
    assert len({launch.graph for launch in found.launches}) == 1
    assert any("planted" in gap.reason for gap in found.gaps)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_signal_at_a_line_of_ours_is_heard_and_the_next_compile_is_recorded(tmp_path: Path, share: float) -> None:
    def compile_one() -> None:
        torch._dynamo.reset()
        with torch._inductor.config.patch(fx_graph_cache=False):
            torch.compile(lambda x: x.sin() * 2)(torch.ones(3, 4))

    with Capture(tmp_path / "count.ledger"):
        compile_one()
        with told_at(Lines()) as usual:
            compile_one()
    with Capture(tmp_path / "a.ledger"):
        with pytest.raises(Exception, match="told to end"), told_at(Lines(int(share * usual.n_run))) as lines:
            compile_one()
        compile_one()
    assert lines.where is not None
    found = read(tmp_path / "a.ledger")
    assert {launch.graph for launch in found.launches}
    assert not any("told to end" in gap.reason for gap in found.gaps)


def test_a_worker_ends_with_the_process_that_started_it() -> None:
    worker = (
        "import os, sys, time; from torchledger.signals import end_with_parent; "
        "end_with_parent(int(sys.argv[1])); print(os.getpid(), flush=True); time.sleep(3600)"
    )
    parent = f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}, str(os.getpid())])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline().strip().isdigit()
        started.kill()
        # The other end of the pipe is the worker's, too: it closes once both are gone.
        assert started.stdout.read() == ""


def test_a_worker_whose_starter_has_died_ends_at_once() -> None:
    code = "from torchledger.signals import end_with_parent; end_with_parent(1 << 30); print('went on')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == ""
