"""Entries played on streams: what must hold of any timeline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchledger.errors import PredictError
from torchledger.planning.timeline import Rounds, Sharing, TimedEntry, play


def kernel(duration_us: float, **fields: object) -> TimedEntry:
    return TimedEntry("kernel", "compute", duration_us, **fields)  # type: ignore[arg-type]


def collective(duration_us: float, **fields: object) -> TimedEntry:
    return TimedEntry("all_reduce", "communication", duration_us, stream="nccl", **fields)  # type: ignore[arg-type]


def test_kernels_of_one_stream_add_up() -> None:
    played = play({0: [kernel(3), kernel(4)]})
    assert played.duration_us == 7
    assert played.decided_by == {"compute": 7}


def test_a_collective_beside_kernels_is_hidden_and_one_that_is_waited_for_is_exposed() -> None:
    hidden = play({0: [kernel(1), collective(5, after=(0,)), kernel(9)]})
    assert hidden.duration_us == 10
    assert hidden.ranks[0].exposed_us == 0
    exposed = play({0: [kernel(1), collective(5, after=(0,)), kernel(9, after=(1,))]})
    assert exposed.duration_us == 15
    assert exposed.ranks[0].exposed_us == 5
    assert exposed.decided_by == {"compute": 10, "communication": 5}


def test_a_collective_starts_when_the_last_rank_arrives() -> None:
    def rank(before: float) -> list[TimedEntry]:
        return [kernel(before), collective(5, after=(0,), meets=("all_reduce", (0, 1), 1)), kernel(1, after=(1,))]

    played = play({0: rank(2), 1: rank(10)})
    assert played.duration_us == 16
    waiting, last = played.ranks[0].entries[1], played.ranks[1].entries[1]
    assert (waiting.ready_us, waiting.start_us, last.start_us) == (2, 10, 10)
    assert (played.ranks[0].bubble_us, played.ranks[1].bubble_us) == (8, 0)
    assert [line.communication_us for line in played.ranks.values()] == [5, 5]
    assert [line.held_us for line in played.ranks.values()] == [13, 5]
    assert played.decided_by == {"compute": 11, "communication": 5}


def test_a_host_that_launches_slowly_decides() -> None:
    played = play({0: [kernel(1, host_us=10), kernel(1, host_us=10)]})
    assert played.duration_us == 21
    assert played.decided_by == {"host": 20, "compute": 1}


def test_a_host_that_waits_for_the_device_launches_after_it() -> None:
    played = play({0: [kernel(50, host_us=1), kernel(5, host_us=2, host_after=(0,))]})
    assert played.duration_us == 58
    assert played.decided_by == {"compute": 55, "host": 3}


def test_kernel_and_collective_are_slower_for_as_long_as_they_are_beside_each_other() -> None:
    sharing = Sharing({"other": 1.25}, {"other": 2.0})
    played = play({0: [collective(4), kernel(20)]}, sharing=sharing)
    # Eight microseconds beside each other do 6.4 of the kernel's; the rest goes on alone.
    assert played.ranks[0].entries[0].end_us == pytest.approx(8)
    assert played.ranks[0].entries[1].end_us == pytest.approx(8 + 20 - 6.4)


def test_what_waits_for_a_rank_that_never_comes_is_named() -> None:
    ranks = {
        0: [collective(1, meets=("all_reduce", (0, 1), 1))],
        1: [collective(1, meets=("all_reduce", (0, 1), 1), after=(0,))],
    }
    with pytest.raises(PredictError, match=r"all_reduce of rank . never starts"):
        play(ranks)


def test_waiting_for_another_stage_is_a_bubble_and_moving_is_communication() -> None:
    receive = TimedEntry("recv", "communication", 1, stream="pipe", meets=("pair", 0, 1, 1), is_message=True)
    send = TimedEntry("send", "communication", 1, stream="pipe", meets=("pair", 0, 1, 1), after=(0,), is_message=True)
    played = play({0: [kernel(9), send], 1: [receive, kernel(4, after=(0,))]})
    assert played.duration_us == 14
    assert played.ranks[1].bubble_us == 9
    assert played.ranks[1].communication_us == played.ranks[1].exposed_us == 1


def test_waiting_for_a_longer_stage_in_the_last_collective_is_a_bubble() -> None:
    def stage(long_us: float) -> list[TimedEntry]:
        norm = collective(2, after=(0,), meets=("all_reduce", (0, 1), 1))
        return [kernel(long_us), norm, kernel(1, after=(1,))]

    played = play({0: stage(40), 1: stage(15)})
    assert [(line.exposed_us, line.bubble_us) for line in played.ranks.values()] == [(2, 0), (2, 25)]


def messages(count: int, whole_us: float = 12.0, latency_us: float = 1.0, port: str = "out") -> list[TimedEntry]:
    """One message, cut into so many that are sent together."""
    moving_us = (whole_us - latency_us) / count
    one = TimedEntry("isend", "communication", latency_us + moving_us, is_message=True, port=port)
    one = replace(one, port_share=moving_us / one.duration_us)
    return [replace(one, stream=f"{port} #{number}") for number in range(count)]


@pytest.mark.parametrize("count", [1, 2, 8])
def test_a_message_that_is_cut_into_several_takes_as_long(count: int) -> None:
    assert play({0: messages(count)}).duration_us == pytest.approx(12)


def test_messages_out_and_in_run_at_once() -> None:
    assert play({0: [*messages(2), *messages(2, port="in")]}).duration_us == pytest.approx(12)


def test_messages_to_several_ranks_share_the_sender_and_those_from_several_the_receiver() -> None:
    def sent(source: int, target: int, port: str) -> TimedEntry:
        (one,) = messages(1, latency_us=0, port=port)
        return replace(one, stream=f"{source} {target}", meets=("pair", source, target, 1))

    both_to_one = {0: [sent(0, 2, "out")], 1: [sent(1, 2, "out")], 2: [sent(0, 2, "in"), sent(1, 2, "in")]}
    one_to_both = {0: [sent(0, 1, "out"), sent(0, 2, "out")], 1: [sent(0, 1, "in")], 2: [sent(0, 2, "in")]}
    apart = {0: [sent(0, 1, "out")], 1: [sent(0, 1, "in"), sent(1, 2, "out")], 2: [sent(1, 2, "in")]}
    assert [play(ranks).duration_us for ranks in (both_to_one, one_to_both, apart)] == [24, 24, 12]


def test_a_message_that_waits_for_its_rank_leaves_the_links_to_others() -> None:
    (waiting,) = messages(1, latency_us=0)
    waiting = replace(waiting, stream="waits", meets=("pair", 0, 1, 1))
    received = replace(waiting, port="in", after=(0,))
    played = play({0: [waiting, *messages(1)], 1: [kernel(50), received]})
    assert played.ranks[0].entries[1].end_us == 12
    assert played.duration_us == 62


def pipeline(stages: int, micro_batches: int) -> dict[int, list[TimedEntry]]:
    """All forwards, then all backwards that take twice as long, of equal stages."""
    ranks: dict[int, list[TimedEntry]] = {stage: [] for stage in range(stages)}

    def message(sender: int, receiver: int, what: str, number: int) -> dict[str, object]:
        return {"meets": (what, sender, receiver, number), "is_message": True}

    for what, duration_us, way in (("forward", 1.0, 1), ("backward", 2.0, -1)):
        for stage, entries in ranks.items():
            for number in range(micro_batches):
                after: tuple[int, ...] = ()
                if 0 <= stage - way < stages:
                    entries.append(collective(0, **message(stage - way, stage, what, number)))
                    after = (len(entries) - 1,)
                entries.append(kernel(duration_us, after=after))
                if 0 <= stage + way < stages:
                    sent = collective(0, after=(len(entries) - 1,), **message(stage, stage + way, what, number))
                    entries.append(replace(sent, stream="sends"))
    return ranks


@pytest.mark.parametrize(("stages", "micro_batches"), [(4, 8), (2, 2), (8, 4)])
def test_the_bubble_of_equal_stages_is_that_of_textbooks_on_every_rank(stages: int, micro_batches: int) -> None:
    played = play(pipeline(stages, micro_batches))
    assert played.duration_us == 3 * (micro_batches + stages - 1)
    assert {line.bubble_us for line in played.ranks.values()} == {3 * (stages - 1)}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.floats(0, 50), st.floats(0, 5), st.booleans()),
        min_size=1,
        max_size=25,
    ),
    st.floats(1, 2),
)
def test_no_timeline_is_shorter_than_its_busiest_stream_or_longer_than_all_in_a_row(
    given_entries: list[tuple[bool, float, float, bool]], slowdown: float
) -> None:
    entries: list[TimedEntry] = []
    for is_kernel, duration_us, host_us, waits in given_entries:
        after = (len(entries) - 1,) if waits and entries else ()
        make = kernel if is_kernel else collective
        entries.append(make(duration_us, host_us=host_us, after=after))
    played = play({0: entries}, sharing=Sharing({"other": slowdown}, {"other": slowdown}))
    by_stream = [sum(e.duration_us for e in entries if e.stream == s) for s in ("compute", "nccl")]
    in_a_row = slowdown * sum(e.duration_us for e in entries) + sum(e.host_us for e in entries)
    assert max(by_stream) - 1e-6 <= played.duration_us <= in_a_row + 1e-6
    assert sum(played.decided_by.values()) == pytest.approx(played.duration_us, abs=1e-6)
    line = played.ranks[0]
    assert line.compute_us + line.exposed_us <= played.duration_us + 1e-6


FULL = Rounds(alone=1, beside=2)


def test_a_product_on_every_multiprocessor_lets_no_collective_begin() -> None:
    played = play({0: [kernel(1), kernel(10, rounds=FULL), kernel(3, rounds=FULL), collective(4, after=(0,))]})
    first, second, moving = played.ranks[0].entries[1:]
    assert (first.end_us, moving.start_us, second.start_us) == (11, 11, 11)
    assert second.end_us == 11 + 2 * 3  # its late blocks begin behind the others, before the collective ends


def test_a_collective_that_waits_for_another_rank_slows_the_kernels_beside_it() -> None:
    def entries(late_us: float) -> list[TimedEntry]:
        return [kernel(late_us), collective(1, after=(0,), meets=("all",)), kernel(10)]

    sharing = Sharing({"other": 1.5}, {"other": 1.0})
    early, late = (play({0: entries(1), 1: entries(late_us)}, sharing=sharing).ranks[0] for late_us in (1, 7))
    assert early.entries[2].end_us == pytest.approx(1 + 1 + (10 - 1 / 1.5))
    assert late.entries[1].start_us == 7
    assert late.entries[2].end_us == pytest.approx(1 + 7 + (10 - 7 / 1.5))


def test_a_message_that_waits_for_its_stage_slows_the_kernels_beside_it() -> None:
    def entries(late_us: float) -> list[TimedEntry]:
        moving = collective(1, after=(0,), meets=("pair", 0, 1))
        return [kernel(late_us), replace(moving, is_message=True), kernel(10)]

    sharing = Sharing({"other": 1.5}, {"other": 1.0})
    line = play({0: entries(1), 1: entries(50)}, sharing=sharing).ranks[0]
    assert line.entries[2].end_us == pytest.approx(1 + 1.5 * 10)


def test_blocks_that_a_collective_kept_out_take_a_round_of_their_own() -> None:
    long = play({0: [collective(100), kernel(10, rounds=FULL)]})
    assert long.ranks[0].entries[1].end_us == 20
    short = play({0: [collective(4), kernel(10, rounds=FULL)]})
    assert short.ranks[0].entries[1].end_us == 14
    part = play({0: [collective(100), kernel(10, rounds=Rounds(alone=2, beside=2))]})
    assert part.ranks[0].entries[1].end_us == 10


@given(
    st.lists(st.tuples(st.floats(0.1, 50), st.integers(1, 6), st.integers(0, 2)), min_size=1, max_size=8),
    st.lists(st.floats(0.1, 60), min_size=1, max_size=4),
)
def test_rounds_make_a_step_longer_and_never_shorter(
    products: list[tuple[float, int, int]], moving: list[float]
) -> None:
    def entries(*, with_rounds: bool) -> list[TimedEntry]:
        kernels = [
            kernel(us, rounds=Rounds(alone, alone + more) if with_rounds else None) for us, alone, more in products
        ]
        return [*kernels, *(collective(us) for us in moving)]

    plain, crowded = (play({0: entries(with_rounds=some)}) for some in (False, True))
    assert crowded.duration_us >= plain.duration_us - 1e-6
    assert crowded.ranks[0].compute_us <= 2.01 * sum(us * max(1.0, (a + m) / a) for us, a, m in products)
