"""Ranks are forked from a process that has imported what they need."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from torchledger._torch.fakes.pipelines import _wait_for_mail
from torchledger.errors import PlanError
from torchledger.nouns import RUNNING, WorldSpec
from torchledger.planning.rank_processes import RankProcesses
from torchledger.planning.rank_worker import _fork_each


@pytest.fixture
def codes(tmp_path: Path) -> Callable[..., list[int | None]]:
    """Each request is the exit code of its rank, and how many tenths of a second it takes."""

    def of(asked: list[str], at_once: int) -> list[int | None]:
        found, request = _fork_each(
            [str(tmp_path / f"{place}_{each}.json") for place, each in enumerate(asked)], at_once
        )
        if request is not None:
            _, code, tenths = Path(request).stem.split("_")
            time.sleep(int(tenths) / 10)
            if code == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(int(code) if Path(request).with_suffix(RUNNING).exists() else 99)
        assert not list(tmp_path.iterdir())
        return found

    return of


def test_each_request_has_the_exit_code_of_its_own_process(codes: Callable[..., list[int | None]]) -> None:
    assert codes(["0_3", "0_0", "0_1"], 2) == [0, 0, 0]
    assert codes(["0_3", "4_0"], 2) == [0, 4]


def test_no_more_ranks_are_begun_once_one_has_failed(codes: Callable[..., list[int | None]]) -> None:
    assert codes(["0_0", "3_0", "0_0"], 1) == [0, 3, None]


def test_a_rank_that_a_signal_ended_has_failed(codes: Callable[..., list[int | None]]) -> None:
    assert codes(["killed_0"], 1) == [-9]


def test_a_rank_waits_for_the_shapes_of_one_before_it_while_that_runs(tmp_path: Path) -> None:
    (tmp_path / "request_4.running").touch()
    later = threading.Timer(0.2, (tmp_path / "stage_1.json").touch)
    later.start()
    _wait_for_mail(WorldSpec(8, 16, mail=str(tmp_path)), 1)
    assert (tmp_path / "stage_1.json").exists()
    _wait_for_mail(WorldSpec(4, 16, mail=str(tmp_path)), 2)  # of itself and of those behind it, it does not
    ended = threading.Timer(0.2, (tmp_path / "request_4.running").unlink)
    ended.start()
    _wait_for_mail(WorldSpec(8, 16, mail=str(tmp_path)), 2)


def test_the_end_of_the_process_of_all_ranks_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with (
        pytest.raises(PlanError, match=r"^the ranks' process ended with exit code 1; see above\.$"),
        RankProcesses() as ranks,
    ):
        ranks.record([tmp_path / "request.json"])
