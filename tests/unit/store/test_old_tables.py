"""A ledger that was written before a kind of record existed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from factories import make_run
from torchledger.nouns import Timeline
from torchledger.store import LedgerWriter, open_ledger

TIMELINE = Timeline("cupti", (0,), (1,), (0,), (0,), (None,), (0,), ("k",), ("gemm",), (), ("cpu",))


def write_old_ledger(path: Path) -> Path:
    with LedgerWriter(path) as writer:
        writer.add(make_run())
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE timelines")
    connection.close()
    return path


def test_a_missing_table_reads_as_no_records(tmp_path: Path) -> None:
    with open_ledger(write_old_ledger(tmp_path / "old.ledger")) as reader:
        assert reader.read(Timeline) == []
        assert reader.count(Timeline) == 0
        assert reader.columns(Timeline, "clock") == []


def test_appending_makes_the_missing_table(tmp_path: Path) -> None:
    path = write_old_ledger(tmp_path / "old.ledger")
    with LedgerWriter(path, append=True) as writer:
        writer.add(TIMELINE)
    with open_ledger(path) as reader:
        assert reader.read(Timeline) == [TIMELINE]
