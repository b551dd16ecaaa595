"""Data loaders: how long the machine that plans takes for their batches, and whose time that is."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import dataloader
from torch.utils.data._utils import fetch

from torchledger._torch.handling import Handling
from torchledger._torch.patching import Patches


class Loading:
    """Counts what the loaders of a program and of its children load, without the plan's ``handling`` of operators. What
    they wait for (storage, ``sleep``) is among it, a processor that others have is not."""

    def __init__(self, handling: Handling) -> None:
        self._handling = handling
        self._owner = os.getpid()
        self._own, self._elsewhere = 0.0, 0.0
        self._of_children = memoryview(mmap.mmap(-1, 16)).cast("d")
        """Seconds and batches, in memory that forks share. Of two children that count at once one may be lost."""

    def install(self, patches: Patches) -> None:
        """Count until the patches are undone, and in processes that are forked before."""
        for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            patches.around(fetcher, "fetch", self._fetched)
        patches.around(dataloader._MultiProcessingDataLoaderIter, "_next_data", self._given)

    def seconds(self) -> tuple[float, float]:
        """What loading took so far on the program's own thread, and in processes of loaders, where each batch counts
        for its share of their number."""
        return self._own, self._elsewhere

    def _loaded_s(self) -> float:
        """Seconds on the clock of what loading takes, which goes on with the wall's, but stands while the plan handles
        operators and while the thread would work and others have the processor."""
        return time.perf_counter() - _held_up_s() - self._handling.seconds

    def _fetched(self, original: Callable[..., Any], fetcher: Any, indices: Any) -> Any:
        begin = self._loaded_s()
        try:
            return original(fetcher, indices)
        finally:
            took_s = max(0.0, self._loaded_s() - begin)
            if os.getpid() == self._owner:
                self._own += took_s
            else:
                self._of_children[0] += took_s
                self._of_children[1] += 1

    def _given(self, original: Callable[..., Any], loader: Any) -> Any:
        batch = original(loader)
        seconds, batches = self._of_children
        if batches:
            self._elsewhere += seconds / batches / max(1, loader._num_workers)
        return batch


def _held_up_s() -> float:
    """Seconds that the calling thread could have worked in and has waited for a processor; 0 where Linux does not count
    them, so that what is counted without them is the most that it may be."""
    try:
        return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text("ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
