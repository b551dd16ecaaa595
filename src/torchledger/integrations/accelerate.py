"""For accelerate: ``mark_steps(optimizer)`` after ``prepare`` for training, ``LedgerHook`` for inference."""

from __future__ import annotations

from typing import Any

from accelerate.hooks import ModelHook

import torchledger


def mark_steps(optimizer: Any) -> Any:
    """Say that a step ends whenever the prepared optimizer steps; with accumulated gradients, when it really does.

    Returns the handle whose ``remove()`` ends it.
    """
    plain = getattr(optimizer, "optimizer", optimizer)
    return plain.register_step_post_hook(lambda *_: torchledger.step())


class LedgerHook(ModelHook):  # type: ignore[misc]
    """Says that a step ends with each forward of a module: ``add_hook_to_module(model, LedgerHook(), append=True)``."""

    def post_forward(self, module: Any, output: Any) -> Any:
        """Leave the output as it is."""
        torchledger.step()
        return output
