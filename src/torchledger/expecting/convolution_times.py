"""How long a convolution takes by the algorithm that the library runs: the physics under the convolutions' model.

A 1 x 1 filter without a stride is a matrix product, and runs as one. Other filters are products of pixels, channels
and taps on tensors with channels last, before which and after which tensors of another layout are changed, and
channels padded. One filter a channel has kernels of its own, bound by vector arithmetic. The constants are those of the
device's generation (``constants.py``); the library's choice is less regular than that of matrix products, and the
regressors learn what they can of the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.constants import Depthwise, FewChannels, Library
from torchledger.expecting.machine import Machine
from torchledger.expecting.product_times import Sides, product_times, tile_times
from torchledger.expecting.rounding import round_up

Array = NDArray[np.float64]

_WIDEST = 7
"""With channels last, wider filters than 7 x 7 have slower kernels."""

_FEW_CHANNELS = 4
_HALF_SIZE = 2.0  # bytes of an element


PASSES = ("forward", "image", "weight")
"""The gradients of image and weight are a backward's two."""


SIZES: Mapping[float, str] = {2.0: "half", 4.0: "single"}
"""Bytes of an element, and what their networks are called."""


def passes_of(direction: str) -> tuple[str, ...]:
    """The passes of a direction, which may be one itself."""
    return PASSES[1:] if direction == "backward" else (direction,)


PassTimes = tuple[Array, Array]
"""Microseconds of a pass as products, and by its filters."""


def convolution_times(
    p: Mapping[str, Any],
    direction: str,
    item_size: Array,
    peak: Array,
    machine: Machine,
    passes: Mapping[str, PassTimes] | None = None,
) -> dict[str, Array]:
    """Microseconds of ``conv2d`` at its parameters, by each algorithm.

    ``direction`` is ``"forward"``, ``"backward"``, or ``"image"`` or ``"weight"`` for one of its two gradients;
    ``passes`` are the ``pass_times`` of its passes, where they are known already. ``"product"``, ``"filters"``, ``"one
    each"`` and ``"few channels"`` are the algorithms, whichever applies, ``"change"`` is the change of layouts, and
    ``"expected"`` the one taken with what it needs.
    """
    p = as_columns(p, len(item_size))
    inside, outside = p["c_in"] / p["groups"], p["c_out"] / p["groups"]
    height, width, taps = result_sides(p)
    pixels = p["n"] * height * width
    image = p["n"] * p["c_in"] * p["height"] * p["width"] * item_size
    result = pixels * p["c_out"] * item_size
    is_last = p["channels_last"] > 0
    is_product = (p["kernel"] == 1) & (p["stride"] == 1) & (p["groups"] == 1)
    is_one_each = (p["groups"] == p["c_in"]) & (p["groups"] > 1)
    # The vector kernels' gradients of image and weight were measured together, and are taken for alike.
    share = 0.5 if direction in ("image", "weight") else 1.0
    measured = "forward" if direction == "forward" else "backward"
    constants = machine.constants.convolutions
    is_single = item_size > _HALF_SIZE
    last = constants.depthwise_last
    single = constants.depthwise_single or last

    if passes is None:
        passes = {one: pass_times(p, one, item_size, peak, machine) for one in passes_of(direction)}
    product, filters = (np.asarray(sum(times)) for times in zip(*passes.values(), strict=True))
    of_last, of_single, of_first = (
        share * _depthwise(costs[measured], p, pixels, image + result, taps, machine)
        for costs in (last, single, constants.depthwise_first)
    )
    one_each = np.where(is_last, np.where(is_single, of_single, of_last), of_first)
    bandwidth = machine.constants.reference.bytes_per_us / machine.bytes_per_us
    changed_us = (image * constants.change_in_byte + result * constants.change_out_byte) * bandwidth
    change = np.where(is_last, 0.0, constants.change_launches + changed_us)
    is_padded = (inside % 8 != 0) | (outside % 8 != 0)
    pad = np.where(is_padded, constants.pad_launches + (image + result) * constants.pad_byte * bandwidth, 0.0)
    few = np.where(
        p["groups"] > 1,
        share * _few_channels(constants.grouped[measured], pixels * p["c_out"] * taps * inside, image),
        np.where(
            is_last,
            *(
                share * _few_channels(costs[measured], pixels * p["c_out"] * taps * inside, image)
                for costs in (constants.few_last, constants.few_first)
            ),
        ),
    )
    expected = np.where(is_product, product, filters + len(passes) * (change + pad))
    # The kernels for a few channels beside each other are of half precision.
    is_few = (inside <= _FEW_CHANNELS) & ~is_product & ~(is_last & is_single)
    expected = np.where((p["groups"] > 1) | is_few, few, expected)
    return {
        "product": product,
        "filters": filters,
        "one each": one_each,
        "few channels": few,
        "change": change + pad + machine.floor_us,
        "expected": np.where(is_one_each, one_each, expected),
    }


def as_columns(p: Mapping[str, Any], count: int) -> dict[str, Array]:
    """Parameters as columns of numbers, and their ``result_sides`` beside them."""
    if "sides" in p:
        return dict(p)
    found = {name: np.broadcast_to(np.asarray(value, dtype=np.float64), (count,)) for name, value in p.items()}
    return found | {"sides": np.stack(np.broadcast_arrays(*result_sides(found)))}


