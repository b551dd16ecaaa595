"""For Lightning: ``Trainer(callbacks=[LedgerCallback("fit.ledger")])``."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

import torchledger

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback


class LedgerCallback(Callback):  # type: ignore[misc]
    """Says where the steps of a fit end; with a path, records what is compiled during it into a ledger there.

    Under ``torchledger run --profile`` leave the path out: the run has a ledger already.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> None:
        self._path, self._force, self._open = path, force, ExitStack()

    def on_fit_start(self, *_: Any) -> None:
        """Begin to record."""
        if self._path is not None:
            self._open.enter_context(torchledger.capture(self._path, force=self._force))

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """A batch is a step."""
        torchledger.step()

    def on_fit_end(self, *_: Any) -> None:
        """Close the ledger."""
        self._open.close()

    def on_exception(self, *_: Any) -> None:
        """Close it, with what was finished."""
        self._open.close()
