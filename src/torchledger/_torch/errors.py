"""What an error of torch means: not supported here, out of memory, a device that is lost or not there.

torch has types for some of these since 2.9, and words alone for others; the words are read here and nowhere else.
"""

from __future__ import annotations

import re
import types

_NOT_SUPPORTED = re.compile(r"^(\"[\w.:<>, ]+\" not implemented for '|'_OpNamespace' '\w+' object has no attribute )")
"""A kernel that lacks an element type, by the kernel's name; an operator that this version of torch does not have."""

_OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory", re.IGNORECASE)
_DEVICE_FAULT = re.compile(r"CUDA error|CUBLAS_STATUS_EXECUTION_FAILED")
_NO_DEVICE = re.compile(
    r"CUDA driver|cudaError|NVIDIA driver|kernel for cuda|not compiled with CUDA|CUDA-capable", re.IGNORECASE
)


def is_unsupported(error: BaseException) -> bool:
    """True where torch says that it cannot do this at all; an error in doing it is none of these.

    >>> is_unsupported(NotImplementedError("...")), is_unsupported(RuntimeError("expected only 3 tensors"))
    (True, False)
    """
    if isinstance(error, (NotImplementedError, ImportError)):
        return True
    if isinstance(error, AttributeError) and isinstance(error.obj, types.ModuleType):
        return error.obj.__name__.partition(".")[0] == "torch"
    return isinstance(error, (RuntimeError, AttributeError)) and _NOT_SUPPORTED.match(str(error)) is not None


def is_out_of_memory(error: BaseException) -> bool:
    """True where neither the device nor the host had the memory."""
    import torch

    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    )


def is_device_fault(error: BaseException) -> bool:
    """True where the device refuses further work: only a fresh process can go on."""
    import torch

    if isinstance(error, torch.OutOfMemoryError):
        return False
    return isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError) and _DEVICE_FAULT.search(str(error)) is not None
    )


def wants_device(error: BaseException) -> bool:
    """True where something asked for a device, a driver or a kernel that is not there; the driver reports a device that
    is not there as it reports one that failed.

    >>> wants_device(AssertionError("Torch not compiled with CUDA enabled"))
    True
    """
    return any(words.search(str(error)) for words in (_NO_DEVICE, _DEVICE_FAULT))
