"""How an operator goes along the dimensions that it was asked for, which decides how its kernel is parallel.

Reductions work over their tensor in the order in which it lies. Softmaxes, scans and sorts take it row by row where
they work along its last dimension; along any other, a thread walks down a column, and where there are few columns most
of the device has nothing to do (torch 2.11: ``SoftMax.cu``, ``PersistentSoftmax.cuh``, ``ScanUtils.cuh``,
``Reduce.cuh``, ``TensorTopK.cu``, ``Sorting.cu``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torchledger.nouns import TensorArgument
from torchledger.work.categories import operator_name
from torchledger.work.settings import Settings, setting

Way = Literal["whole", "inner", "outer", "thin"]
"""Over all of a tensor, along its fastest dimension, across it, and across fewer than a warp of its elements."""

WARP = 32
SECTOR_BYTES = 32
"""The least that a GPU fetches from memory."""

_MULTIPROCESSORS = 132
"""As many as an H100 or H200 has, on which costs are learned; other devices' costs are theirs by lanes and clocks."""

_THREADS = 2048
"""Threads that a multiprocessor holds."""

WARPS_AT_ONCE = _MULTIPROCESSORS * _THREADS // WARP

_MOST_BLOCKS = 32
_SOFTMAX_BLOCK, _SCAN_BLOCK, SELECT_BLOCK, GROUP_BLOCK = 1024, 512, 1024, 512
_SOFTMAX_READS = 8
"""Elements that a thread of a block reads at once, of half precision."""

_REDUCTIONS = frozenset(
    (
        *("sum", "nansum", "mean", "prod", "amax", "amin", "aminmax", "max", "min", "argmax", "argmin", "any", "all"),
        *("logsumexp", "norm", "linalg_vector_norm", "count_nonzero"),
    )
)
_VARIANCES = frozenset(("std", "var", "std_mean", "var_mean"))
_SCANS = frozenset(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "_cummax_helper", "_cummin_helper"))
_SCANS |= {"_logcumsumexp"}
_SELECTIONS = frozenset(("topk", "kthvalue", "median", "nanmedian", "mode"))
_SORTS = frozenset(("sort", "argsort", "msort"))
_AT_PLACES = frozenset(
    ("gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add", "index_copy")
)
_MOVES = frozenset(
    ("cat", "stack", "flip", "roll", "slice_backward", "select_backward", "value_selecting_reduction_backward")
)
_FAMILIES = {
    "scan": _SCANS,
    "selection": _SELECTIONS,
    "sort": _SORTS,
    "place": _AT_PLACES,
    "move": _MOVES,
    "variance": _VARIANCES,
}
_REDUCED = ("reduction", "variance")
"""Families whose threads go the same way; what a step takes differs."""


@dataclass(frozen=True)
class Walk:
    """An operator works along ``size`` elements for each of ``outer`` times ``inner`` results; ``inner`` are those that
    lie between one element and the next. ``is_fast`` says that nothing does."""

    outer: int
    size: int
    inner: int

    @property
    def way(self) -> Way:
        """Where it goes."""
        if self.outer * self.inner == 1:
            return "whole"
        if self.inner == 1:
            return "inner"
        return "outer" if self.inner >= WARP else "thin"


def family_of_walk(name: str) -> str | None:
    """What an operator that works along dimensions is like: a reduction, a variance, softmax, its gradient, a scan, a
    selection, a sort, a norm of groups, or one that moves elements, all or those at places; ``None`` for any other.

    >>> family_of_walk("aten::_log_softmax"), family_of_walk("aten::amax"), family_of_walk("aten::mm")
    ('softmax', 'reduction', None)
    """
    bare = operator_name(name)[1]
    if "softmax" in bare:
        return "softmax backward" if "backward" in bare else "softmax"
    for family, names in _FAMILIES.items():
        if bare in names:
            return family
    if "group_norm" in bare:
        return "group norm"
    return "reduction" if bare in _REDUCTIONS else None


