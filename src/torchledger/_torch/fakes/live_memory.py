"""What a program has allocated of a device that is not there, for programs that ask for it or try until it runs out.

Counted are the storages of its tensors, in the allocator's blocks of 512 bytes, and not what the allocator keeps beside
them. Memory runs out only where the program catches that: where it does not, its step is priced, and whether it fits is
said.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from torchledger._torch.tensors import memory_key, tensors_in
from torchledger._torch.user_lines import user_frames
from torchledger.followers import Follower
from torchledger.memory_searches import catches_running_out

_BLOCK_BYTES = 512
_MOST_ALIKE = 2
"""So often the same allocation fails at the same place: a program that goes on trying it without a change would try for
ever."""


class LiveMemory(Follower):
    """Counts bytes that are ``allocated`` now, and the most that were (``peak``), of ``total_bytes``.

    ``limit_bytes`` is how much is there for
    tensors, and ``on_run_out`` is told of the place of the ``try`` whenever no more is.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = self.limit_bytes = total_bytes
        self.allocated = self.peak = 0
        self.on_run_out: Callable[[str], None] = lambda place: None
        self._held: dict[int, weakref.ref[Any]] = {}
        self._failed: Counter[tuple[str, int]] = Counter()
        self._lock = threading.RLock()

    def called(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """An operator has been called."""
        for each in tensors_in(result):
            self._see(each)

    def graph_called(self, begun: None, outputs: Any) -> None:
        """A compiled graph has been called: what it made inside it has freed."""
        for each in tensors_in(outputs):
            self._see(each)

    def _see(self, tensor: Any) -> None:
        if type(tensor) is not FakeTensor or tensor.fake_device.type != "cuda" or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key = memory_key(storage)
        if key in self._held:
            return
        nbytes = -(-storage.nbytes() // _BLOCK_BYTES) * _BLOCK_BYTES
        if self.allocated + nbytes > self.limit_bytes:
            self._run_out(nbytes)
        with self._lock:
            self._held[key] = weakref.ref(storage, functools.partial(self._freed, key, nbytes))
            self.allocated += nbytes
            self.peak = max(self.peak, self.allocated)

    def _freed(self, key: int, nbytes: int, reference: Any) -> None:
        with self._lock:
            if self._held.get(key) is reference:
                del self._held[key]
            self.allocated -= nbytes

    def _run_out(self, nbytes: int) -> None:
        place = catches_running_out((frame.f_code.co_filename, line) for frame, line in user_frames())
        if place is None or self._failed[place, nbytes] >= _MOST_ALIKE:
            return
        self._failed[place, nbytes] += 1
        self.on_run_out(place)
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {_size(nbytes)}. GPU 0 has a total capacity of "
            f"{_size(self.total_bytes)} of which {_size(self.free)} is free. Including non-PyTorch memory, this "
            f"process has {_size(self.total_bytes - self.free)} memory in use. Of the allocated memory "
            f"{_size(self.allocated)} is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
        )

    @property
    def free(self) -> int:
        """Bytes that are left for tensors."""
        return max(0, self.limit_bytes - self.allocated)

    def statistics(self) -> dict[str, int]:
        """Bytes by the names of torch's own count; of any other there is nothing."""
        kinds = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")
        counted = {"current": self.allocated, "peak": self.peak}
        return {f"{kind}.all.{name}": nbytes for kind in kinds for name, nbytes in counted.items()}

    def answers(self) -> dict[str, Any]:
        """What stands in ``torch.cuda`` for questions about memory."""

        def answer(value: Callable[[], Any]) -> Callable[..., Any]:
            return lambda *args, **kwargs: value()

        now, most, reset = answer(lambda: self.allocated), answer(lambda: self.peak), answer(self._reset_peak)
        return {
            **dict.fromkeys(("memory_allocated", "memory_reserved", "memory_cached"), now),
            **dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), most),
            **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated"), reset),
            "mem_get_info": answer(lambda: (self.free, self.total_bytes)),
        }

    def _reset_peak(self) -> None:
        self.peak = self.allocated


def _size(nbytes: int) -> str:
    """A size as torch's allocator says it.

    >>> _size(3 << 29), _size(3 << 20)
    ('1.50 GiB', '3.00 MiB')
    """
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 1 << 30 else f"{nbytes / 2**20:.2f} MiB"
