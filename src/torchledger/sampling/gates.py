"""Sanity gates: which labels cannot be true, and which deserve a second look.

A label is *impossible* when the work of its kernels could not have been done in that time at the device's ceilings. It
is *doubtful* when backward over forward lies outside the operator's bounds, when shapes of much more work took much
less time, or when its repeats spread. An impossible label is quarantined; a doubtful one is measured again and kept if
the second measurement repeats it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy

from torchledger.errors import SampleError
from torchledger.nouns import Ceilings, Sample
from torchledger.operators import Operator, find_operator
from torchledger.work.element_sizes import ELEMENT_SIZES

COMPUTE_SLACK = 1.25
"""A short product runs at a higher clock than the long one that the ceiling is measured on, which the power limit holds
back: 894 against 769 TFLOP/s between favourable and random data on one H200."""

BANDWIDTH_SLACK = 1.15
"""Above a copy's bandwidth: reading alone is somewhat faster than reading and writing."""

SPREAD_LIMIT = 0.2
"""Interquartile range over median, where that is more than a microsecond. Only for clocks of the device: a host's
spread is of its other work."""

RATIO_FROM_US = 20.0
"""Below this forward time launches, not work, decide the ratio of backward to forward."""

REPEATED_WITHIN = 0.05
"""A second measurement this close to the first confirms it."""


Gate = Literal["ceilings", "order", "spread", "ratio"]
"""The device's ceilings, the times of shapes of more or less work, the repeats, backward over forward."""


@dataclass(frozen=True)
class Doubt:
    """Why a label is not believed: which gate it failed, and in words. ``is_impossible``: no second measurement can
    save it."""

    gate: Gate
    reason: str

    @property
    def is_impossible(self) -> bool:
        """True where the device cannot have done the work in that time."""
        return self.gate == "ceilings"


@dataclass(frozen=True)
class GateLimits:
    """What a device can do: its ceilings, and how many bytes its L2 may have kept from one kernel to the next."""

    ceilings: Ceilings
    l2_bytes: int = 0


Key = tuple[str, str, str, str]
"""Point id, direction, dtype, device: one label."""


def label_key(sample: Sample) -> Key:
    """Which label a sample is."""
    return (sample.point_id, sample.direction, sample.dtype, sample.device)


