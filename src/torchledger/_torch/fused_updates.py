"""Updates of fused optimizers whose step was compiled.

Dynamo breaks the graph at ``_fused_adam`` and the like: the update runs as it is, in a step whose hooks were traced, as
nothing. So these updates are the only sign of such a step.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from traceback import walk_stack
from types import CodeType
from typing import Any

from torchledger._torch.living import living
from torchledger._torch.patching import Patches


def around_updates(patches: Patches, stepped: Callable[[Any], None]) -> bool:
    """Tell ``stepped`` of each optimizer after the last update of its step, where that step's own hooks are silent.

    Where Dynamo has been asked for nothing yet, updates are left as they are, and it answers ``False``: Dynamo would
    look into what is put in their place.
    """
    import torch
    from torch.optim.optimizer import Optimizer

    plain: CodeType = Optimizer.profile_hook_step(lambda: None).__code__
    owners = _Owners()

    def around(original: Callable[..., Any], parameters: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        result = original(parameters, *args, **kwargs)
        if parameters and not torch.compiler.is_compiling() and not _is_called_from(plain):
            found = owners.of(parameters[0])
            if found is not None:
                optimizer, group = found
                # Each group has an update of its own: whether none behind this one is updated.
                behind = optimizer.param_groups[group + 1 :]
                if all(one.grad is None for each in behind for one in each["params"]):
                    stepped(optimizer)
        return result

    is_heard = False
    for name, module in tuple(sys.modules.items()):
        package, _, optimizer = name.rpartition(".")
        update = f"_fused_{optimizer}"
        if package != "torch.optim":
            continue
        if getattr(getattr(module, update, None), "_torchdynamo_disable", False):
            is_heard = patches.around(module, update, around) or is_heard
            watched = torch._dynamo.disable(getattr(module, update), reason="don't trace into fused optimizer")
            patches.set(module, update, watched)
    return is_heard


class _Owners:
    """Which optimizer updates a parameter, and in which of its groups. All objects are looked through once for each
    that is new."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any]] = {}

    def of(self, parameter: Any) -> tuple[Any, int] | None:
        known = self._known.get(id(parameter))
        found = _place_in(None if known is None else known(), parameter)
        if found is not None:
            return found
        from torch.optim.optimizer import Optimizer

        for each in living(Optimizer):
            if (found := _place_in(each, parameter)) is not None:
                self._known[id(parameter)] = weakref.ref(each)
                return found
        return None


def _place_in(optimizer: Any, parameter: Any) -> tuple[Any, int] | None:
    groups = getattr(optimizer, "param_groups", ())
    found = (at for at, each in enumerate(groups) if any(one is parameter for one in each["params"]))
    return next(((optimizer, at) for at in found), None)


def _is_called_from(code: CodeType) -> bool:
    return any(frame.f_code is code for frame, _ in walk_stack(sys._getframe(1)))
