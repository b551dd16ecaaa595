"""Distributed checkpoints of a program without values: nothing is written, and what would be read is left as it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from torchledger._torch.lazy_import import after_import
from torchledger._torch.patching import Patches

_PACKAGE = "torch.distributed.checkpoint"
_SAVES = ("save", "save_state_dict")
_LOADS = ("load", "load_state_dict")


def keep_checkpoints_away(patches: Patches, note: Callable[[str, str], None]) -> None:
    """Until ``patches`` are undone have ``torch.distributed.checkpoint`` neither write nor read.

    Its planners would compare what all ranks hold, and there is one; ``note`` is told what was asked and what came.
    """

    def save(*_: Any, **__: Any) -> None:
        note("a checkpoint that torch.distributed.checkpoint would write", "nothing")

    def async_save(*_: Any, **__: Any) -> Future[None]:
        save()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def load(*_: Any, **__: Any) -> None:
        note("a checkpoint that torch.distributed.checkpoint would read", "tensors as they are")

    def replace() -> None:
        for module in (f"{_PACKAGE}.{name}" for name in ("state_dict_saver", "state_dict_loader")):
            for owner in (sys.modules[_PACKAGE], sys.modules.get(module)):
                for names, value in ((_SAVES, save), (("async_save",), async_save), (_LOADS, load)):
                    for name in names:
                        if hasattr(owner, name):
                            patches.set(owner, name, value)

    patches.on_undo(after_import(_PACKAGE, replace))
