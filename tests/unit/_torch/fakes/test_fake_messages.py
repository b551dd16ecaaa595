"""Whole numbers that one rank sends a later one: what arrives is what was sent."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from torchledger._torch.fakes.device import FakeDevice
from torchledger._torch.fakes.messages import Messages
from torchledger._torch.fakes.world import FakeWorld
from torchledger.nouns import RUNNING, Device, WorldSpec

GPU = Device(name="a made-up device", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


def _messages(rank: int, mail: Path) -> Messages:
    return Messages(WorldSpec(rank, 4, mail=str(mail)))


def _received(rank: int, mail: Path, source: int, shape: tuple[int, ...] = (3,), times: int = 1) -> list[int]:
    place = _messages(rank, mail)
    with FakeDevice(GPU):
        for _ in range(times):
            given = torch.zeros(shape, dtype=torch.long, device="cuda")
            place.receive([given], "0", source)
        return given.tolist()


def _send(rank: int, mail: Path, to: int, *values: list[int]) -> None:
    place = _messages(rank, mail)
    with FakeDevice(GPU):
        for each in values:
            place.send([torch.tensor(each, device="cuda")], "0", to)


def test_a_later_rank_gets_what_was_sent_to_it_in_order(tmp_path: Path) -> None:
    _send(0, tmp_path, 2, [4, 1024, 2048], [5, 6, 7])
    _send(0, tmp_path, 3, [1, 2, 3])
    assert _received(2, tmp_path, 0) == [4, 1024, 2048]
    assert _received(2, tmp_path, 0, times=2) == [5, 6, 7]


def test_beyond_what_its_sender_came_to_the_last_message_of_the_shape_comes_again(tmp_path: Path) -> None:
    _send(0, tmp_path, 2, [4, 1024, 2048], [3])
    assert _received(2, tmp_path, 0, times=5) == [4, 1024, 2048]


def test_what_a_rank_sends_that_was_not_recorded_is_not_known(tmp_path: Path) -> None:
    """Zeros that were there before are not what comes: ones stand for it, as for any number."""
    assert _received(2, tmp_path, 1) == [1, 1, 1]
    assert _received(2, tmp_path, 3) == [1, 1, 1]


def test_a_message_that_nobody_knows_the_values_of_counts_all_the_same(tmp_path: Path) -> None:
    place = _messages(0, tmp_path)
    with FakeDevice(GPU):
        place.send([torch.randint(9, (3,), device="cuda")], "0", 1)
        place.send([torch.tensor([7, 8, 9], device="cuda")], "0", 1)
    assert _received(1, tmp_path, 0) == [1, 1, 1]
    assert _received(1, tmp_path, 0, times=2) == [7, 8, 9]


def test_numbers_with_fractions_and_large_tensors_stay_at_home(tmp_path: Path) -> None:
    place = _messages(0, tmp_path)
    with FakeDevice(GPU):
        place.send([torch.zeros(4, device="cuda"), torch.zeros(1 << 20, dtype=torch.long, device="cuda")], "0", 1)
    assert not list(tmp_path.iterdir())


def test_a_rank_that_still_runs_is_waited_for(tmp_path: Path) -> None:
    running = tmp_path / f"request_0{RUNNING}"
    running.touch()
    place = _messages(1, tmp_path)
    read, looks = place._read, []

    def look(source: int, group: str) -> list[dict[str, object]]:
        looks.append(source)
        if len(looks) == 2:
            _messages(0, tmp_path).send([torch.tensor([2, 3], device="cuda")], "0", 1)
        return read(source, group)

    place._read = look  # type: ignore[method-assign]
    with FakeDevice(GPU):
        given = torch.zeros(2, dtype=torch.long, device="cuda")
        place.receive([given], "0", 0)
        assert given.tolist() == [2, 3]
    assert len(looks) == 2


def test_real_numbers_of_the_host_arrive_through_a_group(tmp_path: Path) -> None:
    for rank in (0, 1):
        shape = torch.tensor([4, 8]) if rank == 0 else torch.zeros(2, dtype=torch.long)
        with FakeWorld(WorldSpec(rank, 2, mail=str(tmp_path))):
            dist.init_process_group("gloo")
            if rank == 0:
                dist.batch_isend_irecv([dist.P2POp(dist.isend, shape, 1)])[0].wait()
            else:
                dist.recv(shape, 0)
    assert shape.tolist() == [4, 8]


def test_groups_are_named_alike_on_all_ranks_whatever_a_process_made_before(tmp_path: Path) -> None:
    names = []
    for rank in (0, 1):
        dist.distributed_c10d._world.group_count = 3 * rank
        with FakeWorld(WorldSpec(rank, 2, mail=str(tmp_path))):
            dist.init_process_group("gloo")
            names.append(dist.group.WORLD.group_name)
    assert names[0] == names[1]


def test_objects_that_a_rank_before_broadcasts_are_known(tmp_path: Path) -> None:
    sender, receiver = _messages(0, tmp_path), _messages(2, tmp_path)
    sender.publish([{"lr": 0.1}, 3], "")
    sender.publish([lambda: None], "")
    sender.publish(["last"], "")
    assert [receiver.published("", 0) for _ in range(4)] == [[{"lr": 0.1}, 3], None, ["last"], None]
    assert receiver.published("other", 0) is None and receiver.published("", 3) is None
