"""What kernels draw at full clocks, out of kinds of kernels that each ran for seconds
(``benchmarks/machines/power_cuda.py``).

Watts at rest follow from products with pauses, whose mean power is a line in the share of the time that they run. Watts
of a kernel that the limit slows are brought to full clocks in proportion to the clock. Steps of training whose clocks
were read after seconds (``benchmarks/machines/power_steps.py``) say what a device that has become warm leaves of its
limit, and those of ranks whose kernels wait for collectives what these draw. Where it was measured how long such steps
took, they say how products slow down, too: a device may lower its clocks within the first milliseconds, so that what is
taken for a product at full clocks is not.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchledger.errors import FitError
from torchledger.expecting.constants import PowerCosts
from torchledger.store.codec import decode
from torchledger.work.flops import matmul_flops


@dataclass(frozen=True)
class PowerRow:
    """One kind of kernel, or a mixture, in a loop that lasts: mean power and clock once it is hot, and the median time
    of a kernel in microseconds by kind, in the first 30 ms (``cold``) and then (``hot``)."""

    watts: float
    sm_mhz: float
    cold: Mapping[str, float] = field(default_factory=dict)
    hot: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PowerStep:
    """A step that is repeated for seconds at the power limit: its kernels and its duration at full clocks as they are
    predicted, in microseconds, the FLOPs of its products in half precision, and the clock that was read;
    ``collectives_us`` is the time of collectives that have no kernel beside them; ``measured_us`` how long the step
    took then, ``None`` where it was not written down."""

    products_us: float
    product_flops: float
    attention_us: float
    others_us: float
    step_us: float
    sm_mhz: float
    collectives_us: float = 0.0
    measured_us: float | None = None


@dataclass(frozen=True)
class PowerRows:
    """What was measured on a device; ``limits`` are its power limit in watts and its highest clock in MHz, as
    ``nvidia-smi`` writes them."""

    device: str
    limits: str
    rows: Mapping[str, PowerRow]
    steps: Mapping[str, PowerStep] = field(default_factory=dict)

    @property
    def limit_w(self) -> float:
        """The power limit, in watts."""
        return float(self.limits.split(",")[0])

    @property
    def most_mhz(self) -> float:
        """The highest clock of the multiprocessors."""
        return float(self.limits.split(",")[1])


_CONVOLUTION_FLOPS = 2.0 * 64 * 56 * 56 * 256 * 256 * 9
"""Of the benchmark's ``convolution``: 3 x 3 over 56 x 56 pixels, 256 channels, 64 images."""

_SLOWED, _AT_LIMIT = 0.85, 0.95
"""Shares of the highest clock below which products are slower than in short runs, and the power limit is reached."""


def read_power(path: Path) -> PowerRows:
    """Rows of a file. Raises ``FitError`` if it holds none, or lacks the products with pauses."""
    try:
        found = decode(PowerRows, path.read_bytes())
        rates = found.limit_w, found.most_mhz
        missing = [name for name in ("mm and pause 0.25", "mm and pause 0.5") if name not in found.rows]
    except (OSError, ValueError, IndexError) as error:
        said = "holds no rows of benchmarks/machines/power_cuda.py, or is damaged"
        raise FitError(f"{path} {said} ({error}).") from error
    values = [value for row in found.rows.values() for value in (row.watts, row.sm_mhz, *row.cold.values())]
    values += [value for step in found.steps.values() for value in (step.step_us, step.sm_mhz)]
    values += [step.measured_us for step in found.steps.values() if step.measured_us is not None]
    if missing or min((*rates, *values)) <= 0:
        said = f"lacks {', '.join(missing)}" if missing else "has watts, clocks or times that are not above 0"
        raise FitError(f"{path} {said}: run benchmarks/machines/power_cuda.py again, to its end.")
    return found


