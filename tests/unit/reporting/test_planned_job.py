"""A job of planned ranks."""

from __future__ import annotations

from torchledger.nouns import Job, PlannedCollective, PlannedRank, PlannedStep
from torchledger.reporting.document import Facts, Table
from torchledger.reporting.job import job_as_plain, job_document
from torchledger.reporting.plan import plan_as_plain, plan_document
from torchledger.reporting.planned_job import ranks_in_words

REDUCED = PlannedCollective(0, "all_reduce", "0", 8, 2, 33_000_000, 232.0)
GATHERED = PlannedCollective(0, "all_gather", "0", 8, 4, 1_000, None)


def _plan(*ranks: PlannedRank, bubble_us: float = 0.0) -> PlannedStep:
    return PlannedStep(
        *("step", "H200", "h200", 8, 3_000.0, 1_000.0, 5_000.0, 0.9, 900.0, 2_900.0),
        communication_us=240.0,
        exposed_us=200.0,
        bubble_us=bubble_us,
        ranks=ranks,
        collectives=(REDUCED, GATHERED),
    )


def test_collectives_of_planned_ranks_are_shown_with_their_price_the_dearest_first() -> None:
    plan = _plan(PlannedRank(0, 700.0, 240.0, 200.0, 0.0, 2_900.0, stands_for=8))
    job = Job("j.job", 8, 0, (), (), (), planned=(GATHERED, REDUCED), stands_for={0: 8}, plan=plan)
    head, ranks, collectives = job_document(job).sections
    (facts,) = (block for block in head.blocks if isinstance(block, Facts))
    assert facts.rows[0] == ("ranks", "8, of which 1 was planned: rank 0 stands for all 8")
    (table,) = (block for block in ranks.blocks if isinstance(block, Table))
    assert "bubble_us" not in {column.key for column in table.columns}
    (table,) = (block for block in collectives.blocks if isinstance(block, Table))
    assert table.rows == (
        ("rank 0", "all_reduce", 8, 2, 33_000_000, 232.0),
        ("rank 0", "all_gather", 8, 4, 1_000, None),
    )
    assert job_as_plain(job)["planned"][1]["us"] == 232.0


def test_a_planned_job_without_a_kept_price_says_where_it_comes_from() -> None:
    job = Job("j.job", 8, 0, (), (), (), planned=(GATHERED,), stands_for={0: 8})
    (facts,) = (block for block in job_document(job).sections[0].blocks if isinstance(block, Facts))
    assert "torchledger plan" in dict(facts.rows)["step"]


def test_ranks_that_stand_for_equally_many_are_one_sentence() -> None:
    assert ranks_in_words(Job("j", 8, 0, (), (), (), stands_for={0: 4, 4: 4})) == (
        "8, of which 2 were planned, each standing for 4"
    )
    assert ranks_in_words(Job("j", 2, 0, (), (), (), stands_for={0: 1, 1: 1})) == "2, all of them planned"


def test_a_plan_lists_its_collectives_and_says_how_long_stages_wait() -> None:
    plain = plan_as_plain(_plan(bubble_us=40.0))["communication"]
    assert (plain["total_us"], plain["exposed_us"], plain["bubble_us"]) == (240.0, 200.0, 40.0)
    assert plain["collectives"][0] == {
        "rank": 0,
        "operation": "all_reduce",
        "group": "0",
        "group_size": 8,
        "count": 2,
        "bytes": 33_000_000,
        "us": 232.0,
    }
    (facts,) = (block for block in plan_document(_plan(bubble_us=40.0)).sections[0].blocks if isinstance(block, Facts))
    assert dict(facts.rows)["bubble"].startswith("40.0 us")
    (facts,) = (block for block in plan_document(_plan()).sections[0].blocks if isinstance(block, Facts))
    assert "bubble" not in dict(facts.rows)
