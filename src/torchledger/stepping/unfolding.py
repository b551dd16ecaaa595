"""Which operators of a trace to look below for what a dispatch mode heard.

An operator that ``torch.func`` maps or differentiates (``vmap``, ``jvp``) is recorded once for each of its levels, the
outermost with the shapes of one sample; what runs, and what a mode hears, is called below the last of them, and may be
several operators or another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchledger.work.op_shapes import OpCall

_MOST_PASSED = 64
"""How many operators that were heard may be passed over to find the next one that was recorded."""


_UNDER_A_MODE = {"aten::_reshape_alias": "aten::view"}
"""What ``aten::reshape`` calls, and calls where a mode listens."""


_WRITES_ZEROS = frozenset({"aten::zeros", "aten::expand"})
"""What an operator calls before its own work where it is given a tensor that only stands for zeros."""


@dataclass(frozen=True)
class Recorded:
    """An operator of a trace: its row, its call (``None`` if not recorded), and the operators that ran in it."""

    row: int
    name: str
    call: OpCall | None
    children: tuple[Recorded, ...] = ()


def parts_heard(roots: Sequence[Recorded], heard: Sequence[OpCall]) -> dict[int, frozenset[int]]:
    """For operators whose parts were heard in their place: their row, and the rows of what was heard of them.

    ``roots`` are the outermost operators of a thread and ``heard`` what was heard there, both in order.
    """
    aligner = _Aligner(heard)
    place = 0
    found = {}
    for number, root in enumerate(roots):
        after, rows = aligner.match(root, place)
        if not rows and not any(aligner.match(later, place)[1] for later in roots[number + 1 : number + 4]):
            place = aligner.find(root, place)
            after, rows = aligner.match(root, place)
        place = after
        if rows and rows != {root.row}:
            found[root.row] = rows
    return found


class _Aligner:
    def __init__(self, heard: Sequence[OpCall]) -> None:
        self._heard = heard
        self._names = [_known_as(call.name) for call in heard]

    def match(self, node: Recorded, place: int) -> tuple[int, frozenset[int]]:
        """Where what was heard goes on behind an operator, and which rows of it were heard."""
        rows: set[int] = set()
        after = place
        for child in node.children:
            after, below = self.match(child, after)
            rows |= below
        if self._is(node, place) and after <= place + 1 and (after == place or self._has_sizes(node, place)):
            return place + 1, frozenset((node.row,))
        if rows and _WRITES_ZEROS.issuperset(self._names[place:after]) and self._is(node, after):
            return after + 1, frozenset((*rows, node.row))
        return after, frozenset(rows)

    def _is(self, node: Recorded, place: int) -> bool:
        return place < len(self._names) and self._names[place] == _known_as(node.name)

    def find(self, node: Recorded, place: int) -> int:
        """The next place at which an operator was heard; the same one if it is not near."""
        name = _known_as(node.name)
        near = range(place, min(place + _MOST_PASSED, len(self._names)))
        return next((other for other in near if self._names[other] == name), place)

    def _has_sizes(self, node: Recorded, place: int) -> bool:
        if node.call is None:
            return True
        ours, theirs = node.call.tensors, self._heard[place].tensors
        return [tensor.shape for tensor in ours] == [tensor.shape for tensor in theirs]


def _known_as(name: str) -> str:
    """Under a mode autograd adds to no gradient in place."""
    return _UNDER_A_MODE.get(name, name.rstrip("_"))
