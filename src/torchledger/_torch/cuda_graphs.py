"""Replays of the CUDA graphs that a program captures itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

from torchledger._torch.patching import Patches


def watch_replays(around: Callable[[], AbstractContextManager[None]]) -> Patches:
    """Enter ``around`` while the program replays a graph, until the patches are undone. Replays that torch asks for
    itself, of what it compiles, are parts of its own calls."""
    from torch.cuda.graphs import CUDAGraph  # torch may be on its way in, and not have its names yet

    patches = Patches()

    def replay(original: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any) -> Any:
        if is_asked_by_torch(sys._getframe(1)):
            return original(graph, *args, **kwargs)
        with around():
            return original(graph, *args, **kwargs)

    patches.around(CUDAGraph, "replay", replay)
    return patches


def is_asked_by_torch(frame: FrameType | None) -> bool:
    """Whether the code of this frame, or what stands behind frames of ours, is torch's own."""
    package = "torchledger"
    while frame is not None and package == "torchledger":  # what stands between, of ours
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        frame = frame.f_back
    return package == "torch"
