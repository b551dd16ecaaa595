from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.factories import make_collective, make_run, make_step_call

from torchledger.planning.unlike_ranks import MOST_RUN, AlikeRanks, RankTraits, find_unlike_ranks, traits_of
from torchledger.store import LedgerWriter

Traits = Callable[[int], RankTraits]


def found_of(traits: Traits, world: int, *, in_order: bool = False) -> tuple[list[AlikeRanks], list[int]]:
    """The ranks that stand for a world, and those that were run for that, in their order."""
    ran = [0]

    def run(ranks: Sequence[int]) -> list[RankTraits]:
        ran.extend(ranks)
        return [traits(rank) for rank in ranks]

    return find_unlike_ranks(traits(0), run, world, in_order=in_order), ran


def staged(stage: int, stages: int, apart: int, rank: int, *, is_warmed_up: bool = True) -> RankTraits:
    """A stage of a pipeline; with ``is_warmed_up`` it does a round more before its turns than the stage behind it."""
    before, behind = stage > 0, stage < stages - 1
    peers = (*((rank - apart,) if before else ()), *((rank + apart,) if behind else ()))
    warm = stages - stage if is_warmed_up else 1
    round_ = (*[("recv", 64)] * before, *[("send", 64)] * behind)
    exchanges = (*round_ * warm, *round_[::-1] * (8 - warm))
    return RankTraits(peers, exchanges, (100 * len(exchanges), 1000 + 100 * (stage in (0, stages - 1))))


def ring(rank: int, world: int) -> RankTraits:
    peers = tuple(sorted({(rank + 1) % world, (rank - 1) % world}))
    return RankTraits(peers, (("send", world), ("recv", world)), (100, 1000))


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("is_warmed_up", [True, False])
def test_a_stage_of_each_rank_of_a_pipeline_written_by_hand_stands_for_its_neighbours(
    is_warmed_up: bool, in_order: bool
) -> None:
    found, ran = found_of(
        lambda rank: staged(rank // 16, 4, 16, rank, is_warmed_up=is_warmed_up), 64, in_order=in_order
    )
    assert [(each.rank, each.stands_for) for each in found] == [
        (first, tuple(range(first, first + 16))) for first in (0, 16, 32, 48)
    ]
    assert ran == [0, 16, 32, 48, *([] if in_order else [63])] and not any(each.guessed for each in found)


def test_a_pipeline_inside_its_replicas_is_found_once() -> None:
    found, ran = found_of(lambda rank: staged(rank // 2 % 4, 4, 2, rank), 512)
    assert [each.rank for each in found] == [0, 2, 4, 6] and len(ran) < 8
    assert found[1].stands_for[:5] == (2, 3, 10, 11, 18)


def test_one_rank_of_a_ring_stands_for_all_once_its_neighbours_and_the_last_are_like_it() -> None:
    found, ran = found_of(lambda rank: ring(rank, 64), 64)
    assert found == [AlikeRanks(0, tuple(range(64)))]
    assert ran == [0, 1, 63]


def test_rings_in_the_stages_of_a_pipeline_are_no_stages() -> None:
    def traits(rank: int) -> RankTraits:
        stage = staged(rank // 16, 4, 16, rank)
        around = (rank // 8 * 8 + (rank + 1) % 8, rank // 8 * 8 + (rank - 1) % 8)
        return replace(stage, peers=tuple(sorted((*stage.peers, *around))))

    found, ran = found_of(traits, 64)
    assert [each.rank for each in found] == [0, 16, 32, 48]
    assert ran == [0, 1, 7, 16, 32, 48, 63]


def test_the_border_of_ranks_that_do_something_else_is_found_by_halves() -> None:
    def traits(rank: int) -> RankTraits:
        return ring(rank, 64) if rank < 50 else RankTraits((), (("broadcast", 64),), (100, 5000))

    found, ran = found_of(traits, 64)
    assert [each.stands_for for each in found] == [tuple(range(50)), tuple(range(50, 63)), (63,)]
    assert len(ran) < MOST_RUN and not any(each.guessed for each in found)


@pytest.mark.parametrize("is_warmed_up", [True, False])
def test_of_a_long_pipeline_the_first_stages_and_the_last_two_are_run_and_the_others_are_guessed(
    is_warmed_up: bool,
) -> None:
    found, ran = found_of(lambda rank: staged(rank // 2, 32, 2, rank, is_warmed_up=is_warmed_up), 64)
    assert sorted(ran) == [*range(0, 28, 2), 60, 62] and len(ran) == MOST_RUN
    assert found[-3].rank == 26 and found[-3].guessed == tuple(range(27, 60))


def test_a_rank_that_sends_to_many_has_a_few_of_them_run() -> None:
    def traits(rank: int) -> RankTraits:
        peers = tuple(range(1, 256)) if rank == 0 else (0,)
        exchanges = (("send", 256),) * 255 if rank == 0 else (("recv", 256),)
        return RankTraits(peers, exchanges, (1, 1))

    found, ran = found_of(traits, 256)
    assert sorted(ran) == [0, 1, 2, 128, 255]
    assert {rank for each in found for rank in each.stands_for} == set(range(256))
    assert not any(each.guessed for each in found)


def test_a_rank_that_prints_is_like_those_that_do_not() -> None:
    found, _ = found_of(lambda rank: replace(ring(rank, 8), sums=(100, 1004 if rank == 0 else 1000)), 8)
    assert [each.rank for each in found] == [0]


def test_traits_are_a_step_s_exchanges_between_ranks_and_its_work(tmp_path: Path) -> None:
    path = tmp_path / "rank0.ledger"
    with LedgerWriter(path) as writer:
        writer.add(
            make_run(),
            make_step_call(order=0, device="cuda:0", flops=8, bytes_moved=4),
            make_step_call(order=1, kind="copy", device="cuda:0", flops=None, bytes_moved=16),
            make_collective(operation="send", name="c10d::send", group_size=4, ranks=(0, 2, 4, 6), peer=1),
            make_collective(order=1, operation="all_reduce", group_size=1, ranks=(0,)),
        )
    assert traits_of(path) == RankTraits((2,), (("send", 4),), (4096, 1, 8, 4))
