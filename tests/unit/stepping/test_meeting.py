"""Ranks of a job that begin to record with the same step."""

from __future__ import annotations

from pathlib import Path

from torchledger.stepping.meeting import Meeting


def meetings(folder: Path, size: int = 2) -> list[Meeting]:
    return [Meeting(folder / "j.job", rank, size) for rank in range(size)]


def test_ranks_alike_begin_one_step_after_they_are_ready(tmp_path: Path) -> None:
    ranks = meetings(tmp_path, 3)
    assert [rank.may_begin(4) for rank in ranks] == [False, False, False]
    assert [rank.may_begin(5) for rank in ranks] == [True, True, True]


def test_a_rank_that_is_ready_sooner_waits_for_the_last_one(tmp_path: Path) -> None:
    first, last = meetings(tmp_path)
    assert [first.may_begin(count) for count in (3, 4, 5)] == [False] * 3
    assert not last.may_begin(5)
    assert first.may_begin(6) and last.may_begin(6)


def test_a_rank_does_not_wait_for_ever_and_says_for_whom_it_did(tmp_path: Path) -> None:
    alone, absent = meetings(tmp_path)
    waited = [alone.may_begin(count) for count in range(3, 20)]
    assert waited.index(True) == 9
    assert alone.note is not None and "rank 1" in alone.note
    assert absent.may_begin(40)  # which comes later, and goes its own way


def test_a_rank_that_counts_otherwise_keeps_nobody(tmp_path: Path) -> None:
    one, other = meetings(tmp_path)
    assert not one.may_begin(3)
    assert other.may_begin(300) and one.may_begin(4)


def test_a_folder_that_cannot_be_used_keeps_nobody(tmp_path: Path) -> None:
    (tmp_path / "j.job").write_text("a file")
    (rank, _) = meetings(tmp_path)
    assert rank.may_begin(1)


def test_what_ranks_left_is_taken_away_by_the_last_of_them(tmp_path: Path) -> None:
    ranks = meetings(tmp_path)
    for rank in ranks:
        rank.may_begin(1)
    for rank in ranks:
        rank.leave()
    assert not list((tmp_path / "j.job").iterdir())
