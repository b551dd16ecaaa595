"""Which devices the program uses: asked without waking one that it does not use."""

from __future__ import annotations

import torch

from torchledger._torch.patching import Patches


class _Use:
    """Whether a GPU's memory was seen in use; asked at each step, so that it is looked up until it was and no more."""

    is_seen = False
    is_of_plan = False


def use_none(patches: Patches) -> None:
    """Have the program use no device until the patches are undone, whatever memory it takes: none of it is there."""
    patches.set(_Use, "is_of_plan", True)


def has_cuda() -> bool:
    """True once the program has taken memory of a GPU.

    That CUDA is initialized says less: Inductor asks for the GPU's properties also when it compiles for the CPU.
    """
    if _Use.is_of_plan:
        return False
    if not _Use.is_seen and torch.cuda.is_available() and torch.cuda.is_initialized():
        try:
            _Use.is_seen = any(torch.cuda.memory_reserved(index) for index in range(torch.cuda.device_count()))
        except RuntimeError:  # an allocator of the program's own, which keeps no count
            _Use.is_seen = True
    return _Use.is_seen
