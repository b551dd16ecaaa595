"""What calls over lists of tensors cost (fused and foreach optimizers): learned from calls inside recorded steps.

Each kernel of such a call waits for the one of its blocks that has a whole chunk, however few bytes there are, and
takes what its own bytes take. The two go on beside one another, wholly or in part.

Enters: how the kernels of each call share its list (``work/list_costs.py``). Leaves: four numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from torchledger.work.list_costs import ListLaunches

Array = NDArray[np.float64]

_KERNEL_US = np.exp(np.linspace(np.log(0.8), np.log(8.0), 8))
_CHUNK_US = np.array([1e-6, *np.exp(np.linspace(np.log(2.0), np.log(60.0), 18))])
_SLOWNESS = np.exp(np.linspace(np.log(0.3), np.log(5.0), 32))
_NORMS = (1.0, 2.0, 4.0)
_CLOSER = (0.12, 0.05)
"""How far about the best of a grid a finer one reaches, as a logarithm."""


@dataclass(frozen=True)
class ListCost:
    """A kernel takes ``kernel_us``, ``chunk_us`` for a whole chunk and ``slowness`` times what its bytes take at the
    device's bandwidth, these two added as powers of ``norm``: 1 adds their times, many take the longer one."""

    kernel_us: float
    chunk_us: float
    slowness: float
    norm: float


def list_us(cost: ListCost, launches: ListLaunches, memory_us: float) -> float:
    """Time of a call in microseconds, whose bytes take ``memory_us`` at the device's bandwidth.

    >>> round(list_us(ListCost(2.0, 30.0, 1.0, 1.0), ListLaunches(1, 0.5, 0.5, 1.0), 100.0), 6)
    164.0
    """
    return float(
        _times(cost.norm, cost.kernel_us, cost.chunk_us, cost.slowness, _columns([launches], [memory_us]))[0, 0]
    )


def fit_list_calls(
    launches: Sequence[ListLaunches], memory_us: Sequence[float], log_us: Array, weights: Array
) -> tuple[ListCost, Array]:
    """The cost with the least mean absolute logarithm, and how far each call is off by it."""
    columns = _columns(launches, memory_us)
    found: list[tuple[float, ListCost, Array]] = []
    for norm in _NORMS:
        axes: tuple[Array, ...] = (_KERNEL_US, _CHUNK_US, _SLOWNESS)
        for reach in (*_CLOSER, 0.0):
            grid = np.array(list(product(*axes)))
            off = np.abs(np.log(_times(norm, grid[:, 0], grid[:, 1], grid[:, 2], columns)) - log_us)
            place = int((off @ weights).argmin())
            axes = tuple(best * np.exp(np.linspace(-reach, reach, 7)) for best in grid[place])
        kernel_us, chunk_us, slowness = (float(best) for best in grid[place])
        cost = ListCost(kernel_us, chunk_us, slowness, norm)
        found.append((float(off[place] @ weights), cost, np.asarray(off[place])))
    _, cost, errors = min(found, key=lambda each: each[0])
    return cost, errors


def _columns(launches: Sequence[ListLaunches], memory_us: Sequence[float]) -> tuple[Array, Array, Array, Array]:
    rows = zip(launches, memory_us, strict=True)
    values = [(each.full, each.full_share * us, each.last_share * us, each.fill) for each, us in rows]
    full, full_us, last_us, fill = np.array(values, dtype=np.float64).T
    return full, full_us, last_us, fill


def _times(
    norm: float, kernel_us: Array | float, chunk_us: Array | float, slowness: Array | float, columns: tuple[Array, ...]
) -> Array:
    """Of each cost, a row: times of all calls."""
    full, full_us, last_us, fill = columns
    kernel, chunk, slow = (np.atleast_1d(each)[:, None] for each in (kernel_us, chunk_us, slowness))
    waits = (chunk * fill) ** norm
    each, last = ((waits + (slow * us) ** norm) ** (1 / norm) for us in (full_us, last_us))
    return np.asarray((full + 1) * kernel + full * each + last)
