"""What the first lines say of a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from factories import make_run, make_step, make_step_call
from torchledger.errors import StoreError
from torchledger.nouns import Gap, OptimizerFacts, StepCall, StepKind
from torchledger.profiling.records import notes_of_recording
from torchledger.reporting.document import Facts, Table
from torchledger.reporting.overview import verdict
from torchledger.reporting.step import how_found, step_as_plain, step_sections, verdict_of_step
from torchledger.reporting.summary import summarize_ledger
from torchledger.stepping.export import export_step
from torchledger.stepping.recording import StepRecording
from torchledger.stepping.totals import total_step
from torchledger.store import LedgerWriter, open_ledger


def test_operators_that_the_profiler_makes_longer_than_a_step_are_no_part_of_it() -> None:
    totals = [
        total_step(make_step(busy_us=busy_us), [make_step_call(samples_us=(busy_us,))], {})
        for busy_us in (900.0, 1200.0)
    ]
    within, beyond = (verdict_of_step(each)[0] for each in totals)
    assert "operators run 900 us of it." in within
    assert "of it" not in beyond and "operators run 1.20 ms under the profiler" in beyond


@pytest.mark.parametrize(
    ("plain_us", "said"),
    [
        ((100.0,), "A step takes 100 us (1 timed without the profiler);"),
        ((100.0, 104.0), "A step takes 102 us (median of 2 timed without the profiler, 100 us to 104 us);"),
        ((100.0, 101.0, 102.0, 103.0, 9000.0), "half of them 101 us to 103 us);"),
        ((100.0, 101.0, 200.0, 900.0, 950.0), "half of them 101 us to 900 us: not steady, was the machine busy?);"),
    ],
)
def test_how_much_plain_steps_differ_is_said_without_the_rare_ones(plain_us: tuple[float, ...], said: str) -> None:
    step = make_step(plain_us=plain_us, busy_us=50.0)
    assert said in verdict_of_step(total_step(step, [make_step_call(samples_us=(50.0,))], {}))[0]


def test_a_step_of_a_rare_kind_is_said_to_be_one_in_the_first_line() -> None:
    kinds = StepKind(11, {"Adam.step": 1}), StepKind(35, {"Adam.step": 1, "forward_0": 1})
    lines = [
        verdict_of_step(total_step(make_step(seen=46, kinds=each), [make_step_call(samples_us=(50.0,))], {}))[0]
        for each in (kinds, kinds[::-1], ())
    ]
    assert [line.endswith("Only 11 of 46 steps seen were like it.") for line in lines] == [True, False, False]


def rows_of_step(device_us: float, *samples_us: float, **changes: object) -> dict[str, str]:
    calls: list[StepCall] = [make_step_call(samples_us=samples_us)]
    totals = total_step(make_step(device_us=device_us, covered_us=device_us, **changes), calls, {})
    facts = step_sections(totals, top=3)[0].blocks[0]
    assert isinstance(facts, Facts)
    return dict(facts.rows)


def test_a_table_that_adds_medians_is_not_called_all_of_a_disturbed_steps_time() -> None:
    assert rows_of_step(1000.0, 1000.0)["device time"].endswith("100.0 % of it in the table below")
    disturbed = rows_of_step(3000.0, 900.0, 1000.0, 7100.0, recorded=3)["device time"]
    assert disturbed.endswith("in calls; the table below adds each call's median over 3 recorded steps: 1.00 ms")


def test_optimizers_of_one_class_are_one_line() -> None:
    rows = rows_of_step(1.0, 1.0, optimizers=tuple(OptimizerFacts("Adam", 1, size) for size in (10, 20)))
    assert rows["optimizer"] == "Adam x2: 2 tensors, 30 elements"


def test_a_profile_that_found_no_step_says_why_in_the_first_lines_and_to_export(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "a.ledger") as writer:
        writer.add(make_run(), Gap("device_time", "profile", "no step was found: nothing repeats"))
    with open_ledger(tmp_path / "a.ledger") as reader:
        assert verdict(summarize_ledger(reader))[1] == (
            "A profile was made and holds no step: no step was found: nothing repeats."
        )
        with pytest.raises(StoreError, match="nothing repeats"):
            export_step(reader, tmp_path / "step.csv")


def test_kinds_of_steps_are_told_apart_by_what_they_call_otherwise() -> None:
    kinds = (StepKind(5, {"forward_0": 1, "inference_0": 6}), StepKind(3, {"forward_0": 2}))
    (note,) = notes_of_recording(StepRecording(seen=8, kinds=kinds))
    assert note == (
        "steps differ: of 8 seen, 5 are of the recorded kind (forward_0, inference_0 x6), 3 of 1 other kind "
        "(3 with forward_0 x2, no inference_0)"
    )


@pytest.mark.parametrize(("profiled_us", "said"), [(1200.0, "80%"), (400.0, "50%"), (None, "80%")])
def test_idle_time_is_of_the_step_that_nothing_else_disturbed(profiled_us: float | None, said: str) -> None:
    profiled = () if profiled_us is None else (profiled_us,)
    step = make_step(plain_us=(1000.0,), profiled_us=profiled, busy_us=200.0, device_us=200.0, idle_us={"Python": 1.0})
    assert f"Look first at the {said} of the step" in verdict_of_step(total_step(step, [make_step_call()], {}))[2]


def _tables_of_plan(*calls: StepCall) -> tuple[Table, Table]:
    step = make_step(clock="host", device_us=None, plain_us=(), profiled_us=(), recorded=1)
    _, phases, by_call, _ = step_sections(total_step(step, calls, {}), top=3)
    (first,), (second,) = phases.blocks, by_call.blocks
    assert isinstance(first, Table) and isinstance(second, Table)
    return first, second


def test_calls_of_a_planned_step_have_the_times_that_the_plan_gave_them_the_longest_first() -> None:
    small = make_step_call(order=0, name="aten::mm", samples_us=(), flops=8, bytes_moved=9, predicted_us=30.0)
    large = make_step_call(order=1, name="aten::mul", samples_us=(), flops=0, bytes_moved=9_000, predicted_us=10.0)
    phases, by_call = _tables_of_plan(large, small)
    assert [row[0] for row in by_call.rows] == ["aten::mm", "aten::mul"]
    place = [column.key for column in by_call.columns].index("predicted_total_us")
    assert [row[place : place + 2] for row in by_call.rows] == [(30.0, 0.75), (10.0, 0.25)]
    assert by_call.total is not None and by_call.total[place] == 40.0
    assert phases.total is not None and 40.0 in phases.total


def test_a_time_that_neither_a_clock_nor_a_plan_has_given_is_a_dash_and_what_is_large_comes_first() -> None:
    small = make_step_call(order=0, name="aten::mm", samples_us=(), flops=8, bytes_moved=9)
    large = make_step_call(order=1, name="aten::mul", samples_us=(), flops=0, bytes_moved=9_000)
    _, by_call = _tables_of_plan(small, large)
    assert [row[0] for row in by_call.rows] == ["aten::mul", "aten::mm"]
    place = [column.key for column in by_call.columns].index("predicted_total_us")
    assert {by_call.columns[place].format(row[place]) for row in by_call.rows} == {"-"}
    assert not {"total_us", "achieved_tflops_per_s"} & {column.key for column in by_call.columns}


def test_a_planned_step_was_heard_and_not_recorded_under_the_profiler() -> None:
    step = make_step(clock="host", device_us=None, plain_us=(), profiled_us=(), recorded=1)
    totals = total_step(step, [make_step_call(samples_us=(), predicted_us=3.0)], {})
    (facts,) = (block for block in step_sections(totals, top=3)[0].blocks if isinstance(block, Facts))
    assert dict(facts.rows)["steps"].endswith("1 heard without its device")
    (phase,) = step_as_plain(totals)["phases"].values()  # type: ignore[index]
    assert phase["device_us"] is None and phase["predicted_us"] == 3.0


def test_what_a_planned_step_launches_is_told_without_what_the_host_computes() -> None:
    step = make_step(clock="host", device_us=None, plain_us=(), profiled_us=(), recorded=1)
    calls = [
        make_step_call(order=0, samples_us=(), flops=8, kernels=1),
        make_step_call(order=1, name="aten::add", samples_us=(), flops=1, kernels=0, device="cpu"),
    ]
    said = verdict_of_step(total_step(step, calls, {}))[1]
    assert "1 eager operator: 1 launch of kernels, 1 operator on the host, " in said


def _rates(*calls: StepCall) -> tuple[list[object], list[object]]:
    """The last rows' TFLOP/s of the tables by phase and by call."""
    step = make_step(device_us=30.0)
    _, phases, by_call, _ = step_sections(total_step(step, calls, {}), top=3)
    found = []
    for section in (phases, by_call):
        (table,) = section.blocks
        assert isinstance(table, Table) and table.total is not None
        place = [column.key for column in table.columns].index("achieved_tflops_per_s")
        found.append([row[place] for row in (*table.rows, table.total)])
    return found[0], found[1]


