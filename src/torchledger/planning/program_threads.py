"""How a program that runs for its step ends: on its own thread, whichever of its threads gave the reason."""

from __future__ import annotations

import logging
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchledger._torch.errors import wants_device
from torchledger.errors import PlanError

log = logging.getLogger(__name__)

_IDLE_S = 10.0
"""So long a program does nothing that waits for a thread of its own that has failed."""

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
        self._is_running = False
        self._failure: PlanError | None = None
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
        self._interrupt()
        raise StepRecorded

    def thread_failed(self, name: str, error: BaseException) -> bool:
        """A thread of the program has ended with this error; ``True`` if nobody else need be told."""
        if isinstance(error, (StepRecorded, SystemExit)):
            return isinstance(error, StepRecorded)
        failure = PlanError(explain(error, thread=name))
        if _is_of_torch(error):
            self._fail(failure)
        else:
            self.hint = f" Thread {name!r} had ended: {type(error).__name__}: {first_line(error)}."
            threading.Thread(target=self._watch, args=(failure,), daemon=True).start()
        return False

    def _watch(self, failure: PlanError) -> None:
        while self._is_running:
            used, since = time.process_time(), time.monotonic()
            time.sleep(_IDLE_S)
            if time.process_time() - used < _IDLE_SHARE * (time.monotonic() - since):
                self._fail(failure)
                return

    def _fail(self, failure: PlanError) -> None:
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


def explain(error: BaseException, *, thread: str | None = None) -> str:
    """What failed, and where in the program."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_library(frame.filename)]
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    who = "the program" if thread is None else f"the program's thread {thread!r}"
    if wants_device(error):
        line = f" (`{own[-1].line}`)" if own and own[-1].line else ""
        return (
            f"{who} failed without its device{where}{line}: what runs there goes past torch to the device itself, and "
            "its results cannot be known without it. Plan the script without that part."
        )
    what = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
    return (
        f"{who} failed without its device{where}: {what}. A value that was not computed, or an extension that wants a "
        "real device, cannot be stood in for there: plan the script without that part."
    )


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
