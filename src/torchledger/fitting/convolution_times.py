"""How long a convolution takes by the way in which the library runs it: the physics under the convolutions' model.

A 1 x 1 filter without a stride is a matrix product, and runs as one. Other filters are products of pixels, channels
and taps on tensors with channels last, before which and after which tensors of another layout are changed, and
channels padded. One filter a channel has kernels of its own, bound by vector arithmetic. The constants were fitted to
the training rows of the H200 data set and come within 15 to 25 % (mean) alone; the library's choice is less regular
than that of matrix products, and the regressors learn what they can of the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.fitting.machine import Machine
from torchledger.fitting.product_times import Library, Sides, product_times, tile_times

Array = NDArray[np.float64]

_TILES = (
    *((64, 64), (128, 64), (64, 128), (128, 128), (256, 64), (64, 256), (256, 128), (128, 256)),
    *((128, 32), (64, 32), (128, 16)),
)
_FORWARD = Library(
    _TILES, 3.801, 0.0401, 0.455, 1.312, 1.997, 0.001, 2.684, 0.0057, 1.213, 1.54e-7, 2.817, 1.33e-7, 10.84, 1
)
_OF_IMAGE = Library(
    _TILES, 7.271, 0.0337, 2.187, 1.345, 1.579, 0.001, 0.71, 0.0057, 4.442, 2.35e-7, 2.817, 1.33e-7, 10.84, 1
)
_OF_WEIGHT = Library(
    _TILES, 3.069, 0.1137, 0.3387, 1.728, 0.2149, 0.001, 0.7095, 0.0057, 0.3422, 2.07e-7, 9.571, 1.01e-7, 8.849, 1
)
_CHANGE_LAUNCHES, _CHANGE_IN, _CHANGE_OUT = 6.28, 6.87e-7, 9.34e-7  # microseconds, and microseconds a byte
_PAD_LAUNCHES, _PAD_BYTE = 4.29, 1.7e-7
_FITTED_BYTES = 4.32e6


@dataclass(frozen=True)
class _Vector:
    """One filter a channel: microseconds of launch, per multiply-add, per row of taps, per byte, per tap and pixel
    position, per tap, and more per multiply-add where the filter moves by more than one pixel."""

    launch: float
    multiply: float
    row: float
    byte: float
    position: float
    tap: float
    strided: float = 0.0


_ONE_EACH: Mapping[tuple[str, bool], _Vector] = {
    ("forward", True): _Vector(1.452, 1.19e-7, 0.0, 2.0e-7, 0.0, 0.167, 9e-8),
    ("forward", False): _Vector(1.106, 4.37e-7, 1.14e-6, 2.13e-7, 7.0e-7, 0.076),
    ("backward", True): _Vector(5.226, 3.46e-7, 0.0, 7.39e-7, 3.89e-6, 0.141, 8e-7),
    ("backward", False): _Vector(3.762, 1.4e-6, 0.0, 4.58e-6, 3.16e-5, 0.14),
}

_WIDEST = 7
_BEYOND_WIDEST: Mapping[str, tuple[float, float]] = {"forward": (1.2e-6, 4e-7), "backward": (2.8e-6, 4.7e-6)}
"""With channels last, filters wider than 7 x 7 have slower kernels: per multiply-add, and more where strided."""

_FEW_CHANNELS = 4
_GROUPED: Mapping[str, tuple[float, float, float]] = {
    "forward": (4.0, 2.8e-9, 8e-7),
    "backward": (20.0, 1.3e-8, 2.5e-6),
}
_FEW: Mapping[tuple[str, bool], tuple[float, float, float]] = {
    ("forward", True): (1.0, 2.0e-8, 1.9e-6),
    ("forward", False): (3.0, 3.9e-8, 6.4e-6),
    ("backward", True): (17.0, 5.0e-8, 1.0e-5),
    ("backward", False): (9.0, 6.5e-8, 2.2e-5),
}
"""Few input channels or groups of them: microseconds of launch, per multiply-add, per byte of the image."""


def convolution_times(
    p: Mapping[str, Any], direction: str, item_size: Array, peak: Array, machine: Machine
) -> dict[str, Array]:
    """Microseconds of ``conv2d`` at its parameters, by the ways of running it.

    ``direction`` is ``"forward"``, ``"backward"``, or ``"image"`` or ``"weight"`` for one of its two gradients.
    ``"product"``, ``"filters"``, ``"one each"`` and ``"few channels"`` are the ways, whichever applies, ``"change"`` is
    the change of layouts, and ``"expected"`` the way taken with what it needs.
    """
    p = {name: np.broadcast_to(np.asarray(value, dtype=np.float64), item_size.shape) for name, value in p.items()}
    inside, outside = p["c_in"] / p["groups"], p["c_out"] / p["groups"]
    height = (p["height"] + 2 * p["padding"] - p["kernel"]) // p["stride"] + 1
    width = (p["width"] + 2 * p["padding"] - p["kernel"]) // p["stride"] + 1
    pixels, taps = p["n"] * height * width, p["kernel"] ** 2
    image = p["n"] * p["c_in"] * p["height"] * p["width"] * item_size
    result = pixels * p["c_out"] * item_size
    is_last = p["channels_last"] > 0
    is_product = (p["kernel"] == 1) & (p["stride"] == 1) & (p["groups"] == 1)
    is_one_each = (p["groups"] == p["c_in"]) & (p["groups"] > 1)
    passes = 2 if direction == "backward" else 1
    # The vector kernels' gradients of image and weight were measured together, and are taken for alike.
    share = 0.5 if direction in ("image", "weight") else 1.0
    measured = "forward" if direction == "forward" else "backward"

    product = _as_products(p, is_last, height * width, direction, item_size, peak, machine)
    filters = _as_filters(p["groups"], pixels, inside, outside, taps, direction, item_size, peak, machine)
    one_each = np.where(
        is_last,
        *(
            share
            * _one_each(
                _ONE_EACH[measured, last],
                _BEYOND_WIDEST[measured] if last else None,
                p,
                pixels,
                image + result,
                machine,
            )
            for last in (True, False)
        ),
    )
    bandwidth = _FITTED_BYTES / machine.bytes_per_us
    change = np.where(is_last, 0.0, _CHANGE_LAUNCHES + (image * _CHANGE_IN + result * _CHANGE_OUT) * bandwidth)
    is_padded = (inside % 8 != 0) | (outside % 8 != 0)
    pad = np.where(is_padded, _PAD_LAUNCHES + (image + result) * _PAD_BYTE * bandwidth, 0.0)
    few = np.where(
        p["groups"] > 1,
        share * _few_channels(_GROUPED[measured], pixels * p["c_out"] * taps * inside, image),
        np.where(
            is_last,
            *(
                share * _few_channels(_FEW[measured, last], pixels * p["c_out"] * taps * inside, image)
                for last in (True, False)
            ),
        ),
    )
    expected = np.where(is_product, product, filters + passes * (change + pad))
    expected = np.where((p["groups"] > 1) | (inside <= _FEW_CHANNELS) & ~is_product, few, expected)
    return {
        "product": product,
        "filters": filters,
        "one each": one_each,
        "few channels": few,
        "change": change + pad + machine.floor_us,
        "expected": np.where(is_one_each, one_each, expected),
    }


def _as_products(
    p: Mapping[str, Array], is_last: NDArray[np.bool_], places: Array, direction: str, item_size: Array, peak: Array,
    machine: Machine,
) -> Array:  # fmt: skip
    """One product over all pixels with channels last; else one per image, whose rows are the image's places."""
    batch = np.where(is_last, 1.0, p["n"])
    pixels = np.where(is_last, p["n"] * places, places)
    c_in, c_out = p["c_in"], p["c_out"]
    row_bytes = np.minimum(_row_bytes(c_in, item_size), _row_bytes(np.where(is_last, c_out, places), item_size))
    of_weight: Sides = (batch, c_out, c_in, pixels)
    sides: list[Sides] = [(batch, pixels, c_out, c_in)]
    if direction != "forward":
        of_image: Sides = (batch, pixels, c_in, c_out)
        sides = {"backward": [of_weight, of_image], "image": [of_image]}.get(direction, [of_weight])
    return np.asarray(
        sum(np.minimum(*product_times(side, row_bytes, item_size, peak, machine)) for side in sides), dtype=np.float64
    )


