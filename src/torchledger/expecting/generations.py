"""What devices of one generation have in common: one record each, by compute capability.

Nothing here follows from a device's name. A generation without constants of its own borrows those of another: they then
only inform the regressors, and the baseline is the roofline.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from torchledger.expecting.constants import Constants, constants_of_package


@dataclass(frozen=True)
class Generation:
    """``lanes`` are the single-precision instructions that a multiprocessor ends in a clock, ``threads`` those that it
    holds at most (CUDA C programming guide, tables of compute capabilities and of arithmetic throughput).

    ``constants`` and the networks are names of files of this package: the fitted numbers, and what was learned beside
    them of the choices of a library, ``None`` where nothing was.
    """

    name: str
    compute_capability: tuple[int, int]
    lanes: int
    threads: int
    constants: str | None = None
    first_product_networks: str | None = None
    second_product_networks: str | None = None
    product_networks: str | None = None
    convolution_networks: str | None = None
    first_pass_networks: str | None = None
    pass_networks: str | None = None
    group_networks: str | None = None
    first_conv2d_networks: str | None = None
    conv2d_networks: str | None = None


GENERATIONS: tuple[Generation, ...] = (
    Generation("Volta", (7, 0), lanes=64, threads=2048),
    Generation("Turing", (7, 5), lanes=64, threads=1024),
    Generation("Ampere", (8, 0), lanes=64, threads=2048),
    Generation("Ampere (8.6)", (8, 6), lanes=128, threads=1536),
    Generation("Ada", (8, 9), lanes=128, threads=1536),
    Generation(
        "Hopper",
        (9, 0),
        lanes=128,
        threads=2048,
        constants="hopper",
        first_product_networks="hopper_products.npz",
        second_product_networks="hopper_matrix_products.npz",
        product_networks="hopper_wide_products.npz",
        convolution_networks="hopper_convolutions.npz",
        first_pass_networks="hopper_passes.npz",
        pass_networks="hopper_layer_passes.npz",
        group_networks="hopper_groups.npz",
        first_conv2d_networks="hopper_conv2d.npz",
        conv2d_networks="hopper_blended_conv2d.npz",
    ),
    Generation("Blackwell", (10, 0), lanes=128, threads=2048),
    Generation("Blackwell (12.0)", (12, 0), lanes=128, threads=1536),
)

FIRST_WITH = {"bfloat16": (8, 0), "float8_e4m3fn": (8, 9), "float8_e5m2": (8, 9)}
"""The first compute capability whose tensor cores multiply elements of a type, by torch's name of it. Before it torch
converts bfloat16, slowly, and refuses float8."""

UNKNOWN = Generation("unknown", (0, 0), lanes=128, threads=2048)
"""Stands in for a device whose compute capability is unknown or of none of these."""

BORROWED = "hopper"


@lru_cache
def find_generation(compute_capability: tuple[int, int] | None) -> Generation:
    """The generation of a compute capability; one that is not listed is taken for the one before it of the same major
    number, and else is ``UNKNOWN``.

    >>> find_generation((8, 7)).name
    'Ampere (8.6)'
    """
    if compute_capability is None:
        return UNKNOWN
    major, minor = compute_capability
    alike = [one for one in GENERATIONS if one.compute_capability[0] == major and one.compute_capability[1] <= minor]
    return max(alike, key=lambda one: one.compute_capability) if alike else UNKNOWN


def constants_of_generation(generation: Generation) -> Constants:
    """The constants of a generation, or those that it borrows."""
    return constants_of_package(generation.constants or BORROWED)
