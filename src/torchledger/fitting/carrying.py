"""An operator's times carried from a device to another.

How much of a time waits for memory is told by the bandwidth that it reached where it was learned: near all of it, and
the time goes with the memory's rate; far from it, and something else decides; more than all of it, and the data were in
the cache. What else decides goes with multiprocessors and their clocks within a generation. A multiprocessor of another
generation does more or less in a clock: there a time keeps its distance from the physical baseline, as it was learned.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.machine import Machine
from torchledger.expecting.operator_features import FeatureTable
from torchledger.fitting.time_model import Entry

Array = NDArray[np.float64]

_POWER = 4.0
"""The norm by which waiting for memory and everything else add up to a time: the larger, the later memory decides."""


def answer(
    entry: Entry, machine: Machine, features_of: Callable[[Machine], FeatureTable], unit: str | None = None
) -> tuple[FeatureTable, Array, Array, Array]:
    """Features of rows on ``machine``, and the entry's log residual, half width and distance for them: learned on the
    first of its origins, carried from one to the next. ``features_of`` describes the rows for a machine."""
    features = features_of(entry.origins[0].machine if entry.origins else machine)
    middle, width, outside = entry.learned(features.values, unit)
    first = 0
    for number, origin in enumerate(entry.origins):
        middle, width = entry.corrected(features.values, middle, width, first, origin.corrections)
        first = origin.corrections
        target = entry.origins[number + 1].machine if number + 1 < len(entry.origins) else machine
        if are_alike(origin.machine, target):
            log_us = middle + features.log_baseline + log_ratio(features, middle, origin.machine, target)
            features = features_of(target)
            middle = log_us - features.log_baseline
        else:
            features = features_of(target)
    middle, width = entry.corrected(features.values, middle, width, first)
    return features, middle, np.hypot(width, entry.spread), outside


def are_alike(one: Machine, other: Machine) -> bool:
    """Whether two devices are of one generation."""
    return one.device.compute_capability == other.device.compute_capability


def log_ratio(features: FeatureTable, residual: Array, source: Machine, target: Machine) -> Array:
    """Logarithm of times on ``target`` over those on ``source``, where ``features`` and log residuals are of."""
    moved = np.expm1(features.values[:, features.names.index("log bytes")])
    reached = moved / source.bytes_per_us / np.exp(features.log_baseline + residual)
    waits = np.minimum(reached, 1 / np.maximum(reached, 1e-9)) ** _POWER
    slower_memory = source.bytes_per_us / target.bytes_per_us
    slower_else = 1.0
    if source.counts_waves and target.counts_waves:
        slower_else = source.vector_instructions_per_us / target.vector_instructions_per_us
    return np.asarray(np.log(waits * slower_memory**_POWER + (1 - waits) * slower_else**_POWER) / _POWER)
