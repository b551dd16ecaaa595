"""Sets of samples from the command line."""

from __future__ import annotations

import dataclasses
import json

import pytest
from click.testing import CliRunner

from torchledger.cli import cli
from torchledger.sampling.dataset import read_samples, write_samples
from torchledger.sampling.points import Plan, Point, save_plan, unique_points
from torchledger.sampling.worker import run_worker


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("samples")
    points = [Point("guide.gelu", {"mp": 1, "b": 1, "l": n, "dim": 8}, "float16") for n in (4, 8)]
    save_plan(Plan(unique_points([*points, Point("add", {"numel": 9}, "float32")]), 0, 2), path)
    run_worker(path, device="cpu")
    return path


def call(*arguments: object, expect: int = 0) -> str:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == expect, result.output
    return result.output


def test_show_counts_by_operator_and_direction(folder):
    rows = json.loads(call("samples", "show", folder, "--json"))["operators"]
    counts = {row["operator"]: row["directions"] for row in rows}
    assert counts == {"guide.gelu": {"forward": 2, "backward": 2}, "add": {"forward": 1}}
    text = call("samples", "show", folder)
    assert "guide.gelu" in text and "All 3 planned shapes are finished." in text


def test_parts_are_merged_without_duplicates(folder, tmp_path):
    output = tmp_path / "all.parquet"
    assert "5 duplicates dropped" in call("samples", "merge", folder, folder, "-o", output)
    assert sorted(read_samples(output), key=repr) == sorted(read_samples(folder), key=repr)


def test_a_guide_csv_is_written_and_checked(folder, tmp_path):
    steady = [dataclasses.replace(s, times_us=(10.0, 11.0)) for s in read_samples(folder)]
    write_samples(tmp_path / "steady.parquet", steady)
    call("samples", "export", tmp_path / "steady.parquet", "-o", tmp_path)
    (path,) = tmp_path.glob("*_gelu_fp16.csv")
    assert path.read_text().splitlines()[0] == "mp,b,l,dim,F_dur(us),B_dur(us)"
    judged = json.loads(call("samples", "check", path, "--json"))
    assert (judged["samples"], judged["quarantined"], judged["ceilings"]) == (4, 0, "none known")


def test_checking_ends_with_3_when_labels_are_quarantined(tmp_path):
    path = tmp_path / "NVIDIAA100-SXM4-80GB_linear3_fp16.csv"
    path.write_text("mp,b,l,dim,F_dur(us),B_dur(us)\n1,8,4096,8192,100.0,200.0\n")
    output = tmp_path / "judged.parquet"
    text = call("samples", "check", path, "-o", output, expect=3)
    assert "2 of 2 samples quarantined (ceilings: datasheet)" in text
    assert "176,000" not in text and "TFLOP/s" in text
    assert [s.status for s in read_samples(output)] == ["quarantined"] * 2


def test_a_plan_can_be_made_without_measuring(tmp_path):
    sweep = tmp_path / "s.yml"
    sweep.write_text("dtypes: [fp32]\nsweeps: [{operator: gelu, parameters: {numel: [1, 2, 3]}}]")
    text = call("sample", sweep, "-o", tmp_path / "out", "--plan-only", "--device", "cpu")
    assert "3 points planned" in text
    assert (tmp_path / "out" / "plan.jsonl").exists()
