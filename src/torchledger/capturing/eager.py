"""On request: the FLOPs of the same step run eagerly, the reference that shares nothing with the compiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchledger.capturing.session import Capture
from torchledger.nouns import Difference, EagerCount

__all__ = ["EagerCount", "count_eager"]

_FAMILY = {"aten.addmm": "aten.mm", "aten.baddbmm": "aten.bmm"}


@dataclass(frozen=True)
class _Change:
    op: str
    amount: int


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
    capture.add(result, *_differences(Counter(ledger), Counter(counts)))
    return result


def _differences(ledger: Counter[str], eager: Counter[str]) -> list[Difference]:
    changes = []
    for family in sorted({_FAMILY.get(op, op) for op in (*ledger, *eager)}):
        amount = _of(ledger, family) - _of(eager, family)
        if amount:
            changes.append(_Change(family, amount))
    gained = ", ".join(change.op for change in changes if change.amount > 0)
    lost = ", ".join(change.op for change in changes if change.amount < 0)
    found = []
    for change in changes:
        if change.amount > 0:
            reason = f"compiled code does this in place of {lost}" if lost else "compiled code does this in addition"
        else:
            reason = f"eager code does this, compiled code {gained}" if gained else "eager code alone does this"
        found.append(Difference("flops_eager", change.op, reason, change.amount))
    return found


def _of(counts: Counter[str], family: str) -> int:
    return sum(count for op, count in counts.items() if _FAMILY.get(op, op) == family)
