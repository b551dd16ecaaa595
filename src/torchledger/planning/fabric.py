"""Collectives priced on a fabric: curves within a node, links between nodes, and a user's own nccl-tests output."""

from __future__ import annotations

import difflib
import math
import os
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from torchledger.device.datasheets import plain_name
from torchledger.errors import PredictError
from torchledger.nouns import CollectiveCurve, CollectivePrice, Fabric, NodeLinks, Placement
from torchledger.printable import ended
from torchledger.store.codec import decode
from torchledger.work.collectives import bus_factor, collective_kind

SHIPPED = Path(__file__).parent / "fabrics.json"
"""Fitted by ``benchmarks/models/fit_fabrics.py``; each fabric names its sources."""

_ANY = "*"

_OVERLAP = 4.0
"""The norm by which a message's latency and bandwidth add: chunks of a large message hide the latency. An all_reduce
over 1,024 GPUs takes 19.4 ms for 1 GiB, 25.4 for 4 and 47.1 for 8 (``nccl_h100_multinode.csv``)."""

_LAUNCH_US = 6.8
"""What a small message takes beside its hops, and one hop of a tree within a node: NCCL's own constants of its protocol
for small messages (``baseLatencies`` and ``hwLatencies`` of ``src/graph/tuning.cc``, NVIDIA/nccl @ 5067397)."""
_TREE_INSIDE_US = 0.6

_CHAIN_INSIDE = 0.2
"""What a step of a ring within a node takes, of a hop between nodes: rings over nodes have each step posted by a host.
At this share 16 public records over two to 16 nodes lie nearest (``data/public/small_collectives.csv``)."""

_TREES_STEP, _TREES_RANK = 0.8, 0.56
"""The same of NCCL's trees for gathering (PAT) over nodes with one rank each: for each time that these double, and for
each of them (``tuning.cc``: 4 us and 2.8, where a hop takes 5)."""

_SMALL_GB_PER_S = 25.0
"""At this rate, and no more than half of its links', a small message grows: 47 us for 1 MiB on two and on four nodes of
H100s, 44 to 58 on two of A100s and B200s (the same records)."""

_FULL_BYTES = 2.0**33
"""A message of so many bytes takes what the links' rate says: any latency is nothing beside it."""

_LOG_COLUMNS = re.compile(r"^#\s+size\s+count\b")
_LOG_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s.*\bon\s+(\S+)\s+device\b")
_LOG_NAME = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|sendrecv|reduce|gather|scatter)_perf\b"
)
_LOG_TITLE = re.compile(r"\b(AllReduce|AllGather|ReduceScatter|AlltoAll|Broadcast|SendRecv|Reduce|Gather|Scatter)\b")
_TITLES = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AlltoAll": "all_to_all",
    "alltoall": "all_to_all",
    "Broadcast": "broadcast",
    "SendRecv": "p2p",
    "sendrecv": "p2p",
    "Reduce": "reduce",
    "Gather": "gather",
    "Scatter": "scatter",
}
_FILE_NAMES = {name: kind for name, kind in _TITLES.items() if name.islower()} | {
    name: name for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
}


def price_collective(fabric: Fabric, operation: str, message_bytes: float, placement: Placement) -> CollectivePrice:
    """What a collective takes alone. ``message_bytes`` is the message as nccl-tests count it.

    Within a node the curve of as many ranks counts, or what lies between the curves of fewer and of more. Over nodes a
    curve of that placement, else the links between nodes: latency, and the message at their bandwidth, of which a group
    has the share of its ranks among a node's (the other groups of a mesh use the rest). Small messages go another way,
    which ``small_latency_us`` describes, where that takes less. A gather or a scatter is the messages between one rank
    and all others. Raises ``PredictError`` for an operation that is unknown, and where the fabric holds nothing of
    nodes.
    """
    kind = collective_kind(operation) or operation
    if placement.ranks < 2 or message_bytes <= 0:
        return CollectivePrice(0.0, 0.0, 0.0, "a single rank")
    own = _curves(fabric, kind, placement.nodes)
    exact = next((curve for curve in own if curve.placement == placement), None)
    if exact is not None:
        own_price = _priced(_on_curve(exact, message_bytes), exact.spread, None)
        if placement.nodes > 1 and message_bytes < exact.message_bytes[0]:
            return _or_small(own_price, fabric, kind, message_bytes, placement)
        return own_price
    if kind in ("gather", "scatter"):
        return _with_one_rank(fabric, kind, message_bytes, placement)
    if placement.nodes > 1:
        return _across(fabric, kind, message_bytes, placement)
    if not own:
        return _from_another(fabric, kind, message_bytes, placement)
    return _between(own, kind, message_bytes, placement)


