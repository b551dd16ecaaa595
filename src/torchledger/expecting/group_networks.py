"""What single passes of convolutions in groups of several channels need on an H200, and how open that is.

A library runs groups together in one kernel, or one by one at some ten microseconds each; which one it does turns on
how many groups there are, how many channels each has and how these align, and changes the time up to tenfold. Networks
of their own learned passes in groups alone, since ``Machine.networks`` 6 in single precision too
(``benchmarks/models/fit_group_networks.py``). Beside the time they say how far what the library may do instead lies
from it, as the standard deviation of the logarithm over the likely kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.product_network import log2_alignment

OPEN = "open"
"""What the networks are called that say how open a choice is."""

_FEW_GROUPS, _MANY_CHANNELS = 4, 64
_HALF_CHANNELS = _MANY_CHANNELS // 2


def is_grouped(p: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Which rows have several groups of several channels."""
    return np.asarray((p["groups"] > 1) & (p["groups"] < p["c_in"]), dtype=np.bool_)


def group_features(
    p: Mapping[str, Any], seen: NDArray[np.float32], is_rounded: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """What the networks of groups see, [rows, features]: what those of any pass do, ``seen``, and what tells groups
    apart that run one by one; ``is_rounded`` are rows of float32 that is rounded for the tensor cores."""
    inside, outside = p["c_in"] / p["groups"], p["c_out"] / p["groups"]
    more = (
        log2_alignment(p["groups"]),
        p["groups"] <= _FEW_GROUPS,
        inside >= _MANY_CHANNELS,
        outside >= _MANY_CHANNELS,
        inside % _HALF_CHANNELS == 0,
        inside == outside,
        is_rounded,
    )
    return np.concatenate([seen, np.stack(more, axis=1).astype(np.float32)], axis=1)
