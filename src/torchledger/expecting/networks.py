"""Small networks that come with the package as constants; numpy asks them, scripts in ``benchmarks/`` make them."""

from __future__ import annotations

import importlib.resources
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FARTHEST = 4.0
"""Standard deviations, beyond which a feature says no more."""

_CHUNK = 2048
_NEVER_VARIED = 1e-5


@dataclass(frozen=True)
class Network:
    """Layers of weights [in, out] and biases with x / (1 + exp(-x)) between them, on features shifted by ``center`` and
    divided by ``scale``; its one output is multiplied by ``unit``. ``is_rectified``: with max(x, 0) between them, which
    is asked in half the time."""

    center: NDArray[np.float32]
    scale: NDArray[np.float32]
    unit: float
    layers: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]]
    is_rectified: bool = False

    def predict(self, rows: NDArray[np.float32]) -> Array:
        """One number per row of [rows, features], quickest where features stand one after the other in memory."""
        chunk = self._rectified_chunk if self.is_rectified else self._chunk
        return np.concatenate([chunk(rows[start : start + _CHUNK]) for start in range(0, len(rows), _CHUNK)])

    def _rectified_chunk(self, rows: NDArray[np.float32]) -> Array:
        low, high, layers, last = self._of_columns
        count, widest = len(rows), max(len(weight) for weight in layers)
        # Under a layer's values stands a row of ones, by which the next layer's product adds its biases.
        value = np.empty((len(low) + 1, count), np.float32)
        np.maximum(rows.T, low, out=value[:-1])
        np.minimum(value[:-1], high, out=value[:-1])
        value[-1] = 1.0
        # Two layers' values in turns, in memory that stays in the processor's cache; by a number alone, instead of as
        # many zeros as there are values, the larger one is found four times as slowly.
        room, zeros = np.empty((2, (widest + 1) * count), np.float32), np.zeros(widest * count, np.float32)
        for place, weight in enumerate(layers):
            size = len(weight) * count
            holding = room[place % 2][: size + count].reshape(-1, count)
            said = holding[:-1]
            np.matmul(weight, value, out=said)
            np.maximum(said, zeros[:size].reshape(said.shape), out=said)
            holding[-1] = 1.0
            value = holding
        return np.asarray((last @ value) * self.unit, dtype=np.float64)

    @cached_property
    def _of_columns(self) -> tuple[Any, Any, list[NDArray[np.float32]], NDArray[np.float32]]:
        """Bounds of each feature; weights of the layers, [out, in and biases], the first one's for features as they
        are, neither shifted nor divided; those of the output."""
        scale, center = self.scale.astype(np.float64), self.center.astype(np.float64)
        (first, first_bias), *others = self.layers
        # What never varied taught nothing, and divided by next to nothing would drown the others in its rounding.
        unscaled = np.where(scale > _NEVER_VARIED, first.T / scale, 0.0).T
        layers: list[tuple[Any, Any]] = [(unscaled, first_bias - center @ unscaled), *others]
        turned = [np.column_stack([weight.T, bias]).astype(np.float32) for weight, bias in layers]
        low, high = ((center + side * FARTHEST * scale).astype(np.float32)[:, None] for side in (-1.0, 1.0))
        return low, high, turned[:-1], turned[-1][0]

    def _chunk(self, rows: NDArray[np.float32]) -> Array:
        value = rows - self.center
        value /= self.scale
        np.clip(value, -FARTHEST, FARTHEST, out=value)
        layers = self._negative
        # Two layers' values in turns, and their denominators: memory that stays in the processor's cache.
        room = np.empty((3, len(rows) * max(len(bias) for _, bias in layers[:-1])), np.float32)
        for place, (weight, bias) in enumerate(layers[:-1]):
            # The negative of what a layer says, which exp asks for, and of what it hands on.
            said, decay = (room[each][: len(rows) * len(bias)].reshape(-1, len(bias)) for each in (place % 2, 2))
            np.matmul(value, weight, out=said)
            said += bias
            # What is beyond the largest number divides to nothing.
            with np.errstate(over="ignore"):
                np.exp(said, out=decay)
            decay += 1
            said /= decay
            value = said
        weight, bias = layers[-1]
        return np.asarray((value @ weight + bias)[:, 0] * self.unit, dtype=np.float64)

    @cached_property
    def _negative(self) -> Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """The layers with negatives between them: rounding is the same."""
        (first, first_bias), *between, (last, last_bias) = self.layers
        return ((-first, -first_bias), *((weight, -bias) for weight, bias in between), (-last, last_bias))


def to_file(networks: Mapping[str, Network]) -> bytes:
    """Networks by name, as the package carries them."""
    arrays: dict[str, NDArray[np.float32]] = {}
    for kind, network in networks.items():
        arrays |= {f"{kind}.center": network.center, f"{kind}.scale": network.scale}
        arrays[f"{kind}.unit"] = np.array(network.unit, np.float32)
        if network.is_rectified:
            arrays[f"{kind}.rectified"] = np.array(True)
        for index, (weight, bias) in enumerate(network.layers):
            arrays |= {f"{kind}.weight {index}": weight.astype(np.float16), f"{kind}.bias {index}": bias}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def package_bytes(file: str) -> bytes:
    """A file of ``generations/``, as it is in the package."""
    return importlib.resources.files("torchledger.expecting").joinpath("generations", file).read_bytes()


def of_package(file: str, kinds: Sequence[str]) -> dict[str, Network]:
    """The networks of some names that are in a file of ``generations/``."""
    data = package_bytes(file)
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        found = dict(arrays)
    networks = {}
    for kind in kinds:
        count = sum(name.startswith(f"{kind}.weight ") for name in found)
        if not count:
            continue
        layers = [
            (found[f"{kind}.weight {index}"].astype(np.float32), found[f"{kind}.bias {index}"])
            for index in range(count)
        ]
        center, scale, unit = found[f"{kind}.center"], found[f"{kind}.scale"], float(found[f"{kind}.unit"])
        networks[kind] = Network(center, scale, unit, layers, f"{kind}.rectified" in found)
    return networks
