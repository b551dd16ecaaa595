"""Times of calls, warm, cold and in their place, on the clock of their device, until they agree or a budget ends."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

log = logging.getLogger(__name__)

L2State = Literal["cold", "warm", "step"]

Mark = Callable[[], object]

HOST_FLUSH_BYTES = 2**26
"""Written before a call on a CPU that shall find nothing in the cache."""


@dataclass(frozen=True)
class Budget:
    """When to stop: the 95 % confidence interval of the median is narrower than ``tightness`` of it (both sides
    together) after ``min_repeats``, or ``seconds`` or ``max_repeats`` are used up. Each holds per cache state."""

    seconds: float = 0.5
    min_repeats: int = 20
    max_repeats: int = 400
    tightness: float = 0.01


@dataclass(frozen=True)
class Subject:
    """What is timed: ``call``, or what ``led`` does between the two times that it calls the mark it is given.

    ``prepare`` runs before each time, ``restore``, which writes the inputs anew, before each that starts cold. The
    states say what the cache holds: what the last call left (*warm*), nothing of use (*cold*: a buffer larger than the
    last-level cache is written before), or what the launches before it leave (*step*), which ``led`` makes first.
    ``is_flushed``: those start from a cold cache.
    """

    call: Callable[[], object] | None = None
    led: Callable[[Mark], object] | None = None
    prepare: Callable[[], object] | None = None
    restore: Callable[[], object] | None = None
    states: Sequence[L2State] = ("warm", "cold")
    is_flushed: bool = True

    def starts_cold(self, state: L2State) -> bool:
        """True where the cache is flushed first."""
        return state == "cold" or (state == "step" and self.is_flushed)

    def run(self, mark: Mark) -> None:
        """Once, between two marks."""
        if self.led is not None:
            self.led(mark)
        elif self.call is not None:
            mark()
            self.call()
            mark()


@dataclass
class Times:
    """Samples in microseconds by cache state, and what was unusual; ``clock_fell``: the device's, meanwhile."""

    clock: str
    samples_us: dict[L2State, list[float]] = field(default_factory=dict)
    warmup: int = 0
    notes: list[str] = field(default_factory=list)
    clock_fell: bool = False


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


class Clock(Protocol):
    """Times subjects on one device."""

    def warm_up(self, subject: Subject) -> Times:
        """Run a subject some times; raises what it raises."""

    def measure(self, pairs: Sequence[tuple[Subject, Times]], budget: Budget) -> None:
        """Fill in the samples of subjects that were warmed up."""


def clock_of(device: str) -> Clock:
    """The clock of a device: CUPTI on CUDA (device time of the kernels between the marks, many subjects in one
    recording), or CUDA events where CUPTI gives no records; the host's on a CPU."""
    return _CudaClock(device) if device.startswith("cuda") else _HostClock()


class _HostClock:
    def __init__(self) -> None:
        self._flushed: Any = None

    def warm_up(self, subject: Subject) -> Times:
        """Run for some milliseconds."""
        times = Times("host")
        deadline = time.perf_counter() + 0.02
        while times.warmup < 2 or (time.perf_counter() < deadline and times.warmup < 50):
            self._once(subject)
            times.warmup += 1
        return times

    def measure(self, pairs: Sequence[tuple[Subject, Times]], budget: Budget) -> None:
        for subject, times in pairs:
            # The clock's own cost is some 100 ns: short calls are timed several at once, where nothing lies between.
            shortest = min(self._once(subject) for _ in range(5))
            several = max(1, math.ceil(20 / max(shortest, 0.01)))
            for state in subject.states:
                samples = times.samples_us.setdefault(state, [])
                inner = several if state == "warm" and subject.prepare is None else 1
                deadline = time.perf_counter() + budget.seconds
                while not samples or not (is_tight(samples, budget) or time.perf_counter() > deadline):
                    if subject.starts_cold(state):
                        self._flush(len(samples) % 251)
                    samples.append(self._once(subject, inner))

    def _flush(self, value: int) -> None:
        import torch

        if self._flushed is None:
            self._flushed = torch.empty(HOST_FLUSH_BYTES, dtype=torch.uint8)
        self._flushed.fill_(value)

    def _once(self, subject: Subject, inner: int = 1) -> float:
        """Microseconds of one call, the mean of ``inner`` in a row."""
        if subject.prepare is not None:
            subject.prepare()
        if subject.call is not None:
            call = subject.call
            started = time.perf_counter_ns()
            for _ in range(inner):
                call()
            return (time.perf_counter_ns() - started) / 1e3 / inner
        moments: list[int] = []
        subject.run(lambda: moments.append(time.perf_counter_ns()))
        return (moments[-1] - moments[-2]) / 1e3


