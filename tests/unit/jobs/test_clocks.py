"""The ranks' clocks on one, by what their collectives allow."""

from __future__ import annotations

from tests.factories import make_collective

from torchledger.jobs.clocks import align_clocks


def test_a_clock_that_is_ahead_is_found_within_its_own_error() -> None:
    matched = [
        {
            0: make_collective(issued_ns=start, ended_ns=start + 2_000),
            1: make_collective(issued_ns=start + 5_000_000 + late, ended_ns=start + 5_000_000 + 2_000),
        }
        for start, late in ((0, 1_500), (1_000_000, 0), (2_000_000, 700))
    ]
    found = align_clocks(matched, [0, 1], {0: "here", 1: "there"})
    error = found.error_ns[1]
    assert found.is_consistent and error is not None and error <= 2_000
    assert abs(found.offset_ns[1] + 5_000_000) <= error


def test_ranks_of_one_host_share_its_clock_as_far_as_collectives_let_them() -> None:
    matched = [{0: make_collective(issued_ns=0, ended_ns=100), 1: make_collective(issued_ns=90, ended_ns=500)}]
    assert align_clocks(matched, [0, 1], {0: "here", 1: "here"}).offset_ns[1] == 0
    assert align_clocks(matched, [0, 1], {0: "here", 1: "there"}).offset_ns[1] != 0


def test_sends_bound_a_clock_from_both_sides_once_both_ranks_send() -> None:
    there = {
        0: make_collective(operation="send", issued_ns=0, ended_ns=10),
        1: make_collective(operation="recv", issued_ns=0, ended_ns=50),
    }
    back = {
        1: make_collective(operation="send", issued_ns=100, ended_ns=110),
        0: make_collective(operation="recv", issued_ns=90, ended_ns=130),
    }
    assert align_clocks([there], [0, 1], {}).error_ns[1] is None
    assert align_clocks([there, back], [0, 1], {}).error_ns[1] is not None


def test_a_third_rank_carries_a_bound_between_two_that_never_meet() -> None:
    pairs = [{0: make_collective(), 1: make_collective()}, {1: make_collective(), 2: make_collective()}]
    assert align_clocks(pairs, [0, 1, 2], {}).error_ns[2] is not None


def test_collectives_that_contradict_each_other_are_told() -> None:
    matched = [
        {0: make_collective(issued_ns=0), 1: make_collective(issued_ns=0)},
        {0: make_collective(issued_ns=0), 1: make_collective(issued_ns=9_000_000)},
    ]
    assert not align_clocks(matched, [0, 1], {}).is_consistent


def test_a_send_of_a_host_may_be_under_way_before_its_range_begins() -> None:
    send = make_collective(operation="send", issued_ns=0, started_ns=900, ended_ns=1_000)
    matched = [
        {0: send, 1: make_collective(operation="recv", issued_ns=0, started_ns=10, ended_ns=500)},
        {1: send, 0: make_collective(operation="recv", issued_ns=0, started_ns=10, ended_ns=500)},
    ]
    assert align_clocks(matched, [0, 1], {}, on_device={0: False, 1: False}).is_consistent
    assert not align_clocks(matched, [0, 1], {}, on_device={0: True, 1: True}).is_consistent


def test_the_clock_of_one_host_is_known_better_than_its_collectives_bound_it() -> None:
    matched = [
        {0: make_collective(issued_ns=0, ended_ns=9_000_000), 1: make_collective(issued_ns=0, ended_ns=9_000_000)}
    ]
    assert align_clocks(matched, [0, 1], {0: "here", 1: "here"}).error_ns == {0: 0, 1: 20_000}
    for name in ("localhost", None):
        apart = align_clocks(matched, [0, 1], {0: name, 1: name}).error_ns[1]
        assert apart is not None and apart > 1_000_000
