"""Symmetric memory of ranks that are not there: what lies on each of them lies on this one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch._C import _distributed_c10d as core
from torch.distributed import distributed_c10d as c10d
from torch.utils._python_dispatch import _disable_current_modes

from torchledger._torch.fakes.pools import Allocator
from torchledger._torch.patching import Patches
from torchledger._torch.tensors import memory_key

_PADDED = 2048
"""Bytes of a signal pad, which is not read here."""

_AS_OWN = (
    "what the program reads of and writes to its peers' symmetric memory itself is priced as within one device, and "
    "its barriers there as nothing"
)


def share_memory(patches: Patches, note: Callable[[str], None]) -> None:
    """Allocate symmetric memory as any other, and meet nobody over it; ``note`` is told where the program goes to its
    peers' memory itself."""
    from torch.distributed import _symmetric_memory as module

    groups: dict[int, Any] = {}
    backend = ["CUDA"]

    def empty_strided_p2p(
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        group_name: str | None = None,
        alloc_id: int | None = None,
    ) -> torch.Tensor:
        tensor = torch.empty_strided(size, stride, dtype=dtype, device=device)
        storage = tensor.untyped_storage()
        groups[memory_key(storage)] = group_name
        weakref.finalize(storage, groups.pop, memory_key(storage), None)
        return tensor

    def rendezvous(tensor: torch.Tensor, group_name: Any = None) -> _Shared:
        name = group_name or groups.get(memory_key(tensor.untyped_storage()))
        group: Any = c10d.GroupMember.WORLD if name is None else c10d._resolve_process_group(name)
        return _Shared(tensor, group, note)

    answers: dict[str, Callable[..., Any]] = {
        "empty_strided_p2p": empty_strided_p2p,
        "rendezvous": rendezvous,
        "has_multicast_support": lambda device_type, device_index: torch.cuda.get_device_capability() >= (9, 0),
        "set_backend": backend.append,
        "get_backend": lambda device: backend[-1],
        "get_mempool_allocator": lambda device: Allocator(),
        "is_symm_mem_tensor": lambda tensor: memory_key(tensor.untyped_storage()) in groups,
        "set_group_info": lambda *args, **kwargs: None,
        "memset32": _unchanged,
        "stream_write_value32": _unchanged,
    }
    for name, value in answers.items():
        if hasattr(core._SymmetricMemory, name):
            patches.set(core._SymmetricMemory, name, staticmethod(value))
    for name in ("_symm_mem_pools", "_group_name_to_store", "_group_name_to_workspace_tensor", "_backend_streams"):
        patches.set(module, name, {})  # what they keep is of this world's
    for name in ("put_signal", "wait_signal"):
        if hasattr(module, name):
            patches.set(module, name, lambda *args, **kwargs: note(_AS_OWN))


def _unchanged(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return tensor


class _Shared:
    """Stands for what ``rendezvous`` gives: one tensor of each rank, all of which lie where this rank's does."""

    def __init__(self, tensor: torch.Tensor, group: Any, note: Callable[[str], None]) -> None:
        self._tensor, self._note = tensor, note
        self.rank, self.world_size = group.rank(), group.size()
        self.device = tensor.device
        self.buffer_size = tensor.untyped_storage().nbytes()
        self.signal_pad_size = _PADDED
        self.offset = tensor.storage_offset() * tensor.element_size()
        self.buffer_ptrs_dev = self.signal_pad_ptrs_dev = self.multicast_ptr = tensor.data_ptr()
        self.buffer_ptrs = self.signal_pad_ptrs = [tensor.data_ptr()] * self.world_size

    def get_buffer(
        self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int | None = 0
    ) -> torch.Tensor:
        """The memory of a rank, from so many elements on."""
        if rank != self.rank:
            self._note(_AS_OWN)
        begin, tensor = storage_offset or 0, self._tensor.detach()
        with _disable_current_modes():  # a view that torch makes below all operators
            every = tensor.as_strided((self.buffer_size // tensor.element_size(),), (1,), 0)
            return every.view(dtype)[begin : begin + prod(sizes)].view(tuple(sizes))

    def get_remote_tensor(self, peer: int, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """What a peer has where this rank has its tensor."""
        return self.get_buffer(peer, sizes, dtype, self.offset // dtype.itemsize)

    def get_signal_pad(
        self, rank: int, sizes: Sequence[int] = (), dtype: torch.dtype | None = None, storage_offset: int | None = 0
    ) -> torch.Tensor:
        """The words by which ranks tell each other how far they have come."""
        dtype = dtype or torch.uint32
        return torch.empty(tuple(sizes) or (self.signal_pad_size // dtype.itemsize,), dtype=dtype, device=self.device)

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Every rank is as far as this one."""
        self._note(_AS_OWN)

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Nobody hears it."""
        self._note(_AS_OWN)

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """It is there."""
        self._note(_AS_OWN)

    def boxed(self) -> _Shared:
        """What operators take."""
        return self
