"""What the power limit adds to a step that keeps its device busy: the energy of its kernels, and the clocks it leaves.

Kernels are measured in short runs, in which the device is at full clocks. In a run that lasts the mean power of the
whole step has to stay below the limit: matrix products in half precision alone draw a quarter more than that, and the
device lowers its clocks, for products and attention alike, until the step fits. Kernels that wait for memory do not
notice. Measured by ``benchmarks/machines/power_cuda.py``; the costs are those of the device's generation
(``PowerCosts``).
"""

from __future__ import annotations

from dataclasses import dataclass

from torchledger.expecting.machine import Machine
from torchledger.nouns import Launch, Prediction, StepCall
from torchledger.work.element_sizes import element_size


@dataclass(frozen=True)
class StepWork:
    """What of a step draws power: microseconds of products and convolutions in half precision and their FLOPs,
    microseconds of attention, of everything else, and of the collectives beside them."""

    products_us: float = 0.0
    product_flops: float = 0.0
    attention_us: float = 0.0
    others_us: float = 0.0
    collectives_us: float = 0.0

    @property
    def total_us(self) -> float:
        """All kernels but collectives, one after the other."""
        return self.products_us + self.attention_us + self.others_us

    def __add__(self, other: StepWork) -> StepWork:
        return StepWork(
            self.products_us + other.products_us,
            self.product_flops + other.product_flops,
            self.attention_us + other.attention_us,
            self.others_us + other.others_us,
            self.collectives_us + other.collectives_us,
        )

    def times(self, count: float) -> StepWork:
        """So many times as much."""
        return StepWork(
            count * self.products_us,
            count * self.product_flops,
            count * self.attention_us,
            count * self.others_us,
            count * self.collectives_us,
        )


_PRODUCTS = ("launch:gemm", "linear/", "bmm/", "grouped_gemm/")
_CONVOLUTIONS = ("launch:convolution", "conv2d/")
_ATTENTION = ("launch:attention", "sdpa/")


def is_product(family: str) -> bool:
    """Whether launches of a family, or an operator, are matrix products or attention, which draw the most power."""
    return family.startswith((*_PRODUCTS, *_ATTENTION))


def work_of(piece: Launch | StepCall, prediction: Prediction, calls: int = 1) -> StepWork:
    """A launch's or eager call's part of the work, so many times."""
    time_us = prediction.duration_us * calls
    kind = prediction.model
    if kind.startswith(_ATTENTION):
        return StepWork(attention_us=time_us)
    dtypes = [each.dtype for each in (piece.buffers if isinstance(piece, Launch) else piece.arguments)]
    flops = piece.flops if kind.startswith((*_PRODUCTS, *_CONVOLUTIONS)) else None
    if flops and dtypes and dtypes[0] is not None and element_size(dtypes[0]) == 2:
        return StepWork(time_us, float(flops) * calls)
    return StepWork(others_us=time_us)


def mean_clock(work: StepWork, duration_us: float, machine: Machine, *, is_lasting: bool = False) -> float:
    """The share of its full clocks at which a device can go on with steps of ``duration_us``; 1 where its power limit
    or what kernels draw is unknown; the duration is that at full clocks. ``is_lasting``: for seconds and longer, as
    training does, not for a second."""
    costs, limit_w = machine.power, machine.device.power_limit_w
    if costs is None or limit_w is None or duration_us <= 0:
        return 1.0
    above_idle_j = costs.above_idle_j(work.product_flops, work.attention_us, work.others_us, work.collectives_us)
    # How warm a device becomes is its own: on another one of the generation nobody read the clocks of such runs.
    lasting = costs.lasting_share if is_lasting and machine.power_is_its_own else None
    share = costs.limit_share if lasting is None else lasting
    left_j = (limit_w * share - costs.idle_w) * duration_us / 1e6
    return min(1.0, left_j / above_idle_j) if above_idle_j > 0 else 1.0


def sustained_share(part: StepWork, clock: float, machine: Machine) -> float:
    """By what fraction a piece of work takes longer at a share of the full clocks than in a short run."""
    costs = machine.power
    if costs is None:
        return 0.0
    if part.product_flops:
        return max(0.0, costs.product_clock / clock - 1)
    return 1 / clock - 1 if part.attention_us else 0.0
