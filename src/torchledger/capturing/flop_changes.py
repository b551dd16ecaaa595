"""What differs between two FLOP counts by operator, products with an added operand taken as the same product."""

from __future__ import annotations

from collections.abc import Mapping

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
