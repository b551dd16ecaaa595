"""Classes of tensors that a program calls, ``CausalBias(...)``, while a mode hears of operators."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchledger._torch.patching import Patches


def make_unheard(patches: Patches) -> None:
    """Until ``patches`` are undone no mode hears how a tensor of a class of its own is made by calling the class.

    What a mode returns is a ``torch.Tensor`` already, which torch then refuses to make one of another class:
    ``as_subclass`` puts modes aside itself, calls do not (``THPVariable_pynew``, torch 2.11 and 2.13).
    """
    new: Any = torch.Tensor.__new__

    def called(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is torch.Tensor:
            return new(cls, *args, **kwargs)
        with _disable_current_modes():
            return new(cls, *args, **kwargs)

    patches.hide(torch.Tensor, "__new__", staticmethod(called))
