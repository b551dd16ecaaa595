"""Kernels that a recording knows by name alone find the ledger's entries, or say why they do not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from factories import make_launch
from nsight_factory import Report, report_of
from torchledger.balance import balance_books
from torchledger.books import open_books
from torchledger.cli import cli, main
from torchledger.nouns import DeviceEvent, Launch, Measurement, Profile
from torchledger.profiling.attribution import attribute_events
from torchledger.profiling.by_name import SHARED, UNEVEN, join_by_name
from torchledger.store import open_ledger
from torchledger.store.latest import latest, latest_measurements, step_measurements
from torchledger.traces.costs import device_events
from torchledger.traces.reading import read_trace

DATA = Path(__file__).parents[2] / "data" / "h200"
LEDGER = DATA / "gpt_block_torch2.11_cu130.ledger.sqlite"


def _event(name: str, start_ns: int, duration_ns: int = 10) -> DeviceEvent:
    return DeviceEvent(name, "kernel", "other", start_ns, duration_ns)


def _launch(order: int, name: str, graph: str = "forward_0") -> Launch:
    return make_launch(graph=graph, order=order, kernel_name=name, category="pointwise", flops=0)


def test_names_give_the_entries_that_marks_and_operators_give() -> None:
    """Steps that an H200 ran: names alone, against what the profiler's marks of graphs and operators say."""
    trace = read_trace(DATA / "gpt_block_torch2.11_cu130.trace.json.gz")
    with open_ledger(LEDGER) as ledger:
        launches, measured = ledger.read(Launch), latest_measurements(ledger)
    events = device_events(trace)
    told = attribute_events(trace, events, launches)
    named = join_by_name(events, launches, measured)
    both = [(a, b) for a, b in zip(told.events, named.events, strict=True) if b.launch_id is not None]
    generated = [(a, b) for a, b in both if a.name.startswith("triton_")]
    assert generated and all(a.launch_id == b.launch_id for a, b in generated)
    assert {graph: told.calls[graph] for graph in named.calls} == dict(named.calls)
    assert named.matched_ns + sum(named.unmatched.values()) == named.inside_ns
    for before, after in zip(events, named.events, strict=True):
        assert (before.name, before.duration_ns) == (after.name, after.duration_ns)


def test_entries_of_one_name_take_turns_in_the_order_of_the_wrapper() -> None:
    launches = [_launch(0, "a"), _launch(1, "b"), _launch(2, "a")]
    events = [_event(name, at) for at, name in enumerate(["a", "b", "a"] * 2)]
    found = join_by_name(events, launches, ())
    assert [event.launch_id for event in found.events] == [f"forward_0#{order}" for order in (0, 1, 2)] * 2
    assert (found.calls, found.matched_ns, found.inside_ns, found.entries_seen) == ({"forward_0": 2}, 60, 60, 3)


def test_a_name_that_two_graphs_share_is_left_without_an_entry() -> None:
    launches = [_launch(0, "a"), _launch(1, "b"), _launch(0, "a", graph="forward_1")]
    found = join_by_name([_event("a", 0), _event("b", 1), _event("c", 2)], launches, ())
    assert [event.launch_id for event in found.events] == [None, "forward_0#1", None]
    assert (found.unmatched, found.inside_ns) == ({SHARED: 10}, 20)


def test_a_name_that_ran_more_often_than_its_graph_is_left_alone() -> None:
    launches = [_launch(order, name) for order, name in enumerate("abc")]
    tuned = [_event("a", at) for at in range(7)]
    steps = [_event(name, 100 + at) for at, name in enumerate("bcbc")]
    found = join_by_name([*tuned, *steps], launches, ())
    assert {event.launch_id for event in found.events} == {None, "forward_0#1", "forward_0#2"}
    assert (found.unmatched, found.calls) == ({UNEVEN: 70}, {"forward_0": 2})


def test_symbols_that_a_profile_saw_are_names_too_and_work_counts_once() -> None:
    launch = make_launch(kernel_name="extern_kernels.mm", category="extern", flops=1000)
    seen = Measurement(launch.launch_id, "profile", "cupti", (5.0,), symbols=("splitk", "reduce"))
    events = [_event("splitk", 0, 50), _event("reduce", 60, 5), _event("other", 70)]
    found = join_by_name(events, [launch], [seen])
    assert [event.launch_id for event in found.events] == [launch.launch_id] * 2 + [None]
    assert [event.cost.flops for event in found.events[:2]] == [1000, 0]


def test_a_report_of_nsight_systems_times_the_entries_of_a_ledger(tmp_path: Path) -> None:
    trace = read_trace(DATA / "gpt_block_torch2.11_cu130.trace.json.gz")
    report = report_of(trace).save(tmp_path / "report.sqlite")
    path = Path(shutil.copy(LEDGER, tmp_path / "gpt.ledger"))
    path.chmod(0o644)
    shown = CliRunner().invoke(cli, ["import", str(report), "--ledger", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "of the kernel time was given to" in shown.output and "by name" in shown.output
    with open_ledger(path) as ledger:
        profile, launches = latest(ledger, Profile), {each.launch_id: each for each in ledger.read(Launch)}
        times = step_measurements(ledger)
        account = balance_books(open_books(ledger)).accounts["device_time"]
    assert profile is not None and profile.entries_seen > 10
    assert (account.ledger, account.reference) == (profile.matched_us, profile.inside_us)
    fused = [name for name, launch in launches.items() if launch.kernel_name.startswith("triton_")]
    assert fused
    for name in fused:
        assert len(times[name].samples_us) == profile.graph_calls[launches[name].graph]


def test_a_report_of_another_program_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    report.kernel("somebody_elses", 0, 100)
    path = Path(shutil.copy(LEDGER, tmp_path / "gpt.ledger"))
    before = path.read_bytes()
    with pytest.raises(SystemExit):
        main(["import", str(report.save(tmp_path / "report.sqlite")), "--ledger", str(path)])
    assert "none bears the name of one" in capsys.readouterr().err
    assert path.read_bytes() == before
