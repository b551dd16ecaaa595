"""Ranks are forked from a process that has imported what they need."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from torchledger.errors import PlanError
from torchledger.planning.rank_processes import RankProcesses
from torchledger.planning.rank_worker import _fork_each


def _codes(requests: list[str], at_once: int) -> list[int | None]:
    """Each request is the exit code of its rank, and how many tenths of a second it takes."""
    codes, request = _fork_each(requests, at_once)
    if request is not None:
        code, _, tenths = request.partition(" ")
        time.sleep(int(tenths or 0) / 10)
        os._exit(int(code))
    return codes


def test_each_request_has_the_exit_code_of_its_own_process() -> None:
    assert _codes(["0 3", "0", "0 1"], 2) == [0, 0, 0]
    assert _codes(["0 3", "4"], 2) == [0, 4]


def test_no_more_ranks_are_begun_once_one_has_failed() -> None:
    assert _codes(["0", "3", "0"], 1) == [0, 3, None]


def test_a_rank_that_a_signal_ended_has_failed() -> None:
    codes, request = _fork_each(["killed"], 1)
    if request is not None:
        os.kill(os.getpid(), 9)
    assert codes == [-9]


def test_the_end_of_the_process_of_all_ranks_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with (
        pytest.raises(PlanError, match=r"^the ranks' process ended with exit code 1; see above\.$"),
        RankProcesses() as ranks,
    ):
        ranks.record([tmp_path / "request.json"])