def product_flops(name: str) -> float | None:
    """Of one call of a row's product in half precision; ``None`` for any other kernel."""
    if name == "convolution":
        return _CONVOLUTION_FLOPS
    kind, *words = name.split()
    if kind != "mm" or "float32" in words:
        return None
    sizes = [float(word) for word in words if word.isdigit()]
    m, n, k = sizes if len(sizes) == 3 else (sizes[0],) * 3
    return float(matmul_flops(m, k, n))


def fit_power(data: PowerRows) -> PowerCosts:
    """Medians over kinds of kernels. Raises ``FitError`` where one of the kinds was not measured."""
    low, high = (data.rows[f"mm and pause {share}"].watts for share in (0.25, 0.5))
    idle_w = low - (high - low)
    joules: list[float] = []
    clocks: list[float] = []
    attention_w: list[float] = []
    other_w: list[float] = []
    for name, row in data.rows.items():
        if " and " in name or name.startswith("step") or len(row.cold) != 1:
            continue
        (kernel,) = row.cold
        above_idle_w = (row.watts - idle_w) * data.most_mhz / row.sm_mhz
        if (flops := product_flops(name)) is not None:
            joules.append(above_idle_w / (flops / 1e6 / row.cold[kernel]))
            if row.sm_mhz < _SLOWED * data.most_mhz and kernel in row.hot:
                clocks.append(row.hot[kernel] / row.cold[kernel] * row.sm_mhz / data.most_mhz)
        else:
            (attention_w if kernel == "attention" else other_w).append(above_idle_w)
    at_limit = [row.watts for row in data.rows.values() if row.sm_mhz < _AT_LIMIT * data.most_mhz]
    kinds = {"products": joules, "products at the power limit": clocks, "attention": attention_w, "others": other_w}
    if absent := [kind for kind, found in kinds.items() if not found]:
        raise FitError(
            f"what {data.device} draws was not measured for {', '.join(absent)}: run power_cuda.py to its end."
        )
    medians = [idle_w, *(statistics.median(each) for each in (joules, attention_w, other_w, clocks))]
    costs = PowerCosts(*(round(value, 3) for value in (*medians, statistics.median(at_limit) / data.limit_w)))
    shares = [_share_of_limit(step, costs, data) for step in data.steps.values() if not step.collectives_us]
    if not shares:
        return costs
    costs = replace(costs, lasting_share=round(statistics.median(shares), 3))
    said = [_product_clock(step, data) for step in data.steps.values()]
    if of_steps := [clock for clock in said if clock is not None]:
        costs = replace(costs, product_clock=round(statistics.median(of_steps), 3))
    collective_w = [_collective_w(step, costs, data) for step in data.steps.values() if step.collectives_us]
    return replace(costs, collective_w=round(statistics.median(collective_w), 1)) if collective_w else costs


def _product_clock(step: PowerStep, data: PowerRows) -> float | None:
    """The share of the full clock below which products are slower, for a step to take what it took: attention takes
    longer as the clock falls, other kernels do not. ``None`` where it is not known what it took."""
    if step.measured_us is None or not step.products_us:
        return None
    share = step.sm_mhz / data.most_mhz
    longer_us = step.measured_us - step.step_us - step.attention_us * (1 / share - 1)
    return share * (1 + longer_us / step.products_us)


def _share_of_limit(step: PowerStep, costs: PowerCosts, data: PowerRows) -> float:
    """What the joules of a step's kernels come to at the clock that was read, as a share of the limit."""
    drawn_w = costs.idle_w + _kernels_j(step, costs) * (step.sm_mhz / data.most_mhz) / (step.step_us / 1e6)
    return drawn_w / data.limit_w


def _collective_w(step: PowerStep, costs: PowerCosts, data: PowerRows) -> float:
    """What collectives must draw for a step to have the clock that was read."""
    left_j = (data.limit_w * (costs.lasting_share or 1.0) - costs.idle_w) * step.step_us / 1e6
    return (left_j * data.most_mhz / step.sm_mhz - _kernels_j(step, costs)) / (step.collectives_us / 1e6)


def _kernels_j(step: PowerStep, costs: PowerCosts) -> float:
    return costs.above_idle_j(step.product_flops, step.attention_us, step.others_us)
