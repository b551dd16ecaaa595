"""Variables of a running function, read so that nothing lives longer for it."""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any

_OURS_ALONE = 3
"""References to a snapshot of which nobody else knows: its frame's, a variable's, and the question's own."""


def local_of(frame: FrameType, name: str, default: Any = None) -> Any:
    """What a frame has under a name of its own, ``default`` where it has none.

    Before Python 3.13 a function that is asked for its variables keeps a snapshot of them all, and with it every tensor
    that they held, until it is asked again or ends. Here nothing of it is left, unless the program keeps it itself, as
    ``locals()``.

    >>> answer = 42
    >>> (lambda number: local_of(sys._getframe(), "number"))(answer)
    42
    """
    held = frame.f_locals
    value = held.get(name, default)
    is_snapshot = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED) and type(held) is dict
    # A tracer's frame gets its variables back from the snapshot.
    if is_snapshot and sys.gettrace() is None and sys.getrefcount(held) <= _OURS_ALONE:
        held.clear()
    return value