def _as_filters(
    groups: Array, pixels: Array, inside: Array, outside: Array, taps: Array, direction: str, item_size: Array,
    peak: Array, machine: Machine,
) -> Array:  # fmt: skip
    padded_in, padded_out = _round_up(inside, 8), _round_up(outside, 8)
    if direction == "forward":
        sides = (groups, pixels, padded_out, taps * _round_up(inside, 32))
        return tile_times(_FORWARD, sides, item_size, peak, machine)[0]
    of_image = (groups, pixels, padded_in, taps * _round_up(outside, 32))
    of_weight = (groups, padded_out, taps * padded_in, pixels)
    total = np.zeros(len(item_size))
    if direction != "image":
        total = total + np.minimum(*tile_times(_OF_WEIGHT, of_weight, item_size, peak, machine))
    if direction != "weight":
        total = total + tile_times(_OF_IMAGE, of_image, item_size, peak, machine)[0]
    return total


def pass_product(p: Mapping[str, Array], one: str) -> tuple[Library, Sides]:
    """The product (groups, rows, columns, depth) that a pass amounts to, channels padded, and its kernels' constants.

    ``one`` is ``"forward"``, ``"image"`` or ``"weight"``; a strided pass over the image skips the taps between.
    """
    height = (p["height"] + 2 * p["padding"] - p["kernel"]) // p["stride"] + 1
    width = (p["width"] + 2 * p["padding"] - p["kernel"]) // p["stride"] + 1
    pixels, taps = p["n"] * height * width, p["kernel"] ** 2
    inside, outside = _round_up(p["c_in"] / p["groups"], 8), _round_up(p["c_out"] / p["groups"], 8)
    if one == "forward":
        return _FORWARD, (p["groups"], pixels, outside, taps * inside)
    if one == "image":
        places = p["n"] * p["height"] * p["width"]
        return _OF_IMAGE, (p["groups"], places, inside, taps * outside / p["stride"] ** 2)
    return _OF_WEIGHT, (p["groups"], outside, taps * inside, pixels)


