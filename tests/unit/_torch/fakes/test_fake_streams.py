from collections.abc import Iterator

import pytest
import torch

from torchledger._torch.fakes.streams import COMPUTE, HOST, Placed, StreamOrder, active_order, install_streams
from torchledger._torch.patching import Patches


@pytest.fixture
def order() -> Iterator[StreamOrder]:
    patches, made = Patches(), StreamOrder()
    install_streams(patches, made, torch.cpu)
    yield made
    patches.undo()


def test_work_after_an_event_waits_for_what_was_on_its_stream_by_then(order: StreamOrder) -> None:
    side = torch.cpu.Stream()
    first = order.place()
    event = torch.cpu.Event()
    event.record()
    order.place()
    side.wait_event(event)
    with torch.cpu.stream(side):
        assert order.place().waits_for == (first.number,)


def test_a_wait_that_nothing_was_put_behind_passes_on_to_the_next_event(order: StreamOrder) -> None:
    first, second = torch.cpu.Stream(), torch.cpu.Stream()
    started = order.place()
    first.wait_stream(torch.cpu.current_stream())
    second.wait_event(first.record_event())
    with torch.cpu.stream(second):
        assert order.place().waits_for == (started.number,)


def test_what_was_waited_for_once_is_not_waited_for_again(order: StreamOrder) -> None:
    side = torch.cpu.Stream()
    order.place()
    side.wait_stream(torch.cpu.current_stream())
    with torch.cpu.stream(side):
        order.place()
    side.wait_stream(torch.cpu.current_stream())
    with torch.cpu.stream(side):
        assert order.place().waits_for == ()


def test_the_host_waits_for_all_streams_when_a_device_is_synchronized(order: StreamOrder) -> None:
    heard: list[tuple[str, Placed]] = []
    order.on_host_wait = lambda name, placed: heard.append((name, placed))
    one, other = order.place(), order.place("side")
    torch.cpu.synchronize()
    assert [(name, placed.stream, placed.waits_for) for name, placed in heard] == [
        ("cudaDeviceSynchronize", HOST, (one.number, other.number))
    ]


def test_a_functional_collective_is_on_its_groups_stream_until_its_result_is_waited_for(order: StreamOrder) -> None:
    tensor = torch.zeros(2)
    before = order.place()
    moved = order.place_operator("_c10d_functional::all_reduce", (tensor, "sum", "3"), tensor)
    assert (moved.stream, moved.waits_for) == ("communication 3", (before.number,))
    assert order.place_operator("_c10d_functional::wait_tensor", (tensor,), tensor).waits_for == (moved.number,)


def test_streams_are_the_programs_own_again_once_they_are_undone() -> None:
    former, patches, made = torch.cpu.current_stream, Patches(), StreamOrder()
    install_streams(patches, made, torch.cpu)
    assert active_order() is made and made.current == COMPUTE
    patches.undo()
    assert active_order() is None and torch.cpu.current_stream is former


def test_what_follows_a_change_of_shards_waits_for_it_on_its_groups_stream(order: StreamOrder) -> None:
    before = order.place()
    moved = order.place_operator("_dtensor::shard_dim_alltoall", (torch.zeros(4), 0, 1, "3"), torch.zeros(4))
    assert (moved.stream, moved.waits_for) == ("communication 3", (before.number,))
    assert order.place().waits_for == (moved.number,)
