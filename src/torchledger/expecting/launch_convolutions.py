"""Convolutions among launches: their sizes, the passes that they run, and what their library needs for these."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.convolution_network import learned_convolution_times
from torchledger.expecting.convolution_times import convolution_times
from torchledger.expecting.machine import Machine
from torchledger.expecting.pass_networks import Elements, passes_and_choices, passes_of_call, runs_one_by_one
from torchledger.expecting.tile_columns import tiles_of_product
from torchledger.expecting.volume_columns import DEEP, volume_columns
from torchledger.nouns import Launch
from torchledger.work.categories import operation_of
from torchledger.work.convolution_shapes import makes_image_alone, operands_of, planes_of, runs_channels_last
from torchledger.work.depth_folding import is_deep, without_depth
from torchledger.work.launch_tensors import alignment_of, tensors_of

_ALONE = "alone"
ALONE = f"log {_ALONE}"
"""Of a convolution by the networks of its single passes; the expected time where they are unknown."""

OPEN_CHOICE = "open choice"
"""The column that says how far a convolution's time varies over the kernels that the library may take for it."""

ONE_BY_ONE = "one by one"
"""The column of forwards that launch a kernel for each channel."""

EXACT_FLOAT32 = "exact float32"
"""The column of convolutions of float32 that must not be rounded for the tensor cores."""

OF_WIDE_FILTERS = " of wide filters"
"""What the name of a convolution's family ends in where its filters have more than 32 taps along one side: cuDNN 9 has
few kernels for these that use the tensor cores, and takes up to a hundred times as long where it takes none."""

WIDE = "wide filters"
"""The column of these."""

_WIDEST_USUAL = 32  # taps

SINGLE = 4.0  # bytes of an element


def convolution_columns(launch: Launch, machine: Machine) -> dict[str, float]:
    """Features of a convolution beside ``expected_convolutions``."""
    given = tensors_of(launch)
    is_backward = "backward" in operation_of(launch)
    inputs, outputs = without_depth(*given, is_backward=is_backward)
    operands, deep = operands_of(launch, inputs, outputs), float(is_deep(given[0]))
    if operands is None:
        return {"described": 0.0, DEEP: deep}
    image, weight, result, runs_back = operands
    count, channels, height, width = image.shape
    out_channels, per_group, tall, kernel = weight.shape
    groups = max(1, channels // max(per_group, 1))
    pixels = count * math.prod(result.shape[2:]) if len(result.shape) == 4 else count
    taps = per_group * kernel * tall
    return {
        **tiles_of_product("conv", groups, pixels, out_channels / groups, taps, machine.num_multiprocessors),
        "described": 1.0,
        "log count": math.log(count),
        "log channels": math.log(channels),
        "log out channels": math.log(out_channels),
        "log pixels": math.log(max(pixels, 1)),
        "log side": math.log(max(height, width if height == 1 else 1)),
        "kernel": float(kernel),
        "log groups": math.log(groups),
        "depthwise": float(per_group == 1 and channels > 1),
        "transposed": float(runs_back != makes_image_alone(launch)),
        "stride": float(round(width / max(result.shape[-1], 1))) if len(result.shape) == 4 else 1.0,
        "channels last": float(runs_channels_last(image, weight)),
        "image channels last": float(image.stride[1] == 1 and channels > 1),
        "weight channels last": float(weight.stride[1] == 1 and per_group > 1),
        "result channels last": float(len(result.shape) == 4 and result.stride[1] == 1),
        "gradients": float(len(planes_of(outputs))),
        WIDE: float(max(tall, kernel) > _WIDEST_USUAL),
        "channel alignment": alignment_of(per_group),
        "out channel alignment": alignment_of(out_channels),
        DEEP: deep,
        **volume_columns(*given, is_backward=is_backward),
    }


def expected_convolutions(
    direction: str, given: Sequence[Mapping[str, float]], machine: Machine
) -> Iterator[dict[str, float]]:
    """What the times of its algorithms say of each convolution of a direction."""
    if not given:
        return
    columns = {name: np.array([row[name] for row in given]) for name in given[0]}
    item_size, peak, copied_bytes = (columns.pop(name) for name in ("item size", "peak", "copied bytes"))
    is_float16, is_transposed = (columns.pop(name) > 0 for name in ("float16", "transposed"))
    is_exact = (item_size == SINGLE) & (peak <= machine.peak("float32"))
    alone, open_choice = None, np.zeros(len(given))
    if machine.has_tile_baseline:
        times = learned_convolution_times(columns, direction, item_size, is_float16, peak, machine)
        times["way"], times["expected"] = times["expected"], times.pop("learned")
        elements = Elements(item_size, is_float16 | is_exact, peak)
        alone, open_choice = _passes_alone(columns, direction, elements, is_transposed, machine)
    else:
        times = convolution_times(columns, direction, item_size, peak, machine)
    is_slow = runs_one_by_one(columns, direction, item_size) & ~is_transposed & (alone is not None)
    copied = machine.constants.convolutions.copy_over_dram * copied_bytes / machine.bytes_per_us
    copied += np.where(copied_bytes > 0, machine.floor_us, 0.0)
    times["expected"] = times["expected"] + copied
    if machine.has_tile_baseline:
        times[_ALONE] = times["expected"] if alone is None else alone + copied
    for place in range(len(given)):
        logarithms = {f"log {name}": math.log(time[place]) for name, time in times.items()}
        yield {**logarithms, ONE_BY_ONE: float(is_slow[place]), OPEN_CHOICE: float(open_choice[place])}


def _passes_alone(
    columns: Mapping[str, NDArray[np.float64]],
    direction: str,
    elements: Elements,
    is_transposed: NDArray[np.bool_],
    machine: Machine,
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64]]:
    """Microseconds of the passes that a direction runs by their own networks, ``None`` without any, and how open the
    library's choice is."""
    found, open_choice = np.zeros((2, len(is_transposed)))
    for side in (False, True):
        rows = np.flatnonzero(is_transposed == side)
        if not len(rows):
            continue
        passes = passes_of_call(direction, is_transposed=side)
        own = {name: value[rows] for name, value in columns.items()}
        times = passes_and_choices(own, passes, elements.some(rows), machine)
        if times is None:
            return None, open_choice
        found[rows], open_choice[rows] = times
    return found, open_choice
