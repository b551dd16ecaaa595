"""Convolutions of float32: how far their library's expected times are off, where labels are too few for a regressor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from torchledger.expecting.launch_features import LaunchFeatures, features_of_launches
from torchledger.expecting.machine import Machine
from torchledger.expecting.tile_columns import EXPECTED
from torchledger.fitting.learning import COVERAGE
from torchledger.nouns import Launch
from torchledger.store.launch_file import MeasuredLaunch

_FEWEST = 8
"""Labels of a direction below which nothing is said of it."""


def is_single_convolution(launch: Launch, features: LaunchFeatures) -> bool:
    """Whether a launch is a convolution of float32 whose library's time is known."""
    if not features.family.startswith("launch:convolution") or EXPECTED not in features.values:
        return False
    return {buffer.dtype for buffer in launch.buffers if len(buffer.shape) > 2} == {"float32"}


def fit_convolution_factors(launches: Sequence[MeasuredLaunch], machine: Machine) -> Mapping[str, float]:
    """For a family's name and ``float32``: ``slowness``, measured over expected time in the median, and ``width``, the
    half of an interval in logarithms that holds ``COVERAGE`` of them. A direction of too few labels takes those of all.

    The launches are taken to have run as TF32.
    """
    rows: dict[str, list[float]] = {}
    for item, features in zip(launches, features_of_launches([i.launch for i in launches], machine), strict=True):
        if features is not None and item.duration_us and is_single_convolution(item.launch, features):
            rows.setdefault(features.family, []).append(math.log(item.duration_us / features.baseline_us))
    together = [off for some in rows.values() for off in some]
    found: dict[str, float] = {}
    for family, some in sorted(rows.items()):
        offs = np.array(some if len(some) >= _FEWEST else together)
        middle = float(np.median(offs))
        found[f"{family} float32 slowness"] = math.exp(middle)
        found[f"{family} float32 width"] = float(np.quantile(np.abs(offs - middle), COVERAGE))
    return found
