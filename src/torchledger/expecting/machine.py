"""What a device is, and what it was seen to reach in the data: the scales of the physical baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from torchledger.device.datasheets import ReachedRates, find_data_sheet
from torchledger.expecting.constants import Constants, LoopCosts, PowerCosts
from torchledger.expecting.generations import Generation, NetworkFiles, constants_of_generation, find_generation
from torchledger.nouns import Device
from torchledger.work.element_sizes import element_size

Array = NDArray[np.float64]

_BIG_BYTES = 64e6
_FIRST_WITH_TF32 = (8, 0)  # compute capability
"""Traffic that DRAM must carry, unless the L2 is larger yet: beyond the caches of all but the largest devices."""


FIRST_NETWORKS, LATEST_NETWORKS = 1, 14
_LAST_WITHOUT_GROUPS = 4
_LAST_WITH_SORTS_ALIKE = 5
_LAST_WITHOUT_MASKS = 6
_LAST_WITHOUT_DISTANCES = 7
_LAST_WITH_INDICES_ALONE = 9
_LAST_WITH_LINES_AS_A_WHOLE = 10
_LAST_WITH_TABLES_FETCHED_ONCE = 13

_ELEMENTS_OF_THREAD = 4
"""As Inductor lays out pointwise kernels: two to eight."""


@dataclass(frozen=True)
class Machine:
    """The scales of one device: rates in FLOP and bytes per microsecond, the shortest time seen in microseconds.

    They only place the baseline; the regressors learn what lies between it and the measurements, so that a scale that
    is off by a factor costs little. ``own_constants`` replace those of the device's generation.
    """

    device: Device
    flops_per_us: Mapping[str, float]
    bytes_per_us: float
    floor_us: float
    own_constants: Constants | None = None
    learned_on: tuple[int, int] | None = None
    """Compute capability of the device that a transferred model was learned on: its baselines' constants and networks
    stand, since what was learned lies between them and the times. ``None``: the device's own."""
    reached: ReachedRates | None = None
    """Rates that others measured; ``None``: those of the data sheet that comes with torchledger."""
    networks: int = FIRST_NETWORKS
    """Which networks of the generation its operators learned beside: 1 for those of the first models, 2 for those
    with products of float16 apart and forwards of ``conv2d`` by its labels, 3 with one network for both gradients of
    ``conv2d``, 4 with products of more labels and quicker networks, 5 with wider ones of products, passes in groups
    apart and ``conv2d`` by what several teachers say, and fused kernels as they are since (``knows_directions``), 6
    with wider ones of convolutions, of float32 in groups too, 7 with products of yet more labels (``knows_masks``), 8
    with the same, and with what atomics and scattered stores that meet cost (``knows_distances``), 9 with convolutions
    of more layers in half precision, 10 with the same, and with addresses that a kernel computes once
    (``knows_shared_indices``), 11 with the same, and with atomics that can meet since they are in flight at a time
    (``knows_flights``), 12 with wider ones of convolutions in half precision, which half as many passes more taught, 13
    with trees beside those, 14 with the same, and with rows that are fetched again because the L2 does not hold their
    table (``knows_large_tables``). A file keeps those that it learned with."""
    own_power: PowerCosts | None = None
    """What kernels draw on this very device; ``None``: what they draw on that of its generation."""

    @property
    def name(self) -> str:
        """The device's name."""
        return self.device.name

    @property
    def published(self) -> ReachedRates | None:
        """What others measured of it; ``None`` where nothing is known."""
        return self.reached or published_rates(self.device)

    @property
    def generation(self) -> Generation:
        """What the device has in common with others of its compute capability."""
        return find_generation(self.device.compute_capability)

    @cached_property
    def constants(self) -> Constants:
        """The fitted numbers to compute with: its own, its generation's, or borrowed ones."""
        return self.own_constants or constants_of_generation(self._of_constants)

    @property
    def power(self) -> PowerCosts | None:
        """What kernels draw; ``None`` where it was measured on larger or smaller devices alone."""
        if self.own_power is not None:
            return self.own_power
        return self.constants.power if self.constants.reference.is_like(self.device) else None

    @property
    def power_is_its_own(self) -> bool:
        """Whether what kernels draw was measured on this very device, which becomes as warm as it does."""
        return self.own_power is not None or self.constants.reference.device.name == self.device.name

    @property
    def _of_constants(self) -> Generation:
        return self.generation if self.learned_on is None else find_generation(self.learned_on)

    @property
    def has_tile_baseline(self) -> bool:
        """Whether the constants were fitted on devices like this one, so that the times of tiles may be the baseline.

        Else they only inform the regressors.
        """
        known = self.own_constants is not None or self._of_constants.constants is not None
        return known and self.device.num_multiprocessors is not None

    @property
    def network_files(self) -> NetworkFiles:
        """The networks that know which kernels a library takes; they go with the generation's constants, on which they
        learned. None of them for a device without, or with constants of its own."""
        known = self._of_constants.networks if self.has_tile_baseline and self.own_constants is None else ()
        return known[min(self.networks, len(known)) - 1] if known else NetworkFiles()

    @property
    def knows_directions(self) -> bool:
        """Whether fused kernels were learned beside blocks for the direction that Inductor takes a reduction to go,
        running sums and computed indices; models of before are asked as they learned."""
        return self.networks > _LAST_WITHOUT_GROUPS

    @property
    def knows_sorted_indices(self) -> bool:
        """Whether fused kernels that sort were learned beside what wide elements and indices cost in it."""
        return self.networks > _LAST_WITH_SORTS_ALIKE

    @property
    def knows_masks(self) -> bool:
        """Whether fused kernels were learned beside what masks cost where blocks take their rows in turns."""
        return self.networks > _LAST_WITHOUT_MASKS

    @property
    def knows_distances(self) -> bool:
        """Whether fused kernels were learned beside what atomics cost that meet in one line of memory, and scattered
        stores into rows that several blocks write."""
        return self.networks > _LAST_WITHOUT_DISTANCES

    @property
    def knows_shared_indices(self) -> bool:
        """Whether fused kernels were learned beside divisions that accesses of one pass have in common counted once."""
        return self.networks > _LAST_WITH_INDICES_ALONE

    @property
    def knows_flights(self) -> bool:
        """Whether fused kernels were learned beside what atomics cost that meet in a line while they are in flight."""
        return self.networks > _LAST_WITH_LINES_AS_A_WHOLE

    @property
    def knows_large_tables(self) -> bool:
        """Whether fused kernels were learned beside what rows cost that are fetched again: the L2 holds a part of their
        table only."""
        return self.networks > _LAST_WITH_TABLES_FETCHED_ONCE

    @property
    def in_flight(self) -> int:
        """Elements that pointwise kernels work on at a time."""
        return self.generation.threads * _ELEMENTS_OF_THREAD * self.num_multiprocessors

    @property
    def loop_costs(self) -> Mapping[str, LoopCosts]:
        """What the instructions of fused kernels cost, by what these are; empty where none was fitted."""
        former = None if self.knows_directions else self.constants.former_loops
        return former or self.constants.loops or {}

    @property
    def asks_gradients_together(self) -> bool:
        """Whether one network knows both gradients of ``conv2d``."""
        return self.networks > 2

    @property
    def tells_float16(self) -> bool:
        """Whether products of float16 have networks of their own."""
        return self.networks > FIRST_NETWORKS

    @property
    def counts_waves(self) -> bool:
        """Whether it is known how many blocks run at once. Else there are no times of tiles and of fused kernels'
        blocks, only the roofline."""
        return self.device.num_multiprocessors is not None

    @property
    def num_multiprocessors(self) -> int:
        """Multiprocessors; 1 where the device does not tell, so that features count blocks instead of waves."""
        return self.device.num_multiprocessors or 1

    @property
    def threads(self) -> int:
        """Threads that a multiprocessor holds at most."""
        return self.device.max_threads_per_multiprocessor or self.generation.threads

    @property
    def vector_instructions_per_us(self) -> float:
        """Single-precision instructions that all multiprocessors end in a microsecond, all lanes busy; unbounded where
        their number is unknown."""
        if not self.counts_waves:
            return float("inf")
        clock_mhz = self.device.clock_rate_mhz or self.constants.reference.device.clock_rate_mhz or 0.0
        return self.generation.lanes * clock_mhz * self.num_multiprocessors

    @property
    def l2_bytes(self) -> int:
        """The L2's size; where the device does not tell, the reference's."""
        return self.device.l2_cache_bytes or self.constants.reference.device.l2_cache_bytes or 0

    @property
    def l2_kept_bytes(self) -> float:
        """Traffic after which a buffer is taken to have left the L2."""
        return self.l2_bytes / self.constants.kernels.l2_of_kept

    def peak(self, dtype: str) -> float:
        """FLOP per microsecond for a dtype; where none was seen, that of the known dtype nearest in element size.

        Where no dtype was seen it is what the device's lanes do in single precision, a multiply-add each; where their
        number is unknown, the reference's.
        """
        if dtype in self.flops_per_us:
            return self.flops_per_us[dtype]
        alike = {"bfloat16": "float16", "float16": "bfloat16"}.get(dtype, "")
        if alike in self.flops_per_us:
            return self.flops_per_us[alike]
        size = element_size(dtype)
        gap = {known: abs((element_size(known) or size) - size) if size else 0 for known in self.flops_per_us}
        nearest = [self.flops_per_us[known] for known in gap if gap[known] == min(gap.values())]
        if nearest:
            return max(nearest)
        return (
            2 * self.vector_instructions_per_us if self.counts_waves else self.constants.reference.single_flops_per_us
        )

    def convolution_peak(self, dtype: str, *, allow_tf32: bool = True) -> float:
        """FLOP per microsecond of convolutions: those of float32 run on tensor cores as TF32, at half the rate of
        bfloat16, unless ``torch.backends.cudnn.allow_tf32`` is switched off or the device is older than these."""
        if dtype == "float32" and allow_tf32 and (self.device.compute_capability or (0, 0)) >= _FIRST_WITH_TF32:
            return max(self.peak("bfloat16") / 2, self.peak(dtype))
        return self.peak(dtype)


