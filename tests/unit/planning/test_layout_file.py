"""A file of layouts: what it may hold, and what is said of one that holds something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from torchledger.cli import cli
from torchledger.errors import PredictError
from torchledger.nouns import Layout
from torchledger.planning.layout_file import plan_layouts, read_layout_file
from torchledger.reporting.layouts import layouts_as_plain

SIZES = "{layers: 4, hidden: 1024, heads: 8, ffn: 4096, vocabulary: 32000, length: 2048, batch: 16}"


def write(folder: Path, text: str) -> Path:
    path = folder / "model.yml"
    path.write_text(text)
    return path


def test_sizes_choices_and_layouts_are_read(tmp_path: Path) -> None:
    asked = read_layout_file(write(tmp_path, f"model: {SIZES}\nmicro_batches: [1, 2]\nlayouts: [{{dp: 2, tp: 2}}]\n"))
    assert asked.model.ffn == 4096
    assert asked.choices == {"micro_batches": (1, 2)}
    assert asked.layouts == (Layout(dp=2, tp=2),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("layers: 4\n", "no `model:`"),
        (f"model: {SIZES}\nmicrobatches: [1]\n", "nearest: micro_batches"),
        ("model: {layers: 4, hiden: 8}\n", "nearest: hidden"),
        ("model: {layers: 4}\n", "lack"),
        (f"model: {SIZES.replace('layers: 4', 'layers: four')}\n", "must be of type int"),
        (f"model: {SIZES}\nlayouts: 3\n", "list of axes"),
        ("model: [\n", "cannot read"),
        (f"model: {SIZES.replace('layers: 4', 'layers: 99999')}\n", "must be 1 to 1,000"),
        (f"model: {SIZES}\nzeros: [4]\n", "zero=4 must be 0 to 3"),
        (f"model: {SIZES}\nmicro_batches: [[1]]\n", "must be of type int"),
        (f"model: {SIZES}\nschedules: [1F2B]\n", "nearest: 1F1B"),
        (f"model: {SIZES}\nmicro_batches: [{', '.join(map(str, range(1, 80)))}]\n", "64 are the most"),
        (f"model: {SIZES}\nlayouts: [{', '.join(['{dp: 1}'] * 501)}]\n", "500 are the most"),
        (f"model: {SIZES[:-1]}, dtype: bfloat}}\n", "nearest: bfloat16"),
        ("a: &a [1, 2]\nb: &b [*a, *a]\nmodel: [&c [*c]]\n", "cannot read"),
    ],
)
def test_a_file_that_cannot_be_says_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(PredictError, match=words):
        read_layout_file(write(tmp_path, text))


def test_layouts_of_another_world_name_the_axis_that_fills_it(tmp_path: Path) -> None:
    path = write(tmp_path, f"model: {SIZES}\nlayouts: [{{dp: 2, tp: 2}}]\n")
    with pytest.raises(PredictError, match="dp=4 fills them"):
        plan_layouts(path, world=8)


def test_the_command_prints_every_layout_as_json(tmp_path: Path) -> None:
    path = write(tmp_path, f"model: {SIZES}\nmicro_batches: [1]\nzeros: [0]\nrecomputations: [none]\n")
    done = CliRunner().invoke(cli, ["plan", "--layouts", str(path), "--world", "4", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {each["layout"]["dp"] * each["layout"]["tp"] * each["layout"]["pp"] for each in found} == {4}
    assert all(each["plan"]["step"]["duration_us"] > 0 for each in found)
    assert all(sum(each["plan"]["step"]["decided_by_shares"].values()) == pytest.approx(1) for each in found)
    text = CliRunner().invoke(cli, ["plan", "--layouts", str(path), "--world", "4"]).stdout
    assert "Layouts of a step on 4 x" in text


def test_what_a_layout_does_not_count_is_unknown_in_its_json_and_not_0(tmp_path: Path) -> None:
    path = write(tmp_path, f"model: {SIZES}\nlayouts: [{{dp: 4}}]\n")
    (found,) = layouts_as_plain(plan_layouts(path, world=4))
    plan = found["plan"]
    assert plan["launches"] is plan["kernel_launches"] is plan["communication"]["collectives"] is None
    assert plan["step"]["host_us"] is plan["step"]["host_work_us"] is None
    assert plan["communication"]["total_us"] > 0


def test_an_unknown_fabric_or_device_is_one_sentence(tmp_path: Path) -> None:
    path = write(tmp_path, f"model: {SIZES}\n")
    for options, words in ((["--fabric", "h200-efb"], "nearest"), (["--device", "H2000"], "nearest")):
        done = CliRunner().invoke(cli, ["plan", "--layouts", str(path), "--world", "4", *options])
        assert done.exit_code != 0
        assert isinstance(done.exception, PredictError)
        assert words in str(done.exception)


def test_a_pipeline_of_more_microbatches_than_can_be_played_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, f"model: {SIZES.replace('batch: 16', 'batch: 1000000')}\nlayouts: [{{pp: 4}}]\n")
    with pytest.raises(PredictError, match="1,000,000 microbatches in 4 stages are more than 50,000"):
        plan_layouts(path, world=4)
