"""What is open on one thread while a step is recorded: a recording under the profiler, a listener, a count."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

from torchledger.stepping.marks import STEP_MARK
from torchledger.stepping.thread_end import AtThreadEnd


class Session:
    """At most one tool of torch at a time, which ends on the thread that began it, at the latest when the thread does.

    ``tool`` is what is open, ``None`` between two; ``on_thread_end`` is called on a thread that ends with one open.
    """

    def __init__(self, on_thread_end: Callable[[], None]) -> None:
        self.tool: Any = None
        self._on_thread_end = on_thread_end
        self._thread: Hashable = None
        self._step_mark: Any = None
        self._at_thread_end = AtThreadEnd()

    @property
    def is_open(self) -> bool:
        """True while something is recorded, on whatever thread."""
        return self.tool is not None

    @property
    def is_here(self) -> bool:
        """True while something is open that the calling thread began, and may end."""
        return self.tool is not None and self._thread == threading.get_ident()

    @property
    def is_lost(self) -> bool:
        """True if the program's own profiler has ended the recording that is open, or waits for its end."""
        return self.tool is not None and bool(self.tool.is_lost)

    def open(self, tool: Any) -> bool:
        """Begin on the calling thread; false if the tool says that it cannot."""
        if tool.start() is False:
            return False
        self.tool, self._thread = tool, threading.get_ident()
        self._at_thread_end.do(self._thread_ends)
        return True

    def _thread_ends(self) -> None:
        if self.is_here:  # what another thread has open by now is none of this one's
            self._on_thread_end()

    def open_step(self, mark: Callable[[str], Any], number: int) -> None:
        """A step begins; ``mark`` makes the context manager of a named range."""
        self._step_mark = mark(f"{STEP_MARK}#{number}")
        self._step_mark.__enter__()

    def close_step(self) -> None:
        """The step ends, if one began."""
        if self._step_mark is not None:
            self._step_mark.__exit__(None, None, None)
            self._step_mark = None

    def close(self) -> Any:
        """End what is open, and hand it over for what it has recorded."""
        tool, self.tool = self.tool, None
        self._at_thread_end.cancel()
        tool.stop()
        return tool

    def forget(self) -> Any:
        """Hand over what is open, and its step, without an end: whoever has it ends it, or nobody can."""
        tool, self.tool, self._step_mark = self.tool, None, None
        return tool

    def cancel_thread_end(self) -> None:
        """The calling thread may end without a word: what it had open is taken care of."""
        self._at_thread_end.cancel()
