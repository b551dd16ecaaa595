"""Fused kernels far larger than the cache: from some size on, twice as large takes twice as long.

What is learned of such a kernel is how far it lies from its baseline, and that no longer goes by its size: caches are
swept, every multiprocessor is busy for many rounds. Regressors are therefore asked about the same kernel over fewer
rows, as many as move ``STREAMED_CACHES`` times what the cache keeps. So the few large kernels that were measured are
learned beside all of that size, and a kernel beyond them reaches the memory's rate as the largest known do, at any
size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torchledger.expecting.kernel_details import LITTLE
from torchledger.expecting.launch_costs import LEAST_OF_COST, PARTS, SMALL
from torchledger.expecting.machine import Machine

STREAMED_CACHES = 5.0
"""Traffic of a kernel over what the L2 keeps, from which on its size is no matter: by kernels held out that move more
than all others (``docs/results/strangers_sets.md``)."""

STREAMED = "streamed"
"""A column that is always 0: a regressor that has it learned of large kernels as smaller ones."""

LOOPED = "log loops us"
"""The column that fused kernels are learned beside; what is learned does not see it, so that it stays as it is."""

UNSEEN = (LOOPED, "log load run", "log store run")
"""Columns of those before, or for the baseline alone, which a regressor that knows streaming does not see: runs go on
as far as a tensor does."""

_COUNTED = ("log outer", "log kept", "log blocks", "log rounds")
_LIKE = {"kept waves": "log kept", "log thread rounds": "log blocks"}
_OF_COST = {"load of cost": "log load us", "store of cost": "log store us"}
_PLUS_ONE = (
    *("log read", "log written", "log moved", "log flops", "log iterations", "log scan iterations"),
    *(f"log {kind} ops" for kind in ("turn", "special", "root", "random", "select", "plain")),
)
_PLUS_FLOOR = ("log memory time", "log vector time")
_PLUS_SMALL = (*(f"log {part} us" for part in PARTS), "log first shape", "log worst shape")


def knows_streaming(feature_names: Sequence[str]) -> bool:
    """Whether a regressor of fused kernels learned of large ones as smaller ones; those of before did not."""
    return STREAMED in feature_names


def excess_of(moved_bytes: float, machine: Machine) -> float:
    """How many times as large as need be a kernel is that moves so much, as a logarithm; 0 for those that are not."""
    enough = STREAMED_CACHES * machine.l2_kept_bytes
    return math.log(moved_bytes / enough) if 0 < enough < moved_bytes else 0.0


def over_fewer_rows(values: Mapping[str, float], excess: float, machine: Machine) -> dict[str, float]:
    """The columns of a fused kernel over fewer rows by ``excess``: what counts rows, bytes, operations or microseconds
    shrinks, what says how they lie stays."""
    share = math.exp(-excess)
    shrunk = dict(values)
    floors = machine.constants.kernels.floors * machine.floor_us
    for name, value in values.items():
        if name in _COUNTED:
            shrunk[name] = max(value - excess, 0.0)
        elif name in _PLUS_ONE:
            shrunk[name] = _scaled(value, share, 1.0)
        elif name in _PLUS_FLOOR:
            shrunk[name] = _scaled(value, share, machine.floor_us)
        elif name in _PLUS_SMALL:
            shrunk[name] = _scaled(value, share, SMALL)
        elif name in ("log cost", "log loops"):
            shrunk[name] = _scaled(value, share, floors)
        elif name.startswith("log ") and name.endswith(" time"):
            shrunk[name] = _scaled(value, share, LITTLE)
    for name, counted in _LIKE.items():
        if name in values and counted in values:
            shrunk[name] = values[name] + shrunk[counted] - values[counted]
    for name, part in _OF_COST.items():
        if name in values:
            shrunk[name] = math.log(math.exp(shrunk[part]) - SMALL + LEAST_OF_COST) - shrunk["log cost"]
    return shrunk


def _scaled(logarithm: float, share: float, offset: float) -> float:
    """The logarithm of a share of an amount that stands in it with an offset."""
    return math.log(max(math.exp(logarithm) - offset, 0.0) * share + offset)
