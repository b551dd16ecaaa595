"""Random choices from a seed, and the small functions that random programs are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Function = Callable[..., Any]
Tensors = Mapping[str, Any]
Layer = Callable[[Any, Tensors], Any]

WIDTHS = (64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 8192)
VOCABULARIES = (1000, 8192, 10_000, 30_522, 32_000, 32_128, 50_257, 50_304, 65_536, 128_256)


@dataclass(frozen=True)
class TensorSpec:
    """One input: its shape, and what is in it. ``dtype`` ``None`` is the program's."""

    shape: tuple[int, ...]
    kind: Literal["activation", "weight", "state", "buffer", "ids"] = "activation"
    high: int = 0
    channels_last: bool = False


class Draw:
    """Random choices, and the inputs that a program under construction asks for."""

    def __init__(self, seed: int, largest: int) -> None:
        self._random = np.random.default_rng([seed, 20_261_121])
        self.largest = largest
        self.inputs: dict[str, TensorSpec] = {}

    def choose(self, options: Any, weights: tuple[float, ...] | None = None) -> Any:
        shares = None if weights is None else np.array(weights) / sum(weights)
        return options[int(self._random.choice(len(options), p=shares))]

    def chance(self, share: float) -> bool:
        return bool(self._random.random() < share)

    def size(self, low: int, high: int, multiple: int = 1) -> int:
        """Log-uniform between two sizes, a multiple of something."""
        value = math.exp(self._random.uniform(math.log(low), math.log(high)))
        return max(multiple, round(value / multiple) * multiple)

    def width(self, low: int = 64, high: int = 8192) -> int:
        if self.chance(0.75):
            return int(self.choose([width for width in WIDTHS if low <= width <= high]))
        return self.size(low, high, self.choose((1, 2, 8, 16)))

    def tokens(self, width: int) -> tuple[int, int]:
        """Batch and length such that batch x length x width is a sensible tensor."""
        numel = self.size(min(2**17, self.largest // 16), self.largest)
        count = max(32, numel // width)
        length = min(self.choose((64, 128, 197, 256, 384, 512, 577, 1000, 1024, 2048, 4096)), count)
        return max(1, min(count // length, 512)), length

    def add(
        self,
        shape: tuple[int, ...],
        kind: Literal["activation", "weight", "state", "buffer", "ids"] = "activation",
        *,
        high: int = 0,
        channels_last: bool = False,
    ) -> str:
        name = f"t{len(self.inputs)}"
        self.inputs[name] = TensorSpec(shape, kind, high, channels_last)
        return name


def functional() -> Any:
    import torch

    return torch.nn.functional


def activate(name: str, x: Any) -> Any:
    """An activation function by name."""
    if name == "gelu_tanh":
        return functional().gelu(x, approximate="tanh")
    if name == "square":
        return functional().relu(x).square()
    return getattr(functional(), name)(x) if name not in ("sigmoid", "tanh") else getattr(x, name)()


def rms_norm(x: Any, weight: Any) -> Any:
    """As models write it: in float32, then back."""
    wide = x.float()
    return weight * (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


def draw_norm(draw: Draw, width: int, *, rms: bool) -> Layer:
    """A norm over the last axis with weights of its own."""
    weight = draw.add((width,), "weight")
    if rms:
        return lambda x, t: rms_norm(x, t[weight])
    bias = draw.add((width,), "weight")
    return lambda x, t: functional().layer_norm(x, (width,), t[weight], t[bias])


def drop(x: Any, share: float) -> Any:
    """Dropout, where there is any."""
    return functional().dropout(x, share, training=True) if share else x


def rotate_by(x: Any, angles: Any) -> Any:
    """A rotary embedding by angles, whose sines and cosines are taken in float32."""
    return rotate(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))


def rotate(x: Any, cosine: Any, sine: Any) -> Any:
    """A rotary embedding: halves of the last axis turned against each other."""
    import torch

    left, right = x.chunk(2, dim=-1)
    return (x * cosine + torch.cat((-right, left), -1) * sine).to(x.dtype)
