"""Processes that a script starts for its ranks: the planned one runs here, the others are not started."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch.multiprocessing

from torchledger._torch.patching import Patches
from torchledger.errors import UsageError


def run_spawned_here(patches: Patches, local_rank: int, local_size: int) -> None:
    """``torch.multiprocessing.spawn`` calls its function as process ``local_rank`` of ``local_size``, until undone.

    It raises ``UsageError`` where a script starts another number of processes.
    """

    def start(function: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
        if nprocs != local_size:
            raise UsageError(
                f"the script starts {nprocs} processes, and the plan has {local_size} on a node. The nearest that "
                f"works is --world {nprocs}, or --node {nprocs} in a larger world."
            )
        function(local_rank, *args)

    module = sys.modules[torch.multiprocessing.start_processes.__module__]
    for name in ("spawn", "start_processes"):
        patches.set(module, name, start)
        patches.set(torch.multiprocessing, name, start)