def doubt_samples(samples: Iterable[Sample], limits: GateLimits | None) -> dict[Key, Doubt]:
    """The doubts about a set of samples, by label; ``limits`` ``None`` skips the gates that need ceilings."""
    groups: dict[tuple[str, str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        # Collectives have no kernel of their own work; nothing here can judge them.
        if sample.status in ("ok", "quarantined") and sample.times_us and not sample.operator.startswith("collective."):
            groups[sample.operator, sample.direction, sample.dtype].append(sample)
    doubts: dict[Key, Doubt] = {}
    for (name, direction, dtype), group in groups.items():
        operator = find_operator(name)
        try:
            least_us, scale = _least_times(operator, group, direction, dtype, limits)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise SampleError(
                f"samples of {name} {direction} have parameters that are no shape of it ({error}). Measure them again."
            ) from error
        for found in (_doubt_spread(group), _doubt_order(group, scale), _doubt_ceilings(group, least_us)):
            doubts.update(found)
    forwards = {
        (s.point_id, s.dtype, s.device): s
        for (_, direction, _), group in groups.items()
        if direction == "forward"
        for s in group
    }
    for (name, direction, _), group in groups.items():
        if direction == "backward":
            for pair, doubt in _doubt_ratios(find_operator(name), group, forwards):
                # Which of the two is wrong is unknown, unless one of them is impossible.
                if not any(key in doubts and doubts[key].is_impossible for key in pair):
                    for key in pair:
                        doubts.setdefault(key, doubt)
    return doubts


def quarantine(samples: Sequence[Sample], limits: GateLimits | None) -> list[Sample]:
    """The same samples, those in doubt with status ``quarantined`` and the reason; for data that cannot be measured
    again."""
    doubts = doubt_samples(samples, limits)
    return [
        dataclasses.replace(sample, status="quarantined", reason=doubts[label_key(sample)].reason)
        if label_key(sample) in doubts and sample.status == "ok"
        else sample
        for sample in samples
    ]


def settle(first: Sample, second: Sample, doubt: Doubt, second_doubt: Doubt | None) -> Sample:
    """What a doubtful label becomes after it was measured a second time.

    The second measurement stands if it raises no doubt, or if it repeats the first and the doubt was no impossibility;
    else it is quarantined.
    """
    second = dataclasses.replace(second, attempt=first.attempt + 1)
    if second.status != "ok" or second_doubt is None:
        return second
    if not second_doubt.is_impossible and second_doubt.gate != "spread":
        before, after = statistics.median(first.times_us), statistics.median(second.times_us)
        if abs(after - before) <= REPEATED_WITHIN * before:
            return dataclasses.replace(second, reason=f"kept, for a second measurement repeats it: {doubt.reason}")
    return dataclasses.replace(second, status="quarantined", reason=second_doubt.reason)


def _columns(operator: Operator, group: Sequence[Sample]) -> Mapping[str, Any]:
    names = [*operator.parameters, *operator.defaults]
    return {n: numpy.array([s.parameters.get(n, operator.defaults.get(n)) for s in group]) for n in names}


def _least_times(
    operator: Operator, group: Sequence[Sample], direction: str, dtype: str, limits: GateLimits | None
) -> tuple[Any, Any]:
    """Per sample: the least time in microseconds (``None`` without limits), and a scale of its work.

    Each kernel must do its FLOPs and move its bytes, less what the L2 may have kept of them.
    """
    p = operator.resolve(_columns(operator, group))
    works = operator.least_work(p, direction, ELEMENT_SIZES[dtype])
    flops_per_us = bytes_per_us = None
    l2_bytes = 0
    if limits is not None:
        rate = limits.ceilings.tflops_per_s.get(dtype)
        flops_per_us = rate * 1e6 * COMPUTE_SLACK if rate else None
        bandwidth = limits.ceilings.copy_gb_per_s
        bytes_per_us = bandwidth * 1e3 * BANDWIDTH_SLACK if bandwidth else None
        l2_bytes = limits.l2_bytes
    least = numpy.zeros(len(group))
    scale = numpy.zeros(len(group))
    for work in works:
        # The scale of work only orders shapes of one operator; 200 FLOP per byte is a usual ridge point.
        scale += numpy.maximum(work.flops / 200.0, work.bytes_moved)
        compute = work.flops / flops_per_us if flops_per_us else 0.0
        memory = numpy.maximum(work.bytes_moved - l2_bytes, 0) / bytes_per_us if bytes_per_us else 0.0
        least += numpy.maximum(compute, memory)
    return least, scale


def _doubt_ceilings(group: Sequence[Sample], least_us: Any) -> dict[Key, Doubt]:
    doubts = {}
    for sample, least in zip(group, least_us, strict=True):
        us = statistics.median(sample.times_us)
        if us < least:
            rates = []
            if sample.flops:
                rates.append(f"{sample.flops / us / 1e6:,.0f} TFLOP/s")
            if sample.bytes_moved:
                rates.append(f"{sample.bytes_moved / us / 1e3:,.0f} GB/s")
            reason = f"implies {' and '.join(rates)}: {us:.1f} us where the device needs {least:.1f} us at the least"
            doubts[label_key(sample)] = Doubt("ceilings", reason)
    return doubts


def _doubt_order(group: Sequence[Sample], scale: Any) -> dict[Key, Doubt]:
    """Compare each label with the middle of those of 2 to 8 times its work, and of 1/8 to 1/2."""
    if len(group) < 8:
        return {}
    order = numpy.argsort(scale, kind="stable")
    work = numpy.asarray(scale)[order]
    times = numpy.array([statistics.median(s.times_us) for s in group])[order]
    doubts = {}
    for place, index in enumerate(order):
        here, us = work[place], times[place]
        larger = times[numpy.searchsorted(work, 2 * here) : numpy.searchsorted(work, 8 * here, side="right")]
        smaller = times[numpy.searchsorted(work, here / 8) : numpy.searchsorted(work, here / 2, side="right")]
        if len(larger) >= 5 and us > 4 * (middle := float(numpy.median(larger))):
            reason = f"{us:.0f} us, while shapes of 2 to 8 times the work take {middle:.0f} us"
        elif len(smaller) >= 5 and us < (middle := float(numpy.median(smaller))) / 4:
            reason = f"{us:.0f} us, while shapes of 1/8 to 1/2 of the work take {middle:.0f} us"
        else:
            continue
        doubts[label_key(group[index])] = Doubt("order", reason)
    return doubts


def _doubt_spread(group: Sequence[Sample]) -> dict[Key, Doubt]:
    doubts = {}
    for sample in group:
        if len(sample.times_us) < 4 or sample.clock == "host":
            continue
        lower, middle, upper = statistics.quantiles(sample.times_us, n=4)
        if upper - lower > max(SPREAD_LIMIT * middle, 1.0):
            count = len(sample.times_us)
            reason = f"spread {100 * (upper - lower) / middle:.0f} % of the median over {count} iterations"
            doubts[label_key(sample)] = Doubt("spread", reason)
    return doubts


def _doubt_ratios(
    operator: Operator, group: Sequence[Sample], forwards: Mapping[Any, Sample]
) -> Iterator[tuple[tuple[Key, Key], Doubt]]:
    low, high = operator.ratio_bounds
    for sample in group:
        forward = forwards.get((sample.point_id, sample.dtype, sample.device))
        if forward is None:
            continue
        forward_us = statistics.median(forward.times_us)
        if forward_us < RATIO_FROM_US:
            continue
        ratio = statistics.median(sample.times_us) / forward_us
        if not low <= ratio <= high:
            reason = f"backward takes {ratio:.2f} times the forward; {operator.name} lies between {low} and {high}"
            yield (label_key(forward), label_key(sample)), Doubt("ratio", reason)
