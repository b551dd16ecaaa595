"""The page of a set of samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from test_html_page import HOSTILE, read_page

import torchledger
from factories import make_sample
from torchledger.cli import cli
from torchledger.errors import SampleError, UsageError
from torchledger.operators import find_operator
from torchledger.reporting.html import render_report
from torchledger.sampling.dataset import write_samples


def write_set(path: Path) -> Path:
    samples = [
        make_sample(
            f"p{place}", 10.0 + place, direction=direction, dtype="bfloat16", parameters={"numel": 4096 << place}
        )
        for place in range(12)
        for direction in find_operator("gelu").directions
    ]
    samples.append(make_sample("bad", 30.0, HOSTILE, status="failed", times_us=(), reason=HOSTILE))
    write_samples(path, samples)
    return path


def test_the_page_says_how_far_the_set_is_what_it_cost_and_what_failed(tmp_path: Path) -> None:
    data, _ = read_page(render_report(write_set(tmp_path / "s.parquet")))
    assert data["kind"] == "samples"
    assert data["sentences"][0].startswith("25 labels of 13 shapes of 2 operators on H200, measured in 20.0 s")
    assert data["sentences"][-1] == "1 label without a time to learn from: 1 failed."
    rows = data["samples"]["operators"]
    assert sum(row["labels"] for row in rows) == 25
    assert sum(row["wall_s"] for row in rows) == pytest.approx(20.0)
    assert len(data["samples"]["failures"]) == 1


def test_a_model_stands_beside_the_measured_times(tmp_path: Path) -> None:
    data, _ = read_page(render_report(write_set(tmp_path / "s.parquet"), predict="H200"))
    found = data["predictions"]
    assert len(found["rows"]) + found["left_out"] == 24
    (family,) = found["families"]
    assert family[:2] == ["gelu", 24]
    assert family[2] == pytest.approx(24 * 2.5)


def test_names_and_reasons_in_a_set_are_text(tmp_path: Path) -> None:
    page = render_report(write_set(tmp_path / "s.parquet"))
    assert "<script>alert(1)" not in page
    data, _ = read_page(page)
    assert "\x1b" not in str(data)


def test_sets_do_not_stand_side_by_side(tmp_path: Path) -> None:
    path = write_set(tmp_path / "s.parquet")
    with pytest.raises(UsageError, match="set of samples"):
        render_report(path, against=path)


def test_the_command_takes_a_set_and_refuses_what_is_none(tmp_path: Path) -> None:
    path = write_set(tmp_path / "s.parquet")
    done = CliRunner().invoke(cli, ["report", str(path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "s.html").exists()
    with pytest.raises(SampleError):
        torchledger.report(tmp_path, tmp_path / "x.html")
