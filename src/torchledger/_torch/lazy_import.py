"""Do something right after a module has been imported by somebody else."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from torchledger.signals import let_through

log = logging.getLogger(__name__)

COMPILER = "torch._inductor.compile_fx"
"""The module that a program's first compilation imports."""

PACKAGES = "torch.export.pt2_archive._package"
"""The module that loads what AOTInductor compiled."""


def after_import(name: str, action: Callable[[], None]) -> Callable[[], None]:
    """Run ``action`` once module ``name`` is imported (now, if it already is); returns what cancels the wait.

    The module is imported by its own loader; only the moment after is ours. What ``action`` raises is logged.
    """
    if name in sys.modules and not getattr(sys.modules[name].__spec__, "_initializing", False):
        _do(action, name)
        return lambda: None
    finder = _Finder(name, action)
    sys.meta_path.insert(0, finder)

    def cancel() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    return cancel


def import_what_compiles() -> None:
    """Import Dynamo and Inductor, once torch is there.

    What hears steps and torch's profiler import them anyway, on whichever thread calls a module first; where another
    compiles meanwhile, both would find half of them, and the program fails.
    """
    import torch._dynamo
    import torch._inductor  # noqa: F401


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._action)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, action: Callable[[], None]) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _do(self._action, module.__name__)


def _do(action: Callable[[], None], name: str) -> None:
    try:
        action()
    except Exception as error:  # whoever imports the module has it
        let_through(error)
        log.warning("torchledger does not hear %s: %s: %s", name, type(error).__name__, error)
