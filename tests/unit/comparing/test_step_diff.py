"""Two steps: graphs count as often as they are called, and what ran outside of them is compared too."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from factories import make_environment, make_graph, make_launch, make_run, make_step, make_step_call
from torchledger.cli import cli
from torchledger.comparing.run_diff import RecordedRun, diff_runs
from torchledger.nouns import Launch, Measurement, RunDiff, StepCall
from torchledger.reporting.html import render_report
from torchledger.reporting.run_diff import run_diff_document
from torchledger.reporting.terminal import render
from torchledger.stepping.totals import total_step
from torchledger.store import LedgerWriter

LAYER = ("mm", "add", "gelu")


def layers(count: int, graph: str = "forward_0") -> list[Launch]:
    """Each layer is a product and a fused kernel of the two operators after it."""
    launches = []
    for layer in range(count):
        for place, ops in enumerate((LAYER[:1], LAYER[1:])):
            launches.append(
                make_launch(
                    graph=graph,
                    order=2 * layer + place,
                    kernel_name=f"k{2 * layer + place}",
                    call="k()",
                    fx_nodes=tuple(f"{op}_{layer}" for op in ops),
                    aten_ops=tuple(f"aten.{op}" for op in ops),
                    flops=1000 if place == 0 else 0,
                )
            )
    return launches


def run(
    launches: list[Launch],
    graph_calls: dict[str, int],
    launch_us: float,
    *eager: StepCall,
    name: str = "a.ledger",
    uncovered_us: float = 0.0,
    steps: int = 2,
) -> RecordedRun:
    """A run whose launches all take as long, each as often as its graph is called, and whose step has eager calls."""
    timed = [launch for launch in launches if graph_calls.get(launch.graph)]
    measurements = [
        Measurement(x.launch_id, "profile", "cupti", (launch_us,) * steps * graph_calls[x.graph]) for x in timed
    ]
    calls: list[StepCall] = []
    for graph, count in graph_calls.items():
        us = launch_us * sum(launch.graph == graph for launch in launches)
        calls += [
            make_step_call(kind="graph", name=graph, phase="forward", order=n, samples_us=(us,)) for n in range(count)
        ]
    calls += [replace(call, order=len(calls) + place) for place, call in enumerate(eager)]
    covered = sum(sum(call.samples_us) / max(1, len(call.samples_us)) for call in calls)
    step = make_step(
        clock="cupti",
        graph_calls=graph_calls,
        recorded=steps,
        device_us=covered + uncovered_us,
        covered_us=covered,
    )
    graphs = [make_graph(name=graph) for graph in dict.fromkeys(launch.graph for launch in launches)]
    return RecordedRun(name, launches, graphs, measurements, step=total_step(step, calls, {}), run=make_run())


def text_of(diff: RunDiff) -> str:
    return render(run_diff_document(diff, "a.ledger", "b.ledger"))


def parts(diff: RunDiff) -> int:
    return sum(change.delta_ns or 0 for change in (*diff.groups, *diff.eager)) + (diff.remainder_ns or 0)


def test_a_loop_over_layers_and_the_same_layers_in_one_graph_differ_by_their_time_alone() -> None:
    looped = run(layers(1), {"forward_0": 12}, 100.0)
    whole = run(layers(12), {"forward_0": 1}, 94.0, name="b.ledger")
    diff = diff_runs(looped, whole)
    assert (diff.first_ns, diff.second_ns) == (2_400_000, 2_256_000)
    assert diff.delta_ns == diff.explained_ns == -144_000, "6 % less, all of it in groups"
    assert {group.kind for group in diff.groups} == {"same"}
    assert [(len(group.first.launches), len(group.second.launches)) for group in diff.groups] == [(1, 12), (1, 12)]
    assert all(group.delta_flops == 0 for group in diff.groups), "twelve calls do what twelve layers do"
    text = text_of(diff)
    assert "(-6.0 %)" in text and "forward_0 x12" in text
    assert diff_runs(whole, looped).delta_ns == 144_000


def test_steps_that_were_planned_have_no_times_to_compare_and_these_are_not_zero() -> None:
    def planned(name: str) -> RecordedRun:
        step = make_step(plain_us=(), graph_calls={"forward_0": 2})
        calls = [make_step_call(order=order, name=f"aten::op_{order}", samples_us=()) for order in range(2)]
        graph = make_step_call(order=2, kind="graph", name="forward_0", samples_us=())
        found = total_step(step, [*calls, graph], {})
        return RecordedRun(name, layers(1), [make_graph(name="forward_0")], [], step=found, run=make_run())

    diff = diff_runs(planned("a.ledger"), planned("b.ledger"))
    assert (diff.basis, diff.first_ns, diff.second_ns) == ("bytes", None, None)
    text = " ".join(text_of(diff).split())
    assert "no times in a.ledger and b.ledger: minimum bytes and FLOPs are compared instead" in text
    assert "both are plans, whose prices `--fail-if 'predicted > +0'` compares" in text
    assert "0.00 us" not in text and "total 2 2 ? ? ?" in text


def test_eager_calls_are_grouped_by_name_and_line_and_explain_the_step() -> None:
    def loss(us: float, line: int) -> StepCall:
        return make_step_call(name="aten::nll_loss", samples_us=(us,), sources=(f"train.py:{line}",), kernels=1)

    one = run(layers(1), {"forward_0": 1}, 10.0, loss(5.0, 7), loss(6.0, 7), loss(1.0, 9))
    other = run(layers(1), {"forward_0": 1}, 10.0, loss(8.0, 7), loss(1.0, 12), uncovered_us=2.5)
    diff = diff_runs(one, other)
    found = {(change.first.source, change.second.source): change for change in diff.eager}
    changed = found["train.py:7", "train.py:7"]
    assert (changed.kind, changed.first.calls, changed.second.calls, changed.delta_ns) == ("changed", 2, 1, -3000)
    assert found["train.py:9", "train.py:12"].kind == "same", "a line that moved is the same call"
    assert (diff.delta_ns, diff.explained_ns, diff.outside_ns, diff.remainder_ns) == (-500, -3000, 2500, 2500)
    text = text_of(diff)
    assert "Outside compiled graphs, by name and line" in text and "train.py:9 -> train.py:12" in text


def test_a_graph_that_the_step_does_not_call_is_named_and_compared_with_nothing() -> None:
    stale = [*layers(1), *layers(1, "forward_1")]
    diff = diff_runs(run(stale, {"forward_0": 1}, 10.0), run(layers(1), {"forward_0": 1}, 10.0))
    assert {name for group in diff.groups for name in group.first.launches} == {"forward_0#0", "forward_0#1"}
    assert any("not called in its step: forward_1" in note for note in diff.notes)
    assert diff.delta_ns == 0


def test_kernels_that_the_profile_did_not_see_did_not_run_and_have_no_time() -> None:
    one = run(layers(1), {"forward_0": 1}, 10.0)
    blind = replace(one, measurements=one.measurements[:1])
    diff = diff_runs(one, blind)
    group = next(group for group in diff.groups if group.second.untimed)
    assert group.second.time_ns is None and group.delta_ns is None
    assert diff.unseen_ns == -10_000 and diff.inside_ns == 10_000
    text = text_of(diff)
    assert "did not run in one" in text and re.search(r"k1 .* 10\.0 us +\? +\?", text)


def test_a_step_against_a_ledger_without_one_says_what_is_not_compared() -> None:
    one = run(layers(1), {"forward_0": 1}, 10.0, make_step_call(name="aten::sum"))
    diff = diff_runs(one, replace(one, step=None, name="old.ledger"))
    assert not diff.holds_steps and diff.eager == ()
    assert any(note.startswith("old.ledger holds no step") for note in diff.notes)


def test_steps_without_compiled_graphs_are_compared_by_their_eager_calls() -> None:
    one, other = (run([], {}, 0.0, make_step_call(name="aten::sum", samples_us=(us,))) for us in (5.0, 7.0))
    diff = diff_runs(one, other)
    assert (diff.groups, diff.delta_ns, diff.explained_ns) == ((), 2000, 2000)


def test_changed_versions_and_settings_stand_before_the_times() -> None:
    one = run(layers(1), {"forward_0": 1}, 10.0)
    newer = make_run(environment=make_environment(torch="2.14.0", settings={"max_autotune": "True"}))
    diff = diff_runs(one, replace(one, run=newer))
    assert {(each.name, each.first, each.second) for each in diff.settings} == {
        ("torch", "2.13.0", "2.14.0"),
        ("max_autotune", None, "True"),
    }
    text = text_of(diff)
    assert text.index("torch: 2.13.0 -> 2.14.0") < text.index("device time of a step")


def test_settings_of_inductor_that_graphs_were_compiled_with_are_named() -> None:
    one = run(layers(1), {"forward_0": 1}, 10.0)
    tuned = tuple(replace(graph, config={"max_autotune": "True"}) for graph in one.graphs)
    diff = diff_runs(one, replace(one, graphs=tuned))
    assert [(each.name, each.first, each.second) for each in diff.settings] == [
        ("inductor.max_autotune", "torch's default", "True")
    ]
    assert "inductor.max_autotune: torch's default -> True" in text_of(diff)
    assert diff_runs(replace(one, graphs=tuned), replace(one, graphs=tuned)).settings == ()


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.floats(0, 1e4) | st.none()), max_size=8),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.floats(0, 1e4) | st.none()), max_size=8),
    st.integers(1, 4),
    st.floats(0, 100),
)
def test_groups_eager_calls_and_remainder_add_up_to_the_nanosecond(
    one: list[tuple[str, int, float | None]],
    other: list[tuple[str, int, float | None]],
    calls: int,
    uncovered_us: float,
) -> None:
    def eager(drawn: list[tuple[str, int, float | None]]) -> list[StepCall]:
        return [
            make_step_call(name=name, sources=(f"a.py:{line}",), samples_us=() if us is None else (us,))
            for name, line, us in drawn
        ]

    first = run(layers(1), {"forward_0": calls}, 10.0, *eager(one))
    second = run(layers(calls), {"forward_0": 1}, 11.0, *eager(other), uncovered_us=uncovered_us)
    there, back = diff_runs(first, second), diff_runs(second, first)
    assert parts(there) == there.delta_ns == -(back.delta_ns or 0)
    for change in there.eager:
        assert change.first.calls or change.second.calls
    assert sum(change.first.calls for change in there.eager) == len(one)
    assert sum(change.second.calls for change in there.eager) == len(other)


def write(path: Path, recorded: RecordedRun, **changes: Any) -> Path:
    assert recorded.step is not None
    with LedgerWriter(path) as writer:
        writer.add(make_run(**changes), *recorded.graphs, *recorded.launches, *recorded.measurements)
        writer.add(recorded.step.step, *recorded.step.calls)
    return path


@pytest.fixture
def ledgers(tmp_path: Path) -> list[str]:
    eager = make_step_call(name="aten::sum", samples_us=(50.0,), sources=("a.py:3",))
    looped = run(layers(1), {"forward_0": 12}, 100.0, eager)
    whole = run(layers(12), {"forward_0": 1}, 94.0, replace(eager, samples_us=(40.0,)))
    return [str(write(tmp_path / name, each)) for name, each in (("a.ledger", looped), ("b.ledger", whole))]


def test_the_command_says_by_how_much_the_step_changed(ledgers: list[str]) -> None:
    plain = json.loads(CliRunner().invoke(cli, ["diff", *ledgers, "--json"], catch_exceptions=False).stdout)
    assert plain["holds_steps"] and (plain["first_ns"], plain["second_ns"]) == (2_450_000, 2_296_000)
    assert plain["delta_ns"] == plain["explained_ns"] == -154_000
    assert [(row["name"], row["delta_ns"], row["kind"]) for row in plain["eager"]] == [("aten::sum", -10_000, "same")]
    result = CliRunner().invoke(cli, ["diff", *ledgers], catch_exceptions=False)
    assert "(-6.3 %)" in result.output and "aten::sum" in result.output


def test_the_page_of_two_steps_compares_whole_steps(ledgers: list[str]) -> None:
    text = render_report(ledgers[0], against=ledgers[1])
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    comparison = data["comparison"]
    assert "6.3 % less" in comparison["sentences"][0]
    totals = {row[0]: row[2:] for row in comparison["totals"]}
    assert totals["device time of a step"] == [2450.0, 2296.0]
    assert totals["FLOPs of a step"][0] == totals["FLOPs of a step"][1]
    assert any(data["texts"][row[1]] == "aten::sum" for row in comparison["rows"])
