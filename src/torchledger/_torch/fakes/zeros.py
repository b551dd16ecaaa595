"""Zeros that stand for a tangent that is none (``_efficientzerotensor``): what is seen of them in a plan.

A forward derivative (``torch.func.jvp``) has no memory for the tangent of a constant, but a tensor that knows that it
is all zeros. torch has kernels of its own for views of these, which come before any mode of Python's: they would make
tensors that no plan knows.
"""

from __future__ import annotations

import warnings

import torch

from torchledger._torch.patching import Patches

_VIEWED_BEFORE_MODES = ("view", "as_strided", "_reshape_alias")


def see_views_of_zeros(patches: Patches) -> None:
    """Until ``patches`` are undone views of such zeros are made as any other's are, by the same kernels."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        for name in _VIEWED_BEFORE_MODES:
            library.impl(name, torch.library.fallthrough_kernel, "ZeroTensor", allow_override=True)
    patches.on_undo(library._destroy)