def _one_each(
    costs: _Vector,
    beyond_widest: tuple[float, float] | None,
    p: Mapping[str, Array],
    pixels: Array,
    moved: Array,
    machine: Machine,
) -> Array:
    places = pixels * p["c_out"]
    taps = p["kernel"] ** 2
    is_strided = p["stride"] > 1
    multiply = costs.multiply + is_strided * costs.strided
    if beyond_widest is not None:
        multiply = np.where(p["kernel"] > _WIDEST, beyond_widest[0] + is_strided * beyond_widest[1], multiply)
    arithmetic = places * (taps * multiply + p["kernel"] * costs.row) + pixels * taps * costs.position
    memory = moved * costs.byte * _FITTED_BYTES / machine.bytes_per_us
    return np.asarray(costs.launch + taps * costs.tap + arithmetic + memory)


def _few_channels(costs: tuple[float, float, float], multiplies: Array, image: Array) -> Array:
    launch, multiply, byte = costs
    return np.asarray(launch + multiplies * multiply + image * byte)


def _row_bytes(value: Array, item_size: Array) -> Array:
    whole = np.asarray(value, dtype=np.int64)
    return np.asarray(np.minimum((whole & -whole) * item_size, 16.0))


def _round_up(value: Array, step: int) -> Array:
    return np.asarray(np.ceil(value / step) * step)
