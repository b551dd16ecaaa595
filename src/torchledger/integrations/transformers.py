"""For transformers: ``Trainer(..., callbacks=[LedgerCallback("train.ledger")])``."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

from transformers import TrainerCallback

import torchledger


class LedgerCallback(TrainerCallback):
    """Says where the Trainer's steps end; with a path, records what is compiled during training into a ledger there.

    Under ``torchledger run --profile`` leave the path out: the run has a ledger already.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> None:
        self._path, self._force, self._open = path, force, ExitStack()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin to record."""
        if self._path is not None:
            self._open.enter_context(torchledger.capture(self._path, force=self._force))

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """An optimizer's step, whatever it accumulated, is a step."""
        torchledger.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Close the ledger."""
        self._open.close()
