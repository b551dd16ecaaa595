"""Timing operators that are functions of the user's: what ran inside the calls that their targets name.

A function makes its inputs and runs both directions in one call, so that no clock can be put around a direction. It is
run under torch's profiler; of each active iteration the events that the targets name are found, and the time of the
kernels launched inside them is taken, or on a CPU the events' own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torchledger.errors import SampleError
from torchledger.operators import find_operator
from torchledger.operators.functions import FunctionOperator
from torchledger.sampling.guide_csv import short_precision
from torchledger.sampling.points import Point
from torchledger.sampling.timing import DirectionTimes, PointTimes, Timer, guard_point

_MOST_NAMES_TOLD = 40


class FunctionTimer:
    """A timer that also measures functions; all else is left to ``timer``."""

    def __init__(self, timer: Timer, device: str) -> None:
        self._timer, self._device = timer, device
        self.clock, self.group_size = timer.clock, timer.group_size

    def measure(self, points: Sequence[Point], *, warmup: int, active: int) -> Iterator[PointTimes]:
        """Times of each point."""
        others = [point for point in points if not isinstance(find_operator(point.operator), FunctionOperator)]
        if others:
            yield from self._timer.measure(others, warmup=warmup, active=active)
        for point in points:
            if isinstance(find_operator(point.operator), FunctionOperator):
                yield self._measure_function(point, warmup, active)

    def _measure_function(self, point: Point, warmup: int, active: int) -> PointTimes:
        result = PointTimes(point)
        operator = find_operator(point.operator)
        assert isinstance(operator, FunctionOperator)

        def take() -> None:
            run = function_call(operator, point, self._device)
            for _ in range(warmup):
                run()
            events = profile_function(run, active, self._device)
            for direction, path in operator.targets.items():
                calls = called(events, path)
                if not calls:
                    raise SampleError(no_target(path, events))
                if len(calls) % active:
                    raise SampleError(f"{' > '.join(path)!r} was called {len(calls)} times in {active} iterations")
                each = len(calls) // active
                groups = [calls[start : start + each] for start in range(0, len(calls), each)]
                times = tuple(sum(map(self._time_us, group)) for group in groups)
                if not all(times):
                    raise SampleError(f"{direction} ran no kernel on the device")
                kernels = tuple(dict.fromkeys(name for call in groups[-1] for name in _kernel_names(call)))
                result.directions[direction] = DirectionTimes(times, (), kernels)

        guard_point(result, take)
        return result

    def _time_us(self, call: Any) -> float:
        if self._device.startswith("cuda"):
            return float(sum(kernel.duration for event in _inside(call) for kernel in event.kernels))
        return float(call.cpu_time_total)


def function_call(operator: FunctionOperator, point: Point, device: str) -> Any:
    """One call of the function at a point, as the guide's controller calls it."""
    import torch

    if not operator.targets:
        raise SampleError(
            f"{operator.name} is a function, and nothing says which of its calls are its forward and backward: "
            "sample it by a guide file with targets."
        )
    shapes = [point.parameters[name] for name in operator.parameters]
    number = torch.device(device).index or 0
    precision = short_precision(point.dtype)
    return lambda: operator.function(shapes, precision, number)


def profile_function(run: Any, iterations: int, device: str) -> list[Any]:
    """The profiler's events of so many calls."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_cuda = device.startswith("cuda")
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]) as recorded:
        for _ in range(iterations):
            run()
        if on_cuda:
            torch.cuda.synchronize()
    return list(recorded.events() or ())


def called(events: Iterable[Any], path: Sequence[str]) -> list[Any]:
    """The outermost events whose name holds the last target, inside one that holds the target before it, and so on."""
    found = [event for event in events if event.cpu_parent is None]
    for target in path:
        found = [event for root in found for event in _first_named(root, target)]
    return sorted(found, key=lambda event: event.time_range.start)


def no_target(path: Sequence[str], events: Iterable[Any]) -> str:
    """The complaint about a target that matches nothing, with what there was."""
    there = sorted({event.name for event in events if not event.name.startswith(("cuda", "[memory]"))})
    return f"{' > '.join(path)!r} matches nothing in the profile; there were: {', '.join(there[:_MOST_NAMES_TOLD])}"


def _first_named(event: Any, target: str) -> Iterator[Any]:
    if target in event.name:
        yield event
        return
    for child in event.cpu_children:
        yield from _first_named(child, target)


def _inside(event: Any) -> Iterator[Any]:
    yield event
    for child in event.cpu_children:
        yield from _inside(child)


def _kernel_names(call: Any) -> Iterator[str]:
    for event in _inside(call):
        yield from (kernel.name for kernel in event.kernels)
