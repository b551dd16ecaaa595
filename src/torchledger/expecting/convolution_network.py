"""What a convolution's three passes need on an H200, as learned from 45,000 of them timed alone.

The algorithms of ``convolution_times`` say what a convolution could need; cuDNN's heuristic often takes another kernel,
at times one ten times slower, changes layouts and pads channels. A small network for each pass (forward, gradient of
the image, gradient of the weight) learned what it does (``benchmarks/models/fit_convolution_network.py``). Both
gradients together are asked of one network, which learned from those of each, where a file has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.convolution_times import (
    PASSES,
    PassTimes,
    as_columns,
    convolution_times,
    pass_product,
    pass_times,
    passes_of,
    result_sides,
)
from torchledger.expecting.machine import Machine
from torchledger.expecting.networks import Network, of_package
from torchledger.expecting.pass_trees import beside_networks
from torchledger.expecting.product_network import log2_alignment
from torchledger.expecting.product_times import tiles_of_library

Array = NDArray[np.float64]

_ROWS_AT_ONCE = 8192
_MEASURED_SIZE = 2.0  # bytes of an element
_SPLITS, _IMAGE_SPLITS = (1, 4, 16), (1,)
_ALGORITHMS = ("product", "filters", "one each", "few channels", "change")
_BACKWARD_FILLS = (64, 128)
_TILES = (
    *((64, 64), (128, 64), (64, 128), (128, 128), (256, 64)),
    *((64, 256), (256, 128), (128, 256), (32, 64), (128, 32)),
)
_WAVES = ((64, 64), (128, 64), (128, 128), (256, 128), (128, 256))
_KERNELS, _STRIDES = (1, 2, 3, 4, 5, 7, 9, 11), (1, 2)
_CHANNEL_FILLS, _FILLS, _WIDTH_FILLS = (8, 16, 32, 64, 128, 256), (32, 64, 128, 256), (8, 16, 32, 64)
_MOST = 3.0
_LEAST_BESIDE, _MOST_BESIDE = -1.5, 2.5


def learned_convolution_times(
    p: Mapping[str, Any],
    direction: str,
    item_size: Array,
    is_float16: NDArray[np.bool_],
    peak: Array,
    machine: Machine,
    networks: str | None = None,
    trees: str | None = None,
) -> dict[str, Array]:
    """``convolution_times`` of ``conv2d`` at its parameters, which are arrays, and ``"learned"``: what networks say.

    ``direction`` is ``"forward"``, ``"backward"`` (both gradients) or one of ``PASSES``. What no network knows (single
    precision, a machine without networks) is ``"expected"``. ``networks`` are the file of others than the machine's of
    single passes; a backward is then asked of its network of both gradients, and ``trees`` say what these miss.
    """
    is_together = direction == "backward" and networks is not None
    asked = ("backward",) if is_together else passes_of(direction)
    learned = _learned(networks or machine.network_files.convolutions, asked)
    count = len(item_size)
    p = as_columns(p, count)
    found: dict[str, list[Array]] = {}
    # In pieces whose features stay in the processor's cache.
    for start in range(0, count, _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        own, size = {name: value[..., some] for name, value in p.items()}, item_size[some]
        passes = {one: pass_times(own, one, size, peak[some], machine) for one in passes_of(direction)}
        if is_together:
            features, times = backward_features(own, size, is_float16[some], peak[some], machine, passes)
            beside = np.where(size == _MEASURED_SIZE, learned["backward"].predict(features), 0.0)
            times["learned"] = times["expected"] * np.exp(beside)
        else:
            times = convolution_times(own, direction, size, peak[some], machine, passes)
            times["learned"] = np.zeros(len(size))
            for one, known in passes.items():
                features, log_base = convolution_features(own, one, size, is_float16[some], peak[some], machine, known)
                if one in learned:
                    log_base = log_base + np.where(size == _MEASURED_SIZE, learned[one].predict(features), 0.0)
                times["learned"] += np.exp(log_base)
        if trees is not None:
            way = f"conv2d {direction}"
            times["learned"] *= beside_networks(own, way, size, is_float16[some], times["learned"], trees)
        for name, time in times.items():
            found.setdefault(name, []).append(time)
    return {name: np.concatenate(pieces) for name, pieces in found.items()}


def convolution_features(
    p: Mapping[str, Any],
    one: str,
    item_size: Array,
    is_float16: NDArray[np.bool_],
    peak: Array,
    machine: Machine,
    known: PassTimes | None = None,
) -> tuple[NDArray[np.float32], Array]:
    """What the network of one of ``PASSES`` sees, [rows, features], and the logarithm of the time by the algorithm
    expected, in microseconds; ``known`` are its ``pass_times`` where they are."""
    count = len(item_size)
    p = as_columns(p, count)
    n, c_in, c_out, kernel, stride, groups = (p[name] for name in ("n", "c_in", "c_out", "kernel", "stride", "groups"))
    height, width, padding = p["height"], p["width"], p["padding"]
    out_height, out_width, taps = result_sides(p)
    inside, outside = c_in / groups, c_out / groups
    pixels, places = n * out_height * out_width, out_height * out_width
    image, result = n * c_in * height * width * item_size, pixels * c_out * item_size
    weight = c_out * inside * taps * item_size
    multiplies, moved = pixels * c_out * taps * inside, image + result + weight
    passes = None if known is None else {one: known}
    algorithms = convolution_times(p, one, item_size, peak, machine, passes)
    log_base = np.log(algorithms["expected"])
    library, (_, rows, columns, depth) = pass_product(p, one, machine)
    # fmt: off
    sizes = (
        n, c_in, c_out, height, width, kernel, groups, inside, outside, pixels, n * height * width, out_height,
        out_width, image, result, weight, rows, columns, depth, rows * columns * groups, multiplies, moved,
        multiplies / moved, np.minimum(rows, columns), rows / columns, inside / outside,
    )
    # fmt: on
    is_one_each = (groups == c_in) & (groups > 1)
    is_product = (kernel == 1) & (stride == 1) & (groups == 1) & (padding == 0)
    aligned = (c_in, c_out, inside, outside, n, places, height * width, pixels)
    shares = [size / step for size in (inside, outside) for step in _CHANNEL_FILLS]
    shares += [size / step for size in (rows, columns, depth) for step in _FILLS]
    for tall, wide in _WAVES:
        tiles = groups * np.ceil(rows / tall) * np.ceil(columns / wide)
        shares.append(tiles / machine.num_multiprocessors)
    shares += [out_width / step for step in _WIDTH_FILLS]
    apart = tiles_of_library(library, _TILES, _SPLITS, (groups, rows, columns, depth), machine)
    # Feature after feature: what is written row by row waits for memory.
    seen: list[Any] = [
        _logarithms(sizes),
        _logarithms([time / algorithms["expected"] for time in algorithms.values()]),
        [log_base],
        [kernel == size for size in _KERNELS],
        [stride == size for size in _STRIDES],
        [padding == kernel // 2, padding == 0, p["channels_last"] > 0, is_one_each, (groups > 1) & ~is_one_each],
        [is_product, is_float16, height % 2 == 0],
        [log2_alignment(size) for size in aligned],
        np.minimum(_logarithms([np.ceil(share) / share for share in shares]), _MOST),
        np.clip(np.log(apart) - log_base.astype(np.float32), _LEAST_BESIDE, _MOST_BESIDE),
    ]
    described = np.empty((sum(map(len, seen)), count), np.float32)
    place = 0
    for some in seen:
        for column in some:
            described[place] = column
            place += 1
    return described.T, log_base


def backward_features(
    p: Mapping[str, Any],
    item_size: Array,
    is_float16: NDArray[np.bool_],
    peak: Array,
    machine: Machine,
    known: Mapping[str, PassTimes] | None = None,
) -> tuple[NDArray[np.float32], dict[str, Array]]:
    """What the network of both gradients together sees, [rows, features], and ``convolution_times`` of a backward;
    ``known`` are the ``pass_times`` of its passes where they are. What both passes share is described once."""
    count = len(item_size)
    p = as_columns(p, count)
    n, c_in, c_out, kernel, stride, groups = (p[name] for name in ("n", "c_in", "c_out", "kernel", "stride", "groups"))
    height, width, padding = p["height"], p["width"], p["padding"]
    out_height, out_width, taps = result_sides(p)
    inside, outside = c_in / groups, c_out / groups
    pixels, places = n * out_height * out_width, n * height * width
    image, result = places * c_in, pixels * c_out
    weight = c_out * inside * taps
    multiplies, moved = result * taps * inside, image + result + weight
    if known is None:
        known = {one: pass_times(p, one, item_size, peak, machine) for one in PASSES[1:]}
    times = convolution_times(p, "backward", item_size, peak, machine, known)
    expected = times["expected"]
    shares: list[Array] = [size / step for size in (inside, outside) for step in _CHANNEL_FILLS]
    shares += [out_width / step for step in _WIDTH_FILLS]
    beside, apart = [], []
    for one, splits in (("image", _IMAGE_SPLITS), ("weight", _SPLITS)):
        library, (_, rows, columns, depth) = pass_product(p, one, machine)
        shares += [size / step for size in (rows, columns, depth) for step in _BACKWARD_FILLS]
        for tall, wide in _WAVES:
            tiles = groups * np.ceil(rows / tall) * np.ceil(columns / wide)
            shares.append(tiles / machine.num_multiprocessors)
        beside += [rows, columns, depth, rows * columns * groups]
        apart.append(tiles_of_library(library, _TILES, splits, (groups, rows, columns, depth), machine))
    # fmt: off
    sizes = (
        n, c_in, c_out, height, width, kernel, groups, inside, outside, pixels, places, out_height, out_width, image,
        result, weight, multiplies, moved, multiplies / moved, inside / outside, *beside,
        expected, *(times[name] / expected for name in _ALGORITHMS),
        known["image"][0] / known["weight"][0], known["image"][1] / known["weight"][1],
    )
    # fmt: on
    is_one_each = (groups == c_in) & (groups > 1)
    is_product = (kernel == 1) & (stride == 1) & (groups == 1) & (padding == 0)
    seen: list[Any] = [
        _logarithms(sizes),
        [kernel == size for size in _KERNELS],
        [stride == size for size in _STRIDES],
        [padding == kernel // 2, padding == 0, p["channels_last"] > 0, is_one_each, (groups > 1) & ~is_one_each],
        [is_product, is_float16, height % 2 == 0],
        [log2_alignment(size) for size in (c_in, c_out, inside, outside, n, out_height * out_width, height * width)],
        np.minimum(_logarithms([np.ceil(share) / share for share in shares]), _MOST),
        np.clip(np.log(np.concatenate(apart)) - np.log(expected).astype(np.float32), _LEAST_BESIDE, _MOST_BESIDE),
    ]
    described = np.empty((sum(map(len, seen)), count), np.float32)
    place = 0
    for some in seen:
        described[place : place + len(some)] = some
        place += len(some)
    return described.T, times


def _logarithms(columns: Sequence[Array]) -> NDArray[np.float32]:
    """Of each column, as the networks take them."""
    values = np.array(columns, np.float32)
    return np.log(values, out=values)


@cache
def _learned(file: str | None, passes: tuple[str, ...] = PASSES) -> Mapping[str, Network]:
    return {} if file is None else of_package(file, passes)
