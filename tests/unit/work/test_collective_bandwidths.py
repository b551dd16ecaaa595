"""Bandwidths of collectives are those that nccl-tests would print."""

from __future__ import annotations

import pytest

from torchledger.work.collectives import Message, collective_kind


@pytest.mark.parametrize(
    ("kind", "factor"), [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("broadcast", 1.0)]
)
def test_bus_bandwidth_is_the_algorithms_times_the_factor_of_the_kind(kind: str, factor: float) -> None:
    message = Message(kind, 1_000_000_000, ranks=8)
    assert message.algorithm_gb_per_s(10_000.0) == pytest.approx(100.0)
    assert message.bus_gb_per_s(10_000.0) == pytest.approx(100.0 * factor)


def test_without_the_size_of_the_group_there_is_no_bus_bandwidth() -> None:
    assert Message("all_reduce", 1000).bus_gb_per_s(1.0) is None
    assert Message("all_reduce", 1000, ranks=8).algorithm_gb_per_s(0.0) is None


def test_names_of_c10d_and_of_the_profiler_are_the_same_collective() -> None:
    assert {collective_kind(name) for name in ("c10d::allreduce_", "nccl:all_reduce", "allreduce")} == {"all_reduce"}
    assert collective_kind("c10d::barrier") is None
