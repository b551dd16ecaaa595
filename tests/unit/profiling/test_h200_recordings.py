"""Recordings of an H200 (torch 2.11, CUDA 13.0) go the whole way from trace to breakdown, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchledger.balance import balance_books
from torchledger.books import open_books
from torchledger.nouns import Breakdown, DeviceEvent, Launch, Measurement, Profile
from torchledger.profiling import records
from torchledger.profiling.attribution import attribute_events, graph_of_mark, launches_by_graph, learn_sequence
from torchledger.profiling.records import profile_records
from torchledger.profiling.steps import Steps
from torchledger.stepping.marks import STEP_MARK
from torchledger.stepping.record import Ledgered, StepFacts, record_step
from torchledger.store import open_ledger
from torchledger.traces.costs import device_events
from torchledger.traces.reading import read_trace
from torchledger.traces.trace import EventKind, Trace

DATA = Path(__file__).parents[2] / "data" / "h200"
LEDGER = DATA / "gpt_block_torch2.11_cu130.ledger.sqlite"


@pytest.fixture(scope="module")
def launches() -> list[Launch]:
    with open_ledger(LEDGER) as ledger:
        return ledger.read(Launch)


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Training steps of a GPT block, launched one by one."""
    return read_trace(DATA / "gpt_block_torch2.11_cu130.trace.json.gz")


@pytest.fixture(scope="module")
def replay() -> Trace:
    """The same steps replayed as CUDA graphs."""
    return read_trace(DATA / "gpt_block_graphs_torch2.11_cu130.trace.json.gz")


def test_the_books_of_the_recorded_run_balance() -> None:
    with open_ledger(LEDGER) as ledger:
        sheet = balance_books(open_books(ledger))
    for name in ("launches", "flops", "sources", "device_time", "wall_time"):
        assert sheet.accounts[name].is_balanced, name


def test_every_kernel_inside_the_graphs_belongs_to_an_entry(trace: Trace, launches: list[Launch]) -> None:
    attribution = attribute_events(trace, device_events(trace), launches)
    assert attribution.matched_share == 1
    assert attribution.entries_seen == attribution.entries == 26


def test_the_profile_adds_up_whichever_way_it_is_cut(trace: Trace, launches: list[Launch]) -> None:
    with open_ledger(LEDGER) as ledger:
        devices = ledger.run().devices
    found, events = profile_records(trace, launches, steps=Steps(), learned={}, devices=devices, n_steps=5)
    breakdown = next(record for record in found if isinstance(record, Breakdown))
    profile = next(record for record in found if isinstance(record, Profile))
    measured = [record for record in found if isinstance(record, Measurement)]
    assert breakdown.busy_us <= breakdown.wall_us
    for table in (breakdown.categories, breakdown.kernels, breakdown.graphs, breakdown.modules, breakdown.lines):
        assert sum(row.total_us for row in table) == pytest.approx(breakdown.device_us)
    inside = sum(event.duration_ns for event in events if event.launch_id is not None) / 1e3
    assert sum(sum(each.samples_us) for each in measured) == pytest.approx(inside)
    assert profile.matched_us == profile.inside_us
    assert {each.repeats for each in measured} == {5}


def test_a_step_without_its_picture_is_a_fault_and_not_a_step_without_events(
    replay: Trace, launches: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "step_timeline", lambda *events, **facts: None)
    with pytest.raises(TypeError, match="dataclass instances"):
        profile_records(replay, launches, steps=Steps(), learned={}, devices=(), n_steps=5, facts=StepFacts("call"))


def _in_one_call(trace: Trace, events: list[DeviceEvent], launches: list[Launch]) -> dict[str, list[tuple[str, int]]]:
    """What one call of each graph launched, as a first un-graphed call would have shown it."""
    found = attribute_events(trace, events, launches)
    place = {
        launch.launch_id: at
        for graph in ("forward_0", "backward_0")
        for at, launch in enumerate(each for each in launches if each.graph == graph and each.category != "nop")
    }
    learned = {}
    for graph in ("forward_0", "backward_0"):
        sequence = [(e.name, place[e.launch_id]) for e in found.events if e.graph == graph and e.launch_id is not None]
        learned[graph] = sequence[-len(sequence) // found.calls[graph] :]
    return learned


def test_replayed_kernels_find_the_entries_that_an_un_graphed_run_showed(
    trace: Trace, replay: Trace, launches: list[Launch]
) -> None:
    learned = _in_one_call(trace, device_events(trace), launches)
    attribution = attribute_events(replay, device_events(replay), launches, learned=learned)
    replayed = [event for event in attribution.events if event.is_graph_replay]
    assert replayed
    assert all(event.launch_id is not None for event in replayed)
    assert attribution.unmatched == {} and attribution.matched_share == 1.0
    assert attribution.copied_ns == attribution.inside_ns - attribution.matched_ns > 0


def test_replays_and_copies_of_inputs_inside_a_step_belong_to_its_entries(
    trace: Trace, replay: Trace, launches: list[Launch]
) -> None:
    learned = _in_one_call(trace, device_events(trace), launches)
    attribution = attribute_events(replay, device_events(replay), launches, learned=learned)
    marks = [row for row in replay.rows(EventKind.ANNOTATION).tolist() if replay.name(row).startswith(STEP_MARK)]
    spans = [(int(replay.events.start_ns[row]), int(replay.events.end_ns[row])) for row in marks]
    by_graph = launches_by_graph(launches)
    record = record_step(
        replay,
        spans,
        attribution.events,
        StepFacts("call"),
        Ledgered({"forward_0": "forward", "backward_0": "backward"}, by_graph),
        graph_of=lambda mark: graph_of_mark(mark, by_graph),
        is_composite=lambda name: False,
    )
    assert record.step.covered_share == 1.0
    start, end = spans[record.index]
    events = [each for each in attribution.events if start <= (each.launch_start_ns or 0) < end]
    owners = {event: record.calls[record.call_of[event.row]] for event in events}
    replayed = [owner.name for event, owner in owners.items() if event.is_graph_replay]
    copied = [owner.name for event, owner in owners.items() if event.op == "aten::_foreach_copy_"]
    assert copied == ["forward_0", "backward_0"] and set(replayed) == {"forward_0", "backward_0"}
    assert len(events) == sum(call.kernels for call in record.calls)


def test_without_a_learned_sequence_generated_kernels_are_still_found(replay: Trace, launches: list[Launch]) -> None:
    attribution = attribute_events(replay, device_events(replay), launches)
    generated = [event for event in attribution.events if event.name.startswith("triton_") and event.is_graph_replay]
    assert generated
    assert all(event.launch_id is not None for event in generated)


def test_several_calls_in_one_recording_teach_nothing(trace: Trace, launches: list[Launch]) -> None:
    assert learn_sequence(trace, device_events(trace), launches) == {}
