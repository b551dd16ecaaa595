"""The page of a job."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from tests.factories import make_activity, make_collective

from torchledger.jobs.read import RankRecord, job_of_ranks
from torchledger.jobs.waits import pieces_of
from torchledger.nouns import Job
from torchledger.reporting.html_job import job_data, job_page
from torchledger.reporting.job import job_as_plain, job_document, ranks_to_show

MS = 1_000_000


def rank_record(rank: int, ranks: int) -> RankRecord:
    activity = make_activity((0, (1 + rank % 3) * MS, "</script>#0"), (1, (4 - rank % 3) * MS, "all_reduce"))
    everyone = tuple(range(ranks))
    collective = make_collective(issued_ns=(1 + rank % 3) * MS, ended_ns=5 * MS, ranks=everyone, group_size=ranks)
    return RankRecord(rank, f"rank{rank}.ledger", activity=activity, collectives=(collective,), world_size=ranks)


def records_and_job(ranks: int) -> tuple[list[RankRecord], Job]:
    records = [rank_record(rank, ranks) for rank in range(ranks)]
    return records, job_of_ranks(records, path="j.job")


def test_the_page_holds_every_rank_and_what_a_trace_names_stays_text() -> None:
    records, job = records_and_job(4)
    pieces = {each.rank: pieces_of(each.activity, 0) for each in records if each.activity is not None}
    page = job_page(job, pieces)
    held = re.search(r'id="data">(.*?)</script>', page, re.S)
    assert held is not None
    data = json.loads(held[1])
    assert [row["rank"] for row in data["rows"]] == [0, 1, 2, 3]
    assert "</script>#0" in data["texts"]
    assert len(data["matches"]) == 1
    assert not re.search(r"https?://", page)
    assert '<meta name="viewport"' in page and "prefers-color-scheme: dark" in page


def test_of_many_ranks_those_others_wait_for_and_those_around_the_median_are_drawn() -> None:
    records, job = records_and_job(512)
    pieces = {each.rank: pieces_of(each.activity, 0) for each in records if each.activity is not None}
    shown = ranks_to_show(job)
    assert len(shown) == len(job_data(job, pieces)["rows"]) == 16
    assert shown[0].exposed_us == min(rank.exposed_us for rank in job.ranks)
    assert "512" in str(job_document(job))


def test_json_has_a_list_a_step_with_sums_over_alike_collectives() -> None:
    _, job = records_and_job(4)
    plain = job_as_plain(job)
    ((row,),) = plain["collectives"]
    assert (row["operation"], row["group_size"], row["bytes"], row["count"]) == ("all_reduce", 4, 4096, 1)
    assert row["duration_us"] == (4000 + 3000 + 2000 + 4000) / 4
    assert row["waiting_us"] == (2000 + 1000 + 0 + 2000) / 4
    assert {"ranks", "collectives", "stragglers", "exposed_us"} <= set(plain)


def test_waiting_without_one_place_to_blame_is_said_and_little_waiting_is_not() -> None:
    _, job = records_and_job(4)
    nobody = replace(job, stragglers=())
    assert max(rank.waiting_us for rank in job.ranks) > 0
    assert "all the same" in str(job_document(nobody))
    at_once = replace(nobody, ranks=tuple(replace(rank, waiting_us=0.0) for rank in job.ranks))
    said = str(job_document(at_once))
    assert "No place of a rank's own work" in said and "all the same" not in said
