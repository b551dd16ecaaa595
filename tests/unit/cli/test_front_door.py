"""Guards of the front door: what is imported when, and that no command lacks help."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from torchledger.cli import COMMANDS, cli

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


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "run"])
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert COMMANDS[name][1].endswith(".")
    assert len(result.output.splitlines()) > 5


def test_an_eager_step_is_counted_beside_a_profile_only() -> None:
    result = CliRunner().invoke(cli, ["run", "--count-eager", "script.py"])
    assert result.exit_code == 2 and "add --profile" in result.output
