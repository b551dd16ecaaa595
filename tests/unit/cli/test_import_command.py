"""``torchledger import`` on whole files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import torchledger
from public_data import public_trace, public_traces
from torchledger.cli import cli, main
from torchledger.nouns import Breakdown, Measurement
from torchledger.store import open_ledger
from trace_factories import kernel_event, small_trace


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["import", *map(str, arguments)])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(small_trace(copies=3)))
    return path


def test_a_report_names_the_parts_of_the_time(trace: Path) -> None:
    result = run(trace)
    assert result.exit_code == 0, result.output
    for words in ("In short", "Time by category", "gemm", "aten::mm", "Idle", "host launched late"):
        assert words in result.output


def test_a_report_in_a_pipe_is_plain(trace: Path) -> None:
    assert "\x1b" not in run(trace).output


def test_json_has_the_same_numbers_with_stable_keys(trace: Path) -> None:
    plain = json.loads(run(trace, "--json").output)
    assert plain["kernel_us"] == 15.75
    assert plain["kernels"][0]["flops"] == 3 * 1024
    assert set(plain) >= {"categories", "ops", "gaps", "verdict", "busy_share", "unknown_us", "problems"}


def test_a_ledger_keeps_the_breakdown_and_the_times(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.ledger"
    done = run(trace, "-o", path)
    assert done.exit_code == 0 and done.stderr == f"{path}: the trace as a ledger.\n"
    with open_ledger(path) as reader:
        (breakdown,) = reader.read(Breakdown)
        (measurement,) = reader.read(Measurement)
    assert breakdown.kernel_us == 15.75
    assert (measurement.subject, measurement.clock, measurement.repeats) == ("gemm", "trace", 3)


def test_show_tells_an_imported_ledger(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.ledger"
    run(trace, "-o", path)
    result = CliRunner().invoke(cli, ["show", str(path)])
    assert "Time by category" in result.output
    plain = json.loads(CliRunner().invoke(cli, ["show", str(path), "--json"]).output)
    assert plain["breakdowns"][0]["kernel_us"] == 15.75


def test_a_better_trace_keeps_all_that_was_there(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "better.json.gz"
    assert run(trace, "--chrome", path).exit_code == 0
    before, after = json.loads(trace.read_text()), json.loads(gzip.decompress(path.read_bytes()))
    kernels = 0
    assert len(before["traceEvents"]) == len(after["traceEvents"])
    for old, new in zip(before["traceEvents"], after["traceEvents"], strict=True):
        assert {key: value for key, value in new.items() if key != "args"} == {
            key: value for key, value in old.items() if key != "args"
        }
        for key, value in (old.get("args") or {}).items():
            assert new["args"][key] == value
        if new.get("cat") == "kernel":
            kernels += 1
            assert new["args"]["FLOPs"] == 1024
    assert kernels == 3
    assert after["traceName"] == before["traceName"]


def test_existing_outputs_need_force(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option, name in (("-o", "x.ledger"), ("--chrome", "x.json")):
        path = tmp_path / name
        assert run(trace, option, path).exit_code == 0
        with pytest.raises(SystemExit) as caught:
            main(["import", str(trace), option, str(path)])
        assert caught.value.code == 1
        assert "--force" in capsys.readouterr().err
        assert run(trace, option, path, "--force").exit_code == 0


def test_a_cut_off_trace_gives_a_partial_report(trace: Path) -> None:
    trace.write_text(trace.read_text()[:-700])
    result = run(trace)
    assert result.exit_code == 3
    assert "the file ends early" in result.output


def rank_trace(folder: Path, rank: int, *, compute: float, collective: float) -> Path:
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    events = [kernel_event(dur=compute), kernel_event(ts=5000, dur=collective, name=name)]
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}))
    return path


def test_several_traces_are_compared_as_ranks(tmp_path: Path) -> None:
    slow = rank_trace(tmp_path, 1, compute=1000, collective=10)
    quick = rank_trace(tmp_path, 0, compute=600, collective=410)
    result = run(slow, quick)
    assert result.exit_code == 0
    assert "the others wait for rank 1" in result.output
    assert "uneven by 40%" in result.output
    plain = json.loads(run(slow, quick, "--json").output)
    assert [rank["rank"] for rank in plain["ranks"]] == [0, 1]


def test_equal_ranks_are_said_to_agree(tmp_path: Path) -> None:
    paths = [rank_trace(tmp_path, rank, compute=1000, collective=10) for rank in (0, 1)]
    assert "agree within 5%" in run(*paths).output


def test_a_ledger_is_of_one_trace(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["import", str(trace), str(trace), "-o", str(tmp_path / "x.ledger")])
    assert caught.value.code == 2


@pytest.mark.parametrize("option", ["-o", "--chrome"])
def test_a_trace_whose_times_go_into_a_ledger_is_written_nowhere_else(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["import", str(trace), "--ledger", str(tmp_path / "x.ledger"), option, str(tmp_path / "y")])
    assert caught.value.code == 2 and "leave -o and --chrome out" in capsys.readouterr().err
    assert not (tmp_path / "y").exists()


def test_a_cut_off_trace_that_is_given_to_a_ledger_is_partial_too(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace.write_text(trace.read_text()[:-700])
    partial, _ = torchledger.import_trace(trace)
    monkeypatch.setattr("torchledger.cli.import_trace.add_trace_to_ledger", lambda *_, **__: partial)
    assert run(trace, "--ledger", "x.ledger").exit_code == 3


def test_events_without_sense_are_counted_in_the_report(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({"schemaVersion": 9, "traceEvents": [kernel_event(), kernel_event(dur=-1)]}))
    result = run(path)
    assert result.exit_code == 3
    assert "1 events with a duration below zero are left out" in result.output
    assert "schema version 9" in result.output


@pytest.mark.parametrize("content", ["", "hello", "{}", '{"traceEvents": []}', "[]"])
def test_what_holds_no_kernel_is_refused_in_one_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none.json"
    path.write_text(content)
    with pytest.raises(SystemExit) as caught:
        main(["import", str(path)])
    assert caught.value.code == 1
    error = capsys.readouterr().err
    assert "none.json" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", public_traces())
def test_public_traces_give_a_report(name: str) -> None:
    result = run(public_trace(name))
    assert result.exit_code == 0
    assert "In short" in result.output
