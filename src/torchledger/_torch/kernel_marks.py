"""Ranges around C++ kernels in a running profile, without a change in generated code.

Inductor's own way (``cpp.enable_kernel_profile``) writes the ranges into each kernel's source, and so compiles every
kernel anew for whoever asks. A generated Python wrapper finds its kernels among its module's globals at each call:
there, and only while a profile records, each C++ kernel is a callable that puts a range of its name around the same
function. Triton kernels bring ranges of their own. Calls inside a C++ wrapper pass no Python: see
``make_cpp_wrappers_visible``.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.codecache import PyCodeCache
from torch._inductor.virtualized import V

from torchledger._torch.patching import Patches

_lock = threading.RLock()
_on_load: list[Callable[[ModuleType, str], None]] = []
_wrappers: weakref.WeakSet[FunctionType] = weakref.WeakSet()
_sessions = 0


@dataclass(frozen=True, slots=True)
class _Marked:
    """A C++ kernel with a range of its name around each call."""

    name: str
    kernel: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        with torch._C._profiler._RecordFunctionFast(self.name):
            return self.kernel(*arguments)


def note_wrappers(patches: Patches) -> None:
    """Remember each generated wrapper that is loaded, fresh or from a cache, so that its kernels can be marked."""

    def load(original: Callable[..., Any], owner: Any, key: str, path: str, *args: Any, **kwargs: Any) -> Any:
        module = original(owner, key, path, *args, **kwargs)
        note_wrapper(getattr(module, "call", None))
        attributes = args[1] if len(args) > 1 else kwargs.get("attrs")
        if attributes is not None:  # kernels and templates are loaded by the same way, without attributes
            for on_load in tuple(_on_load):
                on_load(module, path)
        return module

    patches.around(PyCodeCache, "load_by_key_path", load)


def hear_loads(on_load: Callable[[ModuleType, str], None]) -> Patches:
    """Call ``on_load(module, path)`` for each generated wrapper that is loaded under our hooks, also from a cache.

    The compiled graph takes ``module.call`` afterwards, so what ``on_load`` puts there is what runs.
    """
    _on_load.append(on_load)
    patches = Patches()
    patches.on_undo(lambda: _on_load.remove(on_load))
    return patches


def note_wrapper(call: Any) -> None:
    """Remember the wrapper that a ``call`` belongs to, as long as the function lives; anything else is passed over."""
    function = getattr(call, "__func__", call)
    if isinstance(function, FunctionType):
        with _lock:
            _wrappers.add(function)
            if _sessions:
                _mark(function.__globals__)


def kernel_marks() -> Patches:
    """Mark the C++ kernels of all wrappers that are loaded, and that will be, until the patches are undone."""
    global _sessions
    patches = Patches()
    with _lock:
        _sessions += 1
        for namespace in _namespaces():
            _mark(namespace)
    patches.on_undo(_end_session)
    return patches


def _end_session() -> None:
    global _sessions
    with _lock:
        _sessions -= 1
        if not _sessions:
            for namespace in _namespaces():
                _unmark(namespace)


def wrapper_files() -> frozenset[str]:
    """The files of all generated wrappers that live."""
    with _lock:
        return frozenset(function.__code__.co_filename for function in _wrappers)


def replace_in_wrappers(is_wanted: Callable[[str], bool], around: Callable[..., Any]) -> Patches:
    """Have ``around(original, *args)`` called for such globals of all loaded wrappers, until the patches are undone."""
    patches = Patches()
    with _lock:
        for namespace in _namespaces():
            for name, value in list(namespace.items()):
                if callable(value) and is_wanted(name) and not getattr(value, "_torchledger", False):
                    replaced = functools.partial(around, value)
                    replaced._torchledger = True
                    namespace[name] = replaced
                    patches.on_undo(functools.partial(namespace.__setitem__, name, value))
    return patches


def _namespaces() -> Iterator[dict[str, Any]]:
    return (function.__globals__ for function in list(_wrappers))


def _mark(namespace: dict[str, Any]) -> None:
    for name, value in list(namespace.items()):
        if name.startswith("cpp_") and callable(value) and not isinstance(value, _Marked):
            namespace[name] = _Marked(name, value)


def _unmark(namespace: dict[str, Any]) -> None:
    for name, value in list(namespace.items()):
        if isinstance(value, _Marked):
            namespace[name] = value.kernel


def make_cpp_wrappers_visible() -> Patches:
    """Have C++ wrappers (``cpp_wrapper=True``) compiled with ranges, which nothing can put there afterwards.

    These graphs, and no others, differ from the ones of a recording that does not profile, and so does their key. A
    library that AOTInductor makes is the user's to keep, and stays as it is.
    """
    patches = Patches()

    def compiled(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        options = kwargs.get("config_patches") or {}
        asks = config.cpp_wrapper or kwargs.get("cpp_wrapper") or options.get("cpp_wrapper")
        if V.aot_compilation or not asks:
            return original(*args, **kwargs)
        with config.patch({"cpp.enable_kernel_profile": True}):
            return original(*args, **kwargs)

    # The first holds while a model's keys are made, the second where a backward is compiled later, on its own thread.
    from torch._inductor import compile_fx  # at the top, importing it would put the hooks in, which import this file

    for name in ("compile_fx", "_compile_fx_inner"):
        patches.around(compile_fx, name, compiled)
    return patches
