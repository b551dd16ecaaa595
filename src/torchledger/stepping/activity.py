"""What a rank did from moment to moment of its recorded steps: compute, communication that nothing hides, or nothing.

The pieces fill the steps without overlap, so that their sums are the steps' length to the nanosecond. On a GPU they are
of the device's clock, on a CPU of the thread that makes the steps.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from torchledger.nouns import Clock, Collective, DeviceEvent, RankActivity
from torchledger.stepping.communication import clock_origin_ns
from torchledger.stepping.entries import Entry
from torchledger.stepping.idle import host_ranges, pieces_between
from torchledger.traces.idle import BACK_TO_BACK_NS, BETWEEN_KERNELS
from torchledger.traces.trace import NONE, EventKind, Trace
from torchledger.work.kernel_names import kernel_label

COMPUTE, COMMUNICATION, IDLE = 0, 1, 2

_COMMUNICATES = re.compile(r"^(c10d::|_?c10d_functional|record_param_comms$)")

Span = tuple[int, int, str, str]
"""Start, end, label and source."""


def device_activity(
    trace: Trace,
    spans: Sequence[tuple[int, int]],
    events: Sequence[DeviceEvent],
    *,
    step: str,
    clock: Clock,
    label_of: Callable[[DeviceEvent], tuple[str, str]] | None = None,
) -> RankActivity:
    """The activity of a rank's device; ``events`` were launched in the ``spans``. Raises ``ValueError`` without any."""
    if not events:
        raise ValueError("a device's activity needs events")
    label_of = label_of or label_of_event
    work = [event for event in events if event.category != "collective"]
    compute = _union(
        (event.start_ns, event.start_ns + event.duration_ns, *label_of(event))
        for event in sorted(work, key=lambda event: event.start_ns)
    )
    moving = _union(
        (event.start_ns, event.start_ns + event.duration_ns, event.name, "")
        for event in sorted(events, key=lambda event: event.start_ns)
        if event.category == "collective"
    )
    reach = max(event.start_ns + event.duration_ns for event in events)
    window = (spans[0][0], max(spans[-1][1], reach))
    starts = sorted((event.start_ns, index) for index, event in enumerate(events))
    lanes = _Lanes(trace, window)

    def idle(start: int, end: int) -> Iterable[Span]:
        if end - start <= BACK_TO_BACK_NS:
            return ((start, end, BETWEEN_KERNELS, ""),)
        at = bisect.bisect_left(order, end)
        launch = NONE
        if at < len(starts):
            row = events[starts[at][1]].row
            launch = int(trace.launch_of[row]) if row is not None else NONE
        lane = int(trace.events.lane[launch]) if launch != NONE else lanes.main
        return ((piece, until, cause, "") for piece, until, cause in lanes.pieces(lane, start, end))

    order = [start for start, _ in starts]
    return _activity(trace, spans, window, compute, moving, idle, step=step, clock=clock)


def host_activity(
    trace: Trace,
    spans: Sequence[tuple[int, int]],
    entries: Sequence[Entry],
    collectives: Sequence[Collective],
    *,
    step: str,
    clock: Clock,
    kernels: Sequence[DeviceEvent] = (),
    sources: Mapping[int, str] | None = None,
) -> RankActivity:
    """The activity of a rank's main thread; ``kernels`` are those of compiled graphs, ``entries`` of all the spans.

    ``sources`` maps an entry's row to the user's line.
    """
    window = (spans[0][0], spans[-1][1])
    lane = Counter(entry.lane for entry in entries).most_common(1)[0][0] if entries else 0
    named = {event.start_ns: label_of_event(event) for event in kernels}
    inside = _communicating(trace, lane, window)
    work: list[Span] = []
    for entry in entries:
        if entry.lane != lane or entry.kind in ("collective", "synchronization"):
            continue
        source = (sources or {}).get(entry.row, "")
        for start, end in entry.host_work:
            label, place = named.get(start, (entry.name, source))
            work += [(*piece, label, place) for piece in _without((start, end), inside)]
    origin = clock_origin_ns(trace)
    moving = _union(
        sorted(
            (each.issued_ns - origin, each.ended_ns - origin, each.operation, "")
            for each in collectives
            if each.issued_ns is not None and each.ended_ns is not None
        )
    )
    moving = _union(sorted([*moving, *((start, end, "communication", "") for start, end in inside)]))
    lanes = _Lanes(trace, window)

    def idle(start: int, end: int) -> Iterable[Span]:
        return ((piece, until, cause, "") for piece, until, cause in lanes.pieces(lane, start, end))

    return _activity(trace, spans, window, _union(sorted(work)), moving, idle, step=step, clock=clock)


def label_of_event(event: DeviceEvent) -> tuple[str, str]:
    """The entry that a device event belongs to, and where that comes from."""
    label = event.launch_id or event.op or kernel_label(event.name)
    source = event.sources[-1] if event.sources else event.modules[-1] if event.modules else ""
    return label, source


