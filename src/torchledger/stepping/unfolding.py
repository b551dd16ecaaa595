"""Which operators of a trace to look below for what a dispatch mode heard.

An operator that ``torch.func`` maps or differentiates (``vmap``, ``jvp``) is recorded once for each of its levels, the
outermost with the shapes of one sample; what runs, and what a mode hears, is called below the last of them, and may be
several operators or another one. What an operator saves for the backward may go through hooks of the program (packed,
or moved to another device): they are called below the operator, before its own work and behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchledger.work.op_shapes import OpCall

_MOST_PASSED = 64
"""How many operators that were heard may be passed over to find the next one that was recorded."""


_UNDER_A_MODE = {"aten::_reshape_alias": "aten::view"}
"""What ``aten::reshape`` calls, and calls where a mode listens."""


_WRITES_OUT = frozenset({"aten::zeros", "aten::expand", "aten::clone"})
"""What an operator calls before its own work where it is given a tensor that only stands for zeros, or for the
conjugate of another."""


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
        later = roots[number + 1 : number + 4]
        after, rows = aligner.match(root, place, later)
        if not rows and not any(aligner.match(each, place)[1] for each in later):
            place = aligner.find(root, place)
            after, rows = aligner.match(root, place, later)
        place = after
        if rows and rows != {root.row}:
            found[root.row] = rows
    return found


class _Aligner:
    def __init__(self, heard: Sequence[OpCall]) -> None:
        self._heard = heard
        self._names = [_known_as(call.name) for call in heard]

    def match(self, node: Recorded, place: int, later: Sequence[Recorded] = ()) -> tuple[int, frozenset[int]]:
        """Where what was heard goes on behind an operator, which ``later`` ones follow, and which of its rows were
        heard."""
        rows: set[int] = set()
        after = place
        for number, child in enumerate(node.children):
            after, below = self.match(child, after, node.children[number + 1 : number + 2] or later)
            rows |= below
        if self._is(node, place) and after <= place + 1 and (after == place or self._has_sizes(node, place)):
            alone = place + 1, frozenset((node.row,))
            return alone if self._begins(later[:1], place + 1) else self._among_hooks(node, place, later) or alone
        if rows and _WRITES_OUT.issuperset(self._names[place:after]) and self._is(node, after):
            return after + 1, frozenset((*rows, node.row))
        return self._among_hooks(node, place, later) or (after, frozenset(rows))

    def _among_hooks(self, node: Recorded, place: int, later: Sequence[Recorded]) -> tuple[int, frozenset[int]] | None:
        """The same for an operator that was heard itself, between what was called below it; ``None`` if it was not."""
        if not node.children or node.call is None or node.name in _names_below(node):
            return None
        rows: set[int] = set()
        after, is_heard = place, False
        for child in (*node.children, None):
            is_next = child is None and self._begins(later[:1], after) and not self._begins(later[:1], after + 1)
            if not is_heard and not is_next and self._is(node, after) and self._has_sizes(node, after):
                after, is_heard = after + 1, True
            if child is not None and self._begins((child,), after):
                after, below = self.match(child, after)
                rows |= below
        return (after, frozenset((*rows, node.row))) if is_heard and rows else None

    def _begins(self, nodes: Sequence[Recorded], place: int) -> bool:
        """Whether what was heard goes on with the first of these operators, or with what it calls first."""
        while nodes:
            if self._is(nodes[0], place) and self._has_sizes(nodes[0], place):
                return True
            nodes = nodes[0].children
        return False

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
        # A profiler knows nothing of nested tensors, and a mode no shape.
        theirs = [tensor for tensor in self._heard[place].tensors if tensor.shape or tensor.strides is not None]
        return [tensor.shape for tensor in node.call.tensors] == [tensor.shape for tensor in theirs]


def _names_below(node: Recorded) -> set[str]:
    return {name for child in node.children for name in (child.name, *_names_below(child))}


def _known_as(name: str) -> str:
    """Under a mode autograd adds to no gradient in place."""
    return _UNDER_A_MODE.get(name, name.rstrip("_"))