def published_rates(device: Device) -> ReachedRates | None:
    """What others measured of a device that comes with torchledger; ``None`` where nothing is known."""
    sheet = find_data_sheet(device.name)
    return None if sheet is None else sheet.reached


def assumptions(machine: Machine) -> tuple[str, ...]:
    """What the baselines do without, or take from elsewhere, because the device's record does not tell: sentences."""
    device, notes = machine.device, []
    if device.num_multiprocessors is None:
        notes.append(
            f"the multiprocessors of {device.name} are unknown: baselines are rooflines, and features count blocks "
            "instead of waves"
        )
    elif machine.learned_on not in (None, device.compute_capability):
        notes.append(
            f"baselines are computed with the constants of the {find_generation(machine.learned_on).name} generation"
        )
    elif not machine.has_tile_baseline:
        notes.append(
            f"no constants were fitted on devices like {device.name} ({machine.generation.name} generation): the times "
            f"of tiles are those of {machine.constants.reference.device.name} at its rates, and only inform the fit"
        )
    named = {"clock": device.clock_rate_mhz, "L2": device.l2_cache_bytes}
    missing = [name for name, value in named.items() if value is None]
    if missing and device.kind != "cpu":
        other = machine.constants.reference.device.name
        notes.append(f"{' and '.join(missing)} of {device.name} unknown: those of {other} stand in")
    return tuple(notes)


def estimate_machine(
    device: Device,
    *,
    dtype: NDArray[np.str_],
    flops: Array,
    bytes_moved: Array,
    times_us: Array,
    constants: Constants | None = None,
) -> Machine:
    """The rates that the quickest of the samples reached; arrays hold one entry per sample.

    The 98th percentile stands for the best, so that a few bad labels do not set the scale.
    """
    rates = {}
    for kind in np.unique(dtype):
        some = (dtype == kind) & (flops > 0)
        if some.sum() >= 5:
            rates[str(kind)] = float(np.quantile(flops[some] / times_us[some], 0.98))
    big = bytes_moved > max(_BIG_BYTES, device.l2_cache_bytes or 0)
    if big.sum() < 20:
        big = bytes_moved >= np.quantile(bytes_moved, 0.5)
    return Machine(
        device=device,
        flops_per_us=rates,
        bytes_per_us=float(np.quantile(bytes_moved[big] / times_us[big], 0.98)),
        floor_us=float(np.quantile(times_us, 0.002)),
        own_constants=constants,
        networks=LATEST_NETWORKS,
    )
