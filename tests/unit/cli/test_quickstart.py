"""The README's quickstart, run for real; ``--rewrite-golden`` puts the present output into the README."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_README = _ROOT / "README.md"
_TESTED_TORCH = "2.13.0"


def _quickstart_commands() -> list[list[str]]:
    """The two ``$ torchledger`` lines above the output in the README."""
    text = _README.read_text().partition("<!-- quickstart -->")[0]
    return [line.split() for line in re.findall(r"^\$ torchledger (.*?)(?:\s+[#|].*)?$", text, re.MULTILINE)]


def _shown_lines() -> int:
    """How many lines of output the README's ``| head -N`` keeps."""
    match = re.search(r"\| head -(\d+)$", _README.read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1])


def _shown_in_readme() -> str:
    block = _README.read_text().partition("<!-- quickstart -->\n")[2].partition("<!-- /quickstart -->")[0]
    return block.removeprefix("```\n").removesuffix("```\n")


def _without_machine(text: str) -> str:
    """From the balance sheet on: what precedes it names the machine and the hour."""
    return "Balance sheet" + text.partition("\nBalance sheet")[2]


@pytest.mark.slow
def test_the_quickstart_prints_what_the_readme_shows(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    os.symlink(_ROOT / "examples", tmp_path / "examples")
    environment = os.environ | {
        "PYTHONPATH": str(_ROOT / "src"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
        "TORCHINDUCTOR_VEC_ISA_OK": "",
    }
    output = ""
    for arguments in _quickstart_commands():
        output = subprocess.run(
            [sys.executable, "-m", "torchledger", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    shown = "".join(output.splitlines(keepends=True)[: _shown_lines()])
    if request.config.getoption("--rewrite-golden"):
        before, begin, rest = _README.read_text().partition("<!-- quickstart -->\n")
        _, end, after = rest.partition("<!-- /quickstart -->")
        _README.write_text(f"{before}{begin}```\n{shown}```\n{end}{after}")
    balance = _without_machine(shown).partition("\n\n")[0]
    assert balance.count("balanced") == 3, balance
    if importlib.metadata.version("torch").startswith(_TESTED_TORCH):
        assert _without_machine(shown) == _without_machine(_shown_in_readme())


def test_the_readme_holds_the_two_commands_and_a_balanced_sheet() -> None:
    assert [arguments[0] for arguments in _quickstart_commands()] == ["run", "show"]
    assert re.search(r"flops\s+([\d,]+)\s+\1\s+balanced", _shown_in_readme())


def test_the_readme_fits_two_screens() -> None:
    assert len(_README.read_text().splitlines()) <= 120
