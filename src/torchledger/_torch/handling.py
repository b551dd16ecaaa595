"""What a plan itself takes for operators on tensors that have values: a loader's small tensors take more of it than of
their own work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_AROUND = 1.08
"""With torch's way to the plan and back it takes so much more than in the plan itself: 161 ms to 148 for 513 operators
on tensors of a few hundred bytes (a loader that collates, torch 2.11 and Python 3.11)."""


class Handling(threading.local):
    """Counts, on each thread, the ``seconds`` that operators take while they are heard, without those in which tensors
    that have values are computed, and what else the plan does ``between`` them. ``begins`` and ``ends`` are told around
    each operator; they may be nested."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0
        self._since_s = 0.0

    def begins(self) -> None:
        """An operator is heard."""
        if not self._depth:
            self._since_s = time.thread_time()
        self._depth += 1

    def ends(self) -> None:
        """The program goes on."""
        self._depth -= 1
        if not self._depth:
            self.seconds += _AROUND * (time.thread_time() - self._since_s)

    def between(self, seconds: float) -> None:
        """The plan has been at work for as long, also where no operator was heard."""
        if not self._depth:
            self.seconds += seconds

    def computed(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What an operator gives, whose own time is none of the plan's."""
        if not self._depth:
            return func(*args, **kwargs)
        begin = time.thread_time()
        try:
            return func(*args, **kwargs)
        finally:
            self.seconds -= time.thread_time() - begin
