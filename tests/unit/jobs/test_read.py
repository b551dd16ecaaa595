"""A job out of ranks' records: waits with causes, stragglers with their cost, sums that fill the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.factories import (
    make_activity,
    make_collective,
    make_live_storage,
    make_match,
    make_run,
    make_step,
    make_step_memory,
)

from torchledger.errors import StoreError
from torchledger.jobs.planned import keep_plan
from torchledger.jobs.read import RankRecord, advice_of, is_of_stages, job_of_ranks, read_job
from torchledger.jobs.waits import explain_waits, pieces_of
from torchledger.nouns import DryRun, Job, PlannedCollective, PlannedStep
from torchledger.store import LedgerWriter
from torchledger.store.job import write_head

MS = 1_000_000
STEPS = 3


def rank_record(rank: int, sleep_ns: int = 0, others_ns: int = 0) -> RankRecord:
    """Steps of 2 ms compute, a sleep, 1 ms compute, then an all_reduce that ends for all ranks at once."""
    pieces: list[tuple[int, int, str]] = []
    collectives = []
    now = 0
    for step in range(STEPS):
        wait = others_ns - sleep_ns if others_ns > sleep_ns else 0
        pieces += [(0, 2 * MS, "forward_0#0"), (2, 10 + sleep_ns, "sleeps"), (0, MS, "backward_0#0")]
        arrived = now + 3 * MS + sleep_ns + 10
        pieces.append((1, MS + wait, "all_reduce"))
        now = arrived + MS + wait
        collectives.append(make_collective(index=step, issued_ns=arrived, ended_ns=now))
    return RankRecord(
        rank,
        f"rank{rank}.ledger",
        step=make_step(recorded=STEPS),
        activity=make_activity(*pieces, steps=STEPS),
        collectives=tuple(collectives),
        world_size=4,
    )


def planted() -> Job:
    return job_of_ranks(
        [rank_record(rank, 50 * MS if rank == 2 else 0, others_ns=50 * MS) for rank in range(4)], path="j.job"
    )


def test_a_rank_that_sleeps_is_named_with_its_place_and_its_cost() -> None:
    (straggler,) = planted().stragglers
    assert straggler.rank == 2
    assert "sleeps" in straggler.where and "forward_0#0" in straggler.where
    assert straggler.cost_us == pytest.approx(50_000, rel=0.01)
    assert straggler.waiters == (0, 1, 3)


def test_every_wait_has_a_cause_and_the_advice_is_the_straggler() -> None:
    job = planted()
    assert all(match.cause_rank == 2 for match in job.collectives if max(match.waited_us) > 0)
    assert job.advice is not None and "rank 2" in job.advice and "50.0 ms" in job.advice


def test_compute_exposed_and_idle_fill_each_ranks_step() -> None:
    for rank in planted().ranks:
        assert rank.compute_us + rank.exposed_us + rank.idle_us == pytest.approx(rank.wall_us)
        assert sum(rank.idle_by_cause_us.values()) == pytest.approx(rank.idle_us)


def test_ranks_alike_have_no_straggler() -> None:
    job = job_of_ranks([rank_record(rank) for rank in range(4)], path="j.job")
    assert job.stragglers == ()
    assert sum(rank.waiting_us for rank in job.ranks) == 0


def test_ranks_without_a_step_are_named() -> None:
    records = [rank_record(0), RankRecord(1, "rank1.ledger", world_size=4, missing="it was killed")]
    job = job_of_ranks(records, path="j.job")
    assert any("rank 1: it was killed" in note for note in job.notes)
    assert any("2 of 4 ranks" in note for note in job.notes)


def test_what_a_rank_does_before_the_first_entry_of_a_step_is_one_place_in_all_steps() -> None:
    step = ((2, 5 * MS, "sleeps"), (0, MS, "forward_0#0"), (1, MS, "all_reduce"))
    pieces = pieces_of(make_activity(*step * STEPS, steps=STEPS), 0)
    assert {place.words for place in pieces.places if place.label == "sleeps"} == {"sleeps (after forward_0#0)"}


def test_a_late_rank_that_had_itself_waited_passes_the_cause_on() -> None:
    first = make_match((0, 40 * MS), (41 * MS, 41 * MS), group="a", ranks=(0, 1))
    second = make_match((41 * MS, 0), (42 * MS, 42 * MS), group="b", ranks=(0, 2))
    activities = {
        0: make_activity((1, 41 * MS, "all_reduce"), (0, MS, "forward_0#0")),
        1: make_activity((0, 40 * MS, "forward_0#9"), (1, 2 * MS, "all_reduce")),
        2: make_activity((1, 42 * MS, "all_reduce")),
    }
    pieces = {rank: pieces_of(activity, 0) for rank, activity in activities.items()}
    (_, late), stragglers = explain_waits([first, second], pieces, step_us=42_000, steps=1)
    assert (late.last, late.cause_rank, late.cause) == (0, 1, "forward_0#9")
    assert [straggler.rank for straggler in stragglers] == [1]


@pytest.mark.parametrize(
    ("pairs", "is_pipeline"),
    [([(0, 1), (1, 2), (2, 3)], True), ([(0, 1), (1, 2), (2, 3), (0, 3)], True), ([(0, 1), (0, 2), (0, 3)], False)],
)
def test_sends_are_a_pipelines_where_ranks_have_neighbours_alone(
    pairs: list[tuple[int, int]], is_pipeline: bool
) -> None:
    sends = [make_match((0, MS), (2 * MS, 2 * MS), operation="send", ranks=pair) for pair in pairs]
    assert is_of_stages(sends) is is_pipeline


def test_a_delay_for_which_two_pairs_wait_costs_once() -> None:
    sends = [
        make_match((0, 50 * MS), (51 * MS, 51 * MS), operation="send", group="a", ranks=(0, 1)),
        make_match((50 * MS + 1, 10 * MS), (52 * MS, 52 * MS), operation="send", group="b", ranks=(1, 2)),
    ]
    waiting = make_activity((1, 52 * MS, "recv"))
    pieces = {
        0: pieces_of(waiting, 0),
        1: pieces_of(make_activity((2, 50 * MS, "sleeps"), (1, 2 * MS, "send")), 0),
        2: pieces_of(waiting, 0),
    }
    _, (straggler,) = explain_waits(sends, pieces, step_us=52_000, steps=1)
    assert (straggler.rank, straggler.waiters) == (1, (0, 2))
    assert straggler.cost_us == pytest.approx(50_000, rel=0.01)


def test_a_job_is_read_from_its_folder_and_ranks_of_other_clocks_too(tmp_path: Path) -> None:
    folder = tmp_path / "j.job"
    folder.mkdir()
    for rank in range(2):
        record = rank_record(rank)
        assert record.step is not None and record.activity is not None
        with LedgerWriter(folder / f"rank{rank}.ledger") as writer:
            run = make_run(rank=rank, world_size=2)
            pair = [make_collective(**{**vars(each), "ranks": (0, 1), "group_size": 2}) for each in record.collectives]
            writer.add(run, record.step, record.activity, *pair)
    job = read_job(folder)
    assert [rank.rank for rank in job.ranks] == [0, 1]
    assert len(job.collectives) == STEPS
    with pytest.raises(StoreError, match="not a job"):
        read_job(tmp_path / "nothing")


def test_a_ranks_peak_is_that_of_its_own_ledger_with_the_blocks_of_its_allocator(tmp_path: Path) -> None:
    record = rank_record(0)
    assert record.step is not None and record.activity is not None
    on_device = make_live_storage(nbytes=39 * 2**19, device="cuda:0")
    with LedgerWriter(tmp_path / "rank0.ledger") as writer:
        writer.add(make_run(rank=0, world_size=1), record.step, record.activity)
        writer.add(make_step_memory(device="cuda:0", rounding=512), on_device)
    (rank,) = read_job(tmp_path).ranks
    assert rank.peak_bytes == 20 * 2**20  # a segment is of whole 2 MiB, and a rest of 512 KiB stays with its block


def test_how_a_program_ended_and_which_rank_did_not_end_its_ledger_is_said(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "rank0.ledger") as writer:
        writer.add(make_run(rank=0, world_size=2, status="running"))
    (tmp_path / "job.json").write_text('{"exit_code": 7}')
    notes = read_job(tmp_path).notes
    assert notes[0] == "the program ended with exit code 7"
    assert any("rank 0" in note and "was killed" in note for note in notes)
    assert any("1 of 2 ranks" in note for note in notes)
    (tmp_path / "job.json").write_text("[" * 100_000)
    assert not any("exit code" in note for note in read_job(tmp_path).notes)


def test_a_planned_rank_stands_for_others_and_has_collectives_without_times(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "rank0.ledger") as writer:
        several = [make_collective(order=order, message_bytes=4096) for order in range(3)]
        writer.add(make_run(world_size=8), make_step(clock="host"), DryRun("NVIDIA H200"), *several)
    job = read_job(tmp_path)
    (only,) = job.planned
    assert (only.rank, only.operation, only.count, only.message_bytes) == (0, several[0].operation, 3, 3 * 4096)
    assert only.duration_us is None and job.stands_for == {0: 8} and not job.notes and not job.ranks


def test_the_price_that_was_kept_of_a_planned_job_is_read_with_it(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "rank0.ledger") as writer:
        writer.add(make_run(world_size=8), make_step(clock="host"), DryRun("NVIDIA H200"), make_collective())
    write_head(tmp_path, {"stands_for": {"0": list(range(8))}})
    priced = PlannedCollective(0, "all_reduce", "0", 8, 1, 4096, 12.5)
    plan = PlannedStep("j.job", "H200", "h200", 8, 10.0, 9.0, 11.0, 0.9, 8.0, 2.0, collectives=(priced,))
    keep_plan(tmp_path, plan)
    job = read_job(tmp_path)
    assert job.plan == plan and job.planned == (priced,) and job.stands_for == {0: 8}
    write_head(tmp_path, {"plan": {"subject": 7}})
    assert read_job(tmp_path).plan is None


def test_a_job_without_ranks_has_no_advice() -> None:
    assert advice_of(Job("j.job", None, 0, (), (), ())) is None


@pytest.mark.parametrize("change", [{"kind": (0,)}, {"label": (7, 0)}, {"source": (0, -1)}, {"step_start_ns": ()}])
def test_an_activity_whose_columns_do_not_fit_each_other_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"piece|step"):
        make_activity((0, 5, "forward_0#0"), (2, 5, "waits"), **change)


def test_advice_says_whose_step_its_share_is_of() -> None:
    advice = advice_of(planted())
    assert advice is not None and "of the median rank's step of" in advice
