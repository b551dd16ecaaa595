"""Do something on a thread, right before it ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class AtThreadEnd:
    """Calls ``action`` on the thread that asked for it, when that thread ends.

    What a profiler began on a thread has to end there: torch ends the process with a segmentation fault otherwise, and
    no other hook is called on a thread of the user's that is about to go.
    """

    def __init__(self) -> None:
        self._local = threading.local()

    def do(self, action: Callable[[], None]) -> None:
        """Do ``action`` when the calling thread ends, in place of what it was to do so far."""
        self._local.last = _Last(action)

    def cancel(self) -> None:
        """Do nothing when the calling thread ends."""
        last: _Last | None = getattr(self._local, "last", None)
        if last is not None:
            last.action = None


class _Last:
    """Lives in a thread's local storage, and so is deleted by the thread that ends."""

    action: Callable[[], None] | None = None

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action
        self._thread = threading.get_ident()

    def __del__(self) -> None:
        if self.action is not None and threading.get_ident() == self._thread:
            try:
                self.action()
            except Exception as error:  # nobody could catch it here
                log.warning("what was to be done at the end of a thread failed: %s: %s", type(error).__name__, error)
