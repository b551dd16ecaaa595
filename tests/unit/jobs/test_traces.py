"""Ranks' traces as a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.trace_factories import kernel_event, op_event, runtime_event

from torchledger.errors import MeasureError
from torchledger.jobs.traces import job_of_traces, traces_in


def write_rank(folder: Path, rank: int, late_us: float) -> Path:
    """A product, then an all_gather whose kernel ends on both ranks at once."""
    facts: dict[str, Any] = {
        "Collective name": "_allgather_base",
        "In msg nelems": 512,
        "Out msg nelems": "1024",
        "dtype": "BFloat16",
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
    }
    events = [
        op_event(name="aten::mm", ts=100, dur=10),
        runtime_event(ts=104, dur=2, correlation=1),
        kernel_event(ts=120, dur=100 + late_us, correlation=1),
        op_event(name="c10d::_allgather_base_", ts=130, dur=40),
        op_event(name="record_param_comms", ts=132, dur=36, **facts),
        runtime_event(ts=140, dur=4, correlation=2),
        kernel_event(
            name="ncclDevKernel_AllGather_RING_LL",
            ts=230 + late_us,
            dur=2000 - late_us,
            correlation=2,
            stream=20,
        ),
    ]
    path = folder / f"trace_{rank}.json"
    info = {"rank": rank, "world_size": 2, "backend": "nccl"}
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}))
    return path


def test_traces_of_a_folder_are_the_ranks_of_one_job(tmp_path: Path) -> None:
    for rank, late in ((0, 0.0), (1, 900.0)):
        write_rank(tmp_path, rank, late)
    job = job_of_traces(traces_in(tmp_path))
    (match,) = job.collectives
    assert (match.operation, match.message_bytes, match.group_size) == ("all_gather", 2048, 2)
    assert match.waited_us == (900.0, 0.0)
    assert (match.cause_rank, match.cause) == (1, "aten::mm")
    assert [rank.exposed_us for rank in job.ranks] == [2000.0, 1100.0]
    for rank in job.ranks:
        assert rank.compute_us + rank.exposed_us + rank.idle_us == pytest.approx(rank.wall_us)


def test_a_trace_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    good, bad = write_rank(tmp_path, 0, 0.0), tmp_path / "trace_9.json"
    bad.write_text("no trace")
    with pytest.raises(MeasureError, match="trace_9"):
        job_of_traces([good, bad])


def test_two_traces_of_one_rank_are_refused(tmp_path: Path) -> None:
    one = write_rank(tmp_path, 0, 0.0)
    other = tmp_path / "again.json"
    other.write_text(one.read_text())
    with pytest.raises(MeasureError, match="rank 0"):
        job_of_traces([one, other])
