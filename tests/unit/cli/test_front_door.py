"""Guards of the front door: what is imported when, and that no command lacks help."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from command_line import run_cli
from synthetic import write_ledger
from torchledger.cli import COMMANDS, cli
from torchledger.errors import UsageError

_HEAVY = ("torch", "sklearn", "pyarrow", "rich", "pydantic", "numpy", "jinja2")


def _loaded_after(code: str) -> set[str]:
    probe = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(answer.stdout.split())


def test_a_fresh_interpreter_imports_the_package_without_torch() -> None:
    assert not _loaded_after("import torchledger") & set(_HEAVY)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = f"from torchledger.cli import cli\ntry:\n    cli.main({arguments!r})\nexcept SystemExit:\n    pass"
    assert not _loaded_after(code) & set(_HEAVY)


def test_showing_a_ledger_imports_no_torch() -> None:
    loaded = _loaded_after("import torchledger.cli.show, torchledger.cli.export, torchledger.reporting.terminal")
    assert not loaded & {"torch", "sklearn", "pyarrow"}


def test_values_of_a_ledger_and_of_a_script_that_is_missing_need_no_torch() -> None:
    assert "torch" not in _loaded_after("import torchledger.watching.process, torchledger.reporting.values")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "run"])
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert COMMANDS[name][1].endswith(".")
    assert len(result.output.splitlines()) > 5


def test_an_eager_step_is_counted_beside_a_profile_only() -> None:
    result = CliRunner().invoke(cli, ["run", "--count-eager", "script.py"])
    assert result.exit_code == 2 and "add --profile" in result.output


@pytest.mark.parametrize("command", ["run", "plan", "values"])
@pytest.mark.parametrize(("typed", "said"), [("--forse", "--force"), ("--nothing=3", "'--nothing'")])
def test_an_option_that_there_is_not_is_named_and_taken_for_no_script(command: str, typed: str, said: str) -> None:
    result = CliRunner().invoke(cli, [command, typed, "script.py"])
    assert result.exit_code == 2 and "No such option" in result.output and said in result.output


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_ledger_is_neither_run_as_a_script_nor_replaced(command: str, tmp_path: Path) -> None:
    ledger = write_ledger(tmp_path / "a.ledger", launches=3)
    before = ledger.read_bytes()
    result = CliRunner().invoke(cli, [command, "--force", str(ledger)])
    assert result.exit_code != 0 and f"{ledger} is a ledger, not a script" in str(result.exception)
    assert ledger.read_bytes() == before


def test_an_operator_that_is_a_ledger_is_sent_to_predict_step(tmp_path: Path) -> None:
    ledger = write_ledger(tmp_path / "a.ledger", launches=3)
    assert "torchledger predict-step" in str(CliRunner().invoke(cli, ["predict", str(ledger)]).exception)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--profile"], "--profile"), (["8", "-o", "mine.ledger"], "-o"), (["8", "-o", "out.txt", "--profile"], None)],
)
def test_an_option_behind_the_script_is_said_to_go_to_the_script(
    arguments: list[str], told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    Path("train.ledger").write_bytes(b"there")  # so that nothing runs
    result = CliRunner().invoke(cli, ["run", "train.py", *arguments])
    assert "exists" in str(result.exception)
    expected = "" if told is None else f"torchledger run {told} ... train.py"
    assert expected in result.stderr and (told is not None or not result.stderr)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("shwo a.ledger", "did you mean show?"),
        ("frobnicate", "No such command 'frobnicate'."),
        ("train.py --layers 4", "torchledger run train.py --layers 4"),
        ("gpt.ledger", "torchledger show gpt.ledger"),
    ],
)
def test_a_word_that_is_no_command_is_answered_with_what_was_meant(typed: str, said: str) -> None:
    answer = CliRunner().invoke(cli, typed.split())
    assert answer.exit_code == 2 and said in answer.output


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--inputs-gb", "-1", "train.py"),
        ("values", "--budget-gb", "-1", "train.py"),
        ("values", "--tolerance", "-1", "train.py"),
        ("diff", "--values", "--tolerance", "-1", "a.ledger", "b.ledger"),
    ],
)
def test_amounts_below_zero_are_refused_before_anything_runs(words: tuple[str, ...]) -> None:
    answer = CliRunner().invoke(cli, words)
    assert answer.exit_code == 2 and "is not in the range x>=0" in answer.output


@pytest.mark.parametrize("command", ["run", "values"])
def test_a_module_that_does_not_exist_leaves_no_ledger(command: str, tmp_path: Path) -> None:
    output = tmp_path / "a.ledger"
    result = CliRunner().invoke(cli, [command, "-o", str(output), "-m", "no_such_module"])
    assert isinstance(result.exception, UsageError) and "no module is called 'no_such_module'" in str(result.exception)
    assert not output.exists()


LOGS = """
import logging

logging.basicConfig(level=logging.INFO, format="mine: %(message)s")
logging.info("step 1")
"""


def test_a_program_that_is_run_sets_up_its_own_logging(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOGS)
    said = run_cli(tmp_path, "run", "train.py").stderr
    assert "mine: step 1" in said and "torchledger: step 1" not in said


def test_logging_is_the_callers_own_again_after_a_command() -> None:
    ours = logging.getLogger("torchledger")
    before = ours.level, ours.propagate, list(ours.handlers)
    CliRunner().invoke(cli, ["-v", "devices"])
    assert (ours.level, ours.propagate, list(ours.handlers)) == before
