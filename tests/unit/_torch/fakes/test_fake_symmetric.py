"""Symmetric memory of ranks that are not there, on real tensors of the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as core
from torch.distributed import _symmetric_memory as symmetric

from torchledger._torch.fakes.streams import install_streams
from torchledger._torch.fakes.world import FakeWorld
from torchledger._torch.patching import Patches
from torchledger.nouns import WorldSpec


@pytest.fixture
def world() -> Iterator[FakeWorld]:
    made, patches = FakeWorld(WorldSpec(rank=1, size=4)), Patches()
    install_streams(patches, made.order, torch.cpu)
    with made:
        dist.init_process_group("nccl")
        yield made
    patches.undo()


def world_group() -> Any:
    return dist.group.WORLD


def test_a_rank_meets_ranks_that_hold_what_it_holds(world: FakeWorld) -> None:
    made = symmetric.empty(8, dtype=torch.float32, device=torch.device("cpu")).fill_(3.0)
    handle = symmetric.rendezvous(made, world_group().group_name)
    assert (handle.rank, handle.world_size, handle.buffer_size) == (1, 4, 32)
    assert len(handle.buffer_ptrs) == 4
    own, peer = (handle.get_buffer(rank, (2, 3), torch.float32, storage_offset=2) for rank in (1, 3))
    made[2] = 5.0
    assert own.tolist() == peer.tolist() == [[5.0, 3.0, 3.0], [3.0, 3.0, 3.0]]
    assert handle.get_buffer(1, (4,), torch.int64).shape == (4,)


def test_what_goes_to_peers_memory_is_noted_once_and_what_stays_here_is_not(world: FakeWorld) -> None:
    handle = symmetric.rendezvous(symmetric.empty(8, device=torch.device("cpu")), world_group().group_name)
    handle.get_buffer(1, (8,), torch.float32)
    assert world.notes == []
    handle.get_buffer(0, (8,), torch.float32)
    handle.barrier()
    assert len(world.notes) == 1 and "symmetric memory" in world.notes[0]


def test_the_part_of_a_tensor_inside_its_storage_is_where_a_peer_has_it(world: FakeWorld) -> None:
    part = symmetric.empty(8, device=torch.device("cpu")).copy_(torch.arange(8.0))[4:]
    handle = symmetric.rendezvous(part, world_group().group_name)
    assert handle.get_remote_tensor(2, (2,), torch.float32).tolist() == [4.0, 5.0]


def test_groups_have_an_allocator_and_take_pools(world: FakeWorld) -> None:
    backend = world_group()._get_backend(torch.device("cuda"))
    assert backend.mem_allocator is not None and backend.supports_tensor_alloc(torch.device("cuda", 0))
    backend.register_mem_pool(object())
    backend.deregister_mem_pool(object())


def test_torchs_own_symmetric_memory_is_there_again_behind_the_world() -> None:
    held = dict(vars(core._SymmetricMemory))
    allocator = vars(core.Backend)["mem_allocator"]
    with FakeWorld(WorldSpec(rank=0, size=2)):
        assert vars(core._SymmetricMemory)["rendezvous"] is not held["rendezvous"]
    assert dict(vars(core._SymmetricMemory)) == held
    assert vars(core.Backend)["mem_allocator"] is allocator
    assert not hasattr(core.Backend, "register_mem_pool")
