"""Run-time patches that are undone on exit, also on error."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from torchledger.signals import let_through

log = logging.getLogger(__name__)

Around = Callable[..., Any]
"""``around(original, *args, **kwargs)`` calls ``original`` once and returns its result."""


OnFault = Callable[[str, Exception], None]
"""``on_fault(where, error)`` is told what went wrong in code of ours."""


class _Call:
    """One call of an original, and what came of it."""

    is_done = False
    result: Any = None
    error: BaseException | None = None

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        original = self._original
        try:
            self.result = original(*args, **kwargs)
        except BaseException as error:
            self.error = error
            raise
        self.is_done = True
        return self.result


class Patches:
    """Attributes replaced on classes and modules, and how to put them back."""

    def __init__(self, on_fault: OnFault | None = None) -> None:
        self._undo: list[Callable[[], None]] = []
        self._on_fault = on_fault

    def on_undo(self, action: Callable[[], None]) -> None:
        """Do ``action`` when the patches are undone."""
        self._undo.append(action)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace ``owner.name`` until ``undo``."""
        held = vars(owner).get(name) if isinstance(owner, type) else None  # with its classmethod or staticmethod
        former = getattr(owner, name) if held is None else held
        self.on_undo(lambda: setattr(owner, name, former))
        setattr(owner, name, value)

    def set_or_add(self, owner: Any, name: str, value: Any) -> None:
        """The same for an attribute that ``owner`` may lack, which ``undo`` takes away again."""
        if hasattr(owner, name):
            self.set(owner, name, value)
        else:
            setattr(owner, name, value)
            self.on_undo(lambda: delattr(owner, name))

    def hide(self, owner: type, name: str, value: Any) -> None:
        """Give a class an attribute that hides what it inherits, until ``undo``."""
        setattr(owner, name, value)
        self.on_undo(lambda: delattr(owner, name))

    def set_config(self, owner: Any, name: str, value: Any) -> None:
        """Set a field of a torch config until ``undo``, for threads that start later too.

        Since torch 2.13 what is set holds in its own thread; others read the field's default.
        """
        prefix: str = getattr(owner, "_prefix", "")
        entries = owner._config._config if prefix else owner._config
        entry = entries.get(prefix + name)
        self.set(owner, name, value)
        if isinstance(getattr(entry, "user_override", None), ContextVar):
            self.set(entry, "default", value)
        # A variable of the environment can be what counts, whoever sets the field.
        if getattr(entry, "env_value_force", None) is not getattr(type(entry), "env_value_force", None):
            self.set(entry, "env_value_force", value)

    def around(self, owner: Any, name: str, around: Around, *, may_skip: bool = False) -> bool:
        """Call ``around(original, ...)`` in place of ``owner.name``; False if the owner does not define it itself.

        What ``around`` itself raises does not reach the caller, who gets what the original gives; also where ``around``
        answers ``None`` in place of another result, or without having called the original (unless it ``may_skip``).
        """
        held = vars(owner).get(name)
        is_bound = isinstance(held, (classmethod, staticmethod))
        original = held.__func__ if is_bound else held
        if not callable(original) or getattr(original, "_torchledger", False):
            return False

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            call: _Call | None = None
            try:
                call = _Call(original)
                result = around(call, *args, **kwargs)
                if may_skip or result is not None or (call.is_done and call.result is None):
                    return result
                self._tell(name, RuntimeError("what surrounds it answered nothing"))
            except Exception as error:
                if call is not None and error is call.error:
                    raise
                let_through(error)
                self._tell(name, error)
            if call is None:
                return original(*args, **kwargs)
            if call.error is not None:
                raise call.error
            return call.result if call.is_done else original(*args, **kwargs)

        wrapper._torchledger = True
        self.on_undo(lambda: setattr(owner, name, held))
        setattr(owner, name, type(held)(wrapper) if is_bound else wrapper)
        return True

    def _tell(self, where: str, error: Exception) -> None:
        log.debug("around %s: %s", where, error, exc_info=error)
        if self._on_fault is not None:
            try:
                self._on_fault(where, error)
            except Exception as second:  # whoever should list the fault is at fault too
                let_through(second)
                log.warning("torchledger lost what it knew of %s: %s; %s", where, error, second)

    def undo(self) -> None:
        """Put everything back, the latest first."""
        while self._undo:
            self._undo.pop()()


def pass_through(patches: Patches, owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Call ``around(original, ...)`` in place of a function; what it raises is the program's to see."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    if isinstance(owner, type):
        patches.set(owner, name, replaced)
    else:
        replace_everywhere(patches, original, replaced)


def replace_everywhere(patches: Patches, original: Any, value: Any) -> None:
    """Replace a function of torch's in each of its modules that has imported it."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "torch":
            for attribute, held in list(vars(module).items()):
                if held is original:
                    patches.set(module, attribute, value)