def port_of(what: str, placement: Placement) -> str:
    """The links of its rank that a message takes which it sends or receives: those of its node, or to other nodes.

    >>> port_of("isend", Placement(2)), port_of("recv", Placement(2, 2))
    ('out', 'in from other nodes')
    """
    is_out, is_across = "send" in what, placement.nodes > 1
    return ("out" if is_out else "in") + ((" to" if is_out else " from") + " other nodes") * is_across


def port_share(fabric: Fabric, message_bytes: float, placement: Placement) -> float:
    """The share of what the links of a rank carry that one message to another rank fills alone: what it takes by their
    rate, of what it takes.

    >>> pair = Placement(2)
    >>> [round(port_share(shipped_fabrics()["h200"], nbytes, pair), 2) for nbytes in (1e4, 1e6, 1e9)]
    [0.01, 0.29, 1.0]
    """
    whole_us = price_collective(fabric, "p2p", _FULL_BYTES, placement).duration_us
    alone_us = price_collective(fabric, "p2p", message_bytes, placement).duration_us
    return min(1.0, message_bytes / _FULL_BYTES * whole_us / alone_us) if alone_us else 0.0


def small_latency_us(kind: str, placement: Placement, hop_us: float) -> float:
    """What a message over nodes takes that is too small for bandwidth to count.

    An all-reduce goes up and down a tree: through a node's ranks, and through as many nodes as the logarithm says. A
    message from rank to rank makes one hop. All else goes from rank to rank, one after another, but for what is
    gathered or scattered over many nodes with one rank each.

    >>> [round(small_latency_us("all_reduce", Placement(8 * nodes, nodes), 8.0)) for nodes in (2, 4, 64)]
    [31, 47, 111]
    >>> [round(small_latency_us("all_gather", Placement(8 * nodes, nodes), 8.0)) for nodes in (2, 4, 64)]
    [37, 76, 1228]
    """
    if kind == "p2p":
        return _LAUNCH_US + hop_us
    if kind == "all_reduce":
        hops_us = (placement.ranks_of_node - 1) * _TREE_INSIDE_US + math.log2(placement.nodes) * hop_us
        return _LAUNCH_US + 2 * hops_us
    hops = (placement.ranks - placement.nodes) * _CHAIN_INSIDE + placement.nodes - 1
    if placement.ranks == placement.nodes and kind in ("all_gather", "reduce_scatter"):
        hops = min(hops, math.log2(placement.nodes) * _TREES_STEP + placement.nodes * _TREES_RANK)
    return _LAUNCH_US + hops * hop_us


def hop_of(kind: str, placement: Placement, duration_us: float) -> float:
    """Microseconds of a hop between nodes, of what a small message over them takes.

    >>> hop_of("all_reduce", Placement(16, 2), 31.2)
    8.0
    """
    fixed_us = small_latency_us(kind, placement, 0.0)
    hops = small_latency_us(kind, placement, 1.0) - fixed_us
    return round(max(duration_us - fixed_us, 0.0) / hops, 2)


