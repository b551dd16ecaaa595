"""A job in other formats: all ranks, on one clock."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from job_factories import CLOCKS_APART_NS, STEPS, write_job
from torchledger.answers import export_ledger
from torchledger.cli import cli
from torchledger.errors import MeasureError, StoreError, UsageError
from torchledger.nouns import Profile
from torchledger.store import LedgerWriter
from trace_factories import op_event


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(tmp_path_factory.mktemp("jobs") / "j.job", late_ms=50)


def test_tables_hold_all_ranks_and_what_lies_between_them(job: Path, tmp_path: Path) -> None:
    paths = {path.name: path for path in export_ledger(job, tmp_path / "tables", format="parquet")}
    launches = pq.read_table(paths["launches.parquet"]).to_pylist()
    assert [row["rank"] for row in launches] == [0] * 6 + [1] * 6
    assert launches[0]["launch_id"] == launches[6]["launch_id"]
    ranks = pq.read_table(paths["job_ranks.parquet"]).to_pylist()
    assert [row["rank"] for row in ranks] == [0, 1]
    collectives = pq.read_table(paths["job_collectives.parquet"]).to_pylist()
    assert len(collectives) == 2 * STEPS
    assert max(max(row["waited_us"]) for row in collectives) == pytest.approx(50_000, rel=0.01)
    assert [row["rank"] for row in pq.read_table(paths["job_stragglers.parquet"]).to_pylist()] == [1]
    with pytest.raises(StoreError, match="and 12 more exist"):
        export_ledger(job, tmp_path / "tables", format="parquet")


def test_calls_of_all_ranks_are_one_table_and_of_one_rank_without_the_column(job: Path, tmp_path: Path) -> None:
    (path,) = export_ledger(job, tmp_path / "calls.csv", format="step")
    assert [row["rank"] for row in csv.DictReader(path.open())] == ["0", "0", "1", "1"]
    (path,) = export_ledger(job / "rank1.ledger", tmp_path / "one.parquet", format="step")
    assert "rank" not in pq.read_table(path).column_names
    with pytest.raises(UsageError, match="names no format"):
        export_ledger(job, tmp_path / "calls.xlsx", format="step")


def test_a_rank_is_a_process_of_the_trace_and_arrows_lead_to_those_that_waited(job: Path, tmp_path: Path) -> None:
    (path,) = export_ledger(job, tmp_path / "job.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    met = [event for event in events if event["ph"] == "X" and event["name"] == "all_reduce" and event["tid"]]
    assert {event["pid"] for event in met} == {0, 1} and len(met) == 2 * STEPS
    ends = {round(event["ts"] + event["dur"]) for event in met}
    assert len(ends) == STEPS  # clocks that are seconds apart are one
    assert [(event["ph"], event["pid"]) for event in events if event["ph"] in "sf"] == [("s", 1), ("f", 0)] * STEPS
    assert {event["cat"] for event in events if event["ph"] == "X"} == {"compute", "communication", "idle"}


def trace_of_rank(folder: Path, rank: int, **header: Any) -> None:
    named = {"ph": "M", "name": "thread_name", "pid": 100 + rank, "tid": 7, "args": {"name": "python"}}
    flow = {"ph": "s", "id": 3, "pid": 100 + rank, "tid": 7, "ts": 12.0, "name": "ac2g", "cat": "ac2g"}
    begin_us = rank * CLOCKS_APART_NS / 1e3
    events = [named, op_event(name="aten::mm", ts=begin_us + 10, dur=5, pid=100 + rank, tid=7), flow]
    content = {"schemaVersion": 1, "traceEvents": events, **header}
    (folder / f"rank{rank}.trace.json").write_text(json.dumps(content))
    with LedgerWriter(folder / f"rank{rank}.ledger", append=True) as writer:
        writer.add(Profile("cupti", STEPS, trace=f"rank{rank}.trace.json"))


def test_ranks_traces_are_one_on_one_clock_with_a_process_for_each(tmp_path: Path) -> None:
    folder = write_job(tmp_path / "j.job")
    for rank in range(2):
        trace_of_rank(folder, rank, baseTimeNanoseconds=1000 * rank)
    (path,) = export_ledger(folder, tmp_path / "all.json", format="chrome")
    events = json.loads(path.read_text())["traceEvents"]
    products = {event["pid"]: event for event in events if event.get("name") == "aten::mm"}
    assert products[0]["ts"] == 10 and products[1]["ts"] == pytest.approx(10 + 1)
    names = [event["args"]["name"] for event in events if event["name"] in ("process_name", "thread_name")]
    assert names == ["rank 0", "python", "rank 1", "python"]
    assert len({event["id"] for event in events if event["ph"] == "s"}) == 2


def test_a_trace_that_is_gone_is_said_with_what_does_without(job: Path, tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match=r"-o NAME\.trace\.json"):
        export_ledger(job, tmp_path / "x.json", format="chrome")


def test_graphs_are_a_folder_for_each_rank(job: Path, tmp_path: Path) -> None:
    words = ["export", str(job), "--format", "inductor-json", "-o", str(tmp_path / "data")]
    said = CliRunner().invoke(cli, words)
    assert said.exit_code == 0, said.output
    assert {Path(line).parent.name for line in said.stdout.splitlines()} == {"rank0", "rank1"}
    assert CliRunner().invoke(cli, words).exit_code != 0
    with pytest.raises(UsageError, match="name a folder"):
        export_ledger(job, tmp_path / "Data_all.json")
