"""Threads of a program whose device is not there: each works on fake tensors as the first one does.

Modes of torch hold on the thread that entered them, and so does the setting that keeps a backward on its thread: a
thread that a program starts is given both before it runs. Once the program is over such a thread stops at its next
operator, and nobody waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import torch

from torchledger._torch.fakes.tensors import FakeTensors
from torchledger._torch.patching import Patches

log = logging.getLogger(__name__)

_LOOKS_S = 0.2
"""How often what waits for a thread looks whether the program is over."""


class FakeThreads:
    """The threads that a program starts; ``tensors`` are entered on each of them.

    ``on_error`` is called on a thread that ends with an exception, with the thread's name and the exception. It says
    whether it has dealt with it; if not, Python prints it.
    """

    def __init__(self, tensors: FakeTensors) -> None:
        self.on_error: Callable[[str, BaseException], bool] = lambda name, error: False
        self._tensors = tensors
        self._waited_for: list[threading.Thread] = []

    def install(self, patches: Patches) -> None:
        """Have threads that start until the patches are undone run so."""
        threads = self
        original: Callable[[threading.Thread], None] = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            threads._prepare(thread)
            original(thread)

        patches.set(threading.Thread, "start", start)

    def join(self) -> None:
        """Wait as Python does at the end of a program, for all that are no daemons."""
        while self._waited_for:
            self._waited_for.pop().join()

    def _prepare(self, thread: threading.Thread) -> None:
        run, join = thread.run, thread.join
        if not thread.daemon:
            self._waited_for.append(thread)
            thread.daemon = True  # a step that was recorded ends the program, whose threads wait for more of it

        def run_on_fake_tensors() -> None:
            try:
                torch._C._set_multithreading_enabled(False)
                with self._tensors:
                    run()
            except BaseException as error:
                if self._tensors.is_over:
                    log.debug("thread %s, after the program was over", thread.name, exc_info=error)
                elif not self.on_error(thread.name, error):
                    raise

        def join_unless_over(timeout: float | None = None) -> None:
            while timeout is None and not self._tensors.is_over and thread.is_alive():
                join(_LOOKS_S)
            join(0.0 if timeout is None and self._tensors.is_over else timeout)

        thread.run = run_on_fake_tensors  # type: ignore[method-assign]
        thread.join = join_unless_over  # type: ignore[method-assign]
