import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.factories import make_collective, make_device, make_run, make_step_call

from torchledger.errors import PlanError, UsageError
from torchledger.nouns import DryRun, MadeGroup, WorldSpec
from torchledger.planning import plan, world
from torchledger.planning.turns import Turn
from torchledger.planning.turns_of_messages import Beginning, TurnOfMessages
from torchledger.planning.world import How, RecordedRank, Script, program_of, record_ranks, world_of
from torchledger.stepping.communication import PIPELINE
from torchledger.store import LedgerWriter
from torchledger.work.stage_mail import StageReader, stage_mail


def write_rank(path: Path, spec: WorldSpec, pipeline: tuple[int, ...] = (), by: str | None = PIPELINE) -> Path:
    groups = (MadeGroup("0", tuple(range(spec.size))), *([MadeGroup("1", pipeline)] if pipeline else []))
    send = make_collective(operation="send", group="1", ranks=pipeline, peer=1, call=1, launched_by=by)
    calls = [make_step_call(order=0), make_step_call(order=1, kind="collective", name="c10d::send", waits_for=(0,))]
    with LedgerWriter(path, force=True) as writer:
        writer.add(make_run(), DryRun("H200", world=spec, groups=groups), *calls, *([send] if pipeline else []))
    return path


def test_a_mesh_that_does_not_divide_the_world_is_told_the_nearest_world_that_it_divides() -> None:
    with pytest.raises(
        UsageError, match=r"of 32 ranks, which do not divide a world of 60\. .* --world 32 or --world 64\."
    ):
        world_of(60, "dp=4,tp=8")


def test_a_mesh_without_a_world_is_the_world() -> None:
    assert (world_of(None, "pp=2,tp=8"), world_of(64, "tp=8"), world_of(None, None)) == (16, 64, 1)


def test_a_rank_outside_the_world_is_told_the_ranks_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--rank is 0 to 7\."):
        record_ranks(Script(__file__), tmp_path / "j.job", make_device(), 8, rank=8)


def test_one_rank_of_each_stage_is_recorded_and_stands_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(*given: Any, how: How | None = None) -> list[Path]:
        *_, folder, _, ranks, _ = given
        return [write_rank(folder / f"{each.rank}.ledger", each, pipeline=(0, 4)) for each in ranks]

    monkeypatch.setattr(world, "_record", record)
    found = record_ranks(Script(__file__), tmp_path / "j.job", make_device(), 8)
    assert [(each.rank, each.stands_for) for each in found] == [(0, (0, 1, 2, 3)), (4, (4, 5, 6, 7))]
    head = json.loads((tmp_path / "j.job" / "job.json").read_text())
    assert head["world_size"] == 8 and head["stands_for"]["4"] == [4, 5, 6, 7]


def test_a_pipeline_that_does_not_divide_the_world_is_told_the_nearest_world_that_it_divides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(*given: Any, how: How | None = None) -> list[Path]:
        *_, folder, _, ranks, _ = given
        return [write_rank(folder / f"{each.rank}.ledger", each, pipeline=(0, 1, 2, 3)) for each in ranks]

    monkeypatch.setattr(world, "_record", record)
    said = r"rank 0's pipeline \(ranks 0, 1, 2, 3\) is of 4 ranks, .* a world of 6\. .* --world 4 or --world 8\."
    with pytest.raises(UsageError, match=said):
        record_ranks(Script(__file__), tmp_path / "j.job", make_device(), 6)
    assert record_ranks(Script(__file__), tmp_path / "k.job", make_device(), 6, rank=0)[0].rank == 0


@pytest.mark.parametrize("is_steady", [True, False])
def test_further_ranks_look_on_for_rarer_steps_where_the_first_has_not_done_so_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_steady: bool
) -> None:
    looked: dict[int, bool] = {}

    def record(*given: Any, how: How | None = None) -> list[Path]:
        *_, folder, _, ranks, _ = given
        looked.update((each.rank, how is None or how.looks_for_rarer) for each in ranks)
        if ranks[0].rank == 0 and is_steady:
            world._steady(ranks[0]).touch()
        return [write_rank(folder / f"{each.rank}.ledger", each, pipeline=(0, 4)) for each in ranks]

    monkeypatch.setattr(world, "_record", record)
    record_ranks(Script(__file__), tmp_path / "j.job", make_device(), 8)
    assert looked == {0: True, 4: not is_steady}


@pytest.mark.parametrize("is_alike", [True, False])
def test_ranks_take_the_turn_of_a_loop_for_their_step_that_the_first_has_found_or_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_alike: bool
) -> None:
    turn = Turn("train.py:9", "train.py:11", 4)
    asked: list[tuple[int, bool, Any]] = []

    def record(*given: Any, how: How | None = None) -> list[Path]:
        *_, folder, _, ranks, _ = given
        how = how or How()
        for each in ranks:
            asked.append((each.rank, how.looks_for_turns, how.turn))
            if how.looks_for_turns and (is_alike or each.rank == 0):
                world._turn_file(each).write_text(json.dumps(asdict(turn)))
        return [write_rank(folder / f"{each.rank}.ledger", each, pipeline=(0, 4)) for each in ranks]

    monkeypatch.setattr(world, "_record", record)
    record_ranks(Script(__file__), tmp_path / "j.job", make_device(), 8)
    again = [] if is_alike else [(0, False, None), (4, False, None)]
    assert asked == [(0, True, None), (4, True, turn), *again]


