"""``torchledger values`` and ``torchledger diff --values`` from outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from command_line import run_cli
from factories import make_graph, make_run
from synthetic import write_ledger
from torchledger.cli import cli
from torchledger.errors import UsageError
from torchledger.store import LedgerWriter

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
compiled = torch.compile(model)
x = torch.randn(4, 8)
with torch.no_grad():
    for step in range(3):
        if step == 2:
            model[2].weight[1, 3] = -1.0
            x = x * SCALE
        compiled(x)
print("done")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("values")
    (path / "clean.py").write_text(SCRIPT.replace("SCALE", "1.0"))
    (path / "broken.py").write_text(SCRIPT.replace("SCALE", "float('inf')"))
    (path / "other.py").write_text(SCRIPT.replace("SCALE", "1.5"))
    return path


@pytest.mark.parametrize(
    ("option", "value", "needed"),
    [("--beyond", "float16", "--find overflow"), ("--tolerance", "0.1", "--against eager")],
)
def test_an_option_of_a_question_that_was_not_asked_is_refused(
    folder: Path, option: str, value: str, needed: str
) -> None:
    result = CliRunner().invoke(cli, ["values", option, value, str(folder / "clean.py")])
    assert isinstance(result.exception, UsageError) and needed in str(result.exception)
    assert not (folder / "clean.ledger").exists()


@pytest.mark.slow
def test_the_first_bad_launch_of_a_script_is_named_with_its_call(folder: Path) -> None:
    result = run_cli(folder, "values", "--find", "nan", "-f", "--json", "broken.py")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert "done" in result.stderr, "what the script prints is no part of the JSON"
    assert document["first_bad"]["call_index"] == 2
    assert document["first_bad"]["verdict"] == "created here"
    assert all(graph["watched"] == graph["launches"] for graph in document["graphs"])
    shown = run_cli(folder, "values", "broken.ledger")
    assert "NaN created here" in shown.stdout
    assert "torchledger show" in shown.stdout


@pytest.mark.slow
def test_statistics_of_two_runs_part_where_they_differ(folder: Path) -> None:
    for name in ("clean", "other"):
        result = run_cli(folder, "values", "-f", "--quiet", f"{name}.py")
        assert result.returncode == 0, result.stderr
        assert "mean" not in result.stderr
    same = run_cli(folder, "diff", "--values", "clean.ledger", "clean.ledger")
    assert "No tensor differs" in same.stdout
    result = run_cli(folder, "diff", "--values", "--json", "clean.ledger", "other.ledger")
    first = json.loads(result.stdout)["apart"][0]["first"]
    assert (first["moment"], first["call_index"]) == ("input", 2)


@pytest.mark.slow
def test_the_variables_of_the_builtin_printer_are_honoured_and_kept_from_the_script(folder: Path) -> None:
    result = run_cli(
        folder, "values", "-f", "clean.py",
        AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER="3", AOT_INDUCTOR_FILTERED_KERNELS_TO_PRINT="absent_kernel",
    )  # fmt: skip
    assert result.returncode == 2
    assert "before" not in result.stderr
    assert "No launch passed the filters" in result.stdout
    assert "inductor: " not in result.stdout


@pytest.mark.slow
def test_the_launch_that_a_process_crashed_in_is_named(tmp_path: Path) -> None:
    (tmp_path / "crash.py").write_text(
        """
import os, signal, torch

@torch.library.custom_op("crashing::kernel", mutates_args=())
def kernel(x: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGKILL)

@kernel.register_fake
def _(x):
    return torch.empty_like(x)

torch.compile(lambda x: kernel(x.sin()).cos())(torch.ones(4))
"""
    )
    result = run_cli(tmp_path, "values", "--level", "names", "crash.py")
    assert result.returncode == 137
    assert "0 ran" in result.stdout and "No values were watched" not in result.stdout
    assert "The process ended in inference_0#1 torch.ops.crashing.kernel" in result.stdout
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_ledger_that_is_shown_takes_no_arguments_of_a_script(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "a.ledger", launches=1)
    said = CliRunner().invoke(cli, ["values", str(path), "--json"])
    assert said.exit_code != 0
    assert f"Options come before it: torchledger values --json {path}" in str(said.exception) + said.output


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_ledger_without_values_ends_with_exit_code_1_and_says_how_to_record_some(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    with LedgerWriter(tmp_path / "a.ledger") as writer:
        writer.add(make_run(status="finished"), make_graph())
    said = run_cli(tmp_path, "values", *options, "a.ledger")
    assert said.returncode == 1 and not said.stdout
    assert said.stderr.startswith("torchledger: a.ledger holds no values. No values were watched in this run: record")
