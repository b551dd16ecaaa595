"""Timing cases on a device: by its own clock through CUPTI, by CUDA events, or by the host's clock."""

from __future__ import annotations

import gc
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from torchledger._torch.errors import is_device_fault, is_out_of_memory, is_unsupported
from torchledger.errors import MeasureError
from torchledger.nouns.sample import SampleStatus
from torchledger.operators import find_operator
from torchledger.sampling.cases import Case, InputPool, make_case
from torchledger.sampling.points import Point

if TYPE_CHECKING:
    from torchledger._torch.device_trace import Piece

log = logging.getLogger(__name__)

_RESERVED_SHARE = 0.5


@dataclass(frozen=True)
class DirectionTimes:
    """One direction's iterations, in order: device-busy time and span in microseconds, and the kernels of the last."""

    times_us: tuple[float, ...]
    spans_us: tuple[float, ...] = ()
    kernels: tuple[str, ...] = ()


@dataclass
class PointTimes:
    """What came of one point: times by direction, or a status and its reason."""

    point: Point
    directions: dict[str, DirectionTimes] = field(default_factory=dict)
    status: SampleStatus = "ok"
    reason: str | None = None


class DeviceFault(MeasureError):
    """The device refuses further work; only a fresh process can go on."""


class Timer(Protocol):
    """Measures points in groups: results come when the group's records can be read."""

    clock: str
    group_size: int

    def measure(self, points: Sequence[Point], *, warmup: int, active: int) -> Iterator[PointTimes]:
        """Times of each point; raises ``DeviceFault`` when the device is lost."""


def make_timer(
    device: str, *, group_size: int | None = None, pool_bytes: int | None = None, reserved_share: float | None = None
) -> Timer:
    """The best timer that the device has: CUPTI, else CUDA events, on CUDA; the host's clock on a CPU.

    ``reserved_share`` of the memory that is free is kept for tensors from the beginning, half of it unless given.
    """
    from torchledger._torch.device_trace import device_trace_available

    pool = InputPool(device, pool_bytes=pool_bytes)
    if pool.device.type == "cpu":
        return HostTimer(pool)
    import torch

    torch.cuda.set_device(torch.cuda.current_device() if pool.device.index is None else pool.device.index)
    _reserve_memory(_RESERVED_SHARE if reserved_share is None else reserved_share)
    if device_trace_available():
        return CuptiTimer(pool, group_size or 32)
    log.warning("CUPTI gives no records here; timing by CUDA events, which include launch gaps (clock cuda_event)")
    return EventTimer(pool)


def _reserve_memory(share: float) -> None:
    """Have the allocator keep a large block to cut tensors of all sizes from: asking the driver for each new size costs
    more than measuring a small shape."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    block = torch.empty(int(free * share), dtype=torch.uint8, device="cuda")
    del block


class _OneByOne:
    """Times a point, then the next; how an iteration is timed is the subclass's."""

    group_size = 1

    def __init__(self, pool: InputPool) -> None:
        self.pool = pool

    def measure(self, points: Sequence[Point], *, warmup: int, active: int) -> Iterator[PointTimes]:
        """Times of each point."""
        for point in points:
            result = PointTimes(point)

            def take(case: Case, result: PointTimes = result) -> None:
                for direction, run in _warmed(case, warmup):
                    result.directions[direction] = DirectionTimes(self._times_us(run, active))

            _guarded(result, self.pool, take)
            yield result

    def _times_us(self, run: Callable[[], Any], active: int) -> tuple[float, ...]:
        raise NotImplementedError


class HostTimer(_OneByOne):
    """Each iteration between two readings of the host's clock: right where calls return when their work is done."""

    clock = "host"

    def _times_us(self, run: Callable[[], Any], active: int) -> tuple[float, ...]:
        times = []
        for _ in range(active):
            started = time.perf_counter_ns()
            run()
            times.append((time.perf_counter_ns() - started) / 1e3)
        return tuple(times)


class EventTimer(_OneByOne):
    """CUDA events around each iteration: the gaps between its launches are part of the time."""

    clock = "cuda_event"

    def _times_us(self, run: Callable[[], Any], active: int) -> tuple[float, ...]:
        import torch

        events: list[Any] = [
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(active + 1)
        ]
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        torch.cuda.synchronize()
        return tuple(first.elapsed_time(second) * 1e3 for first, second in itertools.pairwise(events))


