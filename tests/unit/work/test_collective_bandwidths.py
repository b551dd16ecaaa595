"""Bandwidths of collectives are those that nccl-tests would print."""

from __future__ import annotations

import pytest

from torchledger.work.collectives import Message, bytes_of_call, collective_kind, exchanges_nothing, message_of_call
from torchledger.work.op_shapes import Argument, OpCall, Tensor


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        *(("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("all_to_all", 0.875)),
        *(("gather", 0.875), ("scatter", 0.875), ("broadcast", 1.0), ("reduce", 1.0), ("p2p", 1.0)),
    ],
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


def test_atens_gather_and_scatter_are_no_collectives() -> None:
    assert collective_kind("c10d::gather_") == "gather" and collective_kind("c10d::scatter_") == "scatter"
    assert collective_kind("aten::gather") is None and collective_kind("aten::scatter_") is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("one_shot_all_reduce", "all_reduce"), ("two_shot_all_reduce_", "all_reduce")),
        *(("multimem_all_reduce_", "all_reduce"), ("one_shot_all_reduce_copy_out", "all_reduce")),
        *(("multimem_all_gather_out", "all_gather"), ("reduce_scatter_out", "reduce_scatter")),
        *(("all_to_all_vdev_2d", "all_to_all"), ("_rendezvous", None), ("nvshmem_put", None)),
    ],
)
def test_what_symmetric_memory_exchanges_is_the_collective_that_it_stands_for(name: str, kind: str | None) -> None:
    assert collective_kind(f"symm_mem::{name}") == kind


def test_what_meets_or_waits_alone_exchanges_nothing() -> None:
    assert exchanges_nothing("c10d::barrier") and exchanges_nothing("symm_mem::_rendezvous")
    assert not exchanges_nothing("symm_mem::nvshmem_put") and not exchanges_nothing("c10d::gather_")


WHOLE, SHARE = Tensor((1024,), "float32"), Tensor((256,), "float32")


@pytest.mark.parametrize(
    ("name", "arguments", "message", "moved"),
    [
        ("c10d::allreduce_", ((WHOLE,),), 4096, 8192),
        ("c10d::_allgather_base_", (WHOLE, SHARE), 4096, 5120),
        ("c10d::allgather_", (None, (SHARE,)), 4096, 5120),
        ("_c10d_functional::all_gather_into_tensor", (SHARE,), 4096, 5120),
        ("c10d::_reduce_scatter_base_", (SHARE, WHOLE), 4096, 5120),
        ("c10d::reduce_scatter_", ((SHARE,),), 4096, 5120),
        ("_c10d_functional::reduce_scatter_tensor", (WHOLE,), 4096, 5120),
        ("c10d::alltoall_base_", (WHOLE, WHOLE), 4096, 8192),
        ("c10d::broadcast_", ((WHOLE,),), 4096, 8192),
        ("c10d::send", ((WHOLE,),), 4096, 8192),
        ("c10d::recv_", ((WHOLE,),), 4096, 8192),
        ("c10d::gather_", ((SHARE,) * 4, (SHARE,)), 4096, 5120),
        ("c10d::gather_", (None, (SHARE,)), 4096, 1024),
        ("c10d::scatter_", ((SHARE,), (SHARE,) * 4), 4096, 5120),
        ("c10d::scatter_", ((SHARE,), None), 4096, 1024),
        ("symm_mem::one_shot_all_reduce", (WHOLE,), 4096, 8192),
        ("symm_mem::_low_contention_all_gather", (SHARE,), 4096, 5120),
        ("symm_mem::all_to_all_vdev", (SHARE, WHOLE), 1024, 5120),
        ("_dtensor::shard_dim_alltoall", (WHOLE,), 4096, 8192),
        ("c10d::barrier", (WHOLE,), None, None),
        ("c10d::allreduce_", (None,), None, None),
    ],
)
def test_a_collectives_message_is_the_size_that_nccl_tests_print(
    name: str, arguments: tuple[Argument, ...], message: int | None, moved: int | None
) -> None:
    found = message_of_call(OpCall(name, arguments), 4)
    assert (found and found.nbytes) == message
    assert bytes_of_call(OpCall(name, arguments), 4) == moved


def test_a_share_of_a_group_of_unknown_size_is_no_message() -> None:
    assert message_of_call(OpCall("c10d::allgather_", (None, (SHARE,)))) is None
