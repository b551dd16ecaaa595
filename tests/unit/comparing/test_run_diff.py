"""Two runs, aligned by what their kernels compute."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from factories import make_buffer, make_graph, make_launch, make_run
from torchledger.cli import cli
from torchledger.comparing.run_diff import RecordedRun, diff_runs
from torchledger.errors import MeasureError
from torchledger.nouns import Breakdown, Launch, LaunchGroup, Measurement, Profile, RunDiff
from torchledger.reporting.run_diff import group_sentence, run_diff_as_plain, run_diff_document
from torchledger.reporting.terminal import render
from torchledger.store import LedgerWriter


def _launch(order: int, nodes: str, **changes: Any) -> Launch:
    """A launch of the nodes named in a text: ``"mul exp"``; the operators are the names without numbers."""
    names = tuple(nodes.split())
    ops = tuple(f"aten.{name.rstrip('0123456789_')}" for name in names)
    fields = {
        "order": order,
        "kernel_name": f"cpp_fused_{order}",
        "call": "k()",
        "fx_nodes": names,
        "aten_ops": ops,
        "flops": 0,
    }
    return make_launch(**(fields | changes))


def _run(
    *launches: Launch, times: Sequence[float] | None = None, outside_us: float = 0.0, **changes: Any
) -> RecordedRun:
    """Two steps of a run; ``times`` holds one median per launch, in microseconds."""
    graphs = [make_graph(name=name, direction=name.split("_")[0]) for name in dict.fromkeys(x.graph for x in launches)]
    run = RecordedRun("a.ledger", launches, graphs)
    if times is not None:
        measurements = [
            Measurement(launch.launch_id, "profile", "cupti", (time, time))
            for launch, time in zip(launches, times, strict=True)
        ]
        total = 2 * (sum(times) + outside_us)
        breakdown = Breakdown("trace", "cupti", total, 0.0, 0.0, total, total, 2 * len(launches), steps=2)
        run = replace(run, measurements=measurements, breakdown=breakdown, profile=Profile("cupti", 2))
    return run


def _only(diff: RunDiff) -> LaunchGroup:
    (group,) = diff.groups
    return group


def _text(diff: RunDiff) -> str:
    return render(run_diff_document(diff, "a.ledger", "b.ledger"))


def test_a_run_and_itself_are_the_same() -> None:
    run = _run(_launch(0, "mul"), _launch(1, "exp sum"), times=(3.0, 4.0))
    diff = diff_runs(run, run)
    assert [group.kind for group in diff.groups] == ["same", "same"]
    assert diff.delta_ns == diff.explained_ns == diff.remainder_ns == 0
    assert "no launch split" in _text(diff)


def test_a_launch_that_became_two_is_a_split_with_its_time_and_what_is_read_twice() -> None:
    read = make_buffer(name="b12", role="input", bytes_read=4000, bytes_written=0, fx_node="view")
    one = _run(_launch(0, "mul exp sum", buffers=(read,), kernel_name="cpp_x"), times=(10.0,))
    other = _run(
        _launch(0, "mul exp", buffers=(read,), kernel_name="cpp_y"),
        _launch(1, "sum", buffers=(read,), kernel_name="cpp_z"),
        times=(30.0, 18.0),
    )
    group = _only(diff_runs(one, other))
    assert (group.kind, group.delta_ns, group.delta_bytes) == ("split", 38_000, 4000)
    (change,) = group.reads
    assert (change.buffer, change.first, change.second, change.bytes_read) == ("b12", 1, 2, 4000)
    sentence = group_sentence(group)
    assert sentence.startswith("cpp_x split into cpp_y + cpp_z: +38.0 us, +4.00 kB of traffic")
    assert "reads b12 (view) twice (once before)" in sentence


def test_two_launches_that_became_one_are_merged() -> None:
    one = _run(_launch(0, "mul"), _launch(1, "exp"), times=(3.0, 4.0))
    other = _run(_launch(0, "mul exp"), times=(5.0,))
    group = _only(diff_runs(one, other))
    assert (group.kind, group.delta_ns) == ("merged", -2000)


def test_borders_that_moved_are_regrouped() -> None:
    one = _run(_launch(0, "mul exp"), _launch(1, "sum div"))
    other = _run(_launch(0, "mul"), _launch(1, "exp sum div"))
    assert _only(diff_runs(one, other)).kind == "regrouped"


def test_a_reduction_in_two_stages_is_a_split_though_one_stage_covers_all_nodes() -> None:
    one = _run(_launch(0, "mul sum"))
    other = _run(_launch(0, "mul sum"), _launch(1, "sum"))
    assert _only(diff_runs(one, other)).kind == "split"


def test_a_kernel_inlined_into_all_its_users_is_no_launch_that_vanished() -> None:
    one = _run(_launch(0, "iota"), _launch(1, "exp"), _launch(2, "sum"))
    other = _run(_launch(0, "iota exp"), _launch(1, "iota sum"))
    group = _only(diff_runs(one, other))
    assert (group.kind, len(group.first.launches), len(group.second.launches)) == ("regrouped", 3, 2)


def test_a_node_computed_again_by_every_user_ties_none_of_them_together() -> None:
    one = _run(_launch(0, "iota exp mul"), _launch(1, "iota sum"))
    other = _run(_launch(0, "iota exp"), _launch(1, "iota sum"), _launch(2, "iota mul"))
    assert sorted(group.kind for group in diff_runs(one, other).groups) == ["same", "split"]


def test_names_of_kernels_and_of_graphs_play_no_part() -> None:
    one = _run(_launch(0, "mul"), _launch(1, "exp"), times=(1.0, 2.0))
    renamed = [
        _launch(0, "mul", kernel_name="triton_poi_7", graph="forward_3"),
        _launch(1, "exp", kernel_name="triton_poi_8", graph="forward_3"),
    ]
    diff = diff_runs(one, _run(*renamed, times=(1.0, 2.0)))
    assert [group.kind for group in diff.groups] == ["same", "same"]
    assert diff.graphs == (("forward_0", "forward_3"),)


def test_a_graph_whose_nodes_are_numbered_otherwise_is_aligned_by_its_operators() -> None:
    one = _run(_launch(0, "mul exp"), _launch(1, "mul_1 sum"), _launch(2, "mul_2 div"))
    other = _run(_launch(0, "mul_5 exp_3"), _launch(1, "mul_6 sum_9"), _launch(2, "mul_7"), _launch(3, "div_4"))
    kinds = [group.kind for group in diff_runs(one, other).groups]
    assert sorted(kinds) == ["same", "same", "split"]


def test_one_more_node_early_on_does_not_shift_the_partners_of_those_after_it() -> None:
    def ordered(run: RecordedRun, nodes: str) -> RecordedRun:
        source = "\n".join(f'    {node}: "f32[2]" = torch.ops.aten.x(y)' for node in nodes.split())
        return replace(run, graphs=[replace(run.graphs[0], fx_source=source)])

    one = ordered(_run(_launch(0, "exp mul"), _launch(1, "sum mul_1")), "exp mul sum mul_1")
    other = _run(_launch(0, "sin mul"), _launch(1, "exp mul_1"), _launch(2, "sum mul_2"))
    diff = diff_runs(one, ordered(other, "sin mul exp mul_1 sum mul_2"))
    partners = {group.first.launches: group.second.launches for group in diff.groups if group.kind == "same"}
    assert partners == {("forward_0#0",): ("forward_0#1",), ("forward_0#1",): ("forward_0#2",)}


def test_forward_is_never_paired_with_backward() -> None:
    one = _run(_launch(0, "mul", graph="forward_0"))
    other = _run(_launch(0, "mul", graph="backward_0"))
    diff = diff_runs(one, other)
    assert sorted(group.kind for group in diff.groups) == ["only first", "only second"]
    assert diff.graphs == (("forward_0", None), (None, "backward_0"))


def test_graphs_in_another_order_are_paired_by_what_they_hold() -> None:
    one = _run(_launch(0, "mul", graph="forward_0"), _launch(0, "exp sum", graph="forward_1"))
    other = _run(_launch(0, "exp sum", graph="forward_0"), _launch(0, "mul", graph="forward_1"))
    diff = diff_runs(one, other)
    assert [group.kind for group in diff.groups] == ["same", "same"]
    assert diff.graphs == (("forward_0", "forward_1"), ("forward_1", "forward_0"))


def test_without_times_bytes_and_flops_are_compared_and_the_report_says_so() -> None:
    one = _run(_launch(0, "mm", flops=100), times=(3.0,))
    other = replace(_run(_launch(0, "mm", flops=130)), name="b.ledger")
    diff = diff_runs(one, other)
    assert (diff.basis, diff.delta_ns, diff.explained_ns, diff.remainder_ns) == ("bytes", None, None, None)
    assert _only(diff).delta_flops == 30
    assert "no times in b.ledger" in _text(diff)


def test_unknown_bytes_stay_unknown() -> None:
    one = _run(_launch(0, "mul", buffers=(make_buffer(bytes_read=None),)))
    diff = diff_runs(one, _run(_launch(0, "mul")))
    assert _only(diff).delta_bytes is None
    assert "not known for 1 group" in _text(diff)


def test_time_outside_the_entries_is_unexplained() -> None:
    one = _run(_launch(0, "mul"), times=(3.0,))
    other = _run(_launch(0, "mul"), times=(4.0,), outside_us=2.5)
    diff = diff_runs(one, other)
    assert (diff.delta_ns, diff.explained_ns, diff.remainder_ns, diff.outside_ns) == (3500, 1000, 2500, 2500)


def test_what_is_explained_comes_first_and_what_is_not_last() -> None:
    diff = diff_runs(_run(_launch(0, "mul"), times=(3.0,)), _run(_launch(0, "mul"), times=(4.0,), outside_us=2.5))
    text = _text(diff)
    assert text.index("explained") < text.index("device time of a step") < text.index("unexplained")


def test_a_graph_called_twice_a_step_counts_twice() -> None:
    one = _run(_launch(0, "mul"), times=(3.0,))
    twice = replace(one, measurements=[Measurement("forward_0#0", "profile", "cupti", (3.0,) * 4)], breakdown=None)
    group = _only(diff_runs(one, twice))
    assert (group.first.time_ns, group.second.time_ns) == (3000, 6000)


def test_a_launch_that_the_profile_did_not_see_is_counted() -> None:
    one = _run(_launch(0, "mul"), _launch(1, "exp"), times=(3.0, 4.0))
    diff = diff_runs(one, replace(one, measurements=one.measurements[:1]))
    assert sum(group.second.untimed for group in diff.groups) == 1
    assert "did not run in the profiled steps: 0 of the first run, 1 of the second; they have no time" in _text(diff)
    unseen = next(group for group in diff.groups if group.second.untimed)
    assert unseen.second.time_ns is None and diff.unseen_ns == -4000


def test_a_run_without_launches_is_refused_by_name() -> None:
    empty = replace(_run(), name="empty.ledger")
    with pytest.raises(MeasureError, match=r"empty\.ledger holds no launches"):
        diff_runs(_run(_launch(0, "mul")), empty)


_NODES = [f"n{number}" for number in range(12)]


@st.composite
def _fusions(draw: st.DrawFn) -> RecordedRun:
    """Any cut of the same nodes into launches, some computed again elsewhere, with any times."""
    cuts = sorted(draw(st.sets(st.integers(1, len(_NODES) - 1))))
    parts = [_NODES[start:end] for start, end in zip([0, *cuts], [*cuts, len(_NODES)], strict=True)]
    parts = [sorted({*part, *draw(st.sets(st.sampled_from(_NODES), max_size=2))}) for part in parts]
    launches = [_launch(order, " ".join(part)) for order, part in enumerate(parts)]
    times = draw(st.lists(st.floats(0, 1e5), min_size=len(parts), max_size=len(parts)))
    return _run(*launches, times=times, outside_us=draw(st.floats(0, 1e4)))


@given(_fusions(), _fusions())
def test_groups_and_remainder_add_up_to_the_change_and_hold_each_launch_once(
    one: RecordedRun, other: RecordedRun
) -> None:
    diff = diff_runs(one, other)
    assert sum(group.delta_ns or 0 for group in diff.groups) + (diff.remainder_ns or 0) == diff.delta_ns
    for run, side in ((one, "first"), (other, "second")):
        named = [name for group in diff.groups for name in getattr(group, side).launches]
        assert sorted(named) == sorted(launch.launch_id for launch in run.launches)


@given(_fusions(), _fusions())
def test_the_other_way_round_changes_signs_alone(one: RecordedRun, other: RecordedRun) -> None:
    there, back = diff_runs(one, other), diff_runs(other, one)
    assert there.delta_ns == -(back.delta_ns or 0)
    assert there.remainder_ns == -(back.remainder_ns or 0)


def _write(path: Path, run: RecordedRun) -> Path:
    with LedgerWriter(path) as writer:
        writer.add(make_run(), *run.graphs, *run.launches, *run.measurements)
        writer.add(*[record for record in (run.breakdown, run.profile) if record is not None])
    return path


@pytest.fixture
def ledgers(tmp_path: Path) -> list[str]:
    one = _run(_launch(0, "mul exp"), times=(10.0,))
    other = _run(_launch(0, "mul"), _launch(1, "exp"), times=(7.0, 8.0))
    return [str(_write(tmp_path / name, run)) for name, run in (("a.ledger", one), ("b.ledger", other))]


def test_the_command_compares_two_ledgers(ledgers: list[str]) -> None:
    result = CliRunner().invoke(cli, ["diff", *ledgers], catch_exceptions=False)
    assert result.exit_code == 0
    assert "cpp_fused_0 split into cpp_fused_0 + cpp_fused_1: +5.00 us" in result.output


def test_json_holds_the_sums(ledgers: list[str]) -> None:
    plain = json.loads(CliRunner().invoke(cli, ["diff", *ledgers, "--json"], catch_exceptions=False).stdout)
    assert (plain["explained_ns"], plain["remainder_ns"], plain["delta_ns"]) == (5000, 0, 5000)
    assert plain["groups"][0]["kind"] == "split"


def test_json_keys_are_those_of_the_records() -> None:
    run = _run(_launch(0, "mul"))
    assert {"basis", "groups", "graphs", "notes", "delta_ns"} <= set(run_diff_as_plain(diff_runs(run, run)))
