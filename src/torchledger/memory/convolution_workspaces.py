"""What cuDNN works in while a convolution runs, beside the tensors that it is given and makes.

Most often that is nothing, or room for some of its three tensors once more, in the layout of the kernels that it chose
(channels last, padded to 16 bytes of channels): a network that learned of an H200 says for which of them. Where it is
something else (partial sums of filters, images cut for groups), the network says how much beside all three.
``benchmarks/memory/convolution_workspaces.py`` measures and teaches; it comes to megabytes for a layer, and where a
step is fullest in a convolution, it is in no tensor.
"""

from __future__ import annotations

import importlib.resources
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Pass = Literal["forward", "image", "weight"]
"""A convolution's result, the gradient of its image, that of its filters."""

PASSES: tuple[Pass, ...] = ("forward", "image", "weight")
PRECISIONS = ("bfloat16", "float16", "tf32", "float32")

ROOMS: tuple[tuple[bool, bool, bool], ...] = tuple((bool(k & 4), bool(k & 2), bool(k & 1)) for k in range(8))
"""Whether there is room for the image, the filters and the result once more: the ways that a network tells apart, and
one more that is none of them."""

_PADDED_BYTES = 16
_FARTHEST = 4.0  # standard deviations, beyond which a feature says no more
_FILE = "convolution_workspaces.npz"

Columns = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class ConvolutionPass:
    """One pass of a convolution over images: sizes as ``conv2d`` names them, of a transposed one those of the plain one
    that it runs as; ``kernel_height`` is 1 along one dimension, ``stride_height`` 0 where filters step down as far as
    across. ``precision`` is one of ``PRECISIONS``."""

    direction: Pass
    precision: str
    count: int
    c_in: int
    c_out: int
    height: int
    width: int
    kernel_height: int
    kernel: int
    stride: int
    padding_height: int
    padding: int
    groups: int
    channels_last: bool
    stride_height: int = 0


def workspace_bytes(passes: Sequence[ConvolutionPass]) -> list[int]:
    """The bytes that cuDNN asks for beside the tensors of each pass, as an H200's does (torch 2.11, defaults)."""
    if not passes:
        return []
    columns = {
        name: np.array([float(getattr(each, name)) for each in passes])
        for name in ConvolutionPass.__dataclass_fields__
        if name not in ("direction", "precision")
    }
    columns["direction"] = np.array([float(PASSES.index(each.direction)) for each in passes])
    columns["precision"] = np.array([float(PRECISIONS.index(each.precision)) for each in passes])
    said = _answers(features(columns))
    return [int(nbytes) for nbytes in bytes_said(columns, said)]


def features(columns: Columns) -> NDArray[np.float32]:
    """What the network sees of passes, [rows, features]; ``direction`` and ``precision`` are places in ``PASSES`` and
    ``PRECISIONS``."""
    count, c_in, c_out, height, width = (columns[name] for name in ("count", "c_in", "c_out", "height", "width"))
    tall, kernel, stride, groups = (columns[name] for name in ("kernel_height", "kernel", "stride", "groups"))
    made_height, made_width = _sides(columns)
    rows = [
        *(np.log(each) for each in (count, c_in, c_out, height, width, made_height, made_width, groups)),
        *(np.log(each) for each in (c_in / groups, c_out / groups, count * made_height * made_width)),
        np.log(c_in / groups * tall * kernel),
        *(np.log(np.maximum(each, 1.0)) for each in room_bytes(columns)),
        *(tall, kernel, np.log(kernel), stride, columns["padding"], columns["channels_last"]),
        *(_alignment(each / groups) for each in (c_in, c_out)),
        *(_alignment(each) for each in (c_in, c_out, count * made_height * made_width)),
        *((each == 1).astype(float) for each in (groups, kernel * tall, stride, tall, c_in / groups, c_out / groups)),
        *((columns["precision"] == place).astype(float) for place in range(len(PRECISIONS))),
        *((columns["direction"] == place).astype(float) for place in range(len(PASSES))),
    ]
    return np.column_stack(rows).astype(np.float32)


def room_bytes(columns: Columns) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Bytes of the image, the filters and the result, their channels padded."""
    size = np.where(columns["precision"] < 2, 2.0, 4.0)
    made_height, made_width = _sides(columns)
    step = _PADDED_BYTES / size
    c_in, c_out, per_group = (
        np.ceil(each / step) * step for each in (columns["c_in"], columns["c_out"], columns["c_in"] / columns["groups"])
    )
    return (
        columns["count"] * c_in * columns["height"] * columns["width"] * size,
        c_out * per_group * columns["kernel_height"] * columns["kernel"] * size,
        columns["count"] * c_out * made_height * made_width * size,
    )


def bytes_said(columns: Columns, said: NDArray[np.float32]) -> NDArray[np.float64]:
    """Bytes by a network's answers, [rows, 10]: how likely each way of ``ROOMS`` and none of them are, and how much it
    is then: the logarithm of it over all three tensors."""
    sizes = np.column_stack(room_bytes(columns))
    choice = said[:, :-1].argmax(axis=1)
    known = np.minimum(choice, len(ROOMS) - 1)
    other = np.exp(said[:, -1].astype(float)) * sizes.sum(axis=1)
    rooms = (sizes * np.array(ROOMS, float)[known]).sum(axis=1)
    return np.asarray(np.where(choice < len(ROOMS), rooms, other))


def _sides(columns: Columns) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Height and width of the result."""
    across = columns["stride"]
    down = columns.get("stride_height", across)
    tall = columns["height"] + 2 * columns["padding_height"] - columns["kernel_height"]
    wide = columns["width"] + 2 * columns["padding"] - columns["kernel"]
    return np.maximum(tall // np.where(down > 0, down, across) + 1, 1.0), np.maximum(wide // across + 1, 1.0)


def _alignment(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """log2 of the largest power of two, up to 64, that divides whole numbers."""
    return np.asarray(np.sum([sizes % 2**power == 0 for power in range(1, 7)], axis=0), dtype=float)


def _answers(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    network = _network()
    value = np.clip((rows - network["center"]) / network["scale"], -_FARTHEST, _FARTHEST)
    layers = sum(name.startswith("weight") for name in network)
    for layer in range(layers):
        value = value @ network[f"weight {layer}"] + network[f"bias {layer}"]
        if layer < layers - 1:
            value = np.maximum(value, 0.0)
    return np.asarray(value, dtype=np.float32)


@lru_cache(maxsize=1)
def _network() -> Mapping[str, NDArray[np.float32]]:
    data = importlib.resources.files("torchledger.memory").joinpath(_FILE).read_bytes()
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return {name: arrays[name].astype(np.float32) for name in arrays.files}
