"""A launcher that ends its ranks because one of them failed may not cut off what the others are writing."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def termination_deferred() -> Iterator[None]:
    """Hold SIGTERM back until the block has ended, and let it do then what it would have done; else nothing.

    Only the main thread can; a second signal, or SIGKILL some time later, is not held back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    former = signal.getsignal(signal.SIGTERM)
    if former is None or former is signal.SIG_IGN:  # set by other than Python, or not heard anyway
        yield
        return

    def hold(number: int, frame: object) -> None:
        received.append(number)
        signal.signal(signal.SIGTERM, former)

    signal.signal(signal.SIGTERM, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
        if received:
            signal.raise_signal(signal.SIGTERM)
