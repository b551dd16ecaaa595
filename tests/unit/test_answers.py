"""What ``import torchledger`` offers: twelve names, typed, told with an example each, and loaded when first used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import torchledger
from factories import make_graph, make_kernel, make_launch, make_run
from torchledger.cli import cli
from torchledger.errors import StoreError, UsageError
from torchledger.nouns import Measurement
from torchledger.store import LedgerWriter

ROOT = Path(__file__).parents[2]
NAMES = set(torchledger.__all__) - {"__version__"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "a.ledger"
    with LedgerWriter(found) as writer:
        writer.add(make_run(), make_graph(), make_kernel(), make_launch(), make_launch(order=1))
        writer.add(Measurement("forward_0#0", "profile", "cupti", (3.0, 5.0, 4.0)))
    return found


def test_the_front_door_has_at_most_twelve_names_and_each_is_there() -> None:
    assert len(NAMES) <= 12
    assert all(callable(getattr(torchledger, name)) for name in NAMES)
    assert set(dir(torchledger)) >= NAMES
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        torchledger.nonsense  # noqa: B018


def test_type_checkers_are_told_the_same_modules_as_the_door_loads() -> None:
    tree = ast.parse(Path(torchledger.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    told = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert told == torchledger._PUBLIC


def test_each_name_has_an_example_in_the_docs() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    assert {name for name in NAMES if f"torchledger.{name}(" in page} == NAMES


@pytest.mark.parametrize("name", ["load", "show", "diff", "report", "predict", "predict_step"])
def test_what_reads_files_needs_no_torch(name: str) -> None:
    probe = f"import sys, torchledger\ntorchledger.{name}\nprint('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True).stdout.strip() == "False"


def test_a_loaded_ledger_holds_its_records_and_their_times(path: Path) -> None:
    ledger = torchledger.load(path)
    assert [launch.launch_id for launch in ledger.launches] == ["forward_0#0", "forward_0#1"]
    assert [ledger.duration_us(launch) for launch in ledger.launches] == [4.0, None]
    assert ledger.graphs[0].name == "forward_0" and ledger.profile is ledger.breakdown is None
    with pytest.raises(StoreError, match="does not exist"):
        torchledger.load(path.with_name("b.ledger"))


def test_a_loaded_ledger_is_exported_as_the_command_does(path: Path, tmp_path: Path) -> None:
    ledger = torchledger.load(path)
    assert ledger.export(tmp_path / "Data_mine.json") == [tmp_path / "Data_mine.json"]
    CliRunner().invoke(cli, ["export", str(path), "-o", str(tmp_path / "Data_yours.json")])
    assert (tmp_path / "Data_mine.json").read_bytes() == (tmp_path / "Data_yours.json").read_bytes()
    with pytest.raises(UsageError, match="does not tell what to write"):
        ledger.export(tmp_path / "mine")


def test_show_says_what_the_command_prints(path: Path) -> None:
    for words in ((), ("forward_0#1",)):
        assert torchledger.show(path, *words) == CliRunner().invoke(cli, ["show", str(path), *words]).stdout
    with pytest.raises(UsageError, match="no kernel or launch 'x'"):
        torchledger.show(path, "x")
