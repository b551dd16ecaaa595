"""Adds up device events: of an imported trace, or of a profile with a ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from torchledger.nouns import Breakdown, Ceilings, DeviceEvent, Quality, TimeRow
from torchledger.roofline import Bound, bound, roofline_us
from torchledger.traces.idle import BusyTime, busy_time, idle_between
from torchledger.traces.verdict import verdict
from torchledger.work.kernel_names import kernel_label

_QUALITIES: tuple[Quality, ...] = ("exact", "measured", "estimated", "upper_bound", "unavailable")


def summarize(
    events: Sequence[DeviceEvent],
    *,
    source: str,
    clock: str,
    ceilings: Ceilings | None = None,
    busy: Sequence[BusyTime] | None = None,
) -> Breakdown:
    """Add up device events: by category, operator, kernel, graph, module, source line and stream.

    Every table's times add up to ``device_us`` (the operators' with a row for events without one). Roofline fractions
    need measured ``ceilings``; without them they are ``None``.
    """
    sums = _Sums(events, ceilings)
    if busy is None:
        busy = busy_times(events, np.ones(len(events), dtype=bool))
    by_kind = {
        kind: int(sums.duration[[event.kind == kind for event in events]].sum()) / 1e3 if events else 0.0
        for kind in ("kernel", "memcpy", "memset")
    }
    result = Breakdown(
        source=source,
        clock=clock,
        kernel_us=by_kind["kernel"],
        copy_us=by_kind["memcpy"],
        fill_us=by_kind["memset"],
        wall_us=sum(device.end - device.start for device in busy) / 1e3,
        busy_us=sum(device.busy for device in busy) / 1e3,
        events=len(events),
        categories=sums.table(lambda event: event.category, keep_category=True),
        ops=sums.table(_op_name),
        kernels=sums.table(lambda event: event.name, keep_category=True, keep_details=True),
        graphs=sums.table(lambda event: event.graph or "outside compiled graphs") if sums.has("graph") else (),
        modules=sums.table(lambda event: event.modules[-1] if event.modules else "no module recorded")
        if sums.has("modules")
        else (),
        lines=sums.table(lambda event: event.sources[-1] if event.sources else "no source line recorded")
        if sums.has("sources")
        else (),
        streams=sums.table(lambda event: f"device {event.device} stream {event.stream}"),
        gaps=idle_between(events, busy),
        known_kernel_us=sums.known_us([event.kind == "kernel" for event in events]),
        known_us=sums.known_us([True] * len(events)),
        known_by_quality_us=sums.by_quality(),
        unknown_us=sums.reasons(range(len(events))),
    )
    return replace(result, verdict=verdict(result))


def busy_times(events: Sequence[DeviceEvent], is_on_clock: npt.NDArray[np.bool_]) -> list[BusyTime]:
    """When each device ran anything, by the events that are ``is_on_clock``, the host's."""
    by_device: dict[Any, list[int]] = defaultdict(list)
    for index, event in enumerate(events):
        if is_on_clock[index]:
            by_device[event.device].append(index)
    result = []
    for device, members in by_device.items():
        start = np.array([events[index].start_ns for index in members], dtype=np.int64)
        duration = np.array([events[index].duration_ns for index in members], dtype=np.int64)
        result.append(busy_time(device, start, start + duration, np.array(members, dtype=np.int64)))
    return result


