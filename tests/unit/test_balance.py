"""The balance sheet: what agrees, what differs by name, what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from factories import make_buffer, make_graph, make_launch, make_run, make_step, make_step_call
from synthetic import write_ledger
from torchledger.balance import balance_books
from torchledger.books import open_books
from torchledger.nouns import (
    Account,
    BalanceSheet,
    Difference,
    EagerCount,
    FlopReference,
    Gap,
    LiveStorage,
    SourceLine,
    StepMemory,
)
from torchledger.reporting.balance import balance_lines
from torchledger.stepping.marks import IN_PACKAGE
from torchledger.store import LedgerWriter, open_ledger


def _balance(path: Path, *records: Any) -> BalanceSheet:
    with LedgerWriter(path) as writer:
        writer.add(make_run(), *records)
    with open_ledger(path) as reader:
        return balance_books(open_books(reader))


def _called(order: int = 0, **changes: Any) -> Any:
    known = {"flops": 0, "call": "cpp_fused_relu_0()", "sources": (SourceLine("model.py", 3),)}
    return make_launch(**({"order": order} | known | changes))


def _graph(*calls: str, flops: int = 0, **changes: Any) -> Any:
    references = (FlopReference("model", {"mm": flops}),)
    return make_graph(**({"wrapper_calls": calls, "flop_references": references} | changes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.ledger"


@pytest.mark.parametrize("launches", [0, 1, 60, 601])
def test_a_ledger_that_is_whole_balances(path: Path, launches: int) -> None:
    write_ledger(path, launches=launches)
    with open_ledger(path) as reader:
        sheet = balance_books(open_books(reader))
    assert sheet.is_balanced
    assert sheet.accounts["launches"].ledger == launches


def test_a_call_without_entry_is_missing_by_name(path: Path) -> None:
    account = _balance(path, _graph("cpp_fused_relu_0", "extern_kernels.mm"), _called()).accounts["launches"]
    assert (account.ledger, account.reference, account.is_balanced) == (1, 2, False)
    assert [(gap.where, gap.amount) for gap in account.missing] == [("forward_0", 1)]
    assert "extern_kernels.mm" in account.missing[0].reason


def test_an_entry_that_no_wrapper_calls_is_a_negative_gap(path: Path) -> None:
    account = _balance(path, _graph("cpp_fused_relu_0"), _called(0), _called(1)).accounts["launches"]
    assert [gap.amount for gap in account.missing] == [-1]


def test_graphs_that_err_in_opposite_directions_do_not_cancel_out(path: Path) -> None:
    account = _balance(
        path, _graph("a", "b"), _graph(name="backward_0", direction="backward"), _called(), _called(graph="backward_0")
    ).accounts["launches"]
    assert account.ledger == account.reference == 2
    assert account.is_balanced is False


def test_a_recorded_gap_explains_its_launch_once(path: Path) -> None:
    gap = Gap("launches", "forward_0#1", "the hook broke: ValueError", 1)
    account = _balance(path, _graph("a", "b"), _called(), gap).accounts["launches"]
    assert account.missing == (gap,)


def test_an_entry_that_launches_nothing_is_no_call(path: Path) -> None:
    account = _balance(path, _graph("a"), _called(0), _called(1, category="nop"), make_launch(order=2)).accounts[
        "launches"
    ]
    assert account.ledger == 1
    assert account.is_balanced


def test_launches_of_a_graph_that_is_not_there_are_missing(path: Path) -> None:
    account = _balance(path, _called(graph="lost_0")).accounts["launches"]
    assert [gap.where for gap in account.missing] == ["lost_0"]


def test_forward_and_backward_each_bring_their_part_of_the_reference(path: Path) -> None:
    forward = _graph("a", flops=100, model_key="m")
    backward = _graph("a", flops=200, model_key="m", name="backward_0", direction="backward")
    account = _balance(path, forward, backward, _called(flops=100), _called(graph="backward_0", flops=200)).accounts[
        "flops"
    ]
    assert account.reference == 300
    assert account.is_balanced


def test_work_that_compilation_added_balances_by_name(path: Path) -> None:
    padding = Difference("flops", "forward_0#0", "padded from 50,257 to 50,264", 40)
    account = _balance(path, _graph("a", flops=100), _called(flops=140), padding).accounts["flops"]
    assert account.differences == (padding,)
    assert account.is_balanced


def test_unknown_flops_are_missing_and_not_zero(path: Path) -> None:
    account = _balance(path, _graph("a", flops=0), _called(flops=None, reason="no formula")).accounts["flops"]
    assert account.is_balanced is False
    assert account.missing == (Gap("flops", "forward_0#0", "no formula"),)


def test_an_operator_that_the_reference_cannot_count_is_missing(path: Path) -> None:
    reference = FlopReference("model", {}, uncounted_ops=("aten.mystery",))
    account = _balance(path, _graph("a", flop_references=(reference,)), _called()).accounts["flops"]
    assert "aten.mystery" in account.missing[0].reason


def test_a_model_without_independent_count_is_missing(path: Path) -> None:
    account = _balance(path, _graph("a", flop_references=()), _called()).accounts["flops"]
    assert [gap.where for gap in account.missing] == ["forward_0"]


def test_bytes_have_no_independent_count_and_say_so(path: Path) -> None:
    account = _balance(path, _graph("a"), _called()).accounts["bytes"]
    assert account.reference is None
    assert account.is_balanced is None
    assert account.ledger == 8192


def test_bytes_say_how_many_launches_are_upper_bounds(path: Path) -> None:
    gather = _called(buffers=(make_buffer(bytes_quality="upper_bound"),))
    assert "an upper bound in 1 launch " in str(_balance(path, _graph("a"), gather).accounts["bytes"].note)


def test_unknown_traffic_is_missing(path: Path) -> None:
    account = _balance(path, _graph("a"), _called(buffers=(make_buffer(bytes_read=None),))).accounts["bytes"]
    assert [gap.where for gap in account.missing] == ["forward_0#0"]


@pytest.mark.parametrize(
    ("origin", "is_balanced"),
    [
        ({"sources": (SourceLine("model.py", 3),)}, True),
        ({"sources": (), "modules": ("layers.0",)}, True),
        ({"sources": (), "reason": "Inductor made it to seed random numbers"}, True),
        ({"sources": ()}, False),
        ({"sources": (), "category": "extern"}, True),
    ],
)
def test_a_fused_kernel_names_a_line_a_module_or_a_reason(path: Path, origin: Any, is_balanced: bool) -> None:
    assert _balance(path, _graph("a"), _called(**origin)).accounts["sources"].is_balanced is is_balanced


def test_a_sheet_balances_when_no_account_is_out_of_balance() -> None:
    balanced = Account("launches", "launches", 1, 1)
    uncompared = Account("bytes", "bytes", 10, None)
    wrong = Account("flops", "FLOPs", 1, 2)
    assert BalanceSheet({"launches": balanced, "bytes": uncompared}).is_balanced
    assert not BalanceSheet({"launches": balanced, "flops": wrong}).is_balanced


def test_an_eager_step_is_the_reference_of_a_steps_flops_and_what_graphs_changed_counts_by_calls(path: Path) -> None:
    changed = Difference("flops", "forward_0:aten.bmm", "rewritten as aten.mul", -10)
    stale = Difference("flops", "forward_1:aten.bmm", "rewritten as aten.mul", -10)
    dead = Difference("step_flops", "forward_0:aten.mm", "nothing reads it", -5)
    grouped = Difference("step_flops", "step_0:aten::convolution_backward", "counted as if it had one group", -2)
    sheet = _balance(
        path,
        make_step(graph_calls={"forward_0": 3}),
        make_step_call(kind="graph", name="forward_0", flops=70),
        EagerCount({"aten.mm": 85, "aten.bmm": 32}, 70, is_step=True),
        *(changed, stale, dead, grouped),
    )
    account = sheet.accounts["step_flops"]
    assert account.is_balanced and (account.ledger, account.reference) == (70, 117)
    assert [(each.where, each.amount) for each in account.differences] == [
        ("forward_0:aten.bmm", -30),
        ("forward_0:aten.mm", -15),
        ("step_0:aten::convolution_backward", -2),
    ]
    assert "flops_eager" not in sheet.accounts


def test_an_eager_step_is_no_reference_where_steps_differ(path: Path) -> None:
    sheet = _balance(
        path,
        make_step(graph_calls={"forward_0": 3}, is_heard_at_other_sizes=True),
        make_step_call(kind="graph", name="forward_0", flops=70),
        EagerCount({"aten.mm": 85}, 70, is_step=True),
    )
    account = sheet.accounts["step_flops"]
    assert account.reference is None and sheet.is_balanced
    assert account.note == "the eager step that was counted (85 FLOPs) is no reference, as steps differ"


@pytest.mark.parametrize(
    ("plain_us", "profiled_us", "said"),
    [
        ((1000.0, 1010.0), 1200.0, "what the profiler adds"),
        ((1000.0, 1010.0), 900.0, "recorded steps were quicker"),
    ],
)
def test_what_lies_between_recorded_and_plain_steps_is_the_profilers_only_where_it_can_be(
    path: Path, plain_us: tuple[float, ...], profiled_us: float, said: str
) -> None:
    step = make_step(plain_us=plain_us, profiled_us=(profiled_us,), busy_us=profiled_us - 100, idle_us={"host": 100.0})
    account = _balance(path, step).accounts["wall_time"]
    assert account.is_balanced
    (difference,) = account.differences
    assert said in difference.reason


def test_steps_that_were_not_steady_are_no_reference_and_the_account_does_not_claim_to_balance(path: Path) -> None:
    step = make_step(plain_us=(500.0, 4000.0), profiled_us=(900.0,), busy_us=800.0, idle_us={"host": 100.0})
    account = _balance(path, step).accounts["wall_time"]
    assert account.is_balanced is None and (account.ledger, account.reference) == (900.0, None)
    assert not account.differences and account.note is not None
    assert "took 500 to 4,000 us, so that none is a reference" in account.note
    assert account.note.endswith("the recorded steps took as long by the host's clock (900 us)")


def test_a_step_whose_parts_miss_the_hosts_clock_is_out_of_balance_however_unsteady_it_was(path: Path) -> None:
    step = make_step(plain_us=(500.0, 4000.0), profiled_us=(900.0,), busy_us=100.0, idle_us={"host": 100.0})
    assert _balance(path, step).accounts["wall_time"].is_balanced is False


def test_what_a_checkpoint_runs_again_past_what_the_backward_needs_is_named(path: Path) -> None:
    source = """class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[4, 4]", w: "f32[4, 4]"):
        first: "f32[4, 4]" = torch.ops.aten.mm.default(x, w);  x = None
        erf: "f32[4, 4]" = torch.ops.aten.erf.default(first)
        last: "f32[4, 4]" = torch.ops.aten.mm.default(erf, w)
        view: "f32[16]" = torch.ops.aten.reshape.default(last, [16]);  last = None
        return (view, first, erf)
