"""When a checkpoint ends what it runs again, as the backward has what it needs: an error of torch's own says so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torchledger._torch.patching import Patches
from torchledger.signals import let_through

_STOPS = "_StopRecomputationError"


def watch_stops(stopped: Callable[[], None], on_fault: Callable[[str], None]) -> Patches:
    """Call ``stopped`` at each such end, on the thread that it is on, until the patches are undone.

    Of the operator that was about to run, profilers record a call that is not made.
    """
    patches = Patches()
    error = getattr(sys.modules.get("torch.utils.checkpoint"), _STOPS, None)
    if error is None or "__init__" in vars(error):
        return patches

    def made(self: Any, *args: Any) -> None:
        super(error, self).__init__(*args)
        try:
            stopped()
        except Exception as fault:  # autograd waits for the error
            let_through(fault)
            on_fault(f"{_STOPS}: {type(fault).__name__}: {fault}")

    error.__init__ = made
    patches.on_undo(lambda: delattr(error, "__init__"))
    return patches