def pass_times(p: Mapping[str, Any], one: str, item_size: Array, peak: Array, machine: Machine) -> PassTimes:
    """What one of ``PASSES`` takes by the tiles of its library, at parameters that are arrays."""
    inside, outside = p["c_in"] / p["groups"], p["c_out"] / p["groups"]
    height, width, taps = result_sides(p)
    products = _as_products(p, p["channels_last"] > 0, height * width, one, item_size, peak, machine)
    pixels = p["n"] * height * width
    return products, _as_filters(p["groups"], pixels, inside, outside, taps, one, item_size, peak, machine)


def _as_products(
    p: Mapping[str, Array], is_last: NDArray[np.bool_], places: Array, one: str, item_size: Array, peak: Array,
    machine: Machine,
) -> Array:  # fmt: skip
    """One product over all pixels with channels last; else one per image, whose rows are the image's places."""
    batch = np.where(is_last, 1.0, p["n"])
    pixels = np.where(is_last, p["n"] * places, places)
    c_in, c_out = p["c_in"], p["c_out"]
    row_bytes = np.minimum(_row_bytes(c_in, item_size), _row_bytes(np.where(is_last, c_out, places), item_size))
    by_pass: dict[str, Sides] = {
        "forward": (batch, pixels, c_out, c_in),
        "image": (batch, pixels, c_in, c_out),
        "weight": (batch, c_out, c_in, pixels),
    }
    return np.asarray(np.minimum(*product_times(by_pass[one], row_bytes, item_size, peak, machine)), dtype=np.float64)


def _as_filters(
    groups: Array, pixels: Array, inside: Array, outside: Array, taps: Array, one: str, item_size: Array, peak: Array,
    machine: Machine,
) -> Array:  # fmt: skip
    constants = machine.constants.convolutions
    padded_in, padded_out = round_up(inside, 8), round_up(outside, 8)
    if one == "weight":
        sides = (groups, padded_out, taps * padded_in, pixels)
        return np.asarray(np.minimum(*tile_times(constants.of_weight, sides, item_size, peak, machine)))
    library, sides = constants.forward, (groups, pixels, padded_out, taps * round_up(inside, 32))
    if one == "image":
        library, sides = constants.of_image, (groups, pixels, padded_in, taps * round_up(outside, 32))
    return tile_times(library, sides, item_size, peak, machine, splits=())[0]


def pass_product(p: Mapping[str, Array], one: str, machine: Machine) -> tuple[Library, Sides]:
    """The product (groups, rows, columns, depth) that a pass amounts to, channels padded, and its kernels' constants.

    ``one`` is ``"forward"``, ``"image"`` or ``"weight"``; a strided pass over the image skips the taps between.
    """
    height, width, taps = result_sides(p)
    pixels = p["n"] * height * width
    inside, outside = round_up(p["c_in"] / p["groups"], 8), round_up(p["c_out"] / p["groups"], 8)
    constants = machine.constants.convolutions
    if one == "forward":
        return constants.forward, (p["groups"], pixels, outside, taps * inside)
    if one == "image":
        places = p["n"] * p["height"] * p["width"]
        between = p["stride"] * p.get("stride_height", p["stride"])
        return constants.of_image, (p["groups"], places, inside, taps * outside / between)
    return constants.of_weight, (p["groups"], outside, taps * inside, pixels)


def result_sides(p: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """Height and width of the result, and taps of a filter. A filter that is not square says how high it is
    (``kernel_height``) and how much its image is padded there (``padding_height``), one that steps otherwise down than
    across how far (``stride_height``). ``sides`` are these three, where they are known already."""
    if "sides" in p:
        height, width, taps = p["sides"]
        return height, width, taps
    tall, above = p.get("kernel_height", p["kernel"]), p.get("padding_height", p["padding"])
    height = (p["height"] + 2 * above - tall) // p.get("stride_height", p["stride"]) + 1
    width = (p["width"] + 2 * p["padding"] - p["kernel"]) // p["stride"] + 1
    return height, width, p["kernel"] * tall


def _depthwise(
    costs: Depthwise, p: Mapping[str, Array], pixels: Array, moved: Array, taps: Array, machine: Machine
) -> Array:
    places = pixels * p["c_out"]
    is_strided = p["stride"] > 1
    multiply = costs.multiply + is_strided * costs.strided
    if costs.widest is not None:
        multiply = np.where(p["kernel"] > _WIDEST, costs.widest[0] + is_strided * costs.widest[1], multiply)
    arithmetic = places * (taps * multiply + p["kernel"] * costs.row) + pixels * taps * costs.position
    memory = moved * costs.byte * machine.constants.reference.bytes_per_us / machine.bytes_per_us
    return np.asarray(costs.launch + taps * costs.tap + arithmetic + memory)


def _few_channels(costs: FewChannels, multiplies: Array, image: Array) -> Array:
    return np.asarray(costs.launch + multiplies * costs.multiply + image * costs.byte)


def _row_bytes(value: Array, item_size: Array) -> Array:
    whole = np.asarray(value, dtype=np.int64)
    return np.asarray(np.minimum((whole & -whole) * item_size, 16.0))
