"""Stores in which other ranks would leave their keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import distributed as dist

from torchledger._torch.fakes.stores import ask_for_world
from torchledger._torch.fakes.world import FakeWorld
from torchledger._torch.patching import Patches
from torchledger.errors import UsageError
from torchledger.nouns import WorldSpec


@pytest.fixture
def world() -> Iterator[FakeWorld]:
    with FakeWorld(WorldSpec(0, 4)) as world:
        yield world


def test_a_store_of_the_programs_own_waits_for_no_rank(world: FakeWorld) -> None:
    store = dist.TCPStore("127.0.0.1", 1, 4, True)
    assert isinstance(store, dist.TCPStore) and isinstance(store, dist.Store)
    store.wait(["from 1", "from 2"])
    assert (store.host, store.port) == ("127.0.0.1", 1)


def test_what_other_ranks_set_is_what_this_one_set_under_a_key_like_it_and_is_noted(world: FakeWorld) -> None:
    store = dist.PrefixStore("group", dist.HashStore())
    store.set("address of 0", "here")
    assert [store.get(f"address of {rank}") for rank in range(4)] == [b"here"] * 4
    assert store.check(["address of 3"])
    assert world.stand_ins[0] == "the value of 'address of 1' in a store: what this rank set under a key like it"


def test_other_ranks_count_as_this_one_does_once_it_asks_how_many_have_come(world: FakeWorld) -> None:
    store = dist.HashStore()
    assert store.add("arrived", 1) == 1
    assert store.add("arrived", 0) == 4 and store.get("arrived") == b"4"


def test_a_key_that_resembles_none_comes_after_some_asking(world: FakeWorld) -> None:
    """It may say that another rank has failed, so that it is not there at once."""
    store = dist.HashStore()
    answers = [store.check(["go"]) for _ in range(30)]
    assert not answers[0] and answers[-1]


def test_stores_are_torchs_own_again_afterwards() -> None:
    before = (dist.Store.get, dist.Store.wait, dist.TCPStore, dist.FileStore)
    with FakeWorld(WorldSpec(0, 2)):
        assert dist.TCPStore is not before[2]
    assert (dist.Store.get, dist.Store.wait, dist.TCPStore, dist.FileStore) == before


def test_a_plan_of_one_process_that_waits_for_ranks_is_told_the_option_that_fits() -> None:
    patches = Patches()
    ask_for_world(patches)
    try:
        with pytest.raises(UsageError, match=r"waits at .*test_fake_stores.py:\d+ for other ranks .* --world 3"):
            dist.TCPStore("127.0.0.1", 0, 3, True)
    finally:
        patches.undo()
