"""A ledger of every kernel that a compiled PyTorch model runs.

Importing this package imports no torch and changes nothing; each name below is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchledger.answers import diff as diff
    from torchledger.answers import load as load
    from torchledger.answers import predict as predict
    from torchledger.answers import predict_step as predict_step
    from torchledger.answers import show as show
    from torchledger.api import capture as capture
    from torchledger.api import plan as plan
    from torchledger.profiling.profile import step as step
    from torchledger.replaying.bench import bench as bench
    from torchledger.reporting.html import report as report
    from torchledger.traces.breakdown import import_trace as import_trace
    from torchledger.watching.session import values as values

__version__ = "0.1.0"

_PUBLIC = {
    "capture": "torchledger.api",
    "plan": "torchledger.api",
    "step": "torchledger.profiling.profile",
    "values": "torchledger.watching.session",
    "load": "torchledger.answers",
    "show": "torchledger.answers",
    "report": "torchledger.reporting.html",
    "diff": "torchledger.answers",
    "bench": "torchledger.replaying.bench",
    "predict": "torchledger.answers",
    "predict_step": "torchledger.answers",
    "import_trace": "torchledger.traces.breakdown",
}
"""Public name to the module that defines it; the block above says the same to type checkers."""

__all__ = ["__version__", *_PUBLIC]


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext torchledger`` calls."""
    from torchledger.integrations.notebook import register

    register(shell)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
