"""Hears the outermost calls of modules, in programs that compile nothing.

Hooks on all modules are seen by Dynamo, which would trace them: they are taken out before anything is compiled.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from torch.nn.modules.module import (
    Module,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from torchledger.signals import let_through


def _makes_a_parameter(module: Module) -> bool:
    """Whether a module is read as a parameter of another; its kind is imported by programs that have some."""
    known = sys.modules.get("torch.nn.utils.parametrize")
    return known is not None and isinstance(module, known.ParametrizationList)


def _is_in_loader() -> bool:
    """Whether this process makes batches for another: modules that it calls transform samples, and are no steps."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(worker, "_worker_info", None) is not None


class ModuleCalls:
    """Tells ``called`` of each module that is about to be called from outside all others, until ``undo``.

    What makes a parameter that is read (``weight_norm``) is called by torch, and not told of.
    What ``called`` raises goes to ``on_fault``, and not to the program.
    """

    def __init__(self, called: Callable[[Module], None], on_fault: Callable[[Exception], None]) -> None:
        self._called, self._on_fault = called, on_fault
        self._inside = threading.local()
        self._handles = [
            register_module_forward_pre_hook(self._begins),
            register_module_forward_hook(self._ends, always_call=True),
        ]

    def _begins(self, module: Module, inputs: Any) -> None:
        depth = getattr(self._inside, "depth", 0)
        self._inside.depth = depth + 1
        if depth or _makes_a_parameter(module) or _is_in_loader():
            return
        try:
            self._called(module)
        except Exception as error:  # the user's call is about to be made
            let_through(error)
            self._on_fault(error)

    def _ends(self, module: Module, inputs: Any, result: Any) -> None:
        self._inside.depth = max(getattr(self._inside, "depth", 0) - 1, 0)

    def undo(self) -> None:
        """Take the hooks out."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
