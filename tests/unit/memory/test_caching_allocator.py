"""The caching allocator's rules, against its own counts on a GPU and for any order of allocations."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from torchledger.memory.caching_allocator import CachingAllocator, allocator_peak
from torchledger.memory.live_set import add_up_memory
from torchledger.nouns import LiveStorage, StepMemory

MIB = 2**20
RECORDING = Path(__file__).parents[2] / "data" / "h200" / "memory_bert_torch2.11.json"


def test_a_small_tensor_takes_a_multiple_of_512_out_of_a_segment_of_two_mebibytes() -> None:
    allocator = CachingAllocator()
    assert allocator.allocate(513).nbytes == 1024
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (1024, 2 * MIB)


def test_of_a_large_block_a_rest_of_up_to_a_mebibyte_is_not_cut_off() -> None:
    allocator = CachingAllocator()
    assert allocator.allocate(19 * MIB + MIB // 2).nbytes == 20 * MIB
    assert allocator.allocate(19 * MIB - 512).nbytes == 19 * MIB - 512


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    large, middle = allocator.allocate(40 * MIB), allocator.allocate(30 * MIB)
    allocator.free(large)
    allocator.free(middle)
    assert allocator.allocate(28 * MIB) is middle
    assert allocator.reserved_bytes == 70 * MIB


@given(
    st.lists(st.tuples(st.integers(1, 60 * MIB), st.booleans()), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
)
def test_blocks_hold_what_was_asked_for_and_join_again(sizes: list[tuple[int, bool]], chance) -> None:
    allocator = CachingAllocator()
    held = []
    for nbytes, is_kept in sizes:
        block = allocator.allocate(nbytes)
        assert block.nbytes >= nbytes
        held.append(block)
        if not is_kept:
            allocator.free(held.pop(chance.randrange(len(held))))
        assert allocator.allocated_bytes == sum(each.nbytes for each in held)
        assert allocator.allocated_bytes <= allocator.peak_bytes <= allocator.reserved_bytes
        places = sorted((each.place, each.nbytes) for each in held)
        assert all(first[0] + first[1] <= second[0] for first, second in pairwise(places))
    for block in held:
        allocator.free(block)
    assert allocator.allocated_bytes == 0
    # Every segment is one block again, so that each can be given whole.
    before = allocator.reserved_bytes
    whole = [block.nbytes for free in allocator._free.values() for _, _, block in free]
    assert sum(whole) == before


def _recorded() -> tuple[dict[str, int], list[LiveStorage]]:
    content = json.loads(RECORDING.read_text())
    storages = [
        LiveStorage(
            "s", number, "optimizer_state" if is_state else "activations", nbytes, "cuda:0", born=born, freed=freed
        )
        for number, (nbytes, born, freed, is_state) in enumerate(content["storages"])
    ]
    return content, storages


def test_the_peak_of_a_recorded_step_is_the_allocators_own_within_a_thousandth() -> None:
    counted, storages = _recorded()
    found = allocator_peak(storages)
    assert abs(found.allocated_bytes / counted["measured_peak_bytes"] - 1) < 0.001
    assert abs(found.reserved_bytes / counted["reserved_peak_bytes"] - 1) < 0.005


def test_what_blocks_have_too_much_is_a_part_of_the_peak_on_a_cuda_device_alone() -> None:
    _, storages = _recorded()
    there = add_up_memory(StepMemory("s", "cuda:0", rounding=512), storages)
    assert there.peak_allocated_bytes == sum(there.by_category.values()) == sum(there.by_module.values())
    assert there.by_category["blocks"] == there.peak_allocated_bytes - there.peak_live_bytes > 0
    here = add_up_memory(StepMemory("s", "cpu"), storages)
    assert here.allocator is None
    assert here.peak_allocated_bytes == here.peak_live_bytes
    assert "blocks" not in here.by_category
