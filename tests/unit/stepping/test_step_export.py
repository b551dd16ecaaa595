"""A recorded step for other tools: every call is a row, and a trace has threads, streams and phases."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from factories import make_run, make_step, make_step_call
from torchledger.cli import cli
from torchledger.errors import StoreError, UsageError
from torchledger.nouns import TensorArgument, Timeline
from torchledger.stepping.export import call_row, chrome_trace, export_step
from torchledger.store import LedgerWriter, open_ledger
from torchledger.traces.reading import read_trace

CALLS = (
    make_step_call(
        kind="graph", name="forward_0", phase="forward", call=0, order=0, start_us=0.0, host_us=40.0, samples_us=(30.0,)
    ),
    make_step_call(
        name="aten::mm",
        order=1,
        thread=1,
        start_us=45.0,
        host_us=5.0,
        samples_us=(9.0, 11.0),
        arguments=(TensorArgument((4, 8), "float32"), TensorArgument((8, 2))),
        flops=128,
        flops_quality="exact",
        sources=("train.py:7", "model.py:3"),
    ),
    make_step_call(name="my::operator", order=2, phase="optimizer", samples_us=()),
)
TIMELINE = Timeline(
    "cupti",
    start_ns=(0, 5000),
    duration_ns=(1000, 2000),
    name=(0, 1),
    category=(0, 0),
    launch=(0, None),
    lane=(0, 1),
    names=("triton_poi", "gemm"),
    categories=("pointwise",),
    launch_ids=("forward_0#0",),
    lanes=("device 0, stream 7", "device 0, stream 9"),
    phase=(0, 1),
    phases=("forward", "loss"),
)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    with LedgerWriter(tmp_path / "a.ledger") as writer:
        writer.add(make_run(), make_step(), *CALLS, make_step_call(step="an older step"), TIMELINE)
    return tmp_path / "a.ledger"


def test_every_call_is_a_row_and_unknown_stays_unknown(ledger: Path, tmp_path: Path) -> None:
    with open_ledger(ledger) as reader:
        for suffix in ("parquet", "csv", "json"):
            export_step(reader, tmp_path / f"calls.{suffix}")
    from_parquet = pq.read_table(tmp_path / "calls.parquet").to_pylist()
    assert from_parquet == [call_row(call) for call in CALLS] == json.loads((tmp_path / "calls.json").read_text())
    assert from_parquet[1]["duration_us"] == 10.0 and from_parquet[1]["shapes"] == "[4, 8] [8, 2]"
    assert from_parquet[1]["dtypes"] == "float32 ?" and from_parquet[1]["source"] == "model.py:3"
    assert from_parquet[2]["duration_us"] is None and from_parquet[2]["flops"] is None
    with (tmp_path / "calls.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [call.name for call in CALLS]
    assert rows[2]["duration_us"] == rows[2]["flops"] == ""


def test_a_trace_has_threads_and_streams_as_rows_and_phases_as_categories() -> None:
    events = chrome_trace(make_step(), CALLS, TIMELINE)["traceEvents"]
    rows = {(each["pid"], each["tid"]): each["args"]["name"] for each in events if each["name"] == "thread_name"}
    assert set(rows.values()) == {"thread 0", "thread 1", "device 0, stream 7", "device 0, stream 9"}
    shown = [each for each in events if each["ph"] == "X"]
    assert [(each["name"], each["cat"], each["ts"], each["dur"]) for each in shown] == [
        ("forward_0", "forward", 0.0, 40.0),
        ("aten::mm", "loss", 45.0, 5.0),
        ("triton_poi", "forward", 0.0, 1.0),
        ("gemm", "loss", 5.0, 2.0),
    ]
    assert {each["cname"] for each in shown if each["cat"] == "forward"} == {shown[0]["cname"]}
    assert shown[0]["cname"] != shown[1]["cname"]
    assert "flops" not in shown[0]["args"] and shown[1]["args"]["flops"] == 128


def test_device_events_stand_where_they_ran_after_the_step_began_on_the_host() -> None:
    events = chrome_trace(make_step(), CALLS, replace(TIMELINE, origin_ns=12_000))["traceEvents"]
    starts = {each["name"]: each["ts"] for each in events if each["ph"] == "X"}
    assert (starts["forward_0"], starts["triton_poi"], starts["gemm"]) == (0.0, 12.0, 17.0)


def test_the_trace_is_one_that_traces_are_read_from(ledger: Path, tmp_path: Path) -> None:
    with open_ledger(ledger) as reader:
        (path,) = export_step(reader, tmp_path / "step.trace.json.gz")
    assert len(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]) == 10
    assert len(read_trace(path).events.start_ns) == 4


def test_the_command_takes_the_format_from_a_traces_name(ledger: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["export", str(ledger), "-o", str(tmp_path / "step.trace.json")])
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "step.trace.json").read_text())["torchledger step"]["found by"] == "optimizer"
    refused = CliRunner().invoke(cli, ["export", str(ledger), "-o", str(tmp_path / "step.csv")])
    assert isinstance(refused.exception, UsageError) and "--format is needed" in str(refused.exception)


def test_a_ledger_without_a_step_another_suffix_and_a_file_that_exists_are_refused(
    ledger: Path, tmp_path: Path
) -> None:
    with LedgerWriter(tmp_path / "old.ledger") as writer:
        writer.add(make_run())
    with open_ledger(tmp_path / "old.ledger") as reader, pytest.raises(StoreError, match="holds no step"):
        export_step(reader, tmp_path / "x.csv")
    with open_ledger(ledger) as reader:
        with pytest.raises(UsageError, match="names no format"):
            export_step(reader, tmp_path / "x.xlsx")
        export_step(reader, tmp_path / "x.csv")
        with pytest.raises(StoreError, match="exists"):
            export_step(reader, tmp_path / "x.csv")
        export_step(reader, tmp_path / "x.csv", force=True)
