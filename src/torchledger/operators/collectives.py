"""Collective operations over the GPUs of a group: parameters, bytes, and what each rank runs.

A collective needs peers: it is run by all ranks together and timed by the sampling room's collective worker. To fit and
predict it, it is an ``Operator`` like others, ``collective.all_reduce`` (numel, world), beside other work
``collective.beside_products.all_reduce``, or over several nodes ``collective.across_nodes.all_reduce`` (numel, nodes,
gpus_per_node). ``numel`` is the size of the
message as nccl-tests count it: the whole tensor of an all_reduce or broadcast, the gathered output of an all_gather,
the whole input of a reduce_scatter or all_to_all, the tensor sent by p2p.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, get_args

from torchledger.operators.declaration import Input, Operator, Parameters, Work
from torchledger.work.collectives import bus_factor

Number = Any

OPERATOR_PREFIX = "collective."

Beside = Literal["nothing", "products", "copies"]
"""What a device does beside a collective: products that fill its multiprocessors, copies that fill its memory."""


@dataclass(frozen=True)
class Collective:
    """One collective: its name, and how many times the message each rank's links must carry at the least.

    ``bus_factor(world)`` is nccl-tests' factor from algorithm to bus bandwidth: 2 (n - 1) / n for all_reduce,
    (n - 1) / n where each rank sends or receives all but its own share, 1 for broadcast and p2p.
    """

    name: str
    bus_factor: Callable[[Number], Number]
    needs_equal_shares: bool = False

    def bus_bytes(self, numel: Number, world: Number, item_size: int) -> Number:
        """Bytes through the busiest link of a rank, by nccl-tests' convention."""
        return numel * item_size * self.bus_factor(world)

    def check(self, numel: int, world: int) -> str | None:
        """Why this cannot run, or ``None``."""
        if world < 2:
            return "a collective needs at least two ranks"
        if self.needs_equal_shares and numel % world:
            return f"{numel} elements are not equal shares for {world} ranks"
        return None


COLLECTIVES: Mapping[str, Collective] = {
    collective.name: collective
    for collective in (
        Collective("all_reduce", partial(bus_factor, "all_reduce")),
        Collective("all_gather", partial(bus_factor, "all_gather"), needs_equal_shares=True),
        Collective("reduce_scatter", partial(bus_factor, "reduce_scatter"), needs_equal_shares=True),
        Collective("all_to_all", partial(bus_factor, "all_to_all"), needs_equal_shares=True),
        Collective("broadcast", partial(bus_factor, "broadcast")),
        Collective("p2p", partial(bus_factor, "p2p")),
    )
}


class CollectiveOperator(Operator):
    """A collective on ``numel`` elements over ``world`` ranks, as a question to a fitted model. No backward."""

    parameters: ClassVar[tuple[str, ...]] = ("numel", "world")
    directions = ("forward",)
    needs_peers = True
    collective: ClassVar[Collective]

    @property
    def key(self) -> str:
        """``"collective.all_reduce"``, as samples of it are named."""
        return OPERATOR_PREFIX + self.name

    def check(self, p: Parameters) -> str | None:
        """Why this cannot run, or ``None``."""
        return self.collective.check(p.numel, p.world)

    def tensors(self, p: Parameters) -> dict[str, Input]:
        """The message, as one rank holds it at the most."""
        return {"message": Input((p.numel,))}

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        """What passes a rank's busiest link, once read and once written."""
        moved = self.collective.bus_bytes(p.numel, p.world, item_size)
        return (Work("gather", moved, moved),)


class AcrossNodes(CollectiveOperator):
    """A collective over the GPUs of several nodes: the slower links between nodes set its time. No backward."""

    parameters = ("numel", "nodes", "gpus_per_node")

    def check(self, p: Parameters) -> str | None:
        """Why this cannot run, or ``None``."""
        return self.collective.check(p.numel, p.nodes * p.gpus_per_node)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        """What passes a rank's busiest link, once read and once written."""
        moved = self.collective.bus_bytes(p.numel, p.nodes * p.gpus_per_node, item_size)
        return (Work("gather", moved, moved),)


def _declare(collective: Collective, kind: type[CollectiveOperator], prefix: str = "") -> CollectiveOperator:
    attributes = {"name": prefix + collective.name, "collective": collective, "__doc__": kind.__doc__}
    declared: type[CollectiveOperator] = type(collective.name, (kind,), attributes)
    return declared()


def beside_prefix(beside: Beside) -> str:
    """What stands before a collective's name where it ran beside other work.

    >>> beside_prefix("products"), beside_prefix("nothing")
    ('beside_products.', '')
    """
    return "" if beside == "nothing" else f"beside_{beside}."


COLLECTIVE_OPERATORS: Mapping[str, CollectiveOperator] = {
    operator.key: operator
    for collective in COLLECTIVES.values()
    for operator in (
        *(_declare(collective, CollectiveOperator, beside_prefix(beside)) for beside in get_args(Beside)),
        _declare(collective, AcrossNodes, "across_nodes."),
    )
}


def make_call(name: str, numel: int, dtype: str, device: Any, group: Any) -> Callable[[], Any]:
    """A call of the collective on tensors made once, for this rank of the group.

    p2p sends from the group's first rank to its second; the others do nothing.
    """
    import torch
    import torch.distributed as distributed

    from torchledger._torch.tensors import dtype_named

    torch_dtype = dtype_named(dtype)
    rank, world = distributed.get_rank(group), distributed.get_world_size(group)
    whole = torch.ones(numel, dtype=torch_dtype, device=device)
    share = torch.ones(max(numel // world, 1), dtype=torch_dtype, device=device)
    if name == "all_reduce":
        # MAX leaves ones as they are: repeated sums would overflow.
        return lambda: distributed.all_reduce(whole, op=distributed.ReduceOp.MAX, group=group)
    if name == "all_gather":
        return lambda: distributed.all_gather_into_tensor(whole, share, group=group)
    if name == "reduce_scatter":
        return lambda: distributed.reduce_scatter_tensor(share, whole, op=distributed.ReduceOp.MAX, group=group)
    if name == "all_to_all":
        received = torch.empty_like(whole)
        return lambda: distributed.all_to_all_single(received, whole, group=group)
    if name == "broadcast":
        return lambda: distributed.broadcast(whole, group=group, group_src=0)
    if name == "p2p":
        if rank == 0:
            return lambda: distributed.send(whole, group=group, group_dst=1)
        if rank == 1:
            return lambda: distributed.recv(whole, group=group, group_src=0)
        return lambda: None
    raise ValueError(f"there is no collective {name!r}; there are {list(COLLECTIVES)}")
