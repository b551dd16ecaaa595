"""What a rank of a job leaves for the others: its collectives in the recorded steps, and what it did around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchledger.nouns import DeviceEvent
from torchledger.stepping.activity import device_activity, host_activity, label_of_event
from torchledger.stepping.communication import read_collectives
from torchledger.stepping.record import StepRecord
from torchledger.traces.trace import Trace

if TYPE_CHECKING:
    from torchledger._torch.eager_calls import EagerCall


def communication_of_steps(
    trace: Trace,
    spans: Sequence[tuple[int, int]],
    record: StepRecord,
    events: Sequence[DeviceEvent],
    heard: Sequence[EagerCall] | None,
    *,
    is_on_device: bool,
) -> list[Any]:
    """The collectives of the recorded steps and the rank's activity; nothing where the steps have no collective.

    ``events`` are the device's with their entries, on a CPU those of compiled graphs.
    """
    name, clock = record.step.name, record.step.clock
    lines = _lines(record)
    collectives = read_collectives(
        trace, spans, events if is_on_device else (), step=name, heard=heard or (), sources=lines
    )
    if not collectives:
        return []
    entries = [entry for some in record.entries for entry in some]
    if not is_on_device:
        activity = host_activity(
            trace, spans, entries, collectives, step=name, clock=clock, kernels=events, sources=lines
        )
        return [*collectives, activity]
    inside = [event for event in events if spans[0][0] <= _moment(event) < spans[-1][1]]
    of_row = {event.row: entry.row for entry in entries for event in entry.events}

    def label_of(event: DeviceEvent) -> tuple[str, str]:
        label, source = label_of_event(event)
        return label, source or lines.get(of_row.get(event.row, -1), "")

    return [*collectives, device_activity(trace, spans, inside, step=name, clock=clock, label_of=label_of)]


def _moment(event: DeviceEvent) -> int:
    return event.start_ns if event.launch_start_ns is None else event.launch_start_ns


def _lines(record: StepRecord) -> dict[int, str]:
    """Rows of host events to the user's innermost line, or the module; the same call of other steps has the same."""
    places: dict[tuple[str, int], str] = {}
    counted: Counter[str] = Counter()
    for call in record.calls:
        if call.sources or call.modules:
            places[call.name, counted[call.name]] = call.sources[-1] if call.sources else call.modules[-1]
        counted[call.name] += 1
    found: dict[int, str] = {}
    for entries in record.entries:
        counted.clear()
        for entry in entries:
            if (place := places.get((entry.name, counted[entry.name]))) is not None:
                found[entry.row] = place
            counted[entry.name] += 1
    return found
