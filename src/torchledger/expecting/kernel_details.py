"""What tells one fused kernel from another beside the parts of ``launch_costs.py``: instructions by what they compute,
rows that a gather picks, loads that stand still.

An error function takes five times the instructions of an exponential; a gather that steps over a row fetches a whole
sector for each element; a load that stands still along the innermost loop costs nothing. ``loop_time_us`` makes a time
of them and of the parts, by constants of the device's generation for kernels that reduce and for those that do not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.constants import LoopCosts
from torchledger.expecting.launch_costs import ATOMICS
from torchledger.expecting.machine import Machine
from torchledger.nouns import Access, Launch, LoopNest
from torchledger.work.element_sizes import ELEMENT_SIZES
from torchledger.work.walks import SECTOR_BYTES

KINDS: Mapping[str, tuple[str, ...]] = {
    "exponential": ("exp", "exp2", "sigmoid"),
    "error function": ("erf", "erfc"),
    "tangent": ("tanh",),
    "logarithm": ("log", "log1p", "expm1", "pow", "log2"),
    "division": ("truediv", "div", "reciprocal", "sigmoid"),
    "root": ("sqrt", "rsqrt"),
    "cast": ("to_dtype",),
    "scan": ("scan",),
}
"""Operations whose instructions differ; a sigmoid is an exponential and a division."""

LITTLE = 0.01
"""Microseconds added to each time before its logarithm is taken."""

_STEP = re.compile(r"(?:(\d+)\*)?indirect\d+")
_INDIRECT = re.compile(r"indirect\d+")
_LEAST_MOVING = 0.05  # of all loads and stores, however many stand still


def once(ops: Mapping[str, int]) -> dict[str, int]:
    """Operations of a nest, those that its sums share once: each sum was recorded with all that it adds up."""
    sums = ops.get("sum", 0)
    if sums < 2:
        return dict(ops)
    return {name: number if name == "sum" else number - (sums - 1) * (number // sums) for name, number in ops.items()}


def detail_times(
    launch: Launch, ops: Sequence[Mapping[str, int]], kinds_of: Callable[[str], tuple[str, ...]], machine: Machine
) -> dict[str, float]:
    """Microseconds: one instruction for each operation of a kind with all lanes busy, one for each load that stands
    still along the innermost loop, one for each index that is computed, and the sectors of gathers at the memory's
    rate. ``ops`` are of the nests, each once; ``kinds_of`` says what an operation's kinds are (``"plain"`` where it has
    none here)."""
    others = ("circular", "random", "select", "plain", "gathered", "repeated", "computed")
    found = dict.fromkeys((*KINDS, *others), 0.0)
    lanes = machine.vector_instructions_per_us
    known: dict[tuple[int, bool], int] = {}
    for nest, own in zip(launch.loops, ops, strict=True):
        times = math.prod(nest.extents) * math.prod(nest.reduction_extents)
        each_us = times / lanes
        for name, number in own.items():
            for kind in kinds_of(name):
                found[kind] += number * each_us
        moving = [place for place, extent in enumerate((*nest.extents, *nest.reduction_extents)) if extent > 1]
        last = moving[-1] if moving else None
        # Nests that share a pass over the data share the indices.
        shared = times, launch.category == "reduction" and bool(nest.reduction_extents)
        computed = _computed_indices(nest, last)
        found["computed"] += max(0, computed - known.get(shared, 0)) * each_us
        known[shared] = max(computed, known.get(shared, 0))
        for access in nest.accesses:
            if access.is_indirect:
                found["gathered"] += times * _bytes_of_gathered(access) / machine.bytes_per_us
            elif access.kind == "load" and last is not None and access.strides[last : last + 1] == (0,):
                found["repeated"] += each_us
    return found


def named_kinds(name: str) -> tuple[str, ...]:
    """The kinds of an operation among ``KINDS``; none for most."""
    plain = name.removeprefix("libdevice_")
    return tuple(kind for kind, members in KINDS.items() if plain in members)


def detail_columns(details: Mapping[str, float]) -> dict[str, float]:
    """Their logarithms, but for operations that other columns count."""
    kept = (*KINDS, "gathered", "repeated", "computed")
    return {f"log {name} time": math.log(details[name] + LITTLE) for name in kept}


def moving_us(part: Mapping[str, Any], move: float) -> Any:
    """Of ``part["move"]``, what is left without loads that stand still; ``move`` is an instruction's share there."""
    larger = max if isinstance(part["move"], float) else np.maximum
    return larger(part["move"] - move * part["repeated"], _LEAST_MOVING * part["move"])


def loop_time_us(part: Mapping[str, Any], costs: LoopCosts, *, move: float, floor_us: float) -> NDArray[np.float64]:
    """Microseconds of a kernel, or of many: what limits most counts most, atomics, gathers and the launch come on top.

    ``part`` are the parts of ``launch_costs.py`` and ``detail_times``.
    """
    share = costs.shares
    # Those that were fitted before running sums were told apart took them for plain.
    instructions = {"scan": costs.instructions["plain"], **costs.instructions}
    folds = sum(share[name] * part[name] for name in share if name.startswith("fold "))
    limits = (
        share["far"] * part["far"] + share["warm"] * part["warm"] + share["lone"] * part["lone"],
        share["load"] * part["load"] + share["store"] * part["store"] + share["gathered"] * part["gathered"],
        share["near"] * part["near"],
        sum(number * part[kind] for kind, number in instructions.items())
        + share["move"] * moving_us(part, move)
        + share["divide"] * part["divide"]
        + folds,
        share["turn"] * part["turn"] + share["row turn"] * part["row turn"],
    )
    # Of one kernel, numpy's scalars would take longer than all the rest.
    larger = max if isinstance(part["far"], float) else np.maximum
    longest = larger(1e-6, limits[0])
    for limit in limits[1:]:
        longest = larger(longest, limit)
    together = longest * sum((limit / longest) ** costs.power for limit in limits) ** (1 / costs.power)
    atomics = sum(part[name] for name in ATOMICS)
    # Those that were fitted before masks were told apart knew no cost of theirs.
    masks = share.get("mask", 0.0) * part["mask"]
    return np.asarray(together + atomics + masks + share["gather"] * part["gather"] + share["floor"] * floor_us)


def _computed_indices(nest: LoopNest, last: int | None) -> int:
    """Indices of gathers and scatters that a nest computes for every element (buckets of distances, pixels of a smaller
    image) where others load them. What it computes for them is not among its recorded operations. An access that moves
    along the ``last`` loop by itself has an index for each row."""
    names = {
        name
        for access in nest.accesses
        if access.is_indirect and last is not None and access.strides[last : last + 1] == (0,)
        for name in _INDIRECT.findall(access.index)
    }
    loaded = sum(access.kind == "load" and access.dtype in ("int64", "int32") for access in nest.accesses)
    return max(0, len(names) - loaded)


def _bytes_of_gathered(access: Access) -> float:
    """Bytes of sectors that an indirect access asks for with each element: an element's own where neighbours lie
    together, a sector's where an index steps over more."""
    size = ELEMENT_SIZES[access.dtype or ""]
    own = access.strides[-1] if access.strides else None
    steps = [int(found or 1) for found in _STEP.findall(access.index)]
    # What the innermost loop moves is the access itself, or else the index that steps least.
    step = own or min(steps, default=1)
    return float(min(max(abs(step) * size, size), SECTOR_BYTES))
