"""Processes that a script starts for its ranks: the planned one runs here, the others are not started."""

from __future__ import annotations

import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

import torch.multiprocessing

from torchledger._torch.patching import Patches
from torchledger.errors import UsageError


def run_spawned_here(patches: Patches, local_rank: int, local_size: int) -> HeldProcesses:
    """Of the processes that a script starts for its ranks, ``local_rank`` of ``local_size`` runs here, until undone.

    ``torch.multiprocessing.spawn`` calls its function as that process; processes that are started one by one are held
    back, and the one is run once the script waits for any, or with ``join`` of what is returned. ``UsageError`` is
    raised where a script starts another number of them.
    """

    def start(function: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
        _check_number(nprocs, local_size)
        function(local_rank, *args)

    module = sys.modules[torch.multiprocessing.start_processes.__module__]
    for name in ("spawn", "start_processes"):
        patches.set(module, name, start)
        patches.set(torch.multiprocessing, name, start)
    held = HeldProcesses(local_rank, local_size)
    held.install(patches)
    return held


class HeldProcesses:
    """Processes that call one function with their own numbers, 0, 1 and so on: ranks. No other is held back."""

    def __init__(self, local_rank: int, local_size: int) -> None:
        self._local_rank, self._local_size = local_rank, local_size
        self._held: list[Any] = []
        self._has_run = False

    def install(self, patches: Patches) -> None:
        """Hold them until the patches are undone."""
        held, started, joined = self, BaseProcess.start, BaseProcess.join

        def start(process: Any) -> None:
            if held._is_next_rank(process):
                held._held.append(process)
            else:
                started(process)

        def join(process: Any, timeout: float | None = None) -> None:
            if process in held._held:
                held.join()
            else:
                joined(process, timeout)

        patches.set(BaseProcess, "start", start)
        patches.set(BaseProcess, "join", join)

    def join(self) -> None:
        """Run the planned one, if processes were held back and it has not run."""
        if not self._held or self._has_run:
            return
        self._has_run = True
        _check_number(len(self._held), self._local_size)
        self._held[self._local_rank].run()

    def _is_next_rank(self, process: Any) -> bool:
        function, given = process._target, (*process._args, *process._kwargs.values())
        is_same = not self._held or self._held[0]._target is function
        own = getattr(function, "__module__", None) or ""
        is_library = own.partition(".")[0] in ("torch", "multiprocessing")
        number = len(self._held)
        return is_same and not is_library and any(type(each) is int and each == number for each in given[:2])


def _check_number(started: int, local_size: int) -> None:
    if started != local_size:
        raise UsageError(
            f"the script starts {started} processes, and the plan has {local_size} on a node. The nearest that "
            f"works is --world {started}, or --node {started} in a larger world."
        )
