"""TorchScript without a device: its functions run operator by operator, as its fusers ask for a compiler of CUDA."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from torchledger._torch.patching import Patches

_FUSERS = (
    ("_jit_texpr_fuser_enabled", "_jit_set_texpr_fuser_enabled"),
    ("_jit_can_fuse_on_gpu", "_jit_override_can_fuse_on_gpu"),
)
"""Whether a fuser works on what is on the device, and what says so: today's, and that of the executor before it."""


def run_scripts_unfused(patches: Patches, note: Callable[[str, str], None]) -> None:
    """Until ``patches`` are undone nothing of ``torch.jit.script`` is fused, whatever the program sets, which is given
    to ``note`` for each function or module of its own that is compiled so."""
    for asks, says in _FUSERS:
        _leave_off(patches, getattr(torch._C, asks)(), says)
    script = torch.jit.script

    def noted(obj: Any, optimize: Any = None, _frames_up: int = 0, *args: Any, **kwargs: Any) -> Any:
        # Rules for forward derivatives are compiled so by torch itself (torch/_decomp/decompositions_for_jvp.py).
        if not sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
            note("what torch.jit.script compiles", "operator by operator, nothing fused")
        return script(obj, optimize, _frames_up + 1, *args, **kwargs)

    patches.set(torch.jit, "script", noted)


def _leave_off(patches: Patches, is_on: bool, name: str) -> None:
    says = getattr(torch._C, name)
    says(False)
    patches.on_undo(lambda: says(is_on))
    patches.set(torch._C, name, lambda is_wanted: is_on)