class CuptiTimer:
    """Device time from CUPTI, one profiler session for a group of points."""

    clock = "cupti"

    def __init__(self, pool: InputPool, group_size: int) -> None:
        self.pool = pool
        self.group_size = group_size

    def measure(self, points: Sequence[Point], *, warmup: int, active: int) -> Iterator[PointTimes]:
        """Times of each point. Where records were lost, each point gets a session of its own, and is reported as failed
        if they are lost again."""
        # Nothing measured leaves cycles behind, and a collection in the middle stalls the device.
        gc.disable()
        try:
            found, results, where = self._session(points, warmup, active)
        finally:
            gc.enable()
        if found is None:
            if len(points) > 1:
                log.warning("the profiler lost records of a group of %d points; measuring them one by one", len(points))
                for point in points:
                    yield from self.measure([point], warmup=warmup, active=active)
                return
            yield PointTimes(points[0], status="failed", reason="the profiler lost records of this point twice")
            return
        for result, marks in zip(results, where, strict=True):
            for direction, indices in marks if result.status == "ok" else ():
                pieces = [found[index] for index in indices]
                if not all(piece.names for piece in pieces):
                    result.status, result.reason = "failed", f"{direction} ran no kernel on the device"
                    continue
                result.directions[direction] = DirectionTimes(
                    tuple(piece.busy_us for piece in pieces),
                    tuple(piece.span_us for piece in pieces),
                    pieces[-1].names,
                )
            yield result

    def _session(
        self, points: Sequence[Point], warmup: int, active: int
    ) -> tuple[list[Piece] | None, list[PointTimes], list[list[tuple[str, list[int]]]]]:
        """One profiler session: the pieces of its timeline (``None`` if records were lost), the results so far, and
        which pieces are each point's iterations by direction."""
        import torch

        from torchledger._torch.device_trace import DeviceTrace

        results = [PointTimes(point) for point in points]
        where: list[list[tuple[str, list[int]]]] = []
        trace = DeviceTrace()
        try:
            with trace:
                for result in results:
                    marks: list[tuple[str, list[int]]] = []
                    where.append(marks)

                    def take(case: Case, marks: list[tuple[str, list[int]]] = marks) -> None:
                        for direction, run in _warmed(case, warmup):
                            pieces = [trace.mark()]
                            for _ in range(active):
                                run()
                                pieces.append(trace.mark())
                            marks.append((direction, pieces[:-1]))

                    _guarded(result, self.pool, take)
        except torch.AcceleratorError as error:
            # What only shows when the session synchronises on its way out.
            raise DeviceFault(str(error)) from error
        return trace.pieces(), results, where


def _warmed(case: Case, warmup: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each direction of a case, prepared and run ``warmup`` times."""
    for direction, run in case.runs.items():
        if direction in case.prepare:
            case.prepare[direction]()
        for _ in range(warmup):
            run()
        yield direction, run


def _guarded(result: PointTimes, pool: InputPool, take: Callable[[Case], None]) -> None:
    """Make the point's case and take its times; what a shape cannot do becomes its status."""
    import torch

    point = result.point
    operator = find_operator(point.operator)

    def twice() -> None:
        if reason := operator.check(operator.resolve(point.parameters)):
            result.status, result.reason = "unsupported", reason
            return
        if reason := _too_large(point, pool):
            result.status, result.reason = "out_of_memory", reason
            return
        for _ in range(2):
            try:
                take(make_case(operator, point.parameters, point.dtype, pool))
                return
            except torch.OutOfMemoryError as error:
                reason = _first_line(error)
            # Out here no traceback holds the tensors any more. Blocks kept for other sizes may be all that was in the
            # way, so the second try starts without them.
            result.directions.clear()
            if pool.device.type == "cuda":
                torch.cuda.empty_cache()
        result.status, result.reason = "out_of_memory", reason

    guard_point(result, twice)


def guard_point(result: PointTimes, take: Callable[[], None]) -> None:
    """Take a point's times; what a shape cannot do becomes its status. Raises ``DeviceFault`` if the device is lost."""
    try:
        take()
    except Exception as error:
        # Any operator's own failure, a user's too, is that point's result; the sweep goes on.
        if is_device_fault(error):
            raise DeviceFault(_first_line(error)) from error
        result.status, result.reason = _status_of(error), f"{type(error).__name__}: {_first_line(error)}"
    if result.status != "ok":
        result.directions.clear()


def _status_of(error: Exception) -> SampleStatus:
    if is_out_of_memory(error):
        return "out_of_memory"
    return "unsupported" if is_unsupported(error) else "failed"


def _too_large(point: Point, pool: InputPool) -> str | None:
    needed = find_operator(point.operator).input_bytes(point.parameters, point.dtype)
    if pool.device.type == "cuda":
        import torch

        total = torch.cuda.get_device_properties(pool.device).total_memory
    else:
        total = _host_memory_bytes()
    if needed > total:
        return f"the inputs alone take {needed / 1e9:.1f} GB of the device's {total / 1e9:.1f} GB"
    return None


def _host_memory_bytes() -> int:
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__
