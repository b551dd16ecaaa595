"""Signals of the user's program: what its handlers do reaches it, and never falls into the middle of a record.

A handler runs on the main thread wherever that happens to be, also in code of ours. Many raise: ranks under torch's
elastic agent hear so that they are to end, and programs break off what takes too long. A guard of ours that kept such
an exception would keep the program from hearing its own signal, and what it broke off would be lost as if by a fault.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType

from torchledger.frame_variables import local_of

_PACKAGE = str(Path(__file__).parent)
"""No handler of the program stands in here."""

_ENDS_A_PROGRAM = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_MAY_RAISE = (signal.SIGALRM, signal.SIGPROF, signal.SIGUSR1, signal.SIGUSR2, signal.SIGVTALRM, signal.SIGXCPU)


def let_through(error: BaseException | None) -> None:
    """Raise ``error`` again if a signal's handler raised it, or what it came from, while our code ran.

    To be called first in whatever guards the user's program against faults of ours.
    """
    came_from = error
    while came_from is not None:
        if _was_raised_by_a_handler(came_from.__traceback__):
            raise came_from
        came_from = came_from.__cause__


def _was_raised_by_a_handler(traceback: TracebackType | None) -> bool:
    """A handler is given a number and the frame that it interrupts, which is the one that seems to call it."""
    interrupted: FrameType | None = None
    while traceback is not None:
        frame = traceback.tb_frame
        is_ours = frame.f_code.co_filename.startswith(_PACKAGE)
        if interrupted is not None and not is_ours and any(each[1] is interrupted for each in _numbered(frame)):
            return True
        interrupted, traceback = frame, traceback.tb_next
    return False


def _numbered(frame: FrameType) -> Iterator[tuple[object, object]]:
    """Each argument that follows a whole number, with that: ``(number, frame)`` and ``(*arguments)`` alike."""
    code = frame.f_code
    n_named = code.co_argcount + code.co_kwonlyargcount
    has_rest = bool(code.co_flags & inspect.CO_VARARGS)
    names = (*code.co_varnames[: code.co_argcount], *code.co_varnames[n_named : n_named + has_rest])
    given: list[object] = []
    for value in (local_of(frame, name) for name in names):
        given += value if type(value) is tuple else (value,)
    return (pair for pair in itertools.pairwise(given) if isinstance(pair[0], int))


@contextlib.contextmanager
def signals_deferred(*, at_end: bool = False) -> Iterator[None]:
    """Hold signals that the program handles back until the block has ended, and let its handlers have them then.

    With ``at_end`` also those that would end the process. Only the main thread can; elsewhere nothing happens. A signal
    that comes a second time, and SIGKILL, are not held back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (*_ENDS_A_PROGRAM, *_MAY_RAISE)}
    former = {
        number: handler
        for number, handler in handlers.items()  # None where other than Python has set one
        if callable(handler) or (at_end and handler is signal.SIG_DFL and number in _ENDS_A_PROGRAM)
    }
    received: list[int] = []
    is_over = False

    def hold(number: int, frame: FrameType | None) -> None:
        signal.signal(number, former[signal.Signals(number)])
        if is_over:  # another's handler has raised before this one was put back
            signal.raise_signal(number)
        else:
            received.append(number)

    try:
        for number in former:
            signal.signal(number, hold)
        yield
    finally:
        is_over = True
        with contextlib.ExitStack() as rest:  # each of them, whatever another raises
            for each in reversed(received):
                rest.callback(signal.raise_signal, each)
            for number, handler in former.items():
                if signal.getsignal(number) is hold:
                    signal.signal(number, handler)


def end_with_parent(parent: int) -> None:
    """Have Linux kill this process when the one that started it dies, so that it does not go on for nobody.

    ``parent`` is the number of the process that started this one: where that has died already, this one ends at once.
    """
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
