"""What single passes of any convolution need on an H200: along one or two dimensions, in half and in single precision.

``convolution_network.py`` knows square filters over images in half precision, and conv2d's model stands on it. Launches
are of more kinds: signals, which ATen gives its library as images of height 1 and never with channels last; float32,
rounded for the tensor cores or not; transposed layers, whose forward is another one's gradient of the image. Networks
for each pass and size of element learned them from passes timed alone (``benchmarks/models/fit_pass_networks.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.convolution_network import convolution_features
from torchledger.expecting.convolution_times import PASSES, SIZES, result_sides
from torchledger.expecting.group_networks import OPEN, group_features, is_grouped
from torchledger.expecting.machine import Machine
from torchledger.expecting.networks import Network, of_package
from torchledger.expecting.pass_trees import beside_networks
from torchledger.expecting.product_network import log2_alignment

Array = NDArray[np.float64]

NETWORKS = tuple(f"{one} {size}" for one in PASSES for size in SIZES.values())

_HALF_SIZE = 2.0  # bytes of an element
_PAIR = 2
_LARGER_FILTERS: Mapping[float, float] = {4: 3.4, 5: 1.1, 7: 4.4, 9: 1.4, 11: 7.4, 13: 1.8}
"""Microseconds of a channel by the filter's side: medians of 46 forwards
(``benchmarks/operators/convolution_kernels.py``)."""
ONE_BY_ONE_WIDTH = float(np.log(4.5))
"""Half of an interval's logarithm of ``runs_one_by_one``: the library has two kernels for it, one four times slower,
and which it takes is not known (at a filter of 7 thirteen forwards of eighteen took the slower one)."""


@dataclass(frozen=True)
class Elements:
    """Of each row the bytes of an element, whether it is the less usual kind of that size (float16, or float32 that is
    not rounded for the tensor cores), and the device's peak for it in FLOP per microsecond."""

    size: Array
    is_other: NDArray[np.bool_]
    peak: Array

    @property
    def is_rounded(self) -> NDArray[np.bool_]:
        """Rows of float32 that is rounded for the tensor cores."""
        return np.asarray((self.size != _HALF_SIZE) & ~self.is_other, dtype=np.bool_)

    def some(self, rows: NDArray[np.intp]) -> Elements:
        """Those of an index."""
        return Elements(self.size[rows], self.is_other[rows], self.peak[rows])


def passes_of_call(direction: str, *, is_transposed: bool) -> tuple[str, ...]:
    """The passes that a call runs, each as that of the convolution which leads the other way where it is transposed.

    >>> passes_of_call("backward", is_transposed=True)
    ('forward', 'weight')
    """
    image, result = ("forward", "image") if is_transposed else ("image", "forward")
    return {"forward": (result,), "backward": (image, "weight"), "weight": ("weight",)}[direction]


def pass_features(
    p: Mapping[str, Any], one: str, elements: Elements, machine: Machine
) -> tuple[NDArray[np.float32], Array]:
    """What a pass's network sees, [rows, features], and the logarithm of the time by the algorithm expected."""
    seen, log_base = convolution_features(p, one, elements.size, elements.is_other, elements.peak, machine)
    tall, above = p.get("kernel_height", p["kernel"]), p.get("padding_height", p["padding"])
    is_flat = (p["height"] == 1) & (tall == 1)
    _, out_width, taps = result_sides(p)
    more = (
        is_flat,
        np.log(taps),
        np.log(tall),
        above > 0,
        p["padding"] > p["kernel"] // 2,
        p["stride"] >= p["kernel"],
        np.log(p["stride"]),
        log2_alignment(p["width"]),
        log2_alignment(out_width),
        log2_alignment(p["kernel"] * tall),
        elements.is_other & is_flat,
    )
    return np.concatenate([seen, np.stack(more, axis=1).astype(np.float32)], axis=1), log_base


def runs_one_by_one(p: Mapping[str, Any], one: str, item_size: Array) -> NDArray[np.bool_]:
    """Whether the library leaves its kernels for one filter a channel and launches one kernel for each channel.

    In half precision with channels last it did so in each of 46 forwards over images of 2 x 2 with filters of 4 and
    more, in none of 94 over images of 3 x 3 and 4 x 4, and in 4 of 23 over single pixels; gradients have their kernels.
    """
    tall = p.get("kernel_height", p["kernel"])
    is_one_each = (p["groups"] == p["c_in"]) & (p["groups"] > 1) & (p["c_out"] == p["c_in"])
    is_small = (p["height"] == _PAIR) & (p["width"] == _PAIR) & (np.minimum(tall, p["kernel"]) >= min(_LARGER_FILTERS))
    is_half = (np.asarray(item_size) == _HALF_SIZE) & (p["channels_last"] > 0)
    return np.asarray(is_one_each & is_small & is_half & (one == PASSES[0]), dtype=np.bool_)


def time_passes(p: Mapping[str, Array], passes: Sequence[str], elements: Elements, machine: Machine) -> Array | None:
    """Microseconds of some passes together, each row's; ``None`` where no network knows the machine.

    Rows whose elements are neither of 2 nor of 4 bytes take what their algorithms are expected to.
    """
    found = passes_and_choices(p, passes, elements, machine)
    return None if found is None else found[0]


def passes_and_choices(
    p: Mapping[str, Array], passes: Sequence[str], elements: Elements, machine: Machine
) -> tuple[Array, Array] | None:
    """``time_passes``, and how open the library's choice is: the standard deviation of the time over the kernels that
    are likely, as a share of it; 0 where no network says."""
    networks = _learned(machine.network_files.passes)
    if not networks:
        return None
    of_groups = _learned_of_groups(machine.network_files.groups)
    in_groups = is_grouped(p)
    total, variance = np.zeros(len(elements.size)), np.zeros(len(elements.size))
    for one in passes:
        features, log_us = pass_features(p, one, elements, machine)
        spread = np.zeros(len(elements.size))
        for size, name in SIZES.items():
            is_apart = in_groups & (f"{one} {name}" in of_groups)
            rows = np.flatnonzero((elements.size == size) & ~is_apart)
            if len(rows):
                log_us[rows] += networks[f"{one} {name}"].predict(features[rows])
            rows = np.flatnonzero((elements.size == size) & is_apart)
            if len(rows):
                own = {column: p[column][rows] for column in ("groups", "c_in", "c_out")}
                seen = group_features(own, features[rows], elements.some(rows).is_rounded)
                log_us[rows] += of_groups[f"{one} {name}"].predict(seen)
                spread[rows] = np.maximum(of_groups[f"{one} {name} {OPEN}"].predict(seen), 0.0)
        us_per_channel = np.interp(p["kernel"], list(_LARGER_FILTERS), list(_LARGER_FILTERS.values()))
        time_us = np.where(runs_one_by_one(p, one, elements.size), p["groups"] * us_per_channel, np.exp(log_us))
        if machine.network_files.trees is not None:
            time_us *= beside_networks(p, one, elements.size, elements.is_other, time_us, machine.network_files.trees)
        total += time_us
        variance += (time_us * spread) ** 2
    return total, np.sqrt(variance) / total


@cache
def _learned(file: str | None) -> Mapping[str, Network]:
    return {} if file is None else of_package(file, NETWORKS)


@cache
def _learned_of_groups(file: str | None) -> Mapping[str, Network]:
    """The networks of passes in groups that a file has."""
    return {} if file is None else of_package(file, (*NETWORKS, *(f"{name} {OPEN}" for name in NETWORKS)))
