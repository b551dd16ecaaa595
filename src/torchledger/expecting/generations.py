"""What devices of one generation have in common: one record each, by compute capability.

Nothing here follows from a device's name. A generation without constants of its own borrows those of another: they then
only inform the regressors, and the baseline is the roofline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from torchledger.expecting.constants import Constants, constants_of_package


@dataclass(frozen=True)
class NetworkFiles:
    """Files of this package with what was learned of a library's choices, ``None`` where nothing was.

    ``products`` are matrix products, ``convolutions`` square filters over images in half precision, ``passes`` single
    passes of any convolution, ``groups`` those in groups of several channels, ``conv2d`` that operator: its forwards,
    which learned from its labels too, and since the third both gradients of its backwards together. ``trees`` say what
    the last three miss.
    """

    products: str | None = None
    convolutions: str | None = None
    passes: str | None = None
    groups: str | None = None
    conv2d: str | None = None
    trees: str | None = None


@dataclass(frozen=True)
class Generation:
    """``lanes`` are the single-precision instructions that a multiprocessor ends in a clock, ``threads`` those that it
    holds at most (CUDA C programming guide, tables of compute capabilities and of arithmetic throughput).

    ``constants`` is the name of a file of this package with the fitted numbers, ``None`` where nothing was fitted;
    ``networks`` are those that models of each number (``Machine.networks``, from 1) learned beside.
    """

    name: str
    compute_capability: tuple[int, int]
    lanes: int
    threads: int
    constants: str | None = None
    networks: tuple[NetworkFiles, ...] = ()


_FIRST_OF_HOPPER = NetworkFiles(
    products="hopper_products.npz",
    convolutions="hopper_convolutions.npz",
    passes="hopper_passes.npz",
    conv2d="hopper_convolutions.npz",
)
_SECOND_OF_HOPPER = replace(_FIRST_OF_HOPPER, conv2d="hopper_conv2d.npz")
_FOURTH_OF_HOPPER = replace(_SECOND_OF_HOPPER, products="hopper_matrix_products.npz", passes="hopper_layer_passes.npz")
_FIFTH_OF_HOPPER = replace(
    _FOURTH_OF_HOPPER,
    products="hopper_wide_products.npz",
    groups="hopper_groups.npz",
    conv2d="hopper_blended_conv2d.npz",
)
_SIXTH_OF_HOPPER = replace(
    _FIFTH_OF_HOPPER,
    passes="hopper_wide_passes.npz",
    groups="hopper_wide_groups.npz",
    conv2d="hopper_wide_conv2d.npz",
)
_SEVENTH_OF_HOPPER = replace(_SIXTH_OF_HOPPER, products="hopper_further_products.npz")
_NINTH_OF_HOPPER = replace(_SEVENTH_OF_HOPPER, passes="hopper_further_passes.npz", groups="hopper_further_groups.npz")
_TWELFTH_OF_HOPPER = replace(
    _NINTH_OF_HOPPER,
    passes="hopper_broad_passes.npz",
    groups="hopper_broad_groups.npz",
    conv2d="hopper_broad_conv2d.npz",
)
_THIRTEENTH_OF_HOPPER = replace(_TWELFTH_OF_HOPPER, trees="hopper_pass_trees.npz")
_HOPPER = (
    _FIRST_OF_HOPPER,
    _SECOND_OF_HOPPER,
    _SECOND_OF_HOPPER,
    _FOURTH_OF_HOPPER,
    _FIFTH_OF_HOPPER,
    _SIXTH_OF_HOPPER,
    _SEVENTH_OF_HOPPER,
    _SEVENTH_OF_HOPPER,
    _NINTH_OF_HOPPER,
    _NINTH_OF_HOPPER,
    _NINTH_OF_HOPPER,
    _TWELFTH_OF_HOPPER,
    _THIRTEENTH_OF_HOPPER,
    _THIRTEENTH_OF_HOPPER,
)


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
        networks=_HOPPER,
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
