"""One step out of a profile's events."""

from __future__ import annotations

from torchledger.nouns import DeviceEvent
from torchledger.traces.timeline import step_timeline


def make_event(start: int, duration: int = 5, **changes: object) -> DeviceEvent:
    fields = {"name": "k", "kind": "kernel", "category": "gemm", "start_ns": start, "duration_ns": duration}
    return DeviceEvent(**(fields | changes))  # type: ignore[arg-type]


def test_events_are_counted_from_the_first_and_the_step_is_named() -> None:
    timeline = step_timeline([make_event(start) for start in (120, 105)], clock="cupti", step=1)
    assert (timeline.step, timeline.start_ns) == (1, (0, 15))


def test_each_event_has_the_phase_of_its_row_where_phases_are_known() -> None:
    events = [make_event(0, row=4), make_event(10, row=5), make_event(20, row=6)]
    timeline = step_timeline(events, clock="cupti", phases={4: "forward", 5: "loss", 6: "forward"})
    assert [timeline.phases[place] for place in timeline.phase] == ["forward", "loss", "forward"]


def test_what_is_beyond_the_longest_is_counted() -> None:
    timeline = step_timeline([make_event(start) for start in range(0, 50, 5)], clock="trace", longest=4)
    assert (len(timeline.start_ns), timeline.left_out, timeline.step) == (4, 6, None)


def test_texts_are_kept_once_and_looked_up_by_place() -> None:
    events = [make_event(0, launch_id="f#0", stream=7, device=0), make_event(9, name="other", launch_id="f#1")]
    timeline = step_timeline(events, clock="cupti")
    assert [timeline.names[place] for place in timeline.name] == ["k", "other"]
    assert [timeline.launch_ids[place] for place in timeline.launch if place is not None] == ["f#0", "f#1"]
    assert timeline.lanes == ("device 0, stream 7", "cpu")
