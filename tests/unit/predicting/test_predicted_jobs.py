"""The step of a job on another device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from factories import make_run
from job_factories import write_job
from torchledger.cli import cli
from torchledger.errors import PredictError
from torchledger.nouns import StepPrediction
from torchledger.predicting import find_model
from torchledger.predicting.job import predict_job, slowest
from torchledger.predicting.step import predict_ledger
from torchledger.store import LedgerWriter


def test_each_ranks_step_is_predicted_as_its_own_ledgers_is(tmp_path: Path) -> None:
    job = write_job(tmp_path / "j.job")
    with LedgerWriter(job / "rank2.ledger") as writer:
        writer.add(make_run(rank=2, world_size=3))
    model = find_model("H200")
    found = predict_job(model, job)
    assert [each.rank for each in found] == [0, 1]  # the third holds nothing to predict
    alone: StepPrediction = predict_ledger(model, job / "rank1.ledger")[0]
    assert found[1].step == alone
    assert slowest(found).step.duration_us == max(each.step.duration_us for each in found)
    plain = json.loads(CliRunner().invoke(cli, ["predict-step", str(job), "--json"]).stdout)
    assert [each["rank"] for each in plain["ranks"]] == [0, 1]
    assert plain["duration_us"] == pytest.approx(slowest(found).step.duration_us)
    said = CliRunner().invoke(cli, ["predict-step", str(job)])
    assert "rank 1" in said.stdout and "wait for each other" in said.stdout.replace("\n", " ")


def test_a_job_without_anything_to_predict_says_so(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "rank0.ledger") as writer:
        writer.add(make_run(rank=0, world_size=1))
    with pytest.raises(PredictError, match="no launches"):
        predict_job(find_model("H200"), tmp_path)