class _Sums:
    """Columns of all events, and tables of sums over groups of them."""

    def __init__(self, events: Sequence[DeviceEvent], ceilings: Ceilings | None) -> None:
        self.events = events
        self.duration = np.array([event.duration_ns for event in events], dtype=np.int64)
        self.total = int(self.duration.sum()) if len(events) else 0
        self._flops = np.array([event.cost.flops or 0 for event in events], dtype=np.int64)
        self._has_flops = np.array([event.cost.flops is not None for event in events], dtype=bool)
        self._bytes = np.array([event.cost.bytes_moved or 0 for event in events], dtype=np.int64)
        self._has_bytes = np.array([event.cost.bytes_moved is not None for event in events], dtype=bool)
        self._known = np.array([event.cost.is_known for event in events], dtype=bool)
        self._flops_quality = np.array([_QUALITIES.index(event.cost.flops_quality) for event in events], dtype=np.int8)
        self._bytes_quality = np.array([_QUALITIES.index(event.cost.bytes_quality) for event in events], dtype=np.int8)
        self._ceilings = ceilings

    def known_us(self, of: Sequence[bool]) -> float:
        """Time of those events that have FLOPs or bytes, in microseconds."""
        return int(self.duration[self._known & np.array(of, dtype=bool)].sum()) / 1e3

    def has(self, field: str) -> bool:
        """True when any event has that fact."""
        return any(getattr(event, field) for event in self.events)

    def table(
        self, key: Callable[[DeviceEvent], str], *, keep_category: bool = False, keep_details: bool = False
    ) -> tuple[TimeRow, ...]:
        """One row per key, longest first."""
        groups: dict[str, list[int]] = defaultdict(list)
        for index, event in enumerate(self.events):
            groups[key(event)].append(index)
        rows = [
            self._row(name, np.array(members), keep_category=keep_category, keep_details=keep_details)
            for name, members in groups.items()
        ]
        return tuple(sorted(rows, key=lambda row: (-row.total_us, row.name)))

    def by_quality(self) -> dict[str, float]:
        """Known device time by the better-known of its two numbers, in microseconds."""
        best = np.where(
            (self._flops > 0) & self._has_flops,
            np.minimum(self._flops_quality, self._bytes_quality),
            self._bytes_quality,
        )
        return {
            quality: int(self.duration[self._known & (best == number)].sum()) / 1e3
            for number, quality in enumerate(_QUALITIES)
            if (self._known & (best == number)).any()
        }

    def reasons(self, members: Sequence[int] | npt.NDArray[Any]) -> dict[str, float]:
        """Why events have neither FLOPs nor bytes, with the time of those, longest first."""
        times: dict[str, int] = defaultdict(int)
        for index in members:
            if not self._known[index]:
                times[self.events[index].cost.reason or "not recorded"] += int(self.duration[index])
        return {reason: time / 1e3 for reason, time in sorted(times.items(), key=lambda item: -item[1])}

    def _row(self, name: str, members: npt.NDArray[Any], *, keep_category: bool, keep_details: bool) -> TimeRow:
        duration = self.duration[members]
        total = int(duration.sum())
        has_flops, has_bytes = self._has_flops[members], self._has_bytes[members]
        lower, median, upper = np.percentile(duration, [25, 50, 75])
        first = self.events[int(members[0])]
        detail: dict[str, str] = {}
        ops: tuple[str, ...] = ()
        if keep_details:
            ops = tuple(dict.fromkeys(op for i in members[:1000] if (op := self.events[i].op) is not None))
            detail = _details([self.events[i] for i in members[:1000]])
        roofline, roofline_of, limited_by = self._roofline(members)
        # Helpers with 0 FLOPs do not make a sum of 0 beside products whose FLOPs are unknown.
        flops = int(self._flops[members].sum())
        if not flops and not has_flops.all():
            has_flops = np.zeros_like(has_flops)
        return TimeRow(
            name=name,
            calls=len(members),
            total_us=total / 1e3,
            share=total / self.total if self.total else 0.0,
            median_us=float(median) / 1e3,
            iqr_us=float(upper - lower) / 1e3 if len(members) >= 4 else None,
            minimum_us=int(duration.min()) / 1e3,
            maximum_us=int(duration.max()) / 1e3,
            category=first.category if keep_category else None,
            flops=flops if has_flops.any() else None,
            flops_us=int(duration[has_flops].sum()) / 1e3,
            flops_quality=_QUALITIES[int(self._flops_quality[members][has_flops].max())]
            if has_flops.any()
            else "unavailable",
            bytes_moved=int(self._bytes[members].sum()) if has_bytes.any() else None,
            bytes_us=int(duration[has_bytes].sum()) / 1e3,
            bytes_quality=_QUALITIES[int(self._bytes_quality[members][has_bytes].max())]
            if has_bytes.any()
            else "unavailable",
            known_us=int(duration[self._known[members]].sum()) / 1e3,
            reasons=self.reasons(members),
            roofline_us=roofline,
            roofline_of_us=roofline_of,
            bound=limited_by,
            ops=ops,
            detail=detail,
        )

    def _roofline(self, members: npt.NDArray[Any]) -> tuple[float | None, float, Bound | None]:
        ceilings = self._ceilings
        if ceilings is None:
            return None, 0.0, None
        lower_bound, of_time = 0.0, 0
        times: dict[Bound, int] = defaultdict(int)
        for index in members:
            event = self.events[index]
            peak = ceilings.tflops_per_s.get((event.shapes or "").split("[", 1)[0])
            limits = {"peak_tflops_per_s": peak, "peak_gb_per_s": ceilings.copy_gb_per_s}
            least = roofline_us(event.cost.flops if peak else None, event.cost.bytes_moved, **limits)
            if least is None:
                continue
            lower_bound += least
            of_time += event.duration_ns
            limited_by = bound(
                event.cost.flops if peak else None,
                event.cost.bytes_moved,
                duration_us=event.duration_us,
                launch_overhead_us=ceilings.launch_overhead_us,
                **limits,
            )
            if limited_by is not None:
                times[limited_by] += event.duration_ns
        if not of_time:
            return None, 0.0, None
        return lower_bound, of_time / 1e3, max(times.items(), key=lambda item: item[1])[0] if times else None


def _op_name(event: DeviceEvent) -> str:
    if event.op is not None:
        return event.op
    return {"memcpy": "copies outside operators", "memset": "fills outside operators"}.get(
        event.kind, "no operator recorded"
    )


def _details(events: Sequence[DeviceEvent]) -> dict[str, str]:
    """What is the same for all launches of a kernel; "varies" where it is not."""
    detail = {"label": kernel_label(events[0].name)}
    facts: tuple[tuple[str, Callable[[DeviceEvent], Any]], ...] = (
        ("grid", lambda event: event.grid),
        ("block", lambda event: event.block),
        ("n_regs", lambda event: event.n_regs),
        ("shared_bytes", lambda event: event.shared_bytes),
        ("shapes", lambda event: event.shapes),
        ("basis", lambda event: event.cost.basis),
    )
    for name, fact in facts:
        values = {fact(event) for event in events} - {None}
        if len(values) == 1:
            (value,) = values
            detail[name] = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        elif values:
            detail[name] = f"{len(values)} different"
    return detail
