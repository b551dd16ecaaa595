"""Where the ledger of a child process goes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torchledger.capturing.ranks import child_path


def test_children_of_one_rank_that_ask_at_once_have_a_path_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: child_path(tmp_path / "a.ledger"), range(32)))
    names = ["rank1.ledger", *(f"rank1.{number}.ledger" for number in range(2, 33))]
    assert sorted(path.name for path in paths) == sorted(names)


def test_a_folder_that_takes_no_file_is_left_to_the_writer_to_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    path = child_path(tmp_path / "missing" / "a.ledger")
    assert path.parent == tmp_path / "missing" and not path.exists()
