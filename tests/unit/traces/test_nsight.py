"""Exports of Nsight Systems are read as traces, whatever stands in them. No report of nsys itself is at hand: these are
files of its documented schema."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from factories import make_run
from nsight_factory import PROCESS, Report, report_of
from torchledger.cli import cli, main
from torchledger.errors import MeasureError
from torchledger.nouns import Breakdown, Measurement
from torchledger.store import LedgerWriter, open_ledger
from torchledger.traces.breakdown import import_trace
from torchledger.traces.costs import device_events
from torchledger.traces.reading import read_trace
from torchledger.traces.trace import EventKind, Trace

RECORDED = Path(__file__).parents[2] / "data" / "h200" / "gpt_block_torch2.11_cu130.trace.json.gz"


def _read(report: Report, folder: Path) -> Trace:
    return read_trace(report.save(folder / "report.sqlite"))


def test_a_report_holds_the_device_time_of_the_trace_that_recorded_the_same(tmp_path: Path) -> None:
    trace = read_trace(RECORDED)
    found = _read(report_of(trace), tmp_path)
    facts = [
        [
            (kernel.duration_ns, kernel.grid, kernel.block, kernel.stream, kernel.launch is None)
            + ((kernel.name,) if kernel.kind == "kernel" else ())
            for kernel in each.kernels()
        ]
        for each in (found, trace)
    ]
    assert len(facts[0]) == len(facts[1]) > 100
    for own, recorded in zip(*facts, strict=True):
        assert own[0] == recorded[0] and own[5:] == recorded[5:]
    assert found.problems == ()
    assert found.launches_without_kernel == trace.launches_without_kernel


def test_a_kernel_is_launched_by_the_call_of_its_process_inside_the_ranges_around_it(tmp_path: Path) -> None:
    report = Report()
    other = PROCESS + (1 << 24)
    report.range("train step", 0, 9_000)
    report.range("aten::mm, seq = 12, sizes = [[4, 8], [8, 16]]", 1_000, 4_000)
    report.range("here", 500, None, event_type=34)
    for process, start in ((PROCESS, 2_000), (other, 6_000)):
        report.call("cudaLaunchKernel_v7000", start, 500, correlation=7, process=process)
        report.kernel("gemm", start + 1_000, 250, correlation=7, process=process)
    trace = _read(report, tmp_path)
    first, second = trace.kernels()
    for kernel in (first, second):
        assert kernel.launch is not None and trace.name(kernel.launch) == "cudaLaunchKernel"
        assert kernel.start_ns - trace.events.start_ns[kernel.launch] == 1_000
    assert first.op is not None and trace.name(first.op) == "aten::mm"
    assert second.op is None
    assert [trace.name(row) for row in trace.rows(EventKind.ANNOTATION).tolist()] == ["train step"]
    assert device_events(trace)[0].category == "gemm"


def test_ranges_around_a_call_are_no_calls(tmp_path: Path) -> None:
    report = Report()
    report.kernel("gemm", 3_000, 500)
    report.call("cudaLaunchKernel_v7000", 2_000, 500)
    report.add("CUPTI_ACTIVITY_KIND_RUNTIME", 1_900, 2_600, 67, PROCESS + 1, 1, report.text("cudaLaunchKernel"), 0)
    assert _read(report, tmp_path).launches_without_kernel == (0, 1)


def test_a_report_becomes_a_report_of_time_and_a_ledger(tmp_path: Path) -> None:
    report = Report()
    for number in range(3):
        report.call("cudaLaunchKernel", 10_000 * number, 500, correlation=number)
        report.kernel("triton_poi_fused_add_0", 10_000 * number + 2_000, 1_500, correlation=number)
    report.copy(40_000, 1_000, correlation=9)
    path = report.save(tmp_path / "report.sqlite")
    before = path.read_bytes()
    shown = CliRunner().invoke(cli, ["import", str(path), "-o", str(tmp_path / "a.ledger")])
    assert shown.exit_code == 0, shown.output
    assert "NVIDIA H200" in shown.output and "triton_poi_fused_add_0" in shown.output
    with open_ledger(tmp_path / "a.ledger") as reader:
        (breakdown,) = reader.read(Breakdown)
        measured = {each.subject: each.samples_us for each in reader.read(Measurement)}
    assert (breakdown.kernel_us, breakdown.copy_us, breakdown.devices[0].num_multiprocessors) == (4.5, 1.0, 132)
    assert measured["triton_poi_fused_add_0"] == (1.5,) * 3
    assert path.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.ledger", "report.sqlite"]


def test_replays_that_were_recorded_as_wholes_are_told(tmp_path: Path) -> None:
    report = Report()
    report.kernel("gemm", 3_000, 500)
    report.connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER)")
    report.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", 5_000, 9_000)
    breakdown, _ = import_trace(report.save(tmp_path / "report.sqlite"))
    assert breakdown.is_partial
    (problem,) = breakdown.problems
    assert problem.startswith("1 replays of CUDA graphs") and "--cuda-graph-trace=node" in problem


def test_values_of_another_kind_leave_their_row_out_and_are_counted(tmp_path: Path) -> None:
    report = Report()
    report.kernel("gemm", 3_000, 500)
    report.kernel("gemm", 5_000, 500)
    report.kernel("gemm", 7_000, 500, correlation=-5)
    report.connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'yesterday' WHERE rowid = 1")
    report.connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = x'00', demangledName = 1.5")
    report.connection.execute("INSERT INTO StringIds VALUES (99, CAST(x'ff1b5b32' AS TEXT))")
    report.kernel("triton", 9_000, 100)
    report.connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 99 WHERE start = 9000")
    trace = _read(report, tmp_path)
    assert [problem.text for problem in trace.problems] == [
        "1 rows of CUPTI_ACTIVITY_KIND_KERNEL make no sense and are left out"
    ]
    assert [(kernel.name, kernel.grid, kernel.correlation) for kernel in trace.kernels()] == [
        ("gemm", None, 1),
        ("gemm", None, None),
        ("\ufffd\x1b[2", (132, 1, 1), 1),
    ]
    assert "\x1b" not in CliRunner().invoke(cli, ["import", str(tmp_path / "report.sqlite")]).output


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT 1 AS start",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (name TEXT)",
        "CREATE TABLE other (name TEXT)",
    ],
)
def test_a_database_of_something_else_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], statement: str
) -> None:
    path = tmp_path / "report.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(SystemExit) as ended:
        main(["import", str(path)])
    error = capsys.readouterr().err
    assert ended.value.code == 1 and error.count("\n") == 1 and str(path) in error


def test_a_ledger_and_a_torn_report_say_what_they_are(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "a.ledger") as writer:
        writer.add(make_run())
    with pytest.raises(MeasureError, match=r"is a ledger\. `torchledger show"):
        read_trace(tmp_path / "a.ledger")
    report = Report()
    for number in range(2_000):
        report.kernel("gemm", 1_000 * number, 500, correlation=number)
    path = report.save(tmp_path / "report.sqlite")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(MeasureError, match="no export of an Nsight Systems report"):
        read_trace(path)


def test_a_table_that_counts_without_end_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchledger.store.bounded._STEPS_PER_BYTE", 0)
    monkeypatch.setattr("torchledger.store.bounded._STEPS_AT_LEAST", 100)
    monkeypatch.setattr("torchledger.store.bounded._STEPS_BETWEEN_CHECKS", 50)
    report = Report()
    for number in range(100):
        report.kernel("gemm", 1_000 * number, 500, correlation=number)
    with pytest.raises(MeasureError, match="its tables have no end"):
        _read(report, tmp_path)


def test_the_facts_of_a_report_are_written_into_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    report.kernel("gemm", 3_000, 500)
    path = report.save(tmp_path / "report.sqlite")
    with pytest.raises(SystemExit):
        main(["import", str(path), "--chrome", str(tmp_path / "b.json")])
    assert "--chrome annotates a trace of torch.profiler" in capsys.readouterr().err
