"""Pools of memory on a device that is not there."""

from __future__ import annotations

from torchledger._torch.fakes.pools import pool_names


def test_pools_are_told_apart_and_what_runs_in_one_goes_on() -> None:
    names = pool_names()
    first, second = names["MemPool"](), names["MemPool"](names["CUDAPluggableAllocator"]("a.so", "b", "c").allocator())
    assert first.id != second.id and first.snapshot() == []
    with names["use_mem_pool"](first):
        ran = True
    assert ran
