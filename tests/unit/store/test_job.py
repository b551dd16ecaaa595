"""A job as a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.factories import make_run

from torchledger.capturing.process import RunOutcome, _as_job
from torchledger.errors import StoreError
from torchledger.store import LedgerWriter, open_ledger
from torchledger.store.job import (
    empty_job,
    further_ledgers,
    is_job,
    job_folder,
    job_in_place,
    ledgers_of_job,
    own_ledger,
    rank_path,
    write_head,
)


def write_ranks(ledger: Path, *ranks: int) -> Path:
    for rank in ranks:
        with LedgerWriter(rank_path(ledger, rank)) as writer:
            writer.add(make_run(rank=rank))
    return ledger.with_suffix(".job")


def test_ranks_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "j.ledger", 10, 2)
    assert list(ledgers_of_job(folder)) == [2, 10]


def test_a_job_stands_for_its_first_rank_where_one_ledger_is_asked_for(tmp_path: Path) -> None:
    with open_ledger(write_ranks(tmp_path / "j.ledger", 3, 1)) as ledger:
        assert ledger.run().rank == 1


def test_a_former_job_is_kept_without_force_and_what_is_not_ours_with_it(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "j.ledger", 0)
    write_head(folder, {"argv": ["train.py"]})
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="--force"):
        empty_job(folder, force=False)
    empty_job(folder, force=True)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    with pytest.raises(StoreError, match="is no job"):
        empty_job(folder, force=True)
    assert not is_job(folder)


def test_a_job_takes_its_place_when_it_is_done_and_leaves_the_former_one_where_it_fails(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "j.ledger", 0, 1)
    former = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(StoreError, match="--force"):
        job_in_place(folder, force=False).__enter__()
    with pytest.raises(ZeroDivisionError), job_in_place(folder, force=True) as made:
        made.mkdir()
        (made / "rank0.ledger").write_text("half of it")
        raise ZeroDivisionError
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == former
    with job_in_place(folder, force=True) as made:
        made.mkdir()
        (made / "rank7.ledger").touch()
    assert [path.name for path in folder.iterdir()] == ["rank7.ledger"] and list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("name", ["j.job", "j.ledger"])
def test_a_job_may_be_named_by_its_folder_or_by_its_launchers_ledger(tmp_path: Path, name: str) -> None:
    output = own_ledger(tmp_path / name)
    assert output == tmp_path / "j.ledger"
    assert job_folder(output) == tmp_path / "j.job"
    assert rank_path(output, 1) == tmp_path / "j.job" / "rank1.ledger"


def test_a_folder_that_is_no_job_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a ledger"):
        open_ledger(tmp_path)
    with pytest.raises(StoreError, match="no rank's ledger"):
        ledgers_of_job(tmp_path)


def test_a_rank_that_was_started_again_is_told_of(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "j.ledger", 0, 1)
    with LedgerWriter(tmp_path / "j.ledger") as writer:
        writer.add(make_run())
    with LedgerWriter(folder / "rank1.2.ledger") as writer:
        writer.add(make_run(rank=1))
    assert [path.name for path in further_ledgers(folder)] == ["rank1.2.ledger"]
    outcome = _as_job(RunOutcome(0, tmp_path / "j.ledger"), ["train.py"], is_rank=False, is_profiled=False)
    assert any("rank1.2.ledger in j.job" in warning for warning in outcome.warnings)
    assert list(ledgers_of_job(folder)) == [0, 1]