class _CudaClock:
    def __init__(self, device: str) -> None:
        import torch

        self.place = torch.device(device)
        torch.cuda.set_device(self.place)
        l2_bytes = getattr(torch.cuda.get_device_properties(self.place), "L2_cache_size", 0) or 64 * 2**20
        self._flushed = torch.empty(2 * l2_bytes, dtype=torch.uint8, device=self.place)
        self._name: Literal["cupti", "cuda_event"] = "cupti" if _has_cupti() else "cuda_event"

    def warm_up(self, subject: Subject) -> Times:
        """The first calls compile and choose; an error of the device shows here, and is this subject's."""
        import torch

        times = Times(self._name)
        for _ in range(3):
            if subject.prepare is not None:
                subject.prepare()
            subject.run(_no_mark)
            times.warmup += 1
        torch.cuda.synchronize()
        return times

    def measure(self, pairs: Sequence[tuple[Subject, Times]], budget: Budget) -> None:
        before = _clock_mhz(self.place)
        take = self._recorded if self._name == "cupti" else self._by_events
        open_ones = [(subject, times, state) for subject, times in pairs for state in subject.states]
        count = max(budget.min_repeats, 6)
        deadline = time.perf_counter() + budget.seconds * len(open_ones)
        while open_ones:
            self._take(take, open_ones, count)
            if time.perf_counter() > deadline:
                break
            open_ones = [
                (subject, times, state)
                for subject, times, state in open_ones
                if times.samples_us.get(state) and not is_tight(times.samples_us[state], budget)
            ]
        after = _clock_mhz(self.place)
        if before and after and after < 0.93 * before:
            for _, times in pairs:
                times.clock_fell = True
                times.notes.append(
                    f"the clock fell from {before} to {after} MHz: the device throttles; "
                    "`nvidia-smi -q -d PERFORMANCE` says why, a pause or locked clocks help"
                )

    def _take(self, take: Callable[..., Any], wanted: Sequence[tuple[Subject, Times, L2State]], count: int) -> None:
        """Add samples; where a recording lost records, half of it is tried again, down to one subject."""
        found = take(wanted, count)
        if found is not None:
            for (_, times, state), samples in zip(wanted, found, strict=True):
                times.samples_us.setdefault(state, []).extend(samples)
        elif len(wanted) > 1:
            half = len(wanted) // 2
            self._take(take, wanted[:half], count)
            self._take(take, wanted[half:], count)
        else:
            wanted[0][1].notes.append("the profiler lost the records of some calls")

    def _set_up(self, subject: Subject, state: L2State) -> None:
        if subject.starts_cold(state):
            # What a kernel changed in place has its first value again in each sample.
            if subject.restore is not None:
                subject.restore()
            self._flushed.zero_()
        if subject.prepare is not None:
            subject.prepare()

    def _recorded(self, wanted: Sequence[tuple[Subject, Times, L2State]], count: int) -> list[list[float]] | None:
        """Device time of ``count`` calls of each, cut out of one recording at the marks."""
        from torchledger._torch.device_trace import DeviceTrace

        trace = DeviceTrace()
        places: list[list[int]] = [[] for _ in wanted]
        with trace:
            for (subject, _, state), indices in zip(wanted, places, strict=True):
                for turn in range(count + 1):
                    self._set_up(subject, state)
                    marks: list[int] = []
                    subject.run(lambda marks=marks: marks.append(trace.mark()))  # type: ignore[misc]
                    if turn:  # before the first one the device did something else
                        indices.append(marks[-2])
        pieces = trace.pieces()
        if pieces is None:
            return None
        return [[pieces[index].busy_us for index in indices if pieces[index].names] for indices in places]

    def _by_events(self, wanted: Sequence[tuple[Subject, Times, L2State]], count: int) -> list[list[float]]:
        """Between two events each, launched behind a spin long enough that the device never waits for the host."""
        import torch

        from torchledger._torch.kernels import spin

        found = []
        for subject, _, state in wanted:
            events: list[Any] = []

            def mark(events: list[Any] = events) -> None:
                events.append(_event())
                events[-1].record()

            spin(2_000_000)
            for _ in range(count):
                self._set_up(subject, state)
                subject.run(mark)
            torch.cuda.synchronize()
            pairs = zip(events[::2], events[1::2], strict=True)
            found.append([first.elapsed_time(last) * 1e3 for first, last in pairs])
        return found


def _no_mark() -> None:
    """Nothing is recorded."""


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
