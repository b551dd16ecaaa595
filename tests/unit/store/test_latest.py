"""A ledger that was profiled, or watched, twice: every report speaks of the last time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from factories import make_graph, make_kernel, make_launch, make_run
from torchledger.balance import balance_books
from torchledger.books import open_books
from torchledger.cli import cli
from torchledger.comparing.run_diff import read_run
from torchledger.nouns import Breakdown, Measurement, Prediction, Profile, Timeline, ValueStats
from torchledger.reporting.html_data import page_data
from torchledger.reporting.story import tell_story
from torchledger.store import LedgerReader, LedgerWriter, open_ledger
from torchledger.store.latest import latest, latest_measurements, saved_inputs, step_measurements
from torchledger.store.launch_file import launches_of_ledger

LAUNCH = "forward_0#0"


def records_of_a_profile(us: float) -> list[object]:
    """A profile in which the only launch takes so many microseconds."""
    at = round(us * 1000)
    return [
        Measurement(LAUNCH, "profile", "cupti", (us, us), symbols=(f"symbol_{us:.0f}",)),
        Breakdown("profile", "cupti", us, 0.0, 0.0, us, us, 2, steps=2, step_us=(us, us)),
        Profile("cupti", 2, plain_step_us=us, inside_us=us, matched_us=us, entries=1, entries_seen=1),
        Timeline("cupti", (0,), (at,), (0,), (0,), (0,), (0,), ("k",), ("cpp",), (LAUNCH,), ("stream",)),
    ]


@pytest.fixture
def twice(tmp_path: Path) -> Path:
    path = tmp_path / "twice.ledger"
    with LedgerWriter(path) as writer:
        writer.add(make_run(), make_graph(), make_kernel(), make_launch())
        writer.add(*records_of_a_profile(100.0))
        writer.add(*records_of_a_profile(900.0))
    return path


def test_page_balance_diff_and_predictions_speak_of_the_same_profile(twice: Path) -> None:
    with open_ledger(twice) as reader:
        page = page_data(reader)["data"]
        sheet = balance_books(open_books(reader))
        recorded = read_run(reader)
        story = tell_story(reader, LAUNCH)
        assert latest(reader, Prediction) is None
    assert page["step"]["plain_us"] == sheet.accounts["device_time"].ledger == 900.0
    assert page["launches"]["duration_us"] == [900.0]
    assert tuple(page["timeline"]["duration_ns"]) == (900_000,)
    assert recorded.profile is not None and recorded.profile.plain_step_us == 900.0
    assert [each.duration_us for each in recorded.measurements] == [900.0]
    assert [each.duration_us for each in story.measurements] == [900.0]
    assert [each.duration_us for each in launches_of_ledger(twice).launches] == [900.0]


def test_the_overview_breaks_the_last_profile_down_and_names_its_symbols(twice: Path) -> None:
    shown = json.loads(CliRunner().invoke(cli, ["show", str(twice), "--json"]).stdout)
    assert [each["kernel_us"] for each in shown["breakdowns"]] == [900.0]
    names = json.loads(CliRunner().invoke(cli, ["show", str(twice), "--names", "--json"]).stdout)
    assert names["names"][0]["symbols"] == ["symbol_900"]


def add(path: Path, *records: object) -> LedgerReader:
    with LedgerWriter(path) as writer:
        writer.add(make_run(), *records)
    return open_ledger(path)


def test_measurements_of_other_cache_states_and_configurations_stand_beside_each_other(tmp_path: Path) -> None:
    found = [
        Measurement("a", "bench", "cupti", (1.0,), l2_state="warm"),
        Measurement("a", "bench", "cupti", (2.0,), l2_state="cold"),
        Measurement("a", "bench", "cupti", (3.0,), l2_state="warm", configuration="XBLOCK 8"),
        Measurement("a", "profile", "cupti", (4.0,)),
        Measurement("a", "bench", "cupti", (5.0,), l2_state="warm"),
        Measurement("a", "profile", "cupti", ()),
    ]
    with add(tmp_path / "m.ledger", *found) as reader:
        assert sorted(each.duration_us for each in latest_measurements(reader)) == [2.0, 3.0, 4.0, 5.0]
        assert {name: each.duration_us for name, each in step_measurements(reader).items()} == {"a": 4.0}


def test_saved_inputs_are_those_of_the_last_call_that_are_still_there(tmp_path: Path) -> None:
    def stats(subject: str, call: int, path: Path | None) -> ValueStats:
        return ValueStats(subject, call, "x", "before", "float32", (1,), 1, path=None if path is None else str(path))

    here, gone = tmp_path / "here", tmp_path / "gone"
    here.touch()
    found = [stats("a", 0, here), stats("a", 1, gone), stats("b", 0, gone), stats("c", 0, gone), stats("c", 1, here)]
    with add(tmp_path / "v.ledger", *found, stats("c", 2, None)) as reader:
        assert saved_inputs(reader) == {"a": str(here), "b": str(gone), "c": str(here)}
        assert saved_inputs(reader, subject="a") == {"a": str(here)}
