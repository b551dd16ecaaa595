"""What a program that runs without its device computes on the host beside torch: in NumPy, in Python, in C of its own.

Time that the thread spends between two operators is the program's where its own code, or that of a package other than
torch, is at work in it: a thread beside it looks now and then. What torch and this package need there (modules, hooks,
a graph's wrapper) is none of it, and little of the program's is in what each operator costs its host.
"""

from __future__ import annotations

import _thread
import dis
import gc
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch

import torchledger
from torchledger._torch.user_lines import is_of_python
from torchledger.program_text import PACKAGES

_LOOKS_S = 0.001
_LEAST_S = 0.001
"""Less between two operators is what calling them takes."""

_AROUND_NOTES = 1.5
"""Letting go of a fake tensor takes so many times as long as noting its end: 13.0 and 20.1 us to 9.1 and 14.0 (two runs
of a loop of ``parameter.grad = None`` over 600 parameters, Python 3.11 and torch 2.11)."""

_TOOLS = tuple(f"{Path(each).parent}/" for each in (torch.__file__, torchledger.__file__))
_TRITON, _IMPORTS = "/triton/", "<frozen importlib"
_GRAPH = "__compiled_fn_"

_LETS_GO = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR", "DELETE_", "POP_TOP")
"""Instructions of Python, by the beginnings of their names, that take time only where they let go of what was there: a
batch that a loader's process has left in shared memory takes 0.1 ms for each MB of it, which no NumPy computes."""


@dataclass
class _Between:
    """The time between two operators: since when, how much work of the thread was looked at in it, and whose that was,
    seconds by lines."""

    since_s: float = 0.0
    seen_s: float = 0.0
    lines: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class OwnWork:
    """Tells ``on_work`` the seconds of the thread that makes it, and a line, each time that it has worked so between
    two operators, and ``on_plan_worked`` the seconds that the plan has needed there itself. ``begins`` and ``ends``
    are told around what torch does; they may be nested."""

    def __init__(
        self, on_work: Callable[[float, str], None], on_plan_worked: Callable[[float], None] = lambda seconds: None
    ) -> None:
        self._on_work = on_work
        self._on_plan_worked = on_plan_worked
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        self._depth = 0
        self._plans_s = 0.0
        self._collects_since_s: float | None = None
        self._between: _Between | None = _Between(self._worked_s())
        self._is_over = False
        gc.callbacks.append(self._collects)
        _thread.start_new_thread(self._look, ())  # as a thread of the program's it would be one that waits for steps

    def stop(self) -> None:
        """Nothing is looked at any more."""
        self._is_over, self._between = True, None
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)

    def _worked_s(self) -> float:
        """Seconds that the thread has worked, without what the plan needs of them."""
        return time.thread_time() - self._plans_s

    def _collects(self, phase: str, _: dict[str, int]) -> None:
        """Garbage is searched for, most of which is the plan's own."""
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._collects_since_s = time.thread_time()
        elif self._collects_since_s is not None:
            self._note_plans(time.thread_time() - self._collects_since_s)
            self._collects_since_s = None

    def plan_worked(self, since_s: float) -> None:
        """The plan itself has noted a tensor's end on the calling thread, whose clock (``time.thread_time``) showed
        ``since_s`` before."""
        if threading.get_ident() == self._thread and self._collects_since_s is None:
            self._note_plans(_AROUND_NOTES * (time.thread_time() - since_s))

    def _note_plans(self, seconds: float) -> None:
        self._plans_s += seconds
        self._on_plan_worked(seconds)

    def begins(self) -> None:
        """Torch is at work."""
        if self._is_over or threading.get_ident() != self._thread:
            return
        self._depth += 1
        between, self._between = self._between, None
        if between is None or not between.lines:
            return
        took_s = self._worked_s() - between.since_s
        own_s = took_s * sum(between.lines.values()) / between.seen_s
        if own_s >= _LEAST_S:
            self._on_work(own_s, max(between.lines, key=between.lines.__getitem__))

    def ends(self) -> None:
        """The program goes on."""
        if self._is_over or threading.get_ident() != self._thread:
            return
        self._depth = max(0, self._depth - 1)
        if not self._depth:
            self._between = _Between(self._worked_s())

    def _look(self) -> None:
        before, before_s = None, 0.0
        while not self._is_over:
            time.sleep(_LOOKS_S)
            between, now_s = self._between, self._clock_s()
            # Not in every short time between two operators, nor where the thread waits, for a batch or a processor.
            if between is not None and between is before and now_s > before_s:
                # A frame that is held keeps what its function made, which is to be free when it returns.
                line = _own_line(sys._current_frames().get(self._thread))
                if between is self._between:
                    between.seen_s += now_s - before_s
                    if line is not None:
                        between.lines[line] += now_s - before_s
            before, before_s = between, now_s

    def _clock_s(self) -> float:
        """Seconds that the watched thread has worked, asked on another one."""
        try:
            return time.clock_gettime(self._clock)
        except OSError:  # it is gone
            return 0.0


def _own_line(frame: FrameType | None) -> str | None:
    """The program's line behind code that is neither torch's nor ours; ``None`` where the code at work is, and where it
    loads a batch or lets go of something."""
    if frame is not None and _lets_go(frame):
        return None
    innermost = line = None
    while frame is not None:
        file = frame.f_code.co_filename
        if innermost is None and not is_of_python(frame) and not file.startswith("<"):
            if file.startswith(_TOOLS) or _TRITON in file or _enters_graph(frame):
                return None
            innermost = f"{file}:{frame.f_lineno}"
        if file.startswith(_TOOLS) and "/utils/data/" in file:
            return None  # also what a data set of the program's own computes is what its loader is said to take
        if line is None and file.startswith(_IMPORTS):
            return None  # modules that come once
        is_programs = PACKAGES not in file and not file.startswith((*_TOOLS, "<")) and not is_of_python(frame)
        if line is None and innermost is not None and is_programs:
            line = f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return innermost if line is None else line


def _lets_go(frame: FrameType) -> bool:
    """Whether a frame is about to let go of what a name or an attribute has held."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith(_LETS_GO)


def _enters_graph(frame: FrameType) -> bool:
    """Whether a frame is about to call, or has called, a compiled graph that stands for its lines: what torch's own
    code there has no line for is done at the first one."""
    code = frame.f_code
    return frame.f_lineno == code.co_firstlineno and any(each.startswith(_GRAPH) for each in code.co_names)
