"""On request: the FLOPs of the same step run eagerly, the reference that shares nothing with the compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchledger.capturing.flop_changes import flop_changes
from torchledger.capturing.session import Capture
from torchledger.nouns import Difference, EagerCount

__all__ = ["EagerCount", "count_eager"]


def count_eager(capture: Capture, step_fn: Callable[[], Any]) -> EagerCount:
    """Run ``step_fn`` once, compiled functions falling back to eager, and count its FLOPs by operator.

    The count and its differences from the ledger go into the balance as the account ``flops_eager``. The step has its
    usual side effects. Compile first: the ledger is compared as it stands.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from torchledger._torch.flops import added_formulas

    counter = FlopCounterMode(display=False, custom_mapping=added_formulas())
    with torch.compiler.set_stance("force_eager"), counter:
        step_fn()
    counts = {str(op): int(count) for op, count in counter.get_flop_counts().get("Global", {}).items()}
    ledger = capture.flops_by_op()
    result = EagerCount(flops_by_op=counts, ledger_flops=sum(ledger.values()))
    capture.add(result, *_differences(ledger, counts))
    return result


def _differences(ledger: Mapping[str, int], eager: Mapping[str, int]) -> list[Difference]:
    changes = flop_changes(ledger, eager)
    gained = ", ".join(op for op, change in changes.items() if change > 0)
    lost = ", ".join(op for op, change in changes.items() if change < 0)
    found = []
    for op, change in changes.items():
        if change > 0:
            reason = f"compiled code does this in place of {lost}" if lost else "compiled code does this in addition"
        else:
            reason = f"eager code does this, compiled code {gained}" if gained else "eager code alone does this"
        found.append(Difference("flops_eager", op, reason, change))
    return found