def test_a_steps_rate_is_the_same_by_phase_and_by_call() -> None:
    product = make_step_call(name="aten::mm", flops=60_000_000, bytes_moved=10, phase="forward")
    view = make_step_call(name="aten::t", order=1, flops=0, bytes_moved=0, phase="forward")
    unknown = make_step_call(name="mine::op", order=2, phase="forward")
    by_phase, by_call = _rates(product, view, unknown)
    assert by_phase == [3.0, 3.0] and by_call[-1] == 3.0


@pytest.mark.parametrize(("wall_us", "said"), [(1200.0, "the host is slower there"), (900.0, "no more than without")])
def test_a_step_that_was_no_longer_under_the_profiler_is_not_called_slower(wall_us: float, said: str) -> None:
    step = make_step(plain_us=(1000.0,), busy_us=100.0, wall_us=wall_us, idle_us={"Python": wall_us - 100.0})
    sentence = step_sections(total_step(step, [make_step_call()], {}), top=3)[-1].blocks[-1]
    assert said in getattr(sentence, "text", "")


def test_several_steps_of_optimizers_that_are_one_step_are_said_to_be() -> None:
    one, two = StepKind(5, {"forward_0": 4, "Adam.step": 1}), StepKind(5, {"forward_0": 4, "Adam.step": 2})
    assert how_found(make_step(kinds=(one,))) == how_found(make_step()) == "from one optimizer's step to the next"
    assert how_found(make_step(kinds=(two,))) == "from one round of 2 optimizer steps to the next"
    assert how_found(make_step(kinds=(two,), found_by="torchledger.step")) == "torchledger.step() marks it"