"""
    again = {"kind": "graph", "phase": "backward", "flops": 228}
    sheet = _balance(
        path,
        make_step(graph_calls={"forward_0": 2, "backward_0": 1}),
        _graph(fx_source=source),
        make_graph(name="backward_0", direction="backward"),
        make_launch(order=0, fx_nodes=("first",), flops=128, category="extern"),
        make_launch(order=1, fx_nodes=("last",), flops=100, category="extern"),
        make_step_call(kind="graph", name="forward_0", flops=228),
        make_step_call(order=1, name="forward_0", recomputed_for="CompiledFunctionBackward", **again),
        make_step_call(order=2, name="backward_0", kind="graph", phase="backward", flops=0),
        Difference("flops", "backward_0:mm", "aten.mm recomputed in the backward", 50, is_eager_too=True),
        EagerCount({"aten.mm": 356}, 456, is_step=True),
    )
    account = sheet.accounts["step_flops"]
    assert account.is_balanced and [(each.where, each.amount) for each in account.differences] == [("forward_0", 100)]


def test_what_a_graph_of_the_step_before_holds_is_named_where_the_peak_comes_before_its_end(path: Path) -> None:
    weight = LiveStorage("step_0", 1, "parameters", 50, "cpu")
    memory = StepMemory(
        step="step_0",
        device="cpu",
        counter="cpu_profiler",
        measured_peak_bytes=158,
        number_bytes=8,
        held_bytes=100,
        unseen={"1": 108},
        counted={"1": 158},
    )
    sheet = _balance(path, make_step(), make_step_call(order=0), make_step_call(order=1), memory, weight)
    account = sheet.accounts["memory"]
    assert account.is_balanced and [each.amount for each in account.differences] == [-100, -8]
    assert account.note is not None and "100 bytes of it by what the step frees" in account.note


def test_a_formula_that_takes_another_route_while_a_mode_listens_is_named(path: Path) -> None:
    step = make_step(operators=12, operators_heard=9, operators_otherwise={"PowBackward0": 3})
    account = _balance(path, step, make_step_call()).accounts["step_operators"]
    assert account.is_balanced and [(each.where, each.amount) for each in account.differences] == [("PowBackward0", 3)]


def test_calls_that_only_alias_are_in_neither_count_of_operators_and_that_is_said(path: Path) -> None:
    calls = [make_step_call(order=order, name=name) for order, name in enumerate(("aten::add", "aten::detach"))]
    account = _balance(path, make_step(operators=1, operators_heard=1), *calls).accounts["step_operators"]
    assert account.is_balanced and account.note is not None
    assert account.note.startswith("without 1 call that only aliases or allocates")


def test_steps_that_differ_are_a_reference_of_each_other_only_where_this_one_does_what_was_heard(
    tmp_path: Path,
) -> None:
    for is_as_heard, reference in ((False, None), (True, 12)):
        step = make_step(operators=12, operators_heard=12, operators_by_step=(12, 14, 12), is_as_heard=is_as_heard)
        sheet = _balance(tmp_path / f"{is_as_heard}.ledger", step, make_step_call())
        account = sheet.accounts["step_operators"]
        assert account.reference == reference and "12 to 14 eager operators" in (account.note or "")


@pytest.mark.parametrize(("heard", "is_said"), [(9, False), (8, True)])
def test_one_recorded_step_that_is_unlike_the_heard_one_may_be_of_steps_that_differ(
    path: Path, heard: int, is_said: bool
) -> None:
    step = make_step(
        operators=12, operators_heard=heard, operators_by_step=(12,), operators_otherwise={"PowBackward0": 3}
    )
    account = _balance(path, step, make_step_call()).accounts["step_operators"]
    assert account.is_balanced is not is_said and ("one step alone" in (account.note or "")) is is_said


def test_a_batch_of_another_thread_and_numbers_beside_it_are_named_each(path: Path) -> None:
    batch = LiveStorage("step_0", 0, "inputs", 1000, "cpu", freed=0, freed_in=0)
    weight = LiveStorage("step_0", 1, "parameters", 50, "cpu")
    memory = StepMemory(
        step="step_0",
        device="cpu",
        counter="cpu_profiler",
        measured_peak_bytes=1058,
        number_bytes=8,
        unseen={"1": 1008},
        counted={"1": 1058},
    )
    sheet = _balance(path, make_step(), make_step_call(order=0), make_step_call(order=1), memory, batch, weight)
    account = sheet.accounts["memory"]
    assert account.is_balanced
    assert [each.amount for each in account.differences] == [-1000, -8, 1000]
    assert ["before the recording" in each.reason for each in account.differences] == [True, False, False]


@pytest.mark.parametrize("is_package", [True, False])
def test_memory_that_a_package_holds_unseen_is_named_where_the_step_calls_one(path: Path, is_package: bool) -> None:
    memory = StepMemory(
        step="step_0",
        device="cpu",
        counter="cpu_profiler",
        measured_peak_bytes=58,
        unseen={"0": 8},
        counted={"0": 58},
    )
    step = make_step(idle_us={IN_PACKAGE: 1.0} if is_package else {})
    sheet = _balance(path, step, make_step_call(order=0), memory, LiveStorage("step_0", 0, "parameters", 50, "cpu"))
    account = sheet.accounts["memory"]
    assert account.is_balanced == is_package
    assert [each.amount for each in account.differences] == ([-8] if is_package else [])


@pytest.mark.parametrize("are_all_seen", [True, False])
def test_what_ran_inside_operators_without_a_formula_is_named_where_all_were_seen(
    path: Path, are_all_seen: bool
) -> None:
    own = {"flops": None, "reason": "no FLOP formula for mine.project", "aten_ops": ("mine.project",)}
    inside = ((0, 64), (1, 36)) if are_all_seen else ((0, 64),)
    sheet = _balance(
        path,
        make_graph(
            wrapper_calls=("cpp_fused_relu_0",) * 2,
            flop_references=(FlopReference("model", {}, uncounted_ops=("mine.project",)),),
        ),
        *(_called(order, category="extern", **own) for order in (0, 1)),
        make_step(graph_calls={"forward_0": 1}),
        make_step_call(kind="graph", name="forward_0", flops=100, inside=inside),
    )
    account = sheet.accounts["flops"]
    assert (account.ledger, account.is_balanced) == ((100, True) if are_all_seen else (64, False))
    assert [each.amount for each in account.differences] == ([100] if are_all_seen else [])


def test_times_of_a_profile_that_came_to_nothing_are_not_measured_and_in_no_imbalance(path: Path) -> None:
    sheet = _balance(path, _graph("a"), _called(), Gap("device_time", "profile", "the program ended too soon"))
    account = sheet.accounts["device_time"]
    assert account.is_balanced is None and sheet.is_balanced
    state, tone, ((line, _),) = balance_lines(account)
    assert (state, tone) == ("not measured", "quiet") and "the program ended too soon" in line


def test_one_missing_entry_is_one() -> None:
    missing = Account("flops", "FLOPs", 1, 1, missing=(Gap("flops", "forward_0#0", "no formula"),))
    assert balance_lines(missing)[0] == "entry missing"
    assert balance_lines(replace(missing, missing=missing.missing * 2))[0] == "entries missing"


@pytest.mark.parametrize(("launches", "said"), [(1, "1 of them states why"), (2, "2 of them state why")])
def test_launches_that_name_a_reason_alone_are_counted_in_plain_words(path: Path, launches: int, said: str) -> None:
    made = [_called(order, sources=(), reason="Inductor made it") for order in range(launches)]
    note = _balance(path, _graph(*("cpp_fused_relu_0()" for _ in made)), *made).accounts["sources"].note
    assert note is not None and said in note
