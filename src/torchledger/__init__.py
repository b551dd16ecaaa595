"""A ledger of every kernel that a compiled PyTorch model runs.

Importing this package imports no torch and changes nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "capture": "torchledger.api",
    "step": "torchledger.profiling.profile",
    "bench": "torchledger.replaying.bench",
    "import_trace": "torchledger.traces.breakdown",
    "report": "torchledger.reporting.html",
    "open_ledger": "torchledger.store",
    "values": "torchledger.watching",
}
"""Public name to the room that defines it; loaded on first use."""

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
