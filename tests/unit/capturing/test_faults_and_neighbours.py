"""A run beside others, on a full disk, with faults of our own: the program goes on, and what is lost is said."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import torchledger
from captured import read
from command_line import run_cli
from torchledger.capturing import session
from torchledger.errors import StoreError
from torchledger.nouns import Gap, Run
from torchledger.store import LedgerWriter, ledger, open_ledger
from warm import WarmProcess


def doubled(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).relu()


def summed(x: torch.Tensor) -> torch.Tensor:
    return x.sin().sum(0)


def compile_and_run(function: Any) -> None:
    torch._dynamo.reset()
    torch.compile(function)(torch.randn(4, 8))


def test_captures_nest_and_each_has_the_graphs_of_its_time(tmp_path: Path) -> None:
    with torchledger.capture(tmp_path / "outer.ledger"):
        compile_and_run(doubled)
        with torchledger.capture(tmp_path / "inner.ledger"):
            compile_and_run(summed)
        compile_and_run(torch.cos)
    outer, inner = read(tmp_path / "outer.ledger"), read(tmp_path / "inner.ledger")
    assert len(inner.graphs) == 1 and len(outer.graphs) == 3
    assert inner.calls[0].kernel == outer.calls[1].kernel
    assert inner.gaps == outer.gaps == []


def test_hooks_go_when_the_last_capture_ends_in_whatever_order(tmp_path: Path) -> None:
    from torch._inductor.scheduler import Scheduler

    before = Scheduler.codegen
    first, second = torchledger.capture(tmp_path / "a.ledger"), torchledger.capture(tmp_path / "b.ledger")
    first.close()
    assert Scheduler.codegen is not before
    compile_and_run(doubled)
    second.close()
    assert Scheduler.codegen is before
    assert [len(read(tmp_path / f"{name}.ledger").graphs) for name in "ab"] == [0, 1]


def test_a_ledger_that_a_run_writes_is_not_replaced_by_another(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with torchledger.capture(path) as first:
        with pytest.raises(StoreError, match="being written by another run"):
            torchledger.capture(path, force=True)
        with LedgerWriter(path, append=True) as beside:
            beside.add(Gap("launches", "beside", "appending is no replacing"))
        compile_and_run(doubled)
    assert [run.run_id for run in open_ledger(path).read(Run)] == [first.run.run_id]
    torchledger.capture(path, force=True).close()


def test_the_second_of_two_runs_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\npathlib.Path('began').touch()\n"
        "while not pathlib.Path('go_on').exists():\n    time.sleep(0.05)\nexit(5)\n"
    )
    command = [sys.executable, "-m", "torchledger", "run", "-o", "a.ledger", "slow.py"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as first:
        while not (tmp_path / "began").exists():
            time.sleep(0.05)
        (tmp_path / "quick.py").write_text("exit(7)\n")
        second = run_cli(tmp_path, "run", "-f", "-o", "a.ledger", "quick.py")
        (tmp_path / "go_on").touch()
    assert second.returncode == 1 and "being written by another run" in second.stderr
    assert "Traceback" not in second.stderr
    (run,) = open_ledger(tmp_path / "a.ledger").read(Run)
    assert (first.returncode, run.exit_code, run.argv) == (5, 5, ("slow.py",))


def test_a_run_that_was_killed_no_longer_holds_its_ledger(tmp_path: Path, warm: WarmProcess) -> None:
    (tmp_path / "dies.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    (tmp_path / "quick.py").write_text("")
    assert warm.run(tmp_path, "run", "-o", "a.ledger", "dies.py")[0] == 137
    assert warm.run(tmp_path, "run", "-f", "-o", "a.ledger", "quick.py")[0] == 0


def test_a_disk_that_fills_loses_graphs_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add = LedgerWriter.add

    def full(self: LedgerWriter, *records: Any, replace: bool = False) -> None:
        if any(isinstance(record, torchledger.nouns.Graph) for record in records):
            raise StoreError(f"cannot write to {self.path}: database or disk is full.")
        add(self, *records, replace=replace)

    with torchledger.capture(tmp_path / "a.ledger"):
        compile_and_run(doubled)
        monkeypatch.setattr(LedgerWriter, "add", full)
        compile_and_run(summed)
    assert "1 of 2 graphs are lost: " in capsys.readouterr().err
    found = read(tmp_path / "a.ledger")
    assert len(found.graphs) == 1
    assert any("disk is full" in gap.reason for gap in found.gaps)
    assert any("1 of 2 graphs" in note for note in open_ledger(tmp_path / "a.ledger").run().notes)


def test_a_ledger_that_cannot_be_begun_leaves_no_stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "create_statements", lambda present: ["PRAGMA max_page_count = 1", *_TOO_MUCH])
    with pytest.raises(StoreError, match=r"database or disk is full.*has room"):
        LedgerWriter(tmp_path / "a.ledger")
    assert list(tmp_path.iterdir()) == []


_TOO_MUCH = ["CREATE TABLE a (b)", "INSERT INTO a VALUES (zeroblob(100000))"]


def test_a_ledger_on_a_read_only_mount_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LedgerWriter(tmp_path / "a.ledger").close()

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StoreError, match=r"cannot replace .*: Read-only file system"):
        LedgerWriter(tmp_path / "a.ledger", force=True)


def test_a_ledger_in_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, warm: WarmProcess) -> None:
    (tmp_path / "quick.py").write_text("exit(5)\n")
    code, _, told = warm.run(tmp_path, "run", "-o", "/proc/a.ledger", "quick.py")  # where nobody can make a file
    (said,) = told.splitlines()
    assert code == 1 and "cannot write /proc/a.ledger" in said and "is writable and has room" in said


def test_a_locked_ledger_is_called_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_BUSY_TIMEOUT_S", 0.01)
    LedgerWriter(tmp_path / "a.ledger").close()
    connection = sqlite3.connect(tmp_path / "a.ledger", isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="is being written by another process"):
        open_ledger(tmp_path / "a.ledger")
    connection.close()


@pytest.mark.parametrize("name", ["own_rank", "own_world_size", "eager_counts", "graph_breaks_note"])
def test_a_run_that_cannot_be_described_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(session, name, fail)
    with torchledger.capture(tmp_path / "a.ledger"):
        pass
    assert open_ledger(tmp_path / "a.ledger").run().status == "finished"
    assert any("planted" in gap.reason for gap in read(tmp_path / "a.ledger").gaps)


@pytest.mark.slow
def test_a_fault_in_any_of_a_few_functions_of_ours_is_no_fault_of_the_program() -> None:
    harness = ["-m", "benchmarks.robustness.planted_faults"]
    command = [sys.executable, *harness, "--mode", "inference", "--every", "150"]
    found = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
