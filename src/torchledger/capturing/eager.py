"""On request: the FLOPs of the same step run eagerly, the reference that shares nothing with the compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchledger.capturing.flop_changes import Reasons, name_changes
from torchledger.capturing.session import Capture
from torchledger.nouns import EagerCount

__all__ = ["EagerCount", "count_eager"]

_REASONS = Reasons(
    added="compiled code does this",
    replaced="eager code does this, compiled code {}",
    removed="eager code alone does this",
)


def count_eager(capture: Capture, step_fn: Callable[[], Any]) -> EagerCount:
    """Run ``step_fn`` once, compiled functions falling back to eager, and count its FLOPs by operator.

    The count and its differences from the ledger go into the balance as the account ``flops_eager``. The step has its
    usual side effects. Compile first: the ledger is compared as it stands.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from torchledger._torch.alignments import read_lengths_first
    from torchledger._torch.flops import added_formulas
    from torchledger._torch.patching import Patches
    from torchledger._torch.subclass_constructors import make_unheard

    capture.check_is_running()
    counter, patches = FlopCounterMode(display=False, custom_mapping=added_formulas()), Patches()
    read_lengths_first(patches)
    make_unheard(patches)
    try:
        with torch.compiler.set_stance("force_eager"), counter:
            step_fn()
    finally:
        patches.undo()
    counts = {str(op): int(count) for op, count in counter.get_flop_counts().get("Global", {}).items()}
    ledger = capture.flops_by_op()
    result = EagerCount(flops_by_op=counts, ledger_flops=sum(ledger.values()))
    capture.add(result, *name_changes("flops_eager", ledger, counts, _REASONS))
    return result
