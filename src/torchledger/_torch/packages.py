"""Calls of what AOTInductor compiled. Nothing but ``torch`` is imported: whoever loads a package is still importing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from torchledger._torch.lazy_import import PACKAGES
from torchledger._torch.patching import Patches


def mark_package_calls(name: str) -> Patches:
    """Put a range around each call of a package in a running profile; to be called once ``PACKAGES`` is imported."""
    patches = Patches()

    def call(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.autograd.profiler._is_profiler_enabled:
            return original(self, *args, **kwargs)
        with torch.autograd.profiler.record_function(name):
            return original(self, *args, **kwargs)

    patches.around(sys.modules[PACKAGES].AOTICompiledModel, "__call__", call)
    return patches
