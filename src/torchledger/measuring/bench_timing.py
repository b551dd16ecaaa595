"""Times of one call, warm and cold, on the clock that its device has; stops when they agree or the budget ends."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

log = logging.getLogger(__name__)

L2State = Literal["cold", "warm"]


@dataclass(frozen=True)
class Budget:
    """When to stop: the 95 % confidence interval of the median is narrower than ``tightness`` of it (both sides
    together) after ``min_repeats``, or ``seconds`` or ``max_repeats`` are used up. Each holds per cache state."""

    seconds: float = 0.5
    min_repeats: int = 20
    max_repeats: int = 400
    tightness: float = 0.01


@dataclass
class Times:
    """Samples in microseconds by cache state, and what was unusual."""

    clock: str
    samples_us: dict[L2State, list[float]] = field(default_factory=dict)
    warmup: int = 0
    notes: list[str] = field(default_factory=list)


def relative_interval(samples: Sequence[float]) -> float:
    """Width of the 95 % confidence interval of the median over the median, from order statistics (binomial, normal
    approximation); infinite for fewer than six samples."""
    count = len(samples)
    if count < 6:
        return math.inf
    ordered = sorted(samples)
    reach = 0.98 * math.sqrt(count)
    low, high = max(math.floor(count / 2 - reach), 0), min(math.ceil(count / 2 + reach), count - 1)
    middle = statistics.median(ordered)
    return (ordered[high] - ordered[low]) / middle if middle > 0 else math.inf


def is_tight(samples: Sequence[float], budget: Budget) -> bool:
    """True once more samples would not tell more."""
    return len(samples) >= budget.max_repeats or (
        len(samples) >= budget.min_repeats and relative_interval(samples) <= budget.tightness
    )


def time_call(
    call: Callable[[], Any],
    prepare: Callable[[], Any] | None,
    device: str,
    budget: Budget,
    states: Sequence[L2State] = ("warm", "cold"),
) -> Times:
    """Time ``call``; ``prepare`` runs before each call and is not part of its time.

    On CUDA the clock is CUPTI (device time of the call's kernels), or CUDA events where CUPTI gives no records; on a
    CPU it is the host's. *Warm*: calls follow each other, so that what fits into the cache is there. *Cold*: a buffer
    larger than the last-level cache is written before each call.
    """
    if device.startswith("cuda"):
        return _CudaClock(device).time(call, prepare, budget, states)
    return _HostClock().time(call, prepare, budget, states)


class _HostClock:
    def time(
        self, call: Callable[[], Any], prepare: Callable[[], Any] | None, budget: Budget, states: Sequence[L2State]
    ) -> Times:
        import torch

        times = Times("host")
        flushed = torch.empty(2**26, dtype=torch.uint8) if "cold" in states else None
        estimate = self._warm_up(call, prepare, times)
        # The clock's own cost is some 100 ns: short calls are timed several at once, where nothing lies between them.
        inner = 1 if prepare is not None else max(1, math.ceil(20 / max(estimate, 0.01)))
        for state in states:
            samples = times.samples_us.setdefault(state, [])
            deadline = time.perf_counter() + budget.seconds
            while not samples or not (is_tight(samples, budget) or time.perf_counter() > deadline):
                count = inner
                if state == "cold" and flushed is not None:
                    flushed.fill_(len(samples) % 251)
                    count = 1
                if prepare is not None:
                    prepare()
                started = time.perf_counter_ns()
                for _ in range(count):
                    call()
                samples.append((time.perf_counter_ns() - started) / 1e3 / count)
        return times

    def _warm_up(self, call: Callable[[], Any], prepare: Callable[[], Any] | None, times: Times) -> float:
        """Run for some milliseconds; returns the last time in microseconds."""
        deadline = time.perf_counter() + 0.02
        elapsed = 0.0
        while times.warmup < 2 or (time.perf_counter() < deadline and times.warmup < 50):
            if prepare is not None:
                prepare()
            started = time.perf_counter_ns()
            call()
            elapsed = (time.perf_counter_ns() - started) / 1e3
            times.warmup += 1
        return elapsed


class _CudaClock:
    def __init__(self, device: str) -> None:
        import torch

        self.place = torch.device(device)
        torch.cuda.set_device(self.place)
        l2_bytes = getattr(torch.cuda.get_device_properties(self.place), "L2_cache_size", 0) or 64 * 2**20
        self._flushed = torch.empty(2 * l2_bytes, dtype=torch.uint8, device=self.place)

    def time(
        self, call: Callable[[], Any], prepare: Callable[[], Any] | None, budget: Budget, states: Sequence[L2State]
    ) -> Times:
        import torch

        times = Times("cupti" if _has_cupti() else "cuda_event")
        started = time.perf_counter()
        while times.warmup < 3 or (time.perf_counter() - started < 0.01 and times.warmup < 50):
            if prepare is not None:
                prepare()
            call()
            times.warmup += 1
            if times.warmup == 3:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        before = _clock_mhz(self.place)
        take = self._cupti_batch if times.clock == "cupti" else self._event_batch
        for state in states:
            samples = times.samples_us.setdefault(state, [])
            deadline = time.perf_counter() + budget.seconds
            while True:
                batch = take(call, prepare, state, max(budget.min_repeats, 10))
                if batch is None:
                    times.notes.append("the profiler lost the records of some calls")
                samples += batch or []
                if is_tight(samples, budget) or time.perf_counter() > deadline:
                    break
        after = _clock_mhz(self.place)
        if before and after and after < 0.93 * before:
            times.notes.append(
                f"the clock fell from {before} to {after} MHz: the device throttles; "
                "`nvidia-smi -q -d PERFORMANCE` says why, a pause or locked clocks help"
            )
        if not all(times.samples_us.values()):
            raise RuntimeError("no device time was recorded: the call ran nothing on the device, or records were lost")
        return times

    def _flush(self) -> None:
        self._flushed.zero_()

    def _cupti_batch(
        self, call: Callable[[], Any], prepare: Callable[[], Any] | None, state: L2State, count: int
    ) -> list[float] | None:
        """Device time of each of ``count`` calls: a marker before and after it, what lies before is not its own."""
        from torchledger._torch.device_trace import DeviceTrace

        trace = DeviceTrace()
        indices = []
        with trace:
            for _ in range(count):
                if state == "cold":
                    self._flush()
                if prepare is not None:
                    prepare()
                indices.append(trace.mark())
                call()
                trace.mark()
        pieces = trace.pieces()
        if pieces is None:
            return None
        return [pieces[index].busy_us for index in indices if pieces[index].names]

    def _event_batch(
        self, call: Callable[[], Any], prepare: Callable[[], Any] | None, state: L2State, count: int
    ) -> list[float]:
        """Between two events each, launched behind a spin long enough that the device never waits for the host."""
        import torch

        from torchledger._torch.kernels import spin

        pairs = [(_event(), _event()) for _ in range(count)]
        spin(2_000_000)
        for first, last in pairs:
            if state == "cold":
                self._flush()
            if prepare is not None:
                prepare()
            first.record()
            call()
            last.record()
        torch.cuda.synchronize()
        return [first.elapsed_time(last) * 1e3 for first, last in pairs]


def _clock_mhz(place: Any) -> int | None:
    """The present clock of the multiprocessors; ``None`` where nothing tells it (it needs torchledger[gpu])."""
    import torch

    try:
        return int(torch.cuda.clock_rate(place))
    except (ImportError, AttributeError, RuntimeError):
        return None


def _has_cupti() -> bool:
    global _CUPTI
    if _CUPTI is None:
        from torchledger._torch.device_trace import device_trace_available

        _CUPTI = device_trace_available()
    return _CUPTI


_CUPTI: bool | None = None


def _event() -> Any:
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
