"""Random programs for Inductor to compile: what the kernels of models are made of, at random shapes.

A program is drawn from a seed, so that every process draws the same one. Chains mix pointwise functions, reductions,
norms, softmax, gathers, cat, permutes, residuals, random masks and products; blocks are the usual parts of networks
(attention, feed-forward, convolution with batch norm, squeeze and excite) with random sizes, or parts that few have;
networks are small models from inputs to loss. Each is run forward and backward, in bfloat16, under autocast with
float32 parameters, or in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torchledger.errors import SampleError
from torchledger.sampling.blocks import BLOCKS
from torchledger.sampling.chains import draw_chain
from torchledger.sampling.drawing import Draw, Function, TensorSpec
from torchledger.sampling.networks import NETWORKS
from torchledger.sampling.rare_blocks import RARE_BLOCKS
from torchledger.sampling.written_blocks import WRITTEN_BLOCKS

Precision = Literal["bfloat16", "autocast", "float32"]
LARGEST_NUMEL = 2**27


@dataclass(frozen=True)
class Program:
    """A function of tensors, and what its inputs are."""

    seed: int
    family: str
    precision: Precision
    function: Function
    inputs: Mapping[str, TensorSpec] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``"attention-17"``."""
        return f"{self.family}-{self.seed}"


def draw_program(seed: int, *, largest_numel: int = LARGEST_NUMEL, family: str | None = None) -> Program:
    """The program of a seed, of a given family or of any; its activations have at most about ``largest_numel``
    elements. Raises ``SampleError`` for a family that nobody draws."""
    if family is not None:
        check_families((family,))
    draw = Draw(seed, largest_numel)
    family = family or draw.choose(tuple(_FAMILIES), weights=tuple(weight for _, weight in _FAMILIES.values()))
    function = _FAMILIES[family][0](draw)
    # Whole models are mostly trained under autocast.
    weights = (0.25, 0.7, 0.05) if family in NETWORKS else (0.55, 0.35, 0.1)
    precision: Precision = draw.choose(("bfloat16", "autocast", "float32"), weights=weights)
    return Program(seed, family, precision, function, dict(draw.inputs))


def check_families(names: Iterable[str]) -> None:
    """Raises ``SampleError`` for families that nobody draws."""
    unknown = sorted(set(names) - _FAMILIES.keys())
    if unknown:
        raise SampleError(
            f"no family of random programs is called {', '.join(unknown)}; known: {', '.join(_FAMILIES)}."
        )


def make_inputs(program: Program, device: str) -> dict[str, Any]:
    """Tensors for a program's inputs: activations in its dtype, weights in float32 under autocast."""
    import torch

    generator = torch.Generator(device=device).manual_seed(program.seed)
    half = torch.float32 if program.precision == "float32" else torch.bfloat16
    weights = torch.float32 if program.precision == "autocast" else half
    tensors = {}
    for name, spec in program.inputs.items():
        if spec.kind == "ids":
            tensors[name] = torch.randint(0, spec.high, spec.shape, device=device, generator=generator)
            continue
        dtype = {"activation": half, "weight": weights, "state": weights, "buffer": torch.float32}[spec.kind]
        tensor = torch.randn(spec.shape, device=device, generator=generator, dtype=torch.float32).to(dtype)
        if spec.kind == "weight":
            tensor *= 1 / math.sqrt(max(spec.shape[-1], 1))
        if spec.channels_last:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        tensors[name] = tensor.requires_grad_(spec.kind not in ("buffer", "state"))
    return tensors


_FAMILIES: Mapping[str, tuple[Callable[[Draw], Function], float]] = {
    "chain": (draw_chain, 4.0),
    **BLOCKS,
    **NETWORKS,
    **RARE_BLOCKS,
    **WRITTEN_BLOCKS,
}
