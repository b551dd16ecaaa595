"""The fitted numbers under the physical baselines, as one file per generation of devices.

``torchledger fit-constants`` makes such a file from measurements (``fit_constants.py``); those that come with the
package lie in ``generations/``. The code that computes with them (``product_times.py``, ``convolution_times.py``,
``launch_tiles.py``, ``launch_costs.py``, ``predicting/overheads.py``) holds none of its own.
"""

from __future__ import annotations

import importlib.resources
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from torchledger.errors import FitError
from torchledger.nouns import Device
from torchledger.store.codec import convert, encode, parse
from torchledger.store.output import write_output

FORMAT_VERSION = 2
"""2 (2026-11): what a step takes beside its kernels, and how atomics crowd; 1 had both in the code."""


@dataclass(frozen=True)
class Reference:
    """The device that the constants were fitted on: on another one, times scale with its rates. FLOP and bytes per
    microsecond, as products reached them."""

    device: Device
    half_flops_per_us: float
    single_flops_per_us: float
    bytes_per_us: float

    def is_like(self, device: Device) -> bool:
        """Whether a device has as many multiprocessors of the same generation: what draws power is then the same."""
        known = self.device.compute_capability, self.device.num_multiprocessors
        return None not in known and known == (device.compute_capability, device.num_multiprocessors)


@dataclass(frozen=True)
class Library:
    """Tiles (rows, columns) of one kind of a library's kernels and their costs: areas in 1e4, sides in 1e2, k in 1e3
    elements; times in microseconds.

    A wave costs ``start`` + ``start_area`` x area + k x (``step`` + ``step_area`` x area + ``step_side`` x (rows +
    columns)); the tiles of a wave together ``part`` + ``part_area`` x area + k x area x ``part_step`` for each share of
    a whole wave. ``shared`` is the area that a multiprocessor works on at once, in as many tiles as fit.
    """

    tiles: tuple[tuple[int, int], ...]
    launch: float
    start: float
    start_area: float
    step: float
    step_area: float
    step_side: float
    part: float
    part_area: float
    part_step: float
    byte: float
    reduce: float
    reduce_element: float
    reduce_more: float
    shared: int


@dataclass(frozen=True)
class ProductConstants:
    """Matrix products: a library's tiles by the bytes at which rows begin, and products with a vector (microseconds of
    a launch and per byte)."""

    aligned_16: Library
    aligned_4: Library
    aligned_2: Library
    single_precision: Library
    vector_launch: float
    vector_byte: float


@dataclass(frozen=True)
class Depthwise:
    """One filter a channel: microseconds of launch, per multiply-add, per row of taps, per byte, per tap and pixel
    position, per tap, and more per multiply-add where the filter moves by more than one pixel. ``widest``: per
    multiply-add of filters wider than 7 x 7 where these have kernels of their own, and more where strided."""

    launch: float
    multiply: float
    row: float
    byte: float
    position: float
    tap: float
    strided: float = 0.0
    widest: tuple[float, float] | None = None


@dataclass(frozen=True)
class FewChannels:
    """Few input channels or groups of them: microseconds of launch, per multiply-add, per byte of the image."""

    launch: float
    multiply: float
    byte: float


@dataclass(frozen=True)
class ConvolutionConstants:
    """Convolutions: filters as products, changes of layout and padding of channels (microseconds of their launches and
    per byte read and written), and vector kernels by direction (``"forward"``, ``"backward"``)."""

    forward: Library
    of_image: Library
    of_weight: Library
    change_launches: float
    change_in_byte: float
    change_out_byte: float
    pad_launches: float
    pad_byte: float
    depthwise_last: Mapping[str, Depthwise]
    """With channels last."""
    depthwise_first: Mapping[str, Depthwise]
    few_last: Mapping[str, FewChannels]
    few_first: Mapping[str, FewChannels]
    grouped: Mapping[str, FewChannels]
    copy_over_dram: float
    """Copies into another layout beside what memory's rate would need for them."""
    depthwise_single: Mapping[str, Depthwise] | None = None
    """With channels last and in single precision, whose kernels are others; ``None``: as in half precision."""


