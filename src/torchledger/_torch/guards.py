"""Guards of Dynamo: which a compilation has, and which failed before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from torch._dynamo import convert_frame, guards

from torchledger._torch.patching import Patches

_LONGEST = 1000
"""Characters of one guard that are kept: the state of all threads and dtypes is one of 400."""


def listen_to_guards(
    patches: Patches,
    on_recompiled: Callable[[list[str]], None],
    on_guarded: Callable[[CodeType, Iterator[str]], None],
) -> None:
    """Tell which guards failed where a frame is compiled again, and, once it is compiled, the guards that it got.

    Dynamo finds out the former in any case; the latter are read from its tree of guards as the iterator is.
    """

    def explained(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        reasons = original(*args, **kwargs)
        if not (args[3] if len(args) > 3 else kwargs.get("skip_logging")):  # then it only asks itself (before 2.13)
            on_recompiled([in_one_line(str(reason)) for reason in reasons or ()])
        return reasons

    def built(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        on_guarded(args[0] if args else kwargs["f_code"], guard_texts(self.guard_manager))
        return result

    patches.around(convert_frame, "get_and_maybe_log_recompilation_reasons", explained)
    patches.around(guards.CheckFunctionManager, "__init__", built)


def in_one_line(text: str) -> str:
    """The first line of what Dynamo says of a guard, without the line of code that asked for it.

    >>> in_one_line("0/1: fn.training == True      # if self.training:  # model.py:7 in forward")
    '0/1: fn.training == True'
    """
    first = text.strip().partition("\n")[0].partition("  # ")[0].rstrip()
    return first if len(first) <= _LONGEST else f"{first[:_LONGEST]}..."


def guard_texts(manager: Any) -> Iterator[str]:
    """The guards of a compilation, depth first; those between several values once."""
    seen: set[Any] = set()
    for guard in _leaves(manager.root):
        if isinstance(guard, guards.RelationalGuard):
            if guard in seen:
                continue
            seen.add(guard)
        yield from map(in_one_line, guard.verbose_code_parts())


def _leaves(root: Any) -> Iterator[Any]:
    pending = [root]
    while pending:
        manager = pending.pop()
        yield from manager.get_leaf_guards()
        below = list(manager.get_child_managers())
        if isinstance(manager, guards.DictGuardManager):  # values of a dict (a module's parameters) stand apart
            pairs = sorted(manager.get_key_value_managers().items())
            below += [each for _, pair in pairs for each in pair if each is not None]
        pending += reversed(below)
    yield from root.get_epilogue_lambda_guards()
