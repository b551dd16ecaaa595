"""Which collectives of different ranks are one."""

from __future__ import annotations

from tests.factories import make_collective

from torchledger.jobs.matching import match_collectives

PAIR = {"group_size": 2, "ranks": (0, 1)}


def test_the_same_place_in_a_group_is_one_collective_whatever_lies_between() -> None:
    ranks = {
        0: [make_collective(order=0, **PAIR), make_collective(order=1, group="9", group_size=1, ranks=(0,))],
        1: [make_collective(order=0, **PAIR)],
    }
    (found,) = match_collectives(ranks).collectives
    assert set(found) == {0, 1}


def test_groups_of_one_name_and_other_ranks_are_apart() -> None:
    ranks = {rank: [make_collective(group="2", group_size=2, ranks=(rank % 2, rank % 2 + 2))] for rank in range(4)}
    assert [sorted(found) for found in match_collectives(ranks).collectives] == [[0, 2], [1, 3]]


def test_a_send_belongs_to_its_receive_by_the_ranks_of_the_group() -> None:
    ranks = {
        4: [make_collective(operation="send", peer=1, group_size=2, ranks=(4, 6))],
        6: [make_collective(operation="recv", peer=0, group_size=2, ranks=(4, 6))],
    }
    (found,) = match_collectives(ranks).collectives
    assert found[4].operation == "send" and found[6].operation == "recv"


def test_numbers_of_the_group_decide_where_the_trace_holds_them() -> None:
    ranks = {0: [make_collective(sequence=7, **PAIR), make_collective(sequence=8, **PAIR)]} | {
        1: [make_collective(sequence=8, issued_ns=1, **PAIR)]
    }
    found = match_collectives(ranks)
    assert [members[1].sequence for members in found.collectives] == [8]
    assert sum(found.unmatched.values()) == 1


def test_ranks_that_began_to_record_a_step_apart_are_shifted_to_each_other() -> None:
    step = 1_000_000
    ranks = {
        0: [make_collective(index=index, issued_ns=step * index, **PAIR) for index in range(3)],
        1: [make_collective(index=index, issued_ns=step * (index + 1), **PAIR) for index in range(3)],
    }
    found = match_collectives(ranks, step_ns=step)
    assert len(found.collectives) == 2 and found.notes
    assert all(members[0].issued_ns == members[1].issued_ns for members in found.collectives)


def test_what_no_other_rank_recorded_is_counted_and_not_dropped() -> None:
    ranks = {0: [make_collective(**PAIR)], 1: []}
    found = match_collectives(ranks)
    assert not found.collectives and sum(found.unmatched.values()) == 1


def test_different_operations_at_one_place_are_no_collective() -> None:
    ranks = {0: [make_collective(**PAIR)], 1: [make_collective(operation="all_gather", **PAIR)]}
    assert sum(match_collectives(ranks).unmatched.values()) == 2