@dataclass(frozen=True)
class KernelConstants:
    """Fused kernels. Rates are per microsecond and multiprocessor, ``folded`` (elements) by how a reduction goes;
    powers and shares are bare numbers.

    ``choose_...`` only decide between shapes of blocks: which one a measurement would prefer.
    """

    loaded_bytes: float
    scattered_bytes: float
    near_bytes: float
    gathered_bytes: float
    move: float
    """Vector instructions of one instruction that loads or stores."""
    divide: float
    """Vector instructions of a division of an index."""
    shift: float
    """What a division by a power of two costs of another."""
    clamp: float
    """What a minimum or maximum in an index costs of a division."""
    unchanging: float
    """Share of a reduction's operations that are left where all it loads stands still: the others are done once."""
    folded: Mapping[str, float]
    turn_us: float
    turn_of_load_us: float
    row_turn_us: float
    row_atomic_us: float
    scattered_atomic_us: float
    crowded_atomic_us: float
    row_crowd: float
    """Atomics on each element from which on whole rows of them wait for one another altogether..."""
    row_crowd_slower: float
    """...and how many times longer each then takes in addition."""
    crowded_from: float
    """Atomics on each element above which scattered ones wait for one another..."""
    crowded_whole: float
    """...and from which on each costs ``crowded_atomic_us`` in full."""
    short_run: int
    """Scattered atomics on so few neighbouring elements, or fewer..."""
    short_run_share: float
    """...cost this share of ``scattered_atomic_us``."""
    lone: float
    """How much of the memory's rate one needs all multiprocessors for."""
    power: float
    """The norm by which times that overlap are added."""
    floors: float
    """Launch floors that a kernel takes."""
    cached_bytes: float
    """Of a buffer that stays near each multiprocessor."""
    threads_in_use: float
    """Share of a multiprocessor's threads, registers being scarce."""
    l2_of_kept: float
    """The L2's size over the traffic after which a buffer is taken to have left it."""
    l2_speed: float
    """How much quicker the L2 answers than DRAM."""
    instructions: Mapping[str, float]
    """Vector instructions of one operation of a kind."""
    choose_sector_bytes: float
    choose_near_bytes: float
    choose_start_us: float
    choose_turn_us: float
    narrow_scattered_us: float = 0.0
    """Scattered atomics on elements of two bytes, which compare and swap the four around them..."""
    narrow_atomic_us: float = 0.0
    """...more where others change these meanwhile..."""
    narrow_crowd: float = 0.0
    """...in full where so many more than one meet at each element..."""
    narrow_wait_us: float = 0.0
    """...and wait for as many others as there are on each element."""
    line_atomic_us: float = 0.0
    """One of the atomics that meet in a line of memory (``atomic_lines.py``)."""
    split_store_us: float = 0.0
    """A scattered store into a row that several blocks write: what it costs more than others."""


@dataclass(frozen=True)
class AttentionCosts:
    """One direction of one library's attention, in microseconds (``attention_times.py`` counts how much of each).

    A launch; an inner step of a block alone on a multiprocessor and beside others, and for each 64 elements of a head;
    a wave of blocks, likewise; what is read and written for each 10,000 elements of queries and of keys; a step with a
    bias; keys that are split, and for each part; gradients of grouped keys, and for their elements; gradients that
    have to be copied first; under a causal mask a step of the blocks that end last, likewise; a step with dropout, and
    with a bias whose rows do not begin where sixteen bytes do.
    """

    launch: float
    step: float
    step_shared: float
    step_wide: float
    step_shared_wide: float
    wave: float
    wave_wide: float
    query: float
    key: float
    bias: float
    split: float
    split_part: float
    grouped: float
    grouped_key: float
    strided: float
    tail: float
    tail_wide: float
    dropout: float
    odd_bias: float


@dataclass(frozen=True)
class LoopCosts:
    """A fused kernel's time by what its instructions compute (``kernel_details.loop_time_us``).

    ``shares`` are of the parts that ``KernelConstants`` makes (``"far"``, ``"load"``, ...), of gathered sectors and of
    launch floors; ``instructions`` are those of one operation by its kind; ``power`` is the norm by which times that
    overlap are added.
    """

    shares: Mapping[str, float]
    instructions: Mapping[str, float]
    power: float


@dataclass(frozen=True)
class SumCosts:
    """One kernel's walk along the sums of a product with few rows and columns (``long_sums.py``).

    Microseconds of a launch; nanoseconds of each element of a sum, and where the factors lie in the L2 (``near_step``,
    where that differs); bytes per microsecond that it reads (``None``: not what decides). A block makes ``rows`` times
    ``columns`` of the product, ``at_once`` of them run on a multiprocessor; ``in_rounds`` where the last ones have it
    to themselves. ``crowd``: by what fraction a step is longer for each doubling of the blocks beyond an eighth of the
    multiprocessors. ``spread``: within which factor nine of ten are.
    """

    launch: float
    step: float
    near_step: float | None = None
    bytes_per_us: float | None = None
    rows: int = 64
    columns: int = 64
    at_once: float = 1.0
    in_rounds: bool = True
    crowd: float = 0.0
    spread: float = 1.3


