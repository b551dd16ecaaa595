"""How the loops of a fused kernel go over memory: every access by its loops and strides, once.

Strides that are no constant (an index with divisions, remainders, minima) are replaced by how far the address moves in
a usual step of the loop.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from torchledger.nouns import Access, Launch, LoopNest
from torchledger.work.element_sizes import ELEMENT_SIZES
from torchledger.work.expressions import ARITHMETIC, ExpressionError, Grammar, evaluate, parse_expression

_OFFSET = re.compile(r"[+-] \d+$")
_DIVISOR = re.compile(r"(?://|%) (\d+)")
_INDICES = Grammar(
    {kind: ARITHMETIC[kind] for kind in (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.USub)},
    {"min": min, "max": max},
)

Loops = tuple[tuple[int, int, bool], ...]
"""Loops as (extent, stride, belongs to the reduction), innermost last."""


@dataclass(frozen=True)
class MemoryAccess:
    """One access, with its loops.

    ``again`` says that an earlier access meets the same sectors, ``share`` what part of the loops it loads for: what is
    a cat of several tensors loads from each only where that lies.
    """

    declared: Access
    size: int
    loops: Loops
    in_reduction: bool
    again: bool = False
    share: float = 1.0

    @property
    def is_load(self) -> bool:
        """Whether it reads."""
        return self.declared.kind == "load"

    @property
    def count(self) -> int:
        """How often it happens."""
        return math.prod(extent for extent, _, _ in self.loops)

    @property
    def elements(self) -> int:
        """Elements that it reaches, loops of stride 0 left out."""
        return math.prod(extent for extent, stride, _ in self.loops if stride)

    @property
    def has_every_loop(self) -> bool:
        """Whether it moves in every loop."""
        return all(stride for extent, stride, _ in self.loops if extent > 1)

    def innermost(self, *, in_reduction: bool | None = None) -> int:
        """The stride of the innermost loop (of the kept or the reduced ones); 0 without one."""
        for extent, stride, reduced in reversed(self.loops):
            if extent > 1 and in_reduction in (None, reduced):
                return stride
        return 0


def kept_and_reduced(nests: Sequence[LoopNest]) -> tuple[int, int]:
    """Elements that a kernel keeps and reduces over, of its largest reduction; (all, 1) without one."""
    reductions = [nest for nest in nests if nest.reduction_extents]
    if not reductions:
        return max(math.prod(nest.extents) for nest in nests), 1
    largest = max(reductions, key=lambda nest: math.prod(nest.extents) * math.prod(nest.reduction_extents))
    return math.prod(largest.extents), math.prod(largest.reduction_extents)


def memory_accesses(launch: Launch, nests: Sequence[LoopNest]) -> list[MemoryAccess]:
    """What goes to memory: each buffer once per pass over the data, not what the kernel itself has just made."""
    kept, reduced = kept_and_reduced(nests)
    sizes = {buffer.name: math.prod(buffer.shape) for buffer in launch.buffers}
    has_one_pass = launch.category != "reduction"
    made: set[str] = set()
    seen: set[tuple[object, ...]] = set()
    found = []
    for nest in nests:
        of_reduction = bool(nest.reduction_extents)
        axes = [(extent, False) for extent in nest.extents] + [(extent, True) for extent in nest.reduction_extents]
        for access in nest.accesses:
            if access.kind == "load" and access.buffer in made:
                continue
            loops = _loops(axes, access, kept, reduced, of_reduction)
            strides = _merged_strides(loops)
            place = (access.buffer, access.kind, of_reduction or has_one_pass, strides)
            exact = (*place, access.index if None in access.strides else "".join(_OFFSET.findall(access.index)))
            if exact in seen:
                continue
            memory_access = MemoryAccess(access, ELEMENT_SIZES[access.dtype or ""], loops, of_reduction, place in seen)
            if None in access.strides:
                share = sizes.get(access.buffer, memory_access.elements) / max(memory_access.elements, 1)
                memory_access = replace(memory_access, share=min(1.0, share))
            found.append(memory_access)
            seen |= {place, exact}
        made |= {access.buffer for access in nest.accesses if access.kind == "store"}
    return found


def _merged_strides(loops: Sequence[tuple[int, int, bool]]) -> tuple[int, ...]:
    """The strides of the loops that move, those that carry on where the next ones end taken as one loop: two nests of
    a kernel may cut the same axis into different loops."""
    merged: list[tuple[int, int]] = []
    for extent, stride, _ in reversed(loops):
        if not stride or extent == 1:
            continue
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0] * extent, merged[-1][1])
        else:
            merged.append((extent, stride))
    return tuple(stride for _, stride in reversed(merged))


def _loops(axes: Sequence[tuple[int, bool]], access: Access, kept: int, reduced: int, of_reduction: bool) -> Loops:
    extents = tuple(extent for extent, _ in axes)
    strides = local_strides(access.index, access.strides, extents)
    loops = [(extent, stride, inner) for (extent, inner), stride in zip(axes, strides, strict=False)]
    if of_reduction or reduced == 1 or math.prod(extents) < kept * reduced:
        return tuple(loops)
    # A pointwise nest of a kernel with a reduction: its innermost loops are those that the reduction runs over.
    left, parts = reduced, []
    for extent, stride, _ in reversed(loops):
        if left <= 1:
            parts.append((extent, stride, False))
        elif extent <= left:
            parts.append((extent, stride, True))
            left = round(left / max(extent, 1))
        else:
            parts += [(left, stride, True), (max(extent // left, 1), stride * left, False)]
            left = 1
    return tuple(reversed(parts))


@lru_cache(maxsize=20_000)
def local_strides(index: str, strides: tuple[int | None, ...], extents: tuple[int, ...]) -> tuple[int, ...]:
    """Strides; one that is no constant is how far the address moves in a usual step, 0 if that cannot be told."""
    if None not in strides:
        return tuple(stride or 0 for stride in strides)
    tree = _parsed(index)
    middle = {f"p{place}": extent // 3 for place, extent in enumerate(extents)}
    found = []
    for place, stride in enumerate(strides):
        if stride is not None or extents[place] < 2 or tree is None:
            found.append(stride or 0)
            continue
        last = extents[place] - 2
        starts = sorted({min(start, last) for start in (0, 1, extents[place] // 2, last)})
        try:
            steps = sorted(
                abs(
                    evaluate(tree, {**middle, f"p{place}": at + 1}.__getitem__, _INDICES)
                    - evaluate(tree, {**middle, f"p{place}": at}.__getitem__, _INDICES)
                )
                for at in starts
            )
        except (KeyError, ValueError):
            steps = [0]
        found.append(steps[(len(steps) - 1) // 2])
    return tuple(found)


def _parsed(index: str) -> ast.expr | None:
    try:
        return parse_expression(index)
    except ExpressionError:
        return None


@lru_cache(maxsize=20_000)
def divisions_of(index: str, shift: float, clamp: float) -> float:
    """Divisions and remainders of an index, those by powers of two for ``shift`` of one, minima and maxima for
    ``clamp``."""
    divisors = [int(number) for number in _DIVISOR.findall(index)]
    whole = sum(shift if number & (number - 1) == 0 else 1.0 for number in divisors if number > 1)
    return whole + clamp * (index.count("min(") + index.count("max("))


def distinct_divisions_of(indices: Iterable[str], shift: float, clamp: float) -> float:
    """``divisions_of`` indices of one pass, each part of theirs that is the same once, as compilers compute it."""
    costs: dict[str, float] = {}
    for index in dict.fromkeys(indices):
        costs.update(_parts_that_divide(index, shift, clamp))
    return sum(costs.values())


@lru_cache(maxsize=20_000)
def _parts_that_divide(index: str, shift: float, clamp: float) -> tuple[tuple[str, float], ...]:
    """Each part of an index that divides, or takes a minimum or maximum, and its cost; of one that is not read, the
    whole."""
    tree = _parsed(index)
    if tree is None:
        return ((index, divisions_of(index, shift, clamp)),)
    found: dict[str, float] = {}
    _collect_divisions(tree, shift, clamp, found)
    return tuple(found.items())


def _collect_divisions(node: ast.expr, shift: float, clamp: float, found: dict[str, float]) -> str:
    """The part of an index as text; those of its parts that divide, and their costs, go to ``found``."""
    if isinstance(node, ast.BinOp):
        left, right = (_collect_divisions(side, shift, clamp, found) for side in (node.left, node.right))
        text = f"({left} {type(node.op).__name__} {right})"
        if isinstance(node.op, ast.FloorDiv | ast.Mod) and right != "1":
            by = int(right) if right.isdecimal() else 0
            found[text] = shift if by > 0 and by & (by - 1) == 0 else 1.0
        return text
    if isinstance(node, ast.Call):
        given = [_collect_divisions(each, shift, clamp, found) for each in node.args]
        text = f"{ast.unparse(node.func)}({', '.join(given)})"
        found[text] = clamp
        return text
    return ast.unparse(node)
