"""How a program that runs for its step ends: on its own thread, whichever of its threads gave the reason."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchledger._torch.errors import wants_device
from torchledger.errors import PlanError, UsageError
from torchledger.frame_variables import local_of
from torchledger.printable import ended, shorten

log = logging.getLogger(__name__)

_IDLE_S = 10.0
"""So long a program does nothing that waits for a thread of its own that has failed."""

_MOST_OF_LINE, _MOST_OF_ERROR = 60, 120
"""So many characters of a program's line and of another's words are told."""

_WAITING = frozenset({"threading.py", "queue.py", "selectors.py", "socket.py", "connection.py", "popen_fork.py"})
"""Files of Python's own library in which a thread waits for another or for a process."""

_IDLE_SHARE = 0.02
"""Of one core: what polls for an answer does nothing else."""


class StepRecorded(BaseException):
    """Ends a program that has nothing more to do; no handler of the program's own errors holds it."""


class Ending:
    """Ends a program that runs on the calling thread, from this and from other threads.

    ``on_end`` is called when it is to end. ``hint`` tells of threads that failed for reasons that may be their own.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._thread = threading.current_thread()
        self._is_running = self._is_over = False
        self._failure: PlanError | UsageError | None = None
        self.hint = ""

    def run(self, program: Callable[[], Any], wait_for_threads: Callable[[], None]) -> None:
        """Run the program and wait for its threads as Python does at its end.

        Raises ``StepRecorded`` where ``end`` was called, ``PlanError`` where one of its threads failed.
        """
        has_signals = self._thread is threading.main_thread()
        former = signal.signal(signal.SIGURG, self._interrupted) if has_signals else None
        self._is_running = True
        try:
            program()
            wait_for_threads()
        except StepRecorded:
            if self._failure is not None:
                raise self._failure from None
            raise
        finally:
            self._is_running = False
            if has_signals:
                signal.signal(signal.SIGURG, former)
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """End the program now; on another thread than its own, that one too."""
        self._is_over = True
        self._interrupt()
        raise StepRecorded

    def check(self) -> None:
        """End the program's own thread if that was asked for where Python lets nothing through: before it forks."""
        if self._is_over and self._is_running and threading.current_thread() is self._thread:
            raise StepRecorded

    @property
    def goes_on_elsewhere(self) -> bool:
        """Whether the program's own thread, which is not the calling one, does something else than wait."""
        from torchledger._torch.user_lines import file_of_thread

        if threading.current_thread() is self._thread or not self._is_running:
            return False
        file = file_of_thread(self._thread.ident or 0)
        return file is not None and Path(file).name not in _WAITING

    def thread_failed(self, name: str, error: BaseException) -> bool:
        """A thread of the program has ended with this error; ``True`` if nobody else need be told."""
        if isinstance(error, (StepRecorded, SystemExit)):
            return isinstance(error, StepRecorded)
        ours = our_error(error)
        if ours is not None:
            self._fail(ours)
            return True
        failure = PlanError(explain(error, thread=name))
        if _is_of_torch(error):
            self._fail(failure)
        else:
            self.hint = f" Thread {name!r} had ended: {ended(f'{type(error).__name__}: {first_line(error)}')}"
            threading.Thread(target=self._watch, args=(failure,), daemon=True).start()
        return False

    def _watch(self, failure: PlanError) -> None:
        while self._is_running:
            used, since = time.process_time(), time.monotonic()
            time.sleep(_IDLE_S)
            if time.process_time() - used < _IDLE_SHARE * (time.monotonic() - since):
                self._fail(failure)
                return

    def _fail(self, failure: PlanError | UsageError) -> None:
        self._failure = self._failure or failure
        self._interrupt()

    def _interrupt(self) -> None:
        self._on_end()
        ident = self._thread.ident
        if self._is_running and threading.get_ident() != ident and self._thread is threading.main_thread():
            assert ident is not None
            signal.pthread_kill(ident, signal.SIGURG)  # which ends its waiting for a lock

    def _interrupted(self, *_: object) -> None:
        if self._is_running:
            raise StepRecorded


_OF_THE_COMPILER = ("InductorError", "BackendCompilerFailed", "UncapturedHigherOrderOpError", "Unsupported")


