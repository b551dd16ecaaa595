"""Updates of fused optimizers whose step was compiled.

Dynamo breaks the graph at ``_fused_adam`` and the like: the update runs as it is, in a step whose hooks were traced, as
nothing. So these updates are the only sign of such a step.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from torchledger._torch.living import living
from torchledger._torch.patching import Patches


def around_updates(patches: Patches, stepped: Callable[[Any], None]) -> None:
    """Tell ``stepped`` of each optimizer after the last update of its step, where that step's own hooks are silent.

    Where nothing was compiled yet, updates are left as they are: Dynamo would look into what is put in their place.
    """
    import torch
    from torch.optim.optimizer import Optimizer

    plain: CodeType = Optimizer.profile_hook_step(lambda: None).__code__
    owners = _Owners()

    def around(original: Callable[..., Any], parameters: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        result = original(parameters, *args, **kwargs)
        if parameters and not torch.compiler.is_compiling() and not _is_called_from(plain):
            optimizer = owners.of(parameters[0])
            if optimizer is not None and _ends_step(optimizer, parameters[0]):
                stepped(optimizer)
        return result

    for name, module in tuple(sys.modules.items()):
        package, _, optimizer = name.rpartition(".")
        update = f"_fused_{optimizer}"
        if package != "torch.optim":
            continue
        if getattr(getattr(module, update, None), "_torchdynamo_disable", False):
            patches.around(module, update, around)
            watched = torch._dynamo.disable(getattr(module, update), reason="don't trace into fused optimizer")
            patches.set(module, update, watched)


class _Owners:
    """Which optimizer updates a parameter. All objects are looked through once for each that is new."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any]] = {}

    def of(self, parameter: Any) -> Any | None:
        known = self._known.get(id(parameter))
        held = None if known is None else known()
        if held is not None and _group_of(held, parameter) is not None:
            return held
        from torch.optim.optimizer import Optimizer

        for each in living(Optimizer):
            if _group_of(each, parameter) is not None:
                self._known[id(parameter)] = weakref.ref(each)
                return each
        return None


def _group_of(optimizer: Any, parameter: Any) -> int | None:
    groups = getattr(optimizer, "param_groups", ())
    return next((at for at, each in enumerate(groups) if any(one is parameter for one in each["params"])), None)


def _ends_step(optimizer: Any, parameter: Any) -> bool:
    """Whether no group behind that of this parameter is updated: each has an update of its own."""
    group = _group_of(optimizer, parameter)
    behind = optimizer.param_groups[(group or 0) + 1 :]
    return all(one.grad is None for each in behind for one in each["params"])


def _is_called_from(code: CodeType) -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
