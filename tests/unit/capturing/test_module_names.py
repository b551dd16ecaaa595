"""Whether a module that somebody names is there, before anything is written for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from synthetic import write_ledger
from torchledger.capturing.module_names import check_module
from torchledger.cli import cli
from torchledger.errors import UsageError


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("package.no_such_module", "'package' has no module 'package.no_such_module'"),
        ("package.script.further", "'package' has no module 'package.script.further'"),
        ("package", "'package' is a package without a module __main__"),
    ],
)
def test_a_package_without_that_module_leaves_no_ledger_and_replaces_none(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "script.py").touch()
    monkeypatch.chdir(tmp_path)
    earlier = write_ledger(tmp_path / "a.ledger", launches=1).read_bytes()
    result = CliRunner().invoke(cli, ["run", "-f", "-o", "a.ledger", "-m", name])
    assert isinstance(result.exception, UsageError) and said in str(result.exception)
    assert (tmp_path / "a.ledger").read_bytes() == earlier


def test_modules_are_found_where_their_package_says_while_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "package" / "__init__.py").write_text(f"__path__.append({str(tmp_path / 'elsewhere')!r})\n")
    (tmp_path / "elsewhere" / "script.py").touch()
    monkeypatch.chdir(tmp_path)
    check_module("package.script")
    with pytest.raises(UsageError, match=r"has no module 'package\.nothing'"):
        check_module("package.nothing")


@pytest.mark.parametrize("name", ["json.tool", "unittest", "os.path", "xml.etree.ElementTree"])
def test_modules_of_python_itself_are_found(name: str) -> None:
    check_module(name)