@pytest.mark.parametrize("is_alike", [True, False])
def test_ranks_begin_their_steps_with_the_message_that_the_first_begins_its_own_with_or_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_alike: bool
) -> None:
    turn = TurnOfMessages(0, (Beginning(4, "recv", 3, 0),))
    asked: list[tuple[int, bool, Any]] = []

    def record(*given: Any, how: How | None = None) -> list[Path]:
        *_, folder, _, ranks, _ = given
        how = how or How()
        for each in ranks:
            told = how.turn_of(each.rank)
            asked.append((each.rank, how.looks_for_turns, told))
            if how.looks_for_turns and (is_alike or each.rank == 0):
                world._turn_file(each).write_text(json.dumps(asdict(told or turn)))
        return [write_rank(folder / f"{each.rank}.ledger", each, pipeline=(0, 4)) for each in ranks]

    monkeypatch.setattr(world, "_record", record)
    record_ranks(Script(__file__), tmp_path / "j.job", make_device(), 8)
    again = [] if is_alike else [(0, False, None), (4, False, None)]
    other = TurnOfMessages(4, (Beginning(0, "send", 3, 0),))
    assert asked == [(0, True, None), (4, True, other), *again]


def test_one_rank_stands_for_all_where_there_is_no_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(*given: Any, how: How | None = None) -> list[Path]:
        *_, folder, _, ranks, _ = given
        return [write_rank(folder / f"{each.rank}.ledger", each) for each in ranks]

    monkeypatch.setattr(world, "_record", record)
    (found,) = record_ranks(Script(__file__), tmp_path / "j.job", make_device(), 4)
    assert found.stands_for == (0, 1, 2, 3)


def test_ranks_that_send_messages_by_hand_and_do_the_same_leave_one_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(*given: Any, how: How | None = None) -> list[Path]:
        *_, folder, _, ranks, _ = given
        asked.extend(each.rank for each in ranks)
        return [write_rank(folder / f"{each.rank}.ledger", each, tuple(range(8)), by=None) for each in ranks]

    asked: list[int] = []
    monkeypatch.setattr(world, "_record", record)
    (found,) = record_ranks(Script(__file__), tmp_path / "j.job", make_device(), 8)
    assert (found.rank, found.stands_for, asked) == (0, tuple(range(8)), [0, 1, 7])
    assert [path.name for path in (tmp_path / "j.job").glob("*.ledger")] == ["0.ledger"]


def test_stages_of_a_long_pipeline_that_were_not_run_are_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(*given: Any, how: How | None = None) -> list[Path]:
        *_, folder, _, ranks, _ = given
        return [write_rank(folder / f"{each.rank}.ledger", each, tuple(range(0, 36, 2))) for each in ranks]

    monkeypatch.setattr(world, "_record", record)
    found = record_ranks(Script(__file__), tmp_path / "j.job", make_device(), 36)
    assert [(each.rank, each.guessed) for each in found if each.guessed] == [(26, (28, 29, 30, 31))]
    (note,) = plan._of_guessed_ranks(found)
    assert note.startswith("4 of the ranks from 28 to 31 may do something else than the ones that stand for them")


def test_a_rank_that_fails_is_named_with_its_reason(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(PlanError, match=r"^rank 0 of 2: "):
        record_ranks(Script(str(script)), tmp_path / "j.job", make_device(name="no GPU", kind="cuda"), 2)


def test_a_recorded_rank_is_priced_by_its_own_waits_groups_and_peers(tmp_path: Path) -> None:
    path = write_rank(tmp_path / "rank0.ledger", WorldSpec(0, 8), pipeline=(0, 4))
    found = program_of(RecordedRank(0, path, (0, 1, 2, 3)), make_device())
    assert (found.groups["1"], found.peers, found.waits) == ((0, 4), {1: 4}, {1: (0,)})
    assert found.knows_waits and found.stands_for == (0, 1, 2, 3)


@pytest.mark.parametrize("fails", [True, False])
def test_a_rank_that_took_shapes_for_those_of_a_later_one_is_recorded_again_when_that_has_told_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Ranks 0 and 4 have two stages each: 0 and 2, 1 and 3. The second one is told by rank 4's first."""
    sent = {stage: [{"shape": [2, width]}] for stage, width in enumerate((8, 16, 16, 16))}
    asked: list[int] = []

    def record(*given: Any, how: world.How | None = None) -> list[Path]:
        *_, folder, _, ranks, _ = given
        for each in ranks:
            asked.append(each.rank)
            first, mail = each.rank // 4, Path(each.mail)
            told = stage_mail(mail)
            read = {
                stage: told.get(stage, sent[0])
                for stage in ((1,) if first == 0 else (0, 2))
                if stage <= max(told, default=1)
            }
            StageReader((0, 4), read).write(mail, each.rank)
            (mail / f"stage_{first}.json").write_text(json.dumps(sent[first]))
            if fails and any(tensors != sent[stage] for stage, tensors in read.items()):
                raise PlanError(f"rank {each.rank} of 8: the shapes do not fit")
            (mail / f"stage_{first + 2}.json").write_text(json.dumps(sent[first + 2]))
        return [write_rank(folder / f"{each.rank}.ledger", each, pipeline=(0, 4)) for each in ranks]

    monkeypatch.setattr(world, "_record", record)
    found = record_ranks(Script(__file__), tmp_path / "j.job", make_device(), 8)
    assert [each.rank for each in found] == [0, 4]
    assert asked[:3] == [0, 4, 0]


def test_a_rank_that_fails_with_shapes_that_nobody_tells_otherwise_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(*given: Any, how: world.How | None = None) -> list[Path]:
        (spec,) = given[-2]
        StageReader((0, 4), {1: [{"shape": [2, 8]}]}).write(Path(spec.mail), spec.rank)
        raise PlanError(f"rank {spec.rank} of 8: it fails")

    monkeypatch.setattr(world, "_record", record)
    with pytest.raises(PlanError, match=r"^rank 0 of 8: it fails"):
        record_ranks(Script(__file__), tmp_path / "j.job", make_device(), 8)
