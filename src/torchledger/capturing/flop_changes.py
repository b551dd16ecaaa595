"""What differs between two FLOP counts by operator, products with an added operand taken as the same; and its names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchledger.nouns import Difference

_FAMILY = {"aten.addmm": "aten.mm", "aten.baddbmm": "aten.bmm"}
"""Passes turn a product into one with an added operand, and back, freely: no work changes."""


def flop_changes(done: Mapping[str, int], asked: Mapping[str, int]) -> dict[str, int]:
    """FLOPs done minus FLOPs asked for by family of operators, without those that agree.

    >>> flop_changes({"aten.addmm": 6, "aten.bmm": 2}, {"aten.mm": 6, "aten.bmm": 5})
    {'aten.bmm': -3}
    """
    changes: dict[str, int] = {}
    for op in sorted({*done, *asked}):
        family = _FAMILY.get(op, op)
        changes[family] = changes.get(family, 0) + done.get(op, 0) - asked.get(op, 0)
    return {family: change for family, change in sorted(changes.items()) if change}


@dataclass(frozen=True)
class Reasons:
    """What is said of FLOPs of one operator that were done or asked for alone.

    ``{}`` in ``replaced`` stands for the operators that were done instead; ``removed`` is said where there are none.
    """

    added: str
    replaced: str
    removed: str


def name_changes(account: str, done: Mapping[str, int], asked: Mapping[str, int], reasons: Reasons) -> list[Difference]:
    """The changes between two counts as differences of an account.

    >>> said = Reasons("put in", "rewritten as {}", "taken out")
    >>> [each.reason for each in name_changes("flops", {"aten.bmm": 6}, {"aten.mm": 6}, said)]
    ['put in in place of aten.mm', 'rewritten as aten.bmm']
    """
    changes = flop_changes(done, asked)
    new = ", ".join(op for op, change in changes.items() if change > 0)
    old = ", ".join(op for op, change in changes.items() if change < 0)
    added = f"{reasons.added} in place of {old}" if old else reasons.added
    gone = reasons.replaced.format(new) if new else reasons.removed
    return [Difference(account, op, added if change > 0 else gone, change) for op, change in changes.items()]
