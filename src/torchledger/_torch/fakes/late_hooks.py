"""Hooks of DDP's gradients that begin late: a step is planned as one of those behind their beginning, which are most.

``PowerSGDState`` and ``PostLocalSGDState`` count the steps that the hook has seen in ``iter``, and all-reduce gradients
as they are until that is at ``start_powerSGD_iter`` (``start_localSGD_iter``), a thousand by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from torchledger._torch.patching import Patches

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."
_BEGINS, _COUNT = ("start_powerSGD_iter", "start_localSGD_iter"), "iter"

_SOONEST, _SOONEST_STATIC = 1, 2
"""Behind the first step (of a static graph the second) the reducer makes its buckets anew, and what a hook has kept of
them would not fit."""


def begin_hooks_soon(patches: Patches, note: Callable[[str], None]) -> None:
    """Have hooks begin with the second or third step of the program; ``note`` is told what was put forward."""

    def register(original: Callable[..., Any], model: Any, state: Any, hook: Any) -> Any:
        if any(each.__module__.startswith(_HOOKS) for each in type(state).__mro__):
            soonest = _SOONEST_STATIC if model.static_graph else _SOONEST
            for name in _BEGINS:
                first = getattr(state, name, None)
                if first is not None and first > soonest and getattr(state, _COUNT) < first:
                    setattr(state, name, soonest)
                    hooked = getattr(hook, "__name__", type(hook).__name__)
                    note(
                        f"DDP's {hooked} begins after {first:,} steps ({name}): the step that is priced is one of "
                        "those that follow, and the ones before it exchange gradients as they are"
                    )
        return original(model, state, hook)

    patches.around(DistributedDataParallel, "register_comm_hook", register)
