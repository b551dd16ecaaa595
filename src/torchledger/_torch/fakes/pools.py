"""Pools of memory and their allocators on a device that is not there: allocated in one is allocated anywhere."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._C import _distributed_c10d as core

from torchledger._torch.patching import Patches

_NUMBERS = itertools.count(1)


class Allocator:
    """Stands for an allocator of NCCL's, of symmetric memory or of a library that the program loads."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def allocator(self) -> Allocator:
        """What a pool is made of."""
        return self


class _Pool:
    """Stands for ``torch.cuda.MemPool``."""

    def __init__(self, allocator: Any = None, *args: Any, **kwargs: Any) -> None:
        self.allocator = allocator
        self.id = (0, next(_NUMBERS))

    def use_count(self) -> int:
        """How many hold it."""
        return 1

    def snapshot(self, include_traces: bool = True) -> list[Any]:
        """Its segments, of which there are none."""
        return []


@contextlib.contextmanager
def _use_mem_pool(pool: Any, device: Any = None) -> Iterator[None]:
    yield


def pool_names() -> Mapping[str, Any]:
    """What stands in ``torch.cuda`` for pools and allocators."""
    return {
        "MemPool": _Pool,
        "use_mem_pool": _use_mem_pool,
        "CUDAPluggableAllocator": Allocator,
        "change_current_allocator": lambda allocator: None,
        **{name: lambda *args, **kwargs: None for name in _BELOW},
    }


_BELOW = (
    *("_cuda_beginAllocateToPool", "_cuda_beginAllocateCurrentThreadToPool"),
    *("_cuda_endAllocateToPool", "_cuda_releasePool"),
)


def let_groups_allocate(patches: Patches) -> None:
    """Groups have an allocator, and pools are registered with them, as with NCCL's."""

    def allocate_tensor(backend: Any, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    names = {
        "mem_allocator": property(lambda backend: Allocator()),
        "supports_tensor_alloc": lambda backend, device: torch.device(device).type == "cuda",
        "allocate_tensor": allocate_tensor,
        "register_mem_pool": lambda backend, pool, symm=False: None,
        "deregister_mem_pool": lambda backend, pool: None,
    }
    for name, value in names.items():
        if name in vars(core.Backend):
            patches.set(core.Backend, name, value)
        else:
            patches.hide(core.Backend, name, value)
