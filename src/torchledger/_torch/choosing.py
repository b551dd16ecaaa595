"""Where Inductor measures the kernels that it chooses among: processes that share a device take turns there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch._inductor.runtime.benchmarking import benchmarker

from torchledger._torch.patching import Patches


def choose_in_turn(turn: Callable[[], AbstractContextManager[Any]]) -> Patches:
    """Hold a ``turn`` while a kernel is measured on a GPU to be chosen or not, until the patches are undone.

    Measured beside others, which kernel is quickest is chance.
    """
    patches = Patches()
    measure = benchmarker.benchmark_gpu
    is_in_turn = False

    def measure_in_turn(*arguments: Any, **named: Any) -> Any:
        nonlocal is_in_turn
        if is_in_turn:
            return measure(*arguments, **named)
        with turn():
            is_in_turn = True
            try:
                return measure(*arguments, **named)
            finally:
                is_in_turn = False

    patches.set(benchmarker, "benchmark_gpu", measure_in_turn)
    return patches
