"""Launches of dynamic graphs, at the sizes of the step that was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.factories import make_buffer, make_graph, make_launch, make_run, make_step, make_step_call

from torchledger.reporting.story import tell_story
from torchledger.reporting.summary import summarize_ledger
from torchledger.stepping.ran_sizes import RanSizes, read_ran_sizes
from torchledger.store import LedgerWriter, open_ledger

READ = make_buffer(
    name="x",
    shape=(4, 8),
    stride=(8, 1),
    shape_expr=("s0", "8"),
    stride_expr=("8", "1"),
    bytes_read=128,
    bytes_read_expr="32*s0",
    bytes_written_expr="0",
)
LAUNCH = make_launch(buffers=(READ,), flops=64, flops_by_op={"aten.mm": 64}, flops_by_op_expr={"aten.mm": "16*s0"})


def ledger_of(folder: Path, *sizes: dict[str, int]) -> Path:
    path = folder / "a.ledger"
    calls = [
        make_step_call(order=order, kind="graph", name="forward_0", call=order, sizes=tuple(each.items()))
        for order, each in enumerate(sizes)
    ]
    fixed: Any = make_launch(graph="backward_0", flops=7)
    with LedgerWriter(path) as writer:
        writer.add(make_run(), make_graph(), make_graph(name="backward_0"), LAUNCH, fixed, make_step(), *calls)
    return path


def test_launches_stand_beside_their_times_at_the_sizes_that_they_ran_with(tmp_path: Path) -> None:
    with open_ledger(ledger_of(tmp_path, {"s0": 100}, {"s0": 100})) as reader:
        summary = summarize_ledger(reader)
        launch = tell_story(reader, "forward_0#0").launch
        assert summary.balance.accounts["flops"].ledger == 64 + 7  # what was compiled, beside the model as compiled
    rows = {row.graph: row for row in summary.launches}
    assert (rows["forward_0"].flops, rows["forward_0"].bytes_read, rows["backward_0"].flops) == (1600, 3200, 7)
    assert summary.totals.flops == 1607
    assert "s0=100" in str(summary.sizes.sentence)
    assert "the accounts of flops and bytes are at those of the compilation" in str(summary.sizes.sentence)
    assert launch is not None and (launch.flops, launch.buffers[0].shape) == (1600, (100, 8))


def test_where_calls_differed_launches_stay_as_compiled_and_that_is_said(tmp_path: Path) -> None:
    with open_ledger(ledger_of(tmp_path, {"s0": 100}, {"s0": 3})) as reader:
        sizes = read_ran_sizes(reader)
        summary = summarize_ledger(reader)
    assert sizes == RanSizes({}, ("forward_0",))
    assert summary.totals.flops == 71
    assert "forward_0 had different sizes" in str(sizes.sentence)


def test_a_ledger_without_sizes_says_nothing_of_them(tmp_path: Path) -> None:
    with open_ledger(ledger_of(tmp_path, {})) as reader:
        sizes = read_ran_sizes(reader)
    assert sizes == RanSizes() and sizes.sentence is None
    assert sizes.launch(LAUNCH) is LAUNCH