def walk_of(name: str, arguments: Sequence[TensorArgument], settings: Settings | None) -> Walk | None:
    """How an operator goes along its first tensor; ``None`` for other operators and where its dimensions are unknown.

    >>> rows = [TensorArgument((64, 32), "float32", (32, 1))]
    >>> walk_of("aten::_softmax", rows, (("dim", (0,)),))
    Walk(outer=1, size=64, inner=32)
    >>> walk_of("aten::sum", rows, ())
    Walk(outer=1, size=2048, inner=1)
    """
    family = family_of_walk(name)
    if family is None or settings is None or not arguments:
        return None
    first = arguments[0]
    if not first.shape or min(first.shape) < 1:
        return None
    if family == "group norm":
        groups = (setting(settings, "group") or (0,))[0] * first.shape[0]
        return Walk(groups, math.prod(first.shape) // groups, 1) if groups else None
    dims = setting(settings, "dim") or setting(settings, "dims")
    if dims is None:
        if family not in _REDUCED:
            return None
        dims = tuple(range(len(first.shape)))
    if max(dims) >= len(first.shape):
        return None
    order = list(range(len(first.shape)))
    if family in _REDUCED and first.stride is not None and len(first.stride) == len(order):
        order.sort(key=lambda dim: (-(first.stride or ())[dim], dim))
    places = [place for place, dim in enumerate(order) if dim in dims and first.shape[dim] > 1]
    size = math.prod(first.shape[dim] for dim in set(dims))
    if not places:
        return Walk(math.prod(first.shape), 1, 1)
    inner = math.prod(first.shape[dim] for dim in order[places[-1] + 1 :])
    return Walk(math.prod(first.shape) // (size * inner), size, inner)


def steps_of(name: str, walk: Walk) -> int:
    """What threads that run at once do one after the other, in steps of their kind; 0 where all of the device works.

    >>> steps_of("aten::_softmax", Walk(1, 100_000, 512)), steps_of("aten::cumsum", Walk(64, 1024, 1))
    (100000, 8)
    """
    family = family_of_walk(name)
    if family in ("softmax", "softmax backward"):
        return _softmax_steps(walk)
    if family == "scan":
        return _scan_steps(walk)
    if family in _REDUCED:
        return _reduction_steps(walk)
    if family == "group norm":
        return -(-walk.size // GROUP_BLOCK) * waves_of(walk.outer, GROUP_BLOCK)
    if family == "selection":
        return -(-walk.size // SELECT_BLOCK) * waves_of(walk.outer * walk.inner, SELECT_BLOCK)
    return 0


def _softmax_steps(walk: Walk) -> int:
    if walk.inner == 1:
        if walk.size <= _SOFTMAX_BLOCK:
            return 0  # rows in registers, as many at once as fit
        threads = min(_SOFTMAX_BLOCK, power_below(walk.size // _SOFTMAX_READS))
        return -(-walk.size // (threads * _SOFTMAX_READS)) * waves_of(walk.outer, threads)
    across = min(walk.inner, _SOFTMAX_BLOCK)
    along = 1
    if across <= 2 * WARP <= walk.size:
        while across * along * 2 <= _SOFTMAX_BLOCK and along * 2 <= walk.size:
            along *= 2
    blocks = walk.outer * -(-walk.inner // across)
    return -(-walk.size // along) * waves_of(blocks, across * along)


def _scan_steps(walk: Walk) -> int:
    if walk.way == "whole":
        return 0  # by all blocks together
    if walk.inner > 1:
        threads = min(walk.inner, _SCAN_BLOCK)
        return walk.size * waves_of(walk.outer * -(-walk.inner // threads), threads)
    wide = (9 + (walk.size - 1).bit_length() - (walk.outer - 1).bit_length()) // 2
    threads = 1 << min(max(wide, 4), 9)
    blocks = -(-walk.outer // (_SCAN_BLOCK // threads))
    return -(-walk.size // (2 * threads)) * waves_of(blocks, _SCAN_BLOCK)


def _reduction_steps(walk: Walk) -> int:
    """Loads that a thread waits for one after the other, a block's begin and end among them.

    A thread makes four at once, or one of a vector along the fastest dimension. Blocks share a result where each
    thread would go through 256 elements or more alone; the last of them then adds up what each has found.
    """
    results = walk.outer * walk.inner
    is_inner = walk.inner == 1
    vector = _AT_ONCE if (walk.size >= _AT_ONCE * WARP if is_inner else walk.inner % _AT_ONCE == 0) else 1
    fastest, other = (walk.size, results) if is_inner else (results, walk.size)
    most = _REDUCTION_BLOCK // (1 if is_inner else vector)
    fastest = max(1, fastest // vector)
    width = min(power_below(fastest), WARP)
    height = min(power_below(other), most // width)
    width = min(power_below(fastest), most // height)
    own = walk.size / width if is_inner else float(walk.size)
    blocks = results if is_inner else -(-results // (width * vector))
    at_once = _AT_ONCE * (2 if is_inner else 1)
    if own < min(_FEWEST_ALONE * height, _MOST_ALONE):
        return math.ceil((_AROUND + own / at_once) * waves_of(-(-blocks // height), width * height))
    own /= height
    free = _MULTIPROCESSORS * (_THREADS // (width * height)) / blocks
    if own < _MOST_ALONE or free < 1:
        return math.ceil((_AROUND + own / at_once) * waves_of(blocks, width * height))
    sharing = max(min(math.ceil(free), own / _FEWEST_ALONE), own / _MOST_ALONE, 1.0)
    return math.ceil(_AROUND + own / sharing / at_once + sharing / (width * height if is_inner else height))


_REDUCTION_BLOCK, _AT_ONCE, _FEWEST_ALONE, _MOST_ALONE = 512, 4, 16, 256
_AROUND = 3
"""Loads that the begin and the end of a block take as long as, as sums over short rows do."""


def power_below(count: int) -> int:
    """The largest power of two that is no more than ``count``, which is at least 1 (ATen's ``lastPow2``)."""
    return int(1 << (count.bit_length() - 1))


def waves_of(blocks: int, threads: int) -> int:
    """How many of so many blocks, each of so many threads, follow one another on a multiprocessor.

    >>> waves_of(528, 512), waves_of(529, 512), waves_of(132 * 32, 32)
    (1, 2, 1)
    """
    at_once = _MULTIPROCESSORS * min(_MOST_BLOCKS, max(1, _THREADS // max(WARP, threads)))
    return -(-blocks // at_once)
