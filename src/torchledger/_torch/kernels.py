"""Private names that running kernels alone needs."""

from __future__ import annotations


def launch_empty_kernel() -> None:
    """Launch a kernel that does nothing on the present CUDA stream.

    ``torch.cuda._sleep`` (a spin of no length) is private but present from torch 2.0 to 2.13.
    """
    import torch

    torch.cuda._sleep(0)
