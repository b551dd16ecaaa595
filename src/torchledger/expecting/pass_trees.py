"""How far passes of convolutions lie from what their networks say: boosted trees, which follow a library's steps.

A network is smooth where cuDNN's heuristic jumps: from one kernel to another at a number of channels, of groups, of
pixels. Trees for each pass, size of element and kind (all channels together, in groups, one filter a channel) learned
what the networks miss of passes timed alone (``benchmarks/models/fit_pass_trees.py``).
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.convolution_times import SIZES, result_sides
from torchledger.expecting.group_networks import is_grouped
from torchledger.expecting.networks import package_bytes
from torchledger.expecting.product_network import log2_alignment
from torchledger.expecting.trees import TreeEnsemble

Array = NDArray[np.float64]

KINDS = ("together", "grouped", "one each")
"""Over all channels, in groups of several, and one filter for each channel."""

_MOST_ALIGNED = 256


def kinds_of(p: Mapping[str, Any]) -> NDArray[np.intp]:
    """Of each pass the place of its kind in ``KINDS``."""
    return np.asarray(np.where(is_grouped(p), 1, np.where(p["groups"] > 1, 2, 0)), dtype=np.intp)


def tree_features(p: Mapping[str, Any], is_other: NDArray[np.bool_], time_us: Array) -> NDArray[np.float32]:
    """What the trees of a pass see, [rows, features]; ``time_us`` is what its networks say, ``is_other`` as in
    ``pass_networks.Elements``."""
    out_height, out_width, taps = result_sides(p)
    inside, outside = p["c_in"] / p["groups"], p["c_out"] / p["groups"]
    pixels = out_height * out_width
    seen = (
        *(np.log2(size) for size in (p["n"], inside, outside, p["groups"], p["height"], p["width"])),
        *(np.log2(size) for size in (out_height, out_width)),
        *(p["kernel"], taps / p["kernel"], p["stride"], p["padding"], p["channels_last"]),
        *(log2_alignment(size, _MOST_ALIGNED) for size in (inside, outside, p["c_in"], p["c_out"])),
        *(log2_alignment(size, _MOST_ALIGNED) for size in (p["width"], out_width, pixels)),
        *(np.log2(p["n"] * pixels), np.log2(p["n"] * pixels * p["c_out"] * inside * taps)),
        *(np.log2(time_us), inside * taps, is_other, p.get("stride_height", p["stride"])),
    )
    return np.stack([np.broadcast_to(np.asarray(each, np.float32), time_us.shape) for each in seen], axis=1)


def beside_networks(
    p: Mapping[str, Any], one: str, item_size: Array, is_other: NDArray[np.bool_], time_us: Array, file: str
) -> Array:
    """By what factor passes take longer than ``time_us``, which their networks say; 1 where no trees know them."""
    trees, kinds, found = _learned(file), kinds_of(p), np.ones(len(time_us))
    for size, (place, kind) in itertools.product(SIZES, enumerate(KINDS)):
        own = trees.get(f"{one} {SIZES[size]} {kind}")
        rows = np.flatnonzero((kinds == place) & (item_size == size)) if own is not None else ()
        if own is not None and len(rows):
            some = {name: np.asarray(value)[..., rows] for name, value in p.items()}
            seen = tree_features(some, is_other[rows], time_us[rows])
            found[rows] = np.exp(own.predict(seen.astype(np.float64)))
    return found


def to_file(trees: Mapping[str, TreeEnsemble]) -> bytes:
    """Trees by name, as the package carries them."""
    arrays: dict[str, Any] = {}
    for name, each in trees.items():
        arrays |= {
            f"{name}.baseline": np.array(each.baseline),
            f"{name}.feature": each.feature.astype(np.int8),
            f"{name}.threshold": each.threshold.astype(np.float32),
            f"{name}.left": each.left.astype(np.int8),
            f"{name}.right": each.right.astype(np.int8),
            f"{name}.value": each.value.astype(np.float16),
        }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def from_file(data: bytes) -> dict[str, TreeEnsemble]:
    """What ``to_file`` wrote."""
    with np.load(io.BytesIO(data), allow_pickle=False) as given:
        found = dict(given)
    names = dict.fromkeys(name.rpartition(".")[0] for name in found)
    return {
        name: TreeEnsemble(
            baseline=float(found[f"{name}.baseline"]),
            feature=found[f"{name}.feature"].astype(np.int16),
            threshold=found[f"{name}.threshold"].astype(np.float64),
            left=found[f"{name}.left"].astype(np.int16),
            right=found[f"{name}.right"].astype(np.int16),
            value=found[f"{name}.value"].astype(np.float32),
        )
        for name in names
    }


@cache
def _learned(file: str) -> Mapping[str, TreeEnsemble]:
    return from_file(package_bytes(file))