def explain(error: BaseException, *, thread: str | None = None, made_up: bool = True) -> str:
    """What failed, where in the program, and what to do about it; ``made_up`` says that the program was given values
    that nobody knows."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_library(frame.filename)]
    where = _place(own)
    line = f" (`{shorten(own[-1].line, _MOST_OF_LINE)}`)" if own and own[-1].line else ""
    who = "the program" if thread is None else f"the program's thread {thread!r}"
    what = _said(error)
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno} is not Python: {ended(error.msg)}"
    if isinstance(error, ModuleNotFoundError):
        module = f"the module {error.name!r}" if error.name else f"a module ({shorten(what, _MOST_OF_ERROR)})"
        return f"{who} needs {module}{where}: install it here, or plan the script without it."
    if isinstance(error, ImportError) and not own:
        return f"{who} cannot be found: {ended(first_line(error))}"
    if _is_of_extension(error, frames):
        return (
            f"{who} wants an extension for CUDA{where}{line}, which cannot be built or loaded here "
            f"({shorten(what, _MOST_OF_ERROR)}). What it computes is not priced: plan the script without it, or with "
            "an operator that says what it makes (torch.library.register_fake), which is priced at its roofline."
        )
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return (
            f"{who} reads {error.filename}{where}, which is not there. A plan needs no values: leave a checkpoint "
            "out, or name a file that is there."
        )
    if _wants_network(error):
        return (
            f"{who} fetches something over the network{where}{line}, which is out of reach here "
            f"({shorten(what, _MOST_OF_ERROR)}). A plan needs no values: have it on disk before, or make it up."
        )
    if _asks_for_its_rank(error, frames):
        return (
            f"{who} asks{where} which of how many ranks it is: say so with --world N, which may be 1. It then finds "
            "the variables that a launcher sets, and process groups are made."
        )
    failed = f"{who} failed without its device{where}"
    if wants_device(error):
        return (
            f"{failed}{line}: what runs there goes past torch to the device itself, and its results cannot be known "
            "without it. Plan the script without that part."
        )
    if type(error).__name__ in _OF_THE_COMPILER:
        return (
            f"{failed}: PyTorch's compiler gave up ({what}), as it may do with the device too. Leave that part out of "
            "what is compiled (torch.compiler.disable): it is priced operator by operator then."
        )
    if own and frames[-1] == own[-1] and not made_up:
        return f"{failed}: {ended(what)} No value was made up for it before: it may fail so on the device, too."
    if own and frames[-1] == own[-1] and not _is_of_operator(error, own[-1]):
        return (
            f"{failed}: {ended(what)} If that comes of a value that was not computed (numbers are read as 1, truths as "
            "False), plan the script without that check."
        )
    return (
        f"{failed}: {ended(what)} A value that was not computed, or an extension that wants a real device, cannot be "
        "stood in for there: plan the script without that part. If nothing of that kind is there, it may fail so on "
        "the device, too."
    )


def _is_of_operator(error: BaseException, frame: traceback.FrameSummary) -> bool:
    """Whether torch's C++ has refused what the program's line asks, of which values are seldom the reason."""
    return type(error) is RuntimeError and _RAISES.search(frame.line or "") is None


_RAISES = re.compile(r"\braise\b")


def makes_lone_group(error: BaseException) -> bool:
    """Whether a process group of one rank, of which the program itself says so, could not be made."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_code.co_name == "init_process_group" and local_of(frame, "world_size") == 1 for frame in frames)


def explain_by(reasons: Sequence[str], error: BaseException) -> str:
    """What failed and where in the program, of which the reasons are known."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_library(frame.filename)]
    return f"{'; '.join(reasons)}. That is why the program failed{_place(own)}: {ended(_said(error))}"


def _place(own: Sequence[traceback.FrameSummary]) -> str:
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""


def _said(error: BaseException) -> str:
    """What an error says, and the one that it was first raised from."""
    said, first = f"{type(error).__name__}: {first_line(error).rstrip('.: ')}", error
    while first.__cause__ is not None:
        first = first.__cause__
    if first is error or first_line(first) in said:
        return said
    return f"{said}, of {type(first).__name__}: {first_line(first).rstrip('.: ')}"


def _is_of_extension(error: BaseException, frames: Sequence[traceback.FrameSummary]) -> bool:
    """Whether a library of compiled code could not be built or loaded."""
    return any(frame.filename.endswith("/torch/utils/cpp_extension.py") for frame in frames) or (
        isinstance(error, (ImportError, OSError)) and _LIBRARY.search(first_line(error)) is not None
    )


_LIBRARY = re.compile(r"\.so(\.\d+)*: |undefined symbol")


_DOWNLOADS = re.compile(r"(?i)\b(error|fail\w*|unable|could not|cannot)\b.{0,40}\bdownload")
_OF_NETWORKS = frozenset(
    {
        "gaierror",
        "URLError",
        "MaxRetryError",
        "NameResolutionError",
        "OfflineModeIsEnabled",
        "LocalEntryNotFoundError",
    }
)


def _wants_network(error: BaseException) -> bool:
    """Whether a name was not resolved or a host not reached, whichever library asked for it."""
    if _DOWNLOADS.search(first_line(error)) is not None:
        return True
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        if type(each).__name__ in _OF_NETWORKS:
            return True
        seen.add(id(each))
        each = each.__cause__ or each.__context__
    return False


def _asks_for_its_rank(error: BaseException, frames: Sequence[traceback.FrameSummary]) -> bool:
    """Whether a variable is missing that a launcher sets, or a process group was wanted without any."""
    if isinstance(error, KeyError):
        return error.args[0] in _OF_LAUNCHERS
    is_said = "RANK" in os.environ and "NCCL" not in first_line(error)
    return not is_said and any(frame.name == "init_process_group" for frame in frames)


_OF_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def our_error(error: BaseException) -> PlanError | UsageError | None:
    """An error of ours that a compiler put into one of its own."""
    while True:
        if isinstance(error, (PlanError, UsageError)):
            # What runs a part of a split graph writes the whole graph behind our words.
            return type(error)(str(error).partition("\n\nWhile executing")[0])
        inner = error.__cause__ or error.__context__ or getattr(error, "inner_exception", None)
        if inner is None:
            return None
        error = inner


def first_line(error: BaseException) -> str:
    """The first line of what an error says."""
    said = str(error).strip()
    return said.splitlines()[0][:300] if said else ""


def _is_of_torch(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and ("/torch/" in frames[-1].filename or _OURS in frames[-1].filename)


_OURS = str(Path(__file__).parent.parent)


def _is_library(file: str) -> bool:
    return file.startswith("<") or "/site-packages/" in file or "/lib/python3." in file or _OURS in file