@dataclass(frozen=True)
class PowerCosts:
    """What kernels of half precision draw at full clocks, beside ``idle_w`` watts of a device that rests.

    ``product_j_per_tflop``: joules for 10^12 FLOP of matrix products and convolutions. ``attention_w`` and ``other_w``:
    watts while attention, and any other kernel, runs. ``product_clock``: the share of the full clock below which
    products become slower than in short runs. ``limit_share``: what is drawn at the power limit, as a share of it, in
    runs of a second or less; ``lasting_share``: what kernels may draw of it in training that goes on for seconds, by
    these same joules, which are those of a cooler device; ``None`` where it was not measured. ``collective_w``: watts
    while a collective runs within a step, beside kernels or between them; 0 where it was not measured.
    """

    idle_w: float
    product_j_per_tflop: float
    attention_w: float
    other_w: float
    product_clock: float
    limit_share: float
    lasting_share: float | None = None
    collective_w: float = 0.0

    def above_idle_j(
        self, product_flops: float, attention_us: float, others_us: float, collectives_us: float = 0.0
    ) -> float:
        """Joules of a step's work at full clocks, beside those of a device that rests."""
        return (
            product_flops / 1e12 * self.product_j_per_tflop
            + attention_us / 1e6 * self.attention_w
            + others_us / 1e6 * self.other_w
            + collectives_us / 1e6 * self.collective_w
        )


@dataclass(frozen=True)
class Constants:
    """All fitted numbers, the device that they were fitted on, and by section where each comes from."""

    name: str
    reference: Reference
    products: ProductConstants
    convolutions: ConvolutionConstants
    kernels: KernelConstants
    steps: Mapping[str, float]
    """What a step takes beside its kernels; ``torchledger fit --steps`` learns a model's own.

    Microseconds of the host for a step, a graph's call, a launch by its kind, a tensor of the optimizer (``"... host
    us"``), idle time of the device between two kernels (``"gap us"``), both under CUDA graphs too (``"graphs ..."``).
    ``"sustained products"`` is by what fraction matrix products and attention take longer in a run that lasts than
    in the profile that measured them; ``"step error"`` is half the width of a step's interval, as a fraction;
    ``"overlap"`` is the power with which device and host time are added: the larger, the nearer to the longer of both.
    """
    made_of: Mapping[str, str] = field(default_factory=dict)
    attention: Mapping[str, AttentionCosts] | None = None
    """By library, direction and precision (``"flash/forward"``); ``None`` where none was fitted."""
    attention_kernels: Mapping[str, Mapping[str, float]] | None = None
    """Microseconds by library, direction, precision, width of a head and mask (``"flash/forward/128/causal"``), and by
    name (``attention_schedules.py`` counts how much of each); ``None`` where none was fitted."""
    power: PowerCosts | None = None
    """``None`` where nobody measured what kernels draw."""
    loops: Mapping[str, LoopCosts] | None = None
    """By what a fused kernel is (``"pointwise"``, ``"reduction"``); ``None`` where none was fitted."""
    former_loops: Mapping[str, LoopCosts] | None = None
    """The same beside the blocks of models that know no direction of a reduction (``Machine.knows_directions``)."""
    long_sums: Mapping[str, SumCosts] | None = None
    """By precision and kernel (``"rounded/left rows"``, ``long_sums.py`` tells which); ``None`` where none was
    fitted."""


@cache
def constants_of_package(name: str) -> Constants:
    """Constants that come with the package, by the stem of their file in ``generations/``."""
    return _parsed(_text_of_package(name), f"{name}.json")


def read_constants(path: str | os.PathLike[str]) -> Constants:
    """Constants out of a file of ``write_constants``. Raises ``FitError`` naming a file that is none."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise FitError(
            f"{path} cannot be read ({error}). Make one with `torchledger fit-constants DATA -o {path}`."
        ) from error
    return _parsed(text, str(path))


def write_constants(constants: Constants, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a file that a person can read.

    Raises ``StoreError`` if it exists (without ``force``) or cannot be written.
    """
    plain = {"format": FORMAT_VERSION, **json.loads(encode(constants))}
    text = json.dumps(plain, indent=2)
    text = _SHORT_LIST.sub(lambda found: re.sub(r"\s+", "", found[0]).replace(",", ", "), text) + "\n"
    write_output(Path(path), text.encode(), force=force)


_SHORT_LIST = re.compile(r"\[\s+(?:[^\[\]{}\"]|\[\s+[\d.,\s]+\])*\]")


def with_later_numbers(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Constants as they stand in a file of any format, completed by the numbers that format 1 left to the code."""
    left = json.loads(_text_of_package("format_1"))
    return {"steps": left["steps"]} | dict(plain) | {"kernels": left["kernels"] | dict(plain["kernels"])}


def _text_of_package(name: str) -> str:
    return importlib.resources.files("torchledger.expecting").joinpath("generations", f"{name}.json").read_text()


def _parsed(text: str, source: str) -> Constants:
    try:
        plain = parse(text)
        version = plain["format"]
        if version not in (1, FORMAT_VERSION):
            raise FitError(
                f"{source} has format {version}; this version reads 1 to {FORMAT_VERSION}. Fit the constants again."
            )
        return convert(Constants, with_later_numbers(plain) if version == 1 else plain)
    except (ValueError, KeyError, TypeError) as error:
        raise FitError(f"{source} holds no constants of a device, or is cut off ({error}).") from error
