"""Collectives by nccl-tests' conventions: what counts as the message, and what its bandwidth says of the links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchledger.work.op_shapes import OpCall

_KINDS = {
    "all_reduce": "allreduce all_reduce allreduce_coalesced all_reduce_coalesced one_shot_all_reduce "
    "one_shot_all_reduce_copy two_shot_all_reduce multimem_all_reduce multimem_one_shot_all_reduce",
    "all_gather": "all_gather allgather _allgather_base _all_gather_base all_gather_into_tensor allgather_coalesced "
    "allgather_into_tensor_coalesced all_gather_into_tensor_coalesced multimem_all_gather _low_contention_all_gather",
    "reduce_scatter": "reduce_scatter _reduce_scatter_base reduce_scatter_tensor reduce_scatter_tensor_coalesced "
    "_low_contention_reduce_scatter",
    "all_to_all": "all_to_all all_to_allv alltoall alltoall_base all_to_all_single nvshmem_all_to_all all_to_all_vdev "
    "all_to_all_vdev_2d all_to_all_vdev_2d_offset shard_dim_alltoall",
    "broadcast": "broadcast _broadcast_oop nvshmem_broadcast",
    "reduce": "reduce _reduce_oop multimem_one_shot_reduce",
    "gather": "gather",
    "scatter": "scatter",
    "p2p": "send recv isend irecv",
}
"""The operators of c10d, of symmetric memory (``symm_mem``) and of distributed tensors, by what they exchange."""

_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}

_EXCHANGES_NOTHING = frozenset(
    {
        *("barrier", "monitored_barrier", "check_for_nan", "_barrier", "_rendezvous", "memset32"),
        *("stream_write_value32", "get_remote_tensors"),
        *("nccl_wait_signal", "nccl_wait_for_signal", "nvshmem_wait_for_signal"),
    }
)
"""Operators on a group that meet, wait or make ready, and move no message of the program's."""


OF_GROUPS = ("c10d::", "_c10d_functional::", "c10d_functional::", "symm_mem::", "_dtensor::shard_dim_alltoall")
"""How the names of operators begin that are called on a process group."""


def collective_kind(name: str) -> str | None:
    """The collective behind a name of c10d's or the profiler's (``"nccl:_all_gather_base"``); ``None`` for others.

    >>> collective_kind("c10d::alltoall_base_"), collective_kind("nccl:all_reduce"), collective_kind("barrier")
    ('all_to_all', 'all_reduce', None)
    """
    if name.startswith("aten::"):  # which has a gather and a scatter of its own
        return None
    return _KIND_OF.get(_bare_name(name))


def exchanges_nothing(name: str) -> bool:
    """Whether an operator on a process group moves no message at all, as a barrier."""
    return _bare_name(name) in _EXCHANGES_NOTHING


def _bare_name(name: str) -> str:
    return name.rsplit(":", 1)[-1].removesuffix(".default").removesuffix("_").removesuffix("_out")


def bus_factor(kind: str, ranks: Any) -> Any:
    """How many times its message a rank's links carry at the least; ``ranks`` is a number or an array of them.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if kind in ("broadcast", "reduce", "p2p"):
        return ranks / ranks
    share = (ranks - 1) / ranks
    return 2 * share if kind == "all_reduce" else share


@dataclass(frozen=True)
class Message:
    """What one rank gave to a collective: ``nbytes`` as nccl-tests count it, from which bus bandwidth is computed.

    That is the larger of what it sends and gets: the whole tensor of an all_gather, a reduce_scatter, a gather or a
    scatter, one side of an all_reduce or a broadcast.
    """

    kind: str
    nbytes: int
    ranks: int | None = None

    def algorithm_gb_per_s(self, duration_us: float) -> float | None:
        """Message over time, 1e9 bytes per second; ``None`` without a time."""
        return self.nbytes / duration_us / 1e3 if duration_us > 0 else None

    def bus_gb_per_s(self, duration_us: float) -> float | None:
        """What a rank's busiest link carried, 1e9 bytes per second; ``None`` where the group's size is not known."""
        algorithm = self.algorithm_gb_per_s(duration_us)
        if algorithm is None or self.ranks is None or self.ranks < 2:
            return None
        return float(algorithm * bus_factor(self.kind, self.ranks))


def message_of_call(call: OpCall, ranks: int | None = None) -> Message | None:
    """The message of a collective operator, from the tensors that it was given; ``None`` where they do not say it.

    >>> from torchledger.work.op_shapes import Tensor
    >>> whole, share = Tensor((64,), "float32"), Tensor((8,), "float32")
    >>> message_of_call(OpCall("c10d::_allgather_base_", (whole, share)), 8)
    Message(kind='all_gather', nbytes=256, ranks=8)
    """
    kind = collective_kind(call.name)
    sizes = _argument_sizes(call)
    if kind is None or not sizes or None in sizes:
        return None
    nbytes = max(size for size in sizes[: 1 if _LEAVES_ROOM in call.name else None] if size is not None)
    if _gives_share(call, kind, len(sizes)):
        if ranks is None:
            return None
        nbytes *= ranks
    return Message(kind, nbytes, ranks)


def bytes_of_call(call: OpCall, ranks: int | None = None) -> int | None:
    """What a rank gives to a collective operator and gets from it, in bytes; ``None`` where that is not known."""
    message, sizes = message_of_call(call, ranks), _argument_sizes(call)
    if message is None:
        return None
    if len(sizes) > 1:
        return sum(size or 0 for size in sizes)
    if message.kind in ("gather", "scatter"):
        return sizes[0]
    if message.kind not in ("all_gather", "reduce_scatter"):
        return 2 * message.nbytes
    return message.nbytes + message.nbytes // ranks if ranks else None


_LEAVES_ROOM = "all_to_all_vdev"
"""These write into a tensor that holds as much as may ever come: what they are given says more."""


def _gives_share(call: OpCall, kind: str, tensors: int) -> bool:
    """True if only a rank's share of the message is among the arguments: the whole is returned, in nested lists, or
    another rank's."""
    is_nested = kind == "reduce_scatter" and call.name.startswith("c10d::")
    return tensors == 1 and (kind in ("all_gather", "gather", "scatter") or is_nested)


def _argument_sizes(call: OpCall) -> list[int | None]:
    """Bytes of each argument that holds tensors."""
    found: list[int | None] = []
    for argument in call.arguments:
        if argument:
            each = [tensor.bytes for tensor in (argument if isinstance(argument, tuple) else (argument,))]
            found.append(None if None in each else sum(size for size in each if size is not None))
    return found
