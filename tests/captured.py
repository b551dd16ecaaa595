"""Capture something in a test and read the ledger back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import torchledger
from torchledger._torch.flops import added_formulas
from torchledger.nouns import Difference, Gap, Graph, Kernel, Launch
from torchledger.store import open_ledger
from unbuilt import unbuilt_kernels


@dataclass(frozen=True)
class Captured:
    """Everything that a capture wrote."""

    path: Path
    graphs: list[Graph]
    kernels: list[Kernel]
    launches: list[Launch]
    gaps: list[Gap]
    differences: list[Difference]

    @property
    def calls(self) -> list[Launch]:
        """The entries that launch something."""
        return [launch for launch in self.launches if launch.category != "nop"]

    @property
    def fused(self) -> list[Launch]:
        """The launches of kernels that Inductor wrote."""
        return [launch for launch in self.calls if launch.category not in ("extern", "inline")]

    @property
    def flops(self) -> int:
        return sum(launch.flops or 0 for launch in self.launches)

    @property
    def reference_flops(self) -> int:
        return sum(reference.flops for graph in self.graphs for reference in graph.flop_references)

    @property
    def named_differences(self) -> int:
        return sum(int(difference.amount) for difference in self.differences if difference.account == "flops")

    @property
    def wrapper_calls(self) -> int:
        return sum(len(graph.wrapper_calls) for graph in self.graphs)


def read(path: Path) -> Captured:
    """The content of a ledger."""
    with open_ledger(path) as ledger:
        return Captured(
            path,
            ledger.read(Graph),
            ledger.read(Kernel),
            ledger.read(Launch),
            ledger.read(Gap),
            ledger.read(Difference),
        )


def capture_call(path: Path, function: Callable[[], Any], *, builds: bool = False) -> Captured:
    """Run ``function`` from a clean Dynamo state under a capture; unless it ``builds``, C++ kernels write zeros."""
    torch._dynamo.reset()
    with contextlib.nullcontext() if builds else unbuilt_kernels(), torchledger.capture(path, force=True):
        function()
    return read(path)


def eager_flops(function: Callable[[], Any]) -> int:
    """What ``FlopCounterMode`` counts for an eager call, with the formulas that torch lacks."""
    with FlopCounterMode(display=False, custom_mapping=added_formulas()) as counter:
        function()
    return counter.get_total_flops()
