"""Sets of samples from the command line."""

from __future__ import annotations

import dataclasses
import json

import pyarrow
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from synthetic import write_ledger
from torchledger.cli import cli
from torchledger.errors import SampleError
from torchledger.nouns import Sample
from torchledger.sampling.constraints import compile_constraint
from torchledger.sampling.dataset import read_samples, write_samples
from torchledger.sampling.points import Plan, Point, load_plan, save_plan, unique_points
from torchledger.sampling.sets import load_set
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


def journal_of(folder, *lines):
    (folder / "journal").mkdir()
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (folder / "journal" / "host-1-1.jsonl").write_text(text)
    return folder


HEADER = {"kind": "header", "device": "cpu", "versions": {"torch": "2.13"}}
SAMPLE = {"operator": "add", "parameters": {"numel": 9}, "direction": "forward", "dtype": "float32", "times_us": [1.5]}


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ({"kind": "attempt", "points": 7}, "points"),
        ({"kind": "fault", "points": [["a"]], "reason": "x"}, r"points\[0\]"),
        ({"kind": "point", "point": "a", "samples": [], "utc": "late"}, "utc"),
        (
            {"kind": "point", "point": "a", "samples": [SAMPLE | {"times_us": ["1"]}], "utc": 1.0},
            r"\[0\].times_us\[0\]",
        ),
        ({"kind": "point", "point": "a", "samples": [SAMPLE | {"direction": "up"}], "utc": 1.0}, r"\[0\].direction"),
        ({"kind": "header", "device": "cpu", "versions": {"torch": 2}}, r"versions\[...\]"),
    ],
)
def test_a_journals_line_is_checked_and_named(tmp_path, line, field):
    folder = journal_of(tmp_path, HEADER, line)
    with pytest.raises(SampleError, match=rf"host-1-1\.jsonl is damaged: line 2: .*`{field}`"):
        read_samples(folder)


def test_blocks_in_a_journal_do_not_block_the_rest(tmp_path):
    finished = {"kind": "point", "point": "a", "samples": [SAMPLE], "utc": 1.0}
    folder = journal_of(tmp_path, HEADER, '{"kind": "poi', "[" * 100_000, finished)
    assert [sample.times_us for sample in read_samples(folder)] == [(1.5,)]


@pytest.mark.parametrize("line", ['["add", 3, "float32", null]', "[]", '{"warmup": 1}', "[" * 100_000])
def test_a_plans_line_is_checked_and_named(tmp_path, line):
    save_plan(Plan((Point("add", {"numel": 9}, "float32"),)), tmp_path)
    with (tmp_path / "plan.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(SampleError, match=r"plan\.jsonl is damaged: line 3"):
        load_plan(tmp_path)


def small_set(path):
    write_samples(path, [Sample("p", "add", {"numel": 9}, "forward", "float32", "cpu", times_us=(1.5,))] * 3)
    return path


def change_column(path, name, values):
    table = parquet.read_table(path)
    index = table.column_names.index(name)
    parquet.write_table(table.set_column(index, name, pyarrow.array(values)), path)


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("direction", ["up", "forward", "forward"], r"`\[0\].direction`: invalid enum value 'up'"),
        ("operator", [None, "add", "add"], r"`\[0\].operator`: expected `str`, got `null`"),
        ("parameters", ["{}", '{"numel": []}', "{}"], "row 2, column parameters: field"),
        ("kernels", ["[]", "{", "[]"], "row 2, column kernels"),
        ("times_us", ["a", "b", "c"], "damaged"),
        ("flops", [[1], [2], [3]], "damaged"),
    ],
)
def test_a_sample_in_parquet_is_checked_and_named(tmp_path, column, values, said):
    path = small_set(tmp_path / "a.parquet")
    change_column(path, column, values)
    with pytest.raises(SampleError, match=said):
        read_samples(path)


def test_a_small_file_of_millions_of_samples_is_refused_unread(tmp_path):
    path = small_set(tmp_path / "a.parquet")
    table = parquet.read_table(path)
    parquet.write_table(pyarrow.concat_tables([table] * 100_000), path)
    with pytest.raises(SampleError, match=r"claims 300,000 values"):
        read_samples(path)


@pytest.mark.parametrize(
    "content",
    [
        b"mp,b,l,dim,F_dur(us)\n1,8,4096,\xff,100.0\n",
        b"mp,b,l,dim,F_dur(us)\n1,8,4096," + b"9" * 200_000 + b",100.0\n",
        b"mp,b,l,dim,F_dur(us)\n1,8,inf,8,100.0\n",
        b"mp,b,l,dim,F_dur(us)\n1,8,1e300,8,100.0\n",
        b"mp,b,l,dim,F_dur(us)\n1,8\n",
    ],
)
def test_a_line_of_a_guide_csv_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "NVIDIAA100_gelu_fp16.csv"
    path.write_bytes(content)
    with pytest.raises(SampleError, match=r"gelu_fp16\.csv line [12]"):
        load_set(path)


@pytest.mark.parametrize(
    "text", ["9**9**9 > 1", "1 / (m - m)", "(-8)**0.5 > 1", "m << 3", "m." + "(" * 900, "-" * 990 + "m"]
)
def test_a_condition_without_a_value_is_refused(text):
    with pytest.raises(ValueError):
        compile_constraint(text, {"m"})({"m": 4})


def test_a_small_file_with_one_sample_of_millions_of_times_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    write_samples(path, [Sample("p", "add", {"numel": 9}, "forward", "float32", "cpu", times_us=(1.5,) * 3_000_000)])
    with pytest.raises(SampleError, match=r"claims 3,000,000 values"):
        read_samples(path)


def test_a_ledger_is_no_set_of_samples_and_is_told_what_reads_it(tmp_path):
    path = write_ledger(tmp_path / "gpt.ledger", launches=1)
    with pytest.raises(SampleError, match="is a ledger, not a set of samples: `torchledger show"):
        load_set(path)
