"""Two jobs beside each other: what changed, on which rank, and in which launches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from factories import make_collective, make_run, make_step
from job_factories import write_job
from torchledger.answers import check_ranks, diff_jobs
from torchledger.cli import cli
from torchledger.errors import StoreError
from torchledger.nouns import DryRun, ValueStats
from torchledger.nouns.job_diff import JobDiff
from torchledger.reporting.job_diff import job_diff_document
from torchledger.reporting.terminal import render
from torchledger.store import LedgerWriter
from torchledger.store.job import ledgers_of_job


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("jobs")
    one = write_job(folder / "one.job")
    other = write_job(folder / "other.job", late_ms=50, launches=9, message_bytes=8192, peak=3000)
    return one, other


@pytest.fixture(scope="module")
def found(folders: tuple[Path, Path]) -> JobDiff:
    return diff_jobs(*folders)


def test_the_parts_of_a_step_say_on_which_rank_they_changed(found: JobDiff) -> None:
    by_part = {part.part: part for part in found.parts}
    sleeps, exposed = by_part["idle: sleeps"], by_part["exposed communication"]
    assert (sleeps.rank, sleeps.delta_us, sleeps.others_us) == (1, pytest.approx(50_000), (0, 0))
    assert (exposed.rank, exposed.delta_us, exposed.others_us) == (0, pytest.approx(50_000), (0, 0))
    assert by_part["compute"].delta_us == 0


def test_a_ranks_parts_add_up_to_the_change_of_its_step(found: JobDiff) -> None:
    for rank in found.ranks:
        parts = [rank.delta(name) or 0.0 for name in ("compute_us", "exposed_us", "idle_us")]
        assert sum(parts) == pytest.approx(rank.delta("wall_us"))


def test_a_new_straggler_and_other_messages_are_changes_and_memory_is_each_ranks(found: JobDiff) -> None:
    (straggler,) = found.stragglers
    assert (straggler.rank, straggler.first_us) == (1, 0)
    assert straggler.second_us == pytest.approx(50_000, rel=0.01)
    changed = [each for each in found.collectives if each.operation == "all_reduce"]
    assert {(each.message_bytes, each.first.count, each.second.count) for each in changed} == {
        (4096, 1, 0),
        (8192, 0, 1),
    }
    assert [rank.delta("peak_bytes") for rank in found.ranks] == [2000, 2000]


def test_launches_of_one_rank_are_aligned_too(found: JobDiff) -> None:
    assert found.launches is not None and found.launches_rank in (0, 1)
    assert any(group.kind == "only second" for group in found.launches.groups)


def test_a_job_does_not_differ_from_itself(folders: tuple[Path, Path]) -> None:
    same = diff_jobs(folders[1], folders[1])
    assert all(part.delta_us == 0 for part in same.parts)
    assert all(each.first == each.second for each in same.collectives)


def test_ranks_of_one_job_alone_are_named(folders: tuple[Path, Path], tmp_path: Path) -> None:
    three = diff_jobs(folders[0], write_job(tmp_path / "three.job", ranks=3))
    assert any("rank 2" in note for note in three.notes)
    assert three.ranks[2].first is None and three.ranks[2].delta("wall_us") is None


def test_the_command_says_it_in_words_and_in_json(folders: tuple[Path, Path]) -> None:
    words = ["diff", *map(str, folders)]
    said = CliRunner().invoke(cli, words)
    assert said.exit_code == 0, said.output
    assert "Idle: sleeps: +50.0 ms on rank 1, 0.00 us on rank 0." in said.stdout
    assert "Rank 1 now keeps others waiting for 50.0 ms" in said.stdout
    plain = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)
    assert plain["ranks"][1]["delta_idle_us"] == pytest.approx(50_000)
    assert plain["launches"]["groups"]


def test_a_limit_holds_of_jobs_where_it_holds_on_every_rank(folders: tuple[Path, Path]) -> None:
    one, other = map(str, folders)
    assert [bool(check.failed) for check in check_ranks(one, other, ["launches > +0"]).values()] == [True, True]
    assert CliRunner().invoke(cli, ["diff", one, other, "--fail-if", "launches > +0"]).exit_code == 3
    plain = CliRunner().invoke(cli, ["diff", one, one, "--fail-if", "launches > +0", "--json"])
    assert plain.exit_code == 0 and set(json.loads(plain.stdout)["ranks"]) == {"rank0.ledger", "rank1.ledger"}


def test_values_of_jobs_are_compared_rank_by_rank(folders: tuple[Path, Path]) -> None:
    for number, folder in enumerate(folders):
        for rank, path in ledgers_of_job(folder).items():
            with LedgerWriter(path, append=True) as writer:
                writer.add(ValueStats("forward_0#0", 0, "buf0", "after", "float32", (2,), mean=1.0 + number * rank))
    words = ["diff", "--values", *map(str, folders)]
    ranks = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)["ranks"]
    assert [len(ranks[f"rank{rank}.ledger"]["apart"]) for rank in (0, 1)] == [0, 1]
    said = CliRunner().invoke(cli, words).stdout
    assert "No tensor differs" in said and said.count("They part at") == 1


@pytest.mark.parametrize("command", [("report", 2, "-o", "page.html"), ("values", 1), ("bench", 1)])
def test_where_one_rank_stands_for_a_job_it_is_said_which(
    command: tuple[object, ...], folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, count, *options = command
    said = CliRunner().invoke(cli, [str(name), *map(str, folders[: int(str(count))]), *map(str, options)]).stderr
    assert said.count("is a job of 2 ranks, this is rank0.ledger") == count
    assert f"name its ledger: {folders[0] / 'rank1.ledger'}" in said


def test_what_is_no_job_is_refused_by_name(folders: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a job"):
        diff_jobs(folders[0], tmp_path / "nothing")


def test_a_planned_job_has_no_ranks_that_were_measured_and_says_so(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "rank0.ledger") as writer:
        writer.add(make_run(world_size=8), make_step(plain_us=()), DryRun("NVIDIA H200"), make_collective())
    diff = diff_jobs(tmp_path, tmp_path)
    assert diff.notes[0].startswith(f"nothing of {tmp_path} was measured, as it is a plan")
    text = render(job_diff_document(diff))
    assert "as it is a plan" in " ".join(text.split()) and "0 -> 0" not in text
