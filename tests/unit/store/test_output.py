"""Files that commands write: never over another, never elsewhere, never by half."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from click.testing import CliRunner

from factories import make_sample
from torchledger.cli import cli
from torchledger.errors import SampleError, StoreError, TorchledgerError
from torchledger.sampling.collection import prepare_folder as prepare_samples
from torchledger.sampling.dataset import write_samples
from torchledger.sampling.points import Plan, Point
from torchledger.sampling.sweep import load_sweep
from torchledger.store.output import file_name, prepare_folder, write_files, write_output

GUIDE = {"operator": "guide.softmax", "dtype": "float16", "parameters": {"mp": 1, "b": 2, "h": 64, "l": 64}}


def test_a_file_that_exists_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_output(path, b"first", force=False)
    with pytest.raises(StoreError, match=r"exists.*--force"):
        write_output(path, b"second", force=False)
    assert path.read_bytes() == b"first"
    write_output(path, b"second", force=True)
    assert path.read_bytes() == b"second"


def test_a_disk_that_fills_leaves_the_old_file_and_no_stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"first")

    def fail(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(StoreError, match=r"cannot write .*a\.txt: No space left on device"):
        write_output(path, b"second", force=True)
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"] and path.read_bytes() == b"first"


@pytest.mark.parametrize("name", ["../a", "/etc/a", "sub/a", "..", "."])
def test_a_name_that_is_a_path_is_not_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="would lie outside"):
        write_files(tmp_path / "out", {name: b""}, force=False)
    with pytest.raises(StoreError, match="would lie outside"):
        prepare_folder(tmp_path / "out", [name], force=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["../../x", "a/b", "/", "..", "", ".hidden", "n\0ul", "x" * 500, "a\\b", "\n"])
def test_a_name_out_of_a_file_is_one_plain_file_name(tmp_path: Path, text: str) -> None:
    name = file_name(text)
    (tmp_path / name).write_text("")
    assert [each.name for each in tmp_path.iterdir()] == [name] and not name.startswith(".")


def test_a_device_name_with_slashes_stays_in_the_folder(tmp_path: Path) -> None:
    sample = make_sample("p", 5.0, device="../../escaped/H200", **GUIDE)
    write_samples(tmp_path / "in" / "s.parquet", [sample])
    result = CliRunner().invoke(cli, ["samples", "export", f"{tmp_path}/in/s.parquet", "-o", f"{tmp_path}/in/out"])
    assert result.exit_code == 0, result.output
    written = list(tmp_path.rglob("*.csv"))
    assert [path.parent for path in written] == [tmp_path / "in" / "out"]


@pytest.mark.parametrize("command", ["check", "export"])
def test_judged_and_exported_samples_overwrite_nothing(tmp_path: Path, command: str) -> None:
    write_samples(tmp_path / "s.parquet", [make_sample("p", 5.0, device="H200", **GUIDE)])
    output = tmp_path / ("out" if command == "export" else "judged.parquet")
    arguments = ["samples", command, f"{tmp_path}/s.parquet", "-o", str(output)]
    first = CliRunner().invoke(cli, arguments)
    assert "exists" not in str(first.exception)
    (target,) = output.iterdir() if output.is_dir() else [output]
    target.write_text("mine")
    again = CliRunner().invoke(cli, arguments)
    assert "pass --force" in str(again.exception)
    assert target.read_text() == "mine"
    assert CliRunner().invoke(cli, [*arguments, "--force"]).exit_code == first.exit_code
    assert target.read_bytes() != b"mine"


def test_python_that_a_sweep_names_runs_only_when_the_user_names_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'it_ran')!r}, 'w')\n")
    (tmp_path / "s.yaml").write_text(
        "operators: [mine.py]\nsweeps:\n  - operator: softmax\n    parameters: {rows: [8], columns: [8]}\n"
    )
    with pytest.raises(TorchledgerError, match=r"mine\.py is Python that would be run.*--operators"):
        load_sweep(tmp_path / "s.yaml")
    result = CliRunner().invoke(cli, ["sample", f"{tmp_path}/s.yaml", "--plan-only", "-o", f"{tmp_path}/out"])
    assert "--operators" in str(result.exception)
    assert not (tmp_path / "it_ran").exists()


def test_python_that_somebodys_plan_names_is_not_run(tmp_path: Path) -> None:
    points = (Point("softmax", {"rows": 8, "columns": 8}, "float32", "train"),)
    prepare_samples(Plan(points, 1, 1, (str(tmp_path / "theirs.py"),), {}), tmp_path / "set")
    with pytest.raises(SampleError, match=r"theirs\.py, Python that would be run"):
        prepare_samples(Plan(points, 1, 1, (), {}), tmp_path / "set")


def test_values_does_not_run_a_file_that_is_not_called_python(tmp_path: Path) -> None:
    path = tmp_path / "train.ledger"
    path.write_text(f"open({str(tmp_path / 'it_ran')!r}, 'w')\n")
    result = CliRunner().invoke(cli, ["values", str(path)])
    assert "pass --script" in str(result.exception)
    assert not (tmp_path / "it_ran").exists()


def test_files_that_exist_are_counted_in_words_that_agree(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    with pytest.raises(StoreError, match=r"a exists\. Choose"):
        prepare_folder(tmp_path, ["a"], force=False)
    with pytest.raises(StoreError, match=r"a and 1 more exist\. Choose"):
        prepare_folder(tmp_path, ["a", "b"], force=False)
