"""Collectives by nccl-tests' conventions: what counts as the message, and what its bandwidth says of the links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_KINDS = {
    "all_reduce": "allreduce all_reduce allreduce_coalesced",
    "all_gather": "all_gather allgather _allgather_base _all_gather_base all_gather_into_tensor_coalesced",
    "reduce_scatter": "reduce_scatter _reduce_scatter_base reduce_scatter_tensor_coalesced",
    "all_to_all": "all_to_all all_to_allv alltoall alltoall_base all_to_all_single",
    "broadcast": "broadcast",
    "p2p": "send recv",
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}


def collective_kind(name: str) -> str | None:
    """The collective behind a name of c10d's or the profiler's (``"nccl:_all_gather_base"``); ``None`` for others.

    >>> collective_kind("c10d::alltoall_base_"), collective_kind("nccl:all_reduce"), collective_kind("barrier")
    ('all_to_all', 'all_reduce', None)
    """
    return _KIND_OF.get(name.rsplit(":", 1)[-1].removesuffix("_"))


def bus_factor(kind: str, ranks: Any) -> Any:
    """How many times its message a rank's links carry at the least; ``ranks`` is a number or an array of them.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if kind in ("broadcast", "p2p"):
        return ranks / ranks
    share = (ranks - 1) / ranks
    return 2 * share if kind == "all_reduce" else share


@dataclass(frozen=True)
class Message:
    """What one rank gave to a collective: ``nbytes`` as nccl-tests count it (the larger of what it sends and gets)."""

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
