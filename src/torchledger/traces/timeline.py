"""One step as it ran: which event of the device started when, for a picture of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torchledger.nouns import DeviceEvent, Timeline

LONGEST = 20_000
"""Events kept of one step; a timeline is for looking, and what is beyond is counted."""


def step_timeline(
    events: Sequence[DeviceEvent],
    *,
    clock: str,
    step: int | None = None,
    phases: Mapping[int, str] | None = None,
    longest: int = LONGEST,
) -> Timeline:
    """A picture of ``events``, at least one: those of recorded step number ``step`` where steps are marked.

    ``phases`` maps rows of events in their trace to what they are for.
    """
    ordered = sorted(events, key=lambda event: event.start_ns)
    kept = ordered[:longest]
    names, name = _coded(kept, lambda event: event.name)
    categories, category = _coded(kept, lambda event: event.category)
    lanes, lane = _coded(kept, _lane)
    phase_names, phase = _coded(kept, lambda event: (phases or {}).get(event.row if event.row is not None else -1, ""))
    launches = list(dict.fromkeys(event.launch_id for event in kept if event.launch_id is not None))
    places = {launch_id: place for place, launch_id in enumerate(launches)}
    return Timeline(
        clock=clock,
        start_ns=tuple(event.start_ns - kept[0].start_ns for event in kept),
        duration_ns=tuple(event.duration_ns for event in kept),
        name=name,
        category=category,
        launch=tuple(None if event.launch_id is None else places[event.launch_id] for event in kept),
        lane=lane,
        names=names,
        categories=categories,
        launch_ids=tuple(launches),
        lanes=lanes,
        step=step,
        phase=phase if phases else (),
        phases=phase_names if phases else (),
        left_out=len(ordered) - len(kept),
    )


def _lane(event: DeviceEvent) -> str:
    if event.device is None:
        return "cpu" if event.stream is None else f"stream {event.stream}"
    return f"device {event.device}" if event.stream is None else f"device {event.device}, stream {event.stream}"


def _coded(
    events: Sequence[DeviceEvent], text: Callable[[DeviceEvent], str]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Distinct texts in order of appearance, and for each event the place of its own."""
    places: dict[str, int] = {}
    codes = tuple(places.setdefault(text(event), len(places)) for event in events)
    return tuple(places), codes