def placement_of(ranks: Iterable[int], ranks_per_node: int) -> Placement:
    """Where ranks of a world are, filled node by node.

    >>> placement_of((0, 8, 16, 24), 8)
    Placement(ranks=4, nodes=4)
    """
    given = list(ranks)
    return Placement(len(given), max(1, len({rank // ranks_per_node for rank in given})))


@cache
def shipped_fabrics() -> Mapping[str, Fabric]:
    """The fabrics that come with the package, by name."""
    return {fabric.name: fabric for fabric in decode(tuple[Fabric, ...], SHIPPED.read_bytes())}


def find_fabric(
    name: str | os.PathLike[str] | None = None, *, device: str | None = None, ranks_per_node: int | None = None
) -> Fabric:
    """A fabric by its name, or out of a file of nccl-tests; ``None``: nodes of ``device``, joined as is usual.

    ``"h100+3200gb"`` is nodes of H100s with links of 3,200 Gbit/s in sum, at the share of their rate that measured
    InfiniBand reaches. ``ranks_per_node`` is how many devices a node has (``None``: as the fabric's nodes have): each
    brings its part of the links, but for a rate that the name says, and for what a file holds. Raises ``PredictError``
    with the nearest names for one that is unknown.

    >>> find_fabric(device="NVIDIA H200").name, find_fabric(device="NVIDIA H200", ranks_per_node=2).name
    ('h200+3200gb', 'h200+800gb')
    """
    known = shipped_fabrics()
    if name is None:
        inside = _of_device(device, known)
        gigabits = _USUAL_GIGABITS.get(inside.name, _USUAL_GIGABITS["h100"])
        return _of_nodes(_with_links(inside, gigabits * _times_as_large(inside, ranks_per_node)), ranks_per_node)
    text = os.fspath(name)
    if Path(text).is_file():
        return _of_nodes(read_nccl_tests(text, device=device), ranks_per_node)
    if (found := known.get(text.lower())) is not None:
        times = _times_as_large(found, ranks_per_node)
        links = {kind: replace(each, gb_per_s=each.gb_per_s * times) for kind, each in found.links.items()}
        return _of_nodes(replace(found, links=links), ranks_per_node)
    base, plus, rate = text.lower().partition("+")
    if plus and base in known and (match := re.fullmatch(r"(\d+(?:\.\d+)?)gb", rate)):
        return _of_nodes(_with_links(known[base], float(match[1])), ranks_per_node)
    near = difflib.get_close_matches(base, known, n=3, cutoff=0.3)
    raise PredictError(
        f"fabric {text!r} is neither a file nor known; {'nearest: ' + ', '.join(near) if near else 'there are'}"
        f"{'' if near else ' ' + ', '.join(sorted(known))}. NAME+800gb is nodes of it joined by 800 Gbit/s, and a file "
        "may be nccl-tests' output."
    )


def _times_as_large(fabric: Fabric, ranks_per_node: int | None) -> float:
    """How many times as many devices a node has as the fabric's nodes."""
    return 1.0 if ranks_per_node is None else ranks_per_node / fabric.ranks_per_node


def _of_nodes(fabric: Fabric, ranks_per_node: int | None) -> Fabric:
    return fabric if ranks_per_node is None else replace(fabric, ranks_per_node=ranks_per_node)


def read_nccl_tests(path: str | os.PathLike[str], *, device: str | None = None) -> Fabric:
    """A fabric out of nccl-tests' own output (one run, or several after another), or a table in columns.

    Columns are those that samples of collectives are read by (``read_collective_csv``). What the file does not hold is
    taken from the shipped fabric of ``device``. Raises ``PredictError`` if there is no collective in it.
    """
    from torchledger.sampling.collective_csv import is_collective_csv

    path = Path(path)
    try:
        points = _points_of_csv(path) if is_collective_csv(path) else _points_of_log(path)
    except OSError as error:
        raise PredictError(f"cannot read {path}: {ended(str(error))}") from error
    if not points:
        raise PredictError(
            f"{path} holds no collective: it should be nccl-tests' output (of all_reduce_perf and the like, with its "
            "`# Rank` lines), or a table with collective, bytes, gpus and time_us."
        )
    curves = tuple(_curve_of(kind, placement, sizes) for (kind, placement), sizes in sorted(points.items(), key=str))
    base = _of_device(device, shipped_fabrics())
    measured = {(curve.operation, curve.placement) for curve in curves}
    kept = tuple(curve for curve in base.curves if (curve.operation, curve.placement) not in measured)
    per_node = max(math.ceil(curve.placement.ranks_of_node) for curve in curves)
    return replace(
        base,
        name=path.name,
        ranks_per_node=max(per_node, base.ranks_per_node) if _has_one_node(curves) else per_node,
        curves=(*curves, *kept),
        links={**base.links, **_links_of(curves)},
        sources=(str(path), *base.sources),
    )


def fit_curve(
    operation: str, placement: Placement, points: Sequence[tuple[float, float]], *, knots_per_decade: float = 2.5
) -> CollectiveCurve:
    """A curve through (bytes, microseconds), about so many knots to a power of ten: least squares in logarithms."""
    import numpy as np

    x = np.log([size for size, _ in points])
    y = np.log([time for _, time in points])
    count = max(2, min(len(set(x)), round(knots_per_decade * (x.max() - x.min()) / math.log(10.0)) + 1))
    knots = np.linspace(x.min(), x.max(), count)
    hats = np.array([np.interp(x, knots, row) for row in np.eye(count)]).T
    weights = np.ones_like(y)
    # A light pull on the bends keeps knots that few points stand at from swinging.
    bends = 0.05 * np.diff(np.eye(count), n=2, axis=0)
    for _ in range(8):
        left = np.vstack([hats * weights[:, None], bends])
        values = np.linalg.lstsq(left, np.concatenate([y * weights, np.zeros(len(bends))]), rcond=None)[0]
        left_over = np.abs(hats @ values - y)
        weights = 1.0 / np.sqrt(np.maximum(left_over / max(float(np.median(left_over)), 1e-3), 1.0))
    spread = float(np.quantile(np.abs(hats @ values - y), 0.9)) if len(y) > count else 0.1
    return CollectiveCurve(
        operation,
        placement,
        tuple(float(f"{size:.6g}") for size in np.exp(knots)),
        tuple(float(f"{time:.5g}") for time in np.exp(values)),
        round(max(spread, 0.03), 3),
    )


def duration_on(curve: CollectiveCurve, message_bytes: float) -> float:
    """Microseconds of a message on a curve: below its knots the time stays, beyond them the bandwidth does."""
    return math.exp(_on_curve(curve, message_bytes))


def _on_curve(curve: CollectiveCurve, message_bytes: float) -> float:
    sizes, times = curve.message_bytes, curve.duration_us
    if message_bytes <= sizes[0]:
        return math.log(times[0])
    if message_bytes >= sizes[-1]:
        # A message beyond the largest is that message more than once: the time of its last bytes goes on.
        per_byte = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else times[-1] / sizes[-1]
        per_byte = max(per_byte, 0.5 * times[-1] / sizes[-1])
        return math.log(times[-1] + per_byte * (message_bytes - sizes[-1]))
    place = next(index for index, size in enumerate(sizes) if size >= message_bytes)
    low, high = math.log(sizes[place - 1]), math.log(sizes[place])
    share = (math.log(message_bytes) - low) / (high - low)
    return (1 - share) * math.log(times[place - 1]) + share * math.log(times[place])


def _priced(log_us: float, spread: float, note: str | None) -> CollectivePrice:
    return CollectivePrice(math.exp(log_us), math.exp(log_us - spread), math.exp(log_us + spread), note)


def _curves(fabric: Fabric, kind: str, nodes: int) -> list[CollectiveCurve]:
    found = [each for each in fabric.curves if each.operation == kind and each.placement.nodes == nodes]
    return sorted(found, key=lambda curve: curve.placement.ranks)


_STAND_INS = {
    "broadcast": ("all_gather",),
    "reduce": ("reduce_scatter", "all_reduce"),
    "all_to_all": ("all_gather",),
    "reduce_scatter": ("all_gather",),
    "all_gather": ("reduce_scatter",),
    "p2p": ("all_gather",),
    "all_reduce": (),
}


def _from_another(fabric: Fabric, kind: str, message_bytes: float, placement: Placement) -> CollectivePrice:
    """An operation without a curve, at the bus bandwidth of one that is like it."""
    if kind not in _STAND_INS:
        raise PredictError(f"collective {kind!r} is unknown; there are {', '.join(_STAND_INS)}.")
    for other in _STAND_INS[kind]:
        if curves := _curves(fabric, other, 1):
            # A p2p between two ranks moves all of its message, an all_gather of two half of its.
            factor = bus_factor(kind, placement.ranks) / bus_factor(other, placement.ranks)
            found = _between(curves, other, message_bytes * factor, placement)
            note = f"{kind} is priced by the bus bandwidth of {other} on {fabric.name}"
            return _priced(math.log(found.duration_us), 0.2, note)
    raise PredictError(f"fabric {fabric.name} holds no {kind} within a node; measure it with nccl-tests.")


def _with_one_rank(fabric: Fabric, kind: str, message_bytes: float, placement: Placement) -> CollectivePrice:
    """The shares of all others, which go to one rank, or come from it, at the same time: its own links carry them."""
    share, inside = message_bytes / placement.ranks, round(placement.ranks_of_node)
    from_outside = (placement.ranks - inside) * share
    found = [
        price_collective(fabric, "p2p", nbytes, pair)
        for nbytes, pair in (((inside - 1) * share, Placement(2)), (from_outside, Placement(2, 2)))
        if nbytes > 0
    ]
    longest = max(found, key=lambda price: price.duration_us)
    return replace(longest, note=f"{kind} is priced as the messages between one rank and all others")


def _between(curves: list[CollectiveCurve], kind: str, message_bytes: float, placement: Placement) -> CollectivePrice:
    ranks = placement.ranks
    lower = max((c for c in curves if c.placement.ranks <= ranks), key=lambda c: c.placement.ranks, default=curves[0])
    upper = min((c for c in curves if c.placement.ranks >= ranks), key=lambda c: c.placement.ranks, default=curves[-1])
    spread = max(lower.spread, upper.spread)
    if lower is upper:
        if lower.placement.ranks == ranks:
            return _priced(_on_curve(lower, message_bytes), spread, None)
        note = f"{kind} over {ranks} ranks of a node is priced at the bus bandwidth of {lower.placement.ranks}"
        factor = bus_factor(kind, ranks) / bus_factor(kind, lower.placement.ranks)
        return _priced(_on_curve(lower, message_bytes * factor), spread + 0.3, note)
    low, high = math.log(lower.placement.ranks), math.log(upper.placement.ranks)
    share = (math.log(ranks) - low) / (high - low)
    log_us = (1 - share) * _on_curve(lower, message_bytes) + share * _on_curve(upper, message_bytes)
    note = f"{kind} over {ranks} ranks is priced between those over {lower.placement.ranks} and {upper.placement.ranks}"
    return _priced(log_us, spread + 0.1, note)


def link_factor(kind: str, placement: Placement) -> float:
    """How many times a message crosses the links of a node, each way.

    That of nccl-tests' bus bandwidth, but for two. In an all-to-all each rank of a node sends all other nodes something
    else: their shares add up. In an all-reduce over two nodes NCCL's trees send a node's sum across once, where a ring
    sends nearly twice as much. So it reached 339 GB/s of bus bandwidth on links of 200 GB/s a node, and 362 where over
    four nodes it reached 160 (``nccl_h100_multinode.csv``, ``nanotron_nccl_bandwidth_h100_efa.csv``).

    >>> link_factor("all_reduce", Placement(16, 2)), link_factor("all_reduce", Placement(32, 4))
    (1.0, 1.9375)
    >>> link_factor("all_to_all", Placement(16, 2)), link_factor("all_to_all", Placement(32, 4))
    (4.0, 6.0)
    """
    if kind == "all_to_all":
        return placement.ranks_of_node * (1 - 1 / placement.nodes)
    if kind == "all_reduce" and placement.nodes == 2:
        return 1.0
    return float(bus_factor(kind, placement.ranks))


def _across(fabric: Fabric, kind: str, message_bytes: float, placement: Placement) -> CollectivePrice:
    links = fabric.links.get(kind, fabric.links.get(_ANY))
    if links is None:
        raise PredictError(
            f"fabric {fabric.name} holds no links between nodes, and {placement.ranks} ranks are on "
            f"{placement.nodes}; try --fabric {fabric.name}+800gb (Gbit/s of a node), or nccl-tests' output of two."
        )
    large_us = large_message_us(fabric, links, kind, message_bytes, placement)
    large = _priced(math.log(large_us), links.spread, f"over {placement.nodes} nodes")
    return _or_small(large, fabric, kind, message_bytes, placement)


def large_message_us(fabric: Fabric, links: NodeLinks, kind: str, message_bytes: float, placement: Placement) -> float:
    """What a message over nodes takes by bandwidth, and by the latency of each rank beside it."""
    moving_us = _moving_us(fabric, links, kind, message_bytes, placement)
    latency_us = links.latency_us_per_rank * placement.ranks
    if kind == "p2p":
        latency_us = small_latency_us(kind, placement, links.hop_us)
    return float((moving_us**_OVERLAP + latency_us**_OVERLAP) ** (1 / _OVERLAP))


def _moving_us(fabric: Fabric, links: NodeLinks, kind: str, message_bytes: float, placement: Placement) -> float:
    """What a message over nodes takes by bandwidth at the least, however it goes: that of the links between nodes.

    Where the node is the slower one, it decides: its ranks pass the whole message among themselves.
    """
    crossing_us = message_bytes * link_factor(kind, placement) / _gb_per_s(fabric, links, placement) / 1e3
    return max(crossing_us, _inside_us(fabric, kind, message_bytes, placement))


def _gb_per_s(fabric: Fabric, links: NodeLinks, placement: Placement) -> float:
    """A group's share of its nodes' links."""
    share = min(1.0, placement.ranks_of_node / fabric.ranks_per_node)
    return float(links.gb_per_s * share * (placement.nodes / 2) ** -links.decay)


def _inside_us(fabric: Fabric, kind: str, message_bytes: float, placement: Placement) -> float:
    """The time of a message among a node's ranks of a group; 0 where there is one of them, or no curve."""
    inside = round(placement.ranks_of_node)
    curves = _curves(fabric, kind, 1) if inside > 1 else []
    return _between(curves, kind, message_bytes, Placement(inside)).duration_us if curves else 0.0


def _or_small(
    price: CollectivePrice, fabric: Fabric, kind: str, message_bytes: float, placement: Placement
) -> CollectivePrice:
    """What a message over nodes takes as a small one, where that is less; no less than the smallest one."""
    links = fabric.links.get(kind, fabric.links.get(_ANY))
    if links is None or kind == "p2p":
        return price
    gb_per_s = min(_SMALL_GB_PER_S, 0.5 * _gb_per_s(fabric, links, placement))
    latency_us = small_latency_us(kind, placement, links.hop_us)
    moving_us = _moving_us(fabric, links, kind, message_bytes, placement)
    small_us = max(latency_us + message_bytes / gb_per_s / 1e3, moving_us)
    if latency_us <= price.duration_us <= small_us:
        return price
    return _priced(
        math.log(max(latency_us, min(small_us, price.duration_us))),
        links.small_spread,
        f"over {placement.nodes} nodes",
    )


_INFINIBAND_SHARE = 0.92
"""Of their links' rate, all_reduces over nodes reach it: 367 of 400 GB/s on 128 nodes of H100s, 47.5 of 50 GB/s on
eight of GH200s (``nccl_h100_multinode.csv``, ``ett/Vista``)."""


_USUAL_GIGABITS = {"a100": 1600.0, "h100": 3200.0, "h200": 3200.0, "b200": 3200.0, "gh200": 400.0}
"""What joins a node of eight in vendors' reference systems: one port of 200 (A100) or 400 Gbit/s for each device, as
it is in nodes of any other size; a node of GH200s is one."""


def _with_links(fabric: Fabric, gigabits: float) -> Fabric:
    any_links = NodeLinks(gb_per_s=_INFINIBAND_SHARE * gigabits / 8, spread=0.35)
    return replace(
        fabric,
        name=f"{fabric.name}+{gigabits:g}gb",
        links={_ANY: any_links},
        sources=(*fabric.sources, f"links of {gigabits:g} Gbit/s a node at {_INFINIBAND_SHARE:.0%} of their rate"),
    )


def _of_device(device: str | None, known: Mapping[str, Fabric]) -> Fabric:
    if device is None:
        raise PredictError(f"a fabric is needed; there are {', '.join(sorted(known))}.")
    plain = plain_name(device)
    for fabric in known.values():
        if fabric.device and plain_name(fabric.device) in plain and not fabric.links:
            return fabric
    names = ", ".join(sorted(known))
    raise PredictError(f"no fabric of {device} is known; there are {names}, or give nccl-tests' output of it.")


_LARGEST = 1e15
"""Neither bytes nor microseconds of a collective come near it."""

Points = dict[tuple[str, Placement], list[tuple[float, float]]]


def _points_of_csv(path: Path) -> Points:
    from torchledger.errors import SampleError
    from torchledger.operators.collectives import OPERATOR_PREFIX
    from torchledger.sampling.collective_csv import read_collective_csv
    from torchledger.work.element_sizes import ELEMENT_SIZES

    points: Points = defaultdict(list)
    try:
        samples = read_collective_csv(path)
    except SampleError as error:
        raise PredictError(str(error)) from error
    for sample in samples:
        kind = sample.operator.removeprefix(OPERATOR_PREFIX).removeprefix("across_nodes.")
        given = sample.parameters
        nodes = int(given.get("nodes", 1))
        placement = Placement(int(given["world"]) if "world" in given else nodes * int(given["gpus_per_node"]), nodes)
        points[kind, placement].append((float(given["numel"]) * ELEMENT_SIZES[sample.dtype], sample.times_us[0]))
    return points


def _points_of_log(path: Path) -> Points:
    """Sizes and out-of-place times of nccl-tests' table, by the hosts that its head names and the operation that it or
    the file's name does."""
    points: Points = defaultdict(list)
    kind = next((each for name, each in _FILE_NAMES.items() if name in path.name.lower()), None)
    hosts, previous_is_rank, time_column = list[str](), False, None
    for line in path.read_text(errors="replace").splitlines():
        if match := _LOG_RANK.search(line):
            if not previous_is_rank:
                hosts = []
            hosts.append(match[2])
        previous_is_rank = match is not None
        if named := _LOG_NAME.search(line):
            kind = _TITLES.get(named[1], named[1])
        elif line.startswith("#") and (titled := _LOG_TITLE.search(line)):
            kind = _TITLES[titled[1]]
        if _LOG_COLUMNS.match(line):
            # "redop" and "root" are blank in some versions: the columns are counted from their header.
            columns = line.lstrip("# ").split()
            time_column = columns.index("time") if "time" in columns else None
        cells = line.split()
        if kind is None or not hosts or time_column is None or not cells or not cells[0].isdigit():
            continue
        try:
            size, time_us = float(cells[0]), float(cells[time_column])
        except (ValueError, IndexError):
            continue
        if 0 < size < _LARGEST and 0 < time_us < _LARGEST and len(hosts) > 1:
            points[kind, Placement(len(hosts), len(set(hosts)))].append((size, time_us))
    return points


def _curve_of(kind: str, placement: Placement, sizes: list[tuple[float, float]]) -> CollectiveCurve:
    """The user's own points as they are, repeats at their median."""
    by_size: dict[float, list[float]] = defaultdict(list)
    for size, time_us in sizes:
        by_size[size].append(time_us)
    knots = sorted((size, statistics.median(times)) for size, times in by_size.items())
    return CollectiveCurve(kind, placement, tuple(size for size, _ in knots), tuple(time for _, time in knots), 0.05)


def _has_one_node(curves: Iterable[CollectiveCurve]) -> bool:
    return all(curve.placement.nodes == 1 for curve in curves)


def _links_of(curves: Sequence[CollectiveCurve]) -> dict[str, NodeLinks]:
    """Links between nodes by the fewest nodes that were measured, for placements that were not."""
    links = {}
    for curve in sorted(curves, key=lambda each: -each.placement.nodes):
        if curve.placement.nodes < 2:
            continue
        size, time_us = curve.message_bytes[-1], curve.duration_us[-1]
        gb_per_s = size * link_factor(curve.operation, curve.placement) / time_us / 1e3
        latency_us = curve.duration_us[0] / curve.placement.ranks
        hop_us = hop_of(curve.operation, curve.placement, curve.duration_us[0])
        found = NodeLinks(gb_per_s=gb_per_s, latency_us_per_rank=latency_us, spread=0.3, hop_us=hop_us)
        links[curve.operation] = found
        if curve.operation == "all_reduce" or _ANY not in links:
            links[_ANY] = found
    return links
