"""From what a person types to one kernel, launch or graph of a ledger."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchledger.errors import UsageError
from torchledger.nouns import Graph, Kernel, Launch
from torchledger.printable import one_line
from torchledger.store.ledger import LedgerReader

_LISTED = 20
_LIKE_A_GRAPH = re.compile(r"(forward|backward|inference)_\d+")


@dataclass(frozen=True)
class Target:
    """A kernel, and the one launch of it that was asked for, if one was."""

    key: str
    kernel_name: str
    launch_id: str | None = None


def find_kernel(reader: LedgerReader, question: str) -> Target:
    """The kernel or launch that is meant by a launch id (``forward_0#12``), a kernel's name, its key or the unambiguous
    beginning or part of either.

    Raises ``UsageError`` that lists the candidates when several are meant, and the nearest names when none is.
    """
    first_launch: dict[Target, str] = {}
    for graph, order, key, name in reader.columns(Launch, "graph", "order", "kernel", "kernel_name"):
        launch_id = f"{graph}#{order}"
        if launch_id == question:
            return Target(key, name, launch_id)
        first_launch.setdefault(Target(key, name), launch_id)
    targets = list(first_launch)
    known = set(targets)
    targets += [
        target for key, name in reader.columns(Kernel, "key", "name") if (target := Target(key, name)) not in known
    ]
    for is_meant in (
        lambda target: question in (target.kernel_name, target.key),
        lambda target: target.kernel_name.startswith(question) or target.key.startswith(question),
        lambda target: question in target.kernel_name,
    ):
        meant = [target for target in targets if is_meant(target)]
        if len(meant) == 1:
            return meant[0]
        if meant and question:
            raise UsageError(_list_candidates(question, meant, first_launch))
    graph = _about_graph(question, reader)
    if graph is not None:
        raise UsageError(graph)
    raise UsageError(_suggest("kernel or launch", question, {target.kernel_name for target in targets}, reader))


def find_graph(reader: LedgerReader, name: str) -> Graph:
    """The graph of this name; ``UsageError`` with the known names when there is none."""
    for graph in reader.iterate(Graph, name=name):
        return graph
    raise UsageError(_suggest("graph", name, {known for (known,) in reader.columns(Graph, "name")}, reader))


def _list_candidates(question: str, targets: Sequence[Target], first_launch: dict[Target, str]) -> str:
    lines = [
        f"  {first_launch.get(target, '(not launched by itself)'):<24} {target.key[:12]:<12} {target.kernel_name}"
        for target in targets[:_LISTED]
    ]
    if len(targets) > _LISTED:
        lines.append(f"  ... and {len(targets) - _LISTED:,} more")
    listing = "\n".join(one_line(line) for line in lines)
    return (
        f"{one_line(question)!r} is {len(targets):,} kernels. "
        f"Name one by its first launch or its key:\n  {'launch':<24} {'key':<12} kernel\n{listing}"
    )


def _about_graph(question: str, reader: LedgerReader) -> str | None:
    """What to ask instead, where the question is a graph or a launch that a graph does not have; else ``None``."""
    name, mark, _ = question.partition("#")
    orders: dict[str, list[int]] = {graph: [] for (graph,) in reader.columns(Graph, "name")}
    if name not in orders and not (orders and (mark or _LIKE_A_GRAPH.fullmatch(name))):
        return None
    for graph, order in reader.columns(Launch, "graph", "order"):
        orders.setdefault(graph, []).append(order)
    if name not in orders:
        near = nearest(name, sorted(orders), limit=5)
        return f"no graph {one_line(name)!r} in {reader.path}. Near it: {', '.join(map(one_line, near))}."
    held = orders[name]
    launches = f"{name}#{min(held)} to {name}#{max(held)}" if held else "none"
    if mark:
        return f"no launch {one_line(question)!r} in {reader.path}: those of {name} are {launches}."
    return (
        f"{name} is a graph of {reader.path}, not a kernel: its launches are {launches}; "
        f"`torchledger show {reader.path} --wrapper {name}` prints its code."
    )


def _suggest(kind: str, question: str, known: Iterable[str], reader: LedgerReader) -> str:
    names = sorted(known)
    if not names:
        return f"{reader.path} holds no {kind}: `torchledger show {reader.path}` says why."
    near = ", ".join(one_line(name) for name in nearest(question, names, limit=5))
    return f"no {kind} {one_line(question)!r} in {reader.path}. Near it: {near}."


def nearest(question: str, names: Sequence[str], *, limit: int) -> list[str]:
    """The names that share most three-letter pieces with the question, shorter ones first.

    >>> nearest("gelu_3", ["triton_poi_fused_gelu_0", "extern_kernels.mm"], limit=1)
    ['triton_poi_fused_gelu_0']
    """
    pieces = _pieces(question)
    return sorted(names, key=lambda name: (-len(pieces & _pieces(name)), len(name), name))[:limit]


def _pieces(text: str) -> set[str]:
    return {text[start : start + 3].lower() for start in range(max(len(text) - 2, 1))}
