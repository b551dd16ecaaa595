"""What came of running launches alone, beside what they took inside the step."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torchledger import roofline
from torchledger.nouns import Ceilings, Launch, Measurement, Run
from torchledger.stepping.totals import StepUse

Mode = Literal["run", "configurations", "max_autotune"]

SHORT_US = 5.0
"""Kernels below are dominated by their launch; a timer tick is a per cent of them."""


@dataclass(frozen=True)
class Benched:
    """One launch, run alone: its measurements by cache state, or why there is none.

    ``status`` is ``"ok"``, ``"cannot"`` (nothing to run), ``"failed"``, ``"crashed"`` (the process or the device was
    lost to it), ``"out_of_memory"``, ``"timed_out"`` or ``"not_begun"`` (the time for all was used up before its turn).
    ``same_as`` names the launch that was run instead: same kernel, same sizes. ``placed`` is its time after its
    lead-in, the ``lead_in`` launches before it in the wrapper; ``unplaced`` says why there is none. ``configurations``
    are those that were tried, with their warm times; ``as_run`` is then the time with the configuration of the run.
    ``keeps_lines``: its source asks the cache to keep what it reads, which outlived a flush in measurements on an H200.
    ``clock_fell``: the device's clock, while it was timed. ``use`` is what the ledger's step makes of it; ``None``
    without a step.
    """

    launch: Launch
    status: str
    warm: Measurement | None = None
    cold: Measurement | None = None
    placed: Measurement | None = None
    in_step: Measurement | None = None
    reason: str | None = None
    same_as: str | None = None
    bound: roofline.Bound | None = None
    roofline_us: float | None = None
    configurations: tuple[Measurement, ...] = ()
    as_run: Measurement | None = None
    notes: tuple[str, ...] = ()
    lead_in: int | None = None
    unplaced: str | None = None
    keeps_lines: bool = False
    clock_fell: bool = False
    use: StepUse | None = None

    @property
    def duration_us(self) -> float | None:
        """Median warm time, or the cold one where only that was taken."""
        measured = self.warm or self.cold
        return measured.duration_us if measured else None

    @property
    def achieved_gb_per_s(self) -> float | None:
        """Minimum traffic over the time."""
        return roofline.achieved_gb_per_s(self.launch.bytes_moved, self.duration_us)

    @property
    def achieved_tflops_per_s(self) -> float | None:
        """Tensor FLOPs over the time."""
        return roofline.achieved_tflops_per_s(self.launch.flops, self.duration_us)

    @property
    def roofline_fraction(self) -> float | None:
        """Lower-bound time over the time; can exceed 1 where the inputs fit into a cache."""
        if self.roofline_us is None or not self.duration_us:
            return None
        return self.roofline_us / self.duration_us

    @property
    def over_step(self) -> float | None:
        """Time alone in its place over the time inside the step; the warm time where none was taken in its place."""
        return self._over_step(self.placed.duration_us if self.placed else self.duration_us)

    @property
    def warm_over_step(self) -> float | None:
        """Warm time over the time inside the step."""
        return self._over_step(self.warm.duration_us if self.warm else None)

    @property
    def cold_over_step(self) -> float | None:
        """Cold time over the time inside the step."""
        return self._over_step(self.cold.duration_us if self.cold else None)

    def _over_step(self, time_us: float | None) -> float | None:
        if self.in_step is None or not time_us or not self.in_step.duration_us:
            return None
        return time_us / self.in_step.duration_us

    @property
    def explanation(self) -> str | None:
        """Why the warm time is not the time inside the step, where they differ by more than 5 %: what the cache
        explains (the time in its place agrees better), and what it leaves to clocks and neighbours."""
        warm, placed = self.warm_over_step, self._over_step(self.placed.duration_us if self.placed else None)
        if warm is None or abs(warm - 1) <= 0.05:
            return None
        if placed is not None and abs(placed - 1) <= 0.05:
            return "cache: in its place it takes what it takes inside the step"
        if placed is not None and abs(placed - 1) < 0.5 * abs(warm - 1):
            return f"mostly cache: in its place {placed:.2f} of the time inside the step"
        cold = self.cold_over_step
        if placed is None and cold is not None and min(warm, cold) <= 1 <= max(warm, cold):
            return "cache: the time inside the step lies between warm and cold"
        if self.keeps_lines and cold is not None and cold < 0.95:
            return (
                "kept lines: it asks the cache to keep what it reads, which can outlive a flush: cold is no bound then"
            )
        if self.clock_fell:
            return "clocks: they fell while it was timed"
        if self.in_step is not None and self.in_step.duration_us < SHORT_US:
            return f"shorter than {SHORT_US:g} us: launch and drain of a few hundred nanoseconds weigh"
        return "not the cache: clocks (a busy device runs slower), values, or another kernel that ran at the same time"


@dataclass(frozen=True)
class BenchReport:
    """What was benched: one entry per launch in the ledger's order; ``selection`` says how they were chosen."""

    file: str
    run: Run
    entries: tuple[Benched, ...]
    selection: str
    mode: Mode
    seconds: float
    ceilings: Mapping[str, Ceilings | None] = field(default_factory=dict)

    @property
    def failures(self) -> tuple[Benched, ...]:
        """Entries that have a kernel but no time."""
        return tuple(entry for entry in self.entries if entry.status not in ("ok", "cannot"))

    @property
    def ratios(self) -> tuple[float, ...]:
        """Time alone over time inside the step, of entries that have both."""
        return tuple(ratio for entry in self.entries if (ratio := entry.over_step) is not None)


def gain(report: BenchReport) -> tuple[int, int, float, float]:
    """Launches that gain by more than 2 % against the run's own configuration, how many had a choice, and the summed
    time of all launches before and after, if only the winners are changed (microseconds)."""
    before = after = 0.0
    winners = choosable = 0
    for entry in report.entries:
        now = entry.duration_us
        if now is None:
            continue
        former = entry.as_run.duration_us if entry.as_run else now
        choosable += entry.as_run is not None
        is_better = now < 0.98 * former
        winners += is_better
        before += former
        after += now if is_better else former
    return winners, choosable, before, after


def median_ratio(report: BenchReport) -> float | None:
    """Median of time alone, in its place, over time inside the step."""
    return statistics.median(report.ratios) if report.ratios else None
