"""What links devices: how long a collective takes, by its operation, its message and where its ranks are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Placement:
    """Where a group's ranks are: ``ranks`` of them spread evenly over ``nodes`` nodes.

    Raises ``ValueError`` if there are fewer ranks than nodes, or fewer than one node.
    """

    ranks: int
    nodes: int = 1

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.ranks < self.nodes:
            raise ValueError(f"{self.ranks} ranks cannot be on {self.nodes} nodes")

    @property
    def ranks_of_node(self) -> float:
        """How many of the group share a node."""
        return self.ranks / self.nodes


@dataclass(frozen=True)
class CollectiveCurve:
    """The time of one collective over a group's message: log time is linear in log bytes between the knots.

    ``operation`` is a name of nccl-tests' (``"all_reduce"``), ``message_bytes`` and ``duration_us`` are the knots,
    ``spread`` is half the interval's width in logarithms (0.1: 10 % either way), ``heldout_mape`` the error in per cent
    on message sizes that the knots were not fitted to (``None`` where none were held out).
    """

    operation: str
    placement: Placement
    message_bytes: tuple[float, ...]
    duration_us: tuple[float, ...]
    spread: float = 0.1
    heldout_mape: float | None = None


@dataclass(frozen=True)
class NodeLinks:
    """What links nodes, as one operation over them reaches it.

    ``gb_per_s`` is the bus bandwidth (1e9 bytes per second, nccl-tests' convention) of a group that fills two nodes; an
    all-reduce over two, whose sums cross once, has up to twice as much. Over more nodes it falls as
    ``(nodes / 2) ** -decay``. ``latency_us_per_rank`` times the group's ranks is what large messages take beside that.
    ``hop_us`` is what a small one takes from node to node (by default over InfiniBand); how many hops it makes, its
    operation says. ``spread`` is half the interval's width in logarithms, ``small_spread`` that of small messages.
    """

    gb_per_s: float
    decay: float = 0.0
    latency_us_per_rank: float = 8.0
    spread: float = 0.3
    hop_us: float = 8.9
    small_spread: float = 0.52


@dataclass(frozen=True)
class Fabric:
    """What links devices: measured curves of collectives by placement, and what is between nodes.

    ``ranks_per_node`` is how many devices a node has. ``links`` holds an operation's links between nodes, under ``"*"``
    those of any other. ``sources`` say where each number is from.
    """

    name: str
    ranks_per_node: int
    curves: tuple[CollectiveCurve, ...] = ()
    links: Mapping[str, NodeLinks] = field(default_factory=dict)
    device: str | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class CollectivePrice:
    """What one collective takes alone, in microseconds, with its interval; ``note`` says what it rests on."""

    duration_us: float
    low_us: float
    high_us: float
    note: str | None = None