def _activity(
    trace: Trace,
    spans: Sequence[tuple[int, int]],
    window: tuple[int, int],
    compute: Sequence[Span],
    moving: Sequence[Span],
    idle: Callable[[int, int], Iterable[Span]],
    *,
    step: str,
    clock: Clock,
) -> RankActivity:
    pieces: list[tuple[int, int, int, str, str]] = []
    compute = [_cut(span, window) for span in compute if span[0] < window[1] and span[1] > window[0]]
    moving = [_cut(span, window) for span in moving if span[0] < window[1] and span[1] > window[0]]
    edges = [window[0], *(edge for span in compute for edge in span[:2]), window[1]]
    pieces += [(start, end, COMPUTE, label, source) for start, end, label, source in compute]
    at = 0
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        while at < len(moving) and moving[at][1] <= start:
            at += 1
        reached, place = start, at
        while place < len(moving) and moving[place][0] < end:
            begin, until = max(moving[place][0], start), min(moving[place][1], end)
            if begin > reached:
                pieces += [(*span[:2], IDLE, *span[2:]) for span in idle(reached, begin)]
            if until > begin:
                pieces.append((begin, until, COMMUNICATION, *moving[place][2:]))
            reached = max(reached, until)
            place += 1
        if end > reached:
            pieces += [(*span[:2], IDLE, *span[2:]) for span in idle(reached, end)]
    pieces = _joined(sorted(pieces))
    labels = {label: place for place, label in enumerate(dict.fromkeys(piece[3] for piece in pieces))}
    sources = {source: place for place, source in enumerate(dict.fromkeys(piece[4] for piece in pieces))}
    origin = clock_origin_ns(trace)
    return RankActivity(
        step=step,
        clock=clock,
        start_ns=origin + window[0],
        end_ns=origin + window[1],
        step_start_ns=tuple(origin + start for start, _ in spans),
        piece_start_ns=tuple(piece[0] - window[0] for piece in pieces),
        piece_ns=tuple(piece[1] - piece[0] for piece in pieces),
        kind=tuple(piece[2] for piece in pieces),
        label=tuple(labels[piece[3]] for piece in pieces),
        source=tuple(sources[piece[4]] for piece in pieces),
        labels=tuple(labels),
        sources=tuple(sources),
        communication_ns=sum(end - start for start, end, *_ in moving),
        host=str(host) if (host := trace.metadata.get("host_name")) else None,
    )


def _union(spans: Iterable[Span]) -> list[Span]:
    """Spans in order of their starts, without overlap: what began first keeps the moment."""
    found: list[Span] = []
    reach = None
    for start, end, label, source in spans:
        begin = start if reach is None else max(start, reach)
        if end > begin:
            found.append((begin, end, label, source))
            reach = end
    return found


def _joined(pieces: Sequence[tuple[int, int, int, str, str]]) -> list[tuple[int, int, int, str, str]]:
    found: list[tuple[int, int, int, str, str]] = []
    for piece in pieces:
        if found and found[-1][1] == piece[0] and found[-1][2:] == piece[2:] and piece[2] != COMPUTE:
            found[-1] = (found[-1][0], *piece[1:])
        else:
            found.append(piece)
    return found


def _cut(span: Span, window: tuple[int, int]) -> Span:
    return (max(span[0], window[0]), min(span[1], window[1]), *span[2:])


def _communicating(trace: Trace, lane: int, window: tuple[int, int]) -> list[tuple[int, int]]:
    """When a thread was in an operator that communicates, its waits included."""
    columns = trace.events
    is_one = np.array([bool(_COMMUNICATES.match(name)) for name in trace.names] or [False])
    rows = trace.rows(EventKind.OP)
    rows = rows[is_one[columns.name[rows]] & (columns.lane[rows] == lane)]
    spans = sorted(zip(columns.start_ns[rows].tolist(), columns.end_ns[rows].tolist(), strict=True))
    return [span[:2] for span in _union((start, end, "", "") for start, end in spans)]


def _without(span: tuple[int, int], others: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left of a span without the others, which are in order."""
    start, end = span
    found = []
    for other_start, other_end in others:
        if other_end <= start:
            continue
        if other_start >= end:
            break
        if other_start > start:
            found.append((start, other_start))
        start = max(start, other_end)
    if end > start:
        found.append((start, end))
    return found


class _Lanes:
    """What each host thread was in, by causes of idle time."""

    def __init__(self, trace: Trace, window: tuple[int, int]) -> None:
        self._trace, self._window = trace, window
        self._ranges: dict[int, list[tuple[int, int, str]]] = {}
        lanes = trace.events.lane[trace.rows(EventKind.OP)]
        self.main = int(Counter(lanes.tolist()).most_common(1)[0][0]) if len(lanes) else 0

    def pieces(self, lane: int, start: int, end: int) -> Iterable[tuple[int, int, str]]:
        """The causes of an idle time of a thread, which fill it."""
        if lane not in self._ranges:
            self._ranges[lane] = host_ranges(self._trace, lane, self._window)
        reached = start
        for piece in pieces_between(self._ranges[lane], start, end):
            yield piece
            reached = piece[1]
        if reached < end:
            yield reached, end, "after the last thing that the host did"
