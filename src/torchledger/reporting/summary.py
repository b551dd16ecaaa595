"""A ledger added up: totals, and groups by category, graph, source line, module and kernel.

Reads the columns of launches only, so that large ledgers are quick.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torchledger.balance import balance_books
from torchledger.books import open_books, read_recomputations
from torchledger.memory.advice import Recomputation
from torchledger.memory.live_set import MemoryTotals
from torchledger.nouns import BalanceSheet, Category, Compilation, Direction, Graph, Run
from torchledger.stepping.ran_sizes import RanSizes, read_ran_sizes
from torchledger.stepping.totals import StepTotals
from torchledger.store import LedgerReader
from torchledger.store.rows import LaunchRow

UNATTRIBUTED = "(none)"
"""The group of launches that name no source line or module."""


@dataclass(frozen=True)
class Costs:
    """Sums over launches. Each is over the launches whose value is known, ``None`` if that is none of them; the
    ``unknown_`` counts say how many are left out."""

    launches: int
    flops: int | None
    vector_flops: int | None
    bytes_moved: int | None
    unknown_flops: int
    unknown_bytes: int


@dataclass(frozen=True)
class Group:
    """The launches that share a category, a source line or a module."""

    name: str
    costs: Costs


@dataclass(frozen=True)
class KernelTotal:
    """All launches of one kernel. ``launch_id`` is the first of them."""

    key: str
    kernel_name: str
    category: Category
    launch_id: str
    costs: Costs


@dataclass(frozen=True)
class GraphFacts:
    """A graph without its code."""

    name: str
    direction: Direction
    compile_id: str | None
    is_ahead_of_time: bool
    cache_hit: bool
    is_dynamic: bool
    devices: tuple[str, ...]
    cudagraph_skip_reason: str | None
    costs: Costs


class CompilationFacts(NamedTuple):
    """A ``Compilation`` without its guards; the fields mean what they mean there."""

    compile_id: str | None
    function: str
    source: str
    reason: str | None


@dataclass(frozen=True)
class Summary:
    """The answer to "what is in this ledger?"."""

    file: str
    run: Run
    balance: BalanceSheet
    totals: Costs
    entries: int
    kernels: tuple[KernelTotal, ...]
    graphs: tuple[GraphFacts, ...]
    by_category: tuple[Group, ...]
    by_source: tuple[Group, ...]
    by_module: tuple[Group, ...]
    launches: tuple[LaunchRow, ...]
    sizes: RanSizes = field(default_factory=RanSizes)
    step: StepTotals | None = None
    memory: MemoryTotals | None = None
    recomputations: tuple[Recomputation, ...] = ()
    compilations: tuple[CompilationFacts, ...] = ()


def summarize_ledger(reader: LedgerReader) -> Summary:
    """Read a ledger and add it up; the bodies of launches and kernels are not decoded, so 10,000 take a fraction of a
    second."""
    books = open_books(reader)
    sizes = read_ran_sizes(reader)
    launches = sizes.rows(reader, books.launches)
    return Summary(
        file=str(reader.path),
        run=reader.run(),
        balance=balance_books(books),
        totals=_add_up(launches),
        entries=len(launches),
        kernels=_total_kernels(launches),
        graphs=_graph_facts(books.graphs, launches),
        by_category=_group(launches, lambda launch: launch.category),
        by_source=_group(launches, lambda launch: launch.source or UNATTRIBUTED),
        by_module=_group(launches, lambda launch: launch.module or UNATTRIBUTED),
        launches=tuple(launches),
        sizes=sizes,
        step=books.step,
        memory=books.memory,
        recomputations=tuple(read_recomputations(books)),
        compilations=tuple(map(CompilationFacts._make, reader.columns(Compilation, *CompilationFacts._fields))),
    )


def fold_modules(groups: Sequence[Group], depth: int) -> tuple[Group, ...]:
    """Module groups added up to the first ``depth`` parts of their paths: ``layers.3.mlp`` at 2 is ``layers.3``."""
    folded: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        folded[".".join(group.name.split(".")[:depth])].append(group)
    return _heaviest_first(
        Group(name, add_costs([group.costs for group in members])) for name, members in folded.items()
    )


def _add_up(launches: Iterable[LaunchRow]) -> Costs:
    count = flops = vector_flops = bytes_moved = 0
    known_flops = known_vector = known_bytes = total = 0
    for launch in launches:
        total += 1
        count += bool(launch.is_call)
        if launch.flops is not None:
            known_flops += 1
            flops += launch.flops
        if launch.vector_flops is not None:
            known_vector += 1
            vector_flops += launch.vector_flops
        moved = launch.bytes_moved
        if moved is not None:
            known_bytes += 1
            bytes_moved += moved
    return Costs(
        launches=count,
        flops=flops if known_flops or not total else None,
        vector_flops=vector_flops if known_vector or not total else None,
        bytes_moved=bytes_moved if known_bytes or not total else None,
        unknown_flops=total - known_flops,
        unknown_bytes=total - known_bytes,
    )


def add_costs(costs: Sequence[Costs]) -> Costs:
    """The sum of sums."""

    def add(values: Iterable[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    return Costs(
        launches=sum(each.launches for each in costs),
        flops=add(each.flops for each in costs),
        vector_flops=add(each.vector_flops for each in costs),
        bytes_moved=add(each.bytes_moved for each in costs),
        unknown_flops=sum(each.unknown_flops for each in costs),
        unknown_bytes=sum(each.unknown_bytes for each in costs),
    )


def _split(launches: Iterable[LaunchRow], key: Callable[[LaunchRow], Hashable]) -> dict[Any, list[LaunchRow]]:
    groups: dict[Any, list[LaunchRow]] = defaultdict(list)
    for launch in launches:
        groups[key(launch)].append(launch)
    return groups


def _group(launches: Sequence[LaunchRow], key: Callable[[LaunchRow], str]) -> tuple[Group, ...]:
    return _heaviest_first(Group(name, _add_up(members)) for name, members in _split(launches, key).items())


def _heaviest_first(groups: Iterable[Group]) -> tuple[Group, ...]:
    return tuple(
        sorted(
            groups,
            key=lambda group: (
                -(group.costs.flops or 0),
                -(group.costs.bytes_moved or 0),
                -group.costs.launches,
                group.name,
            ),
        )
    )


def _total_kernels(launches: Sequence[LaunchRow]) -> tuple[KernelTotal, ...]:
    totals = [
        KernelTotal(key, name, members[0].category, members[0].launch_id, _add_up(members))
        for (key, name), members in _split(launches, lambda launch: (launch.kernel, launch.kernel_name)).items()
    ]
    return tuple(sorted(totals, key=lambda total: (-(total.costs.flops or 0), -(total.costs.bytes_moved or 0))))


def _graph_facts(graphs: Sequence[Graph], launches: Sequence[LaunchRow]) -> tuple[GraphFacts, ...]:
    members = _split(launches, lambda launch: launch.graph)
    return tuple(
        GraphFacts(
            name=graph.name,
            direction=graph.direction,
            compile_id=graph.compile_id,
            is_ahead_of_time=graph.is_ahead_of_time,
            cache_hit=graph.cache_hit,
            is_dynamic=graph.is_dynamic,
            devices=graph.devices,
            cudagraph_skip_reason=graph.cudagraph_skip_reason,
            costs=_add_up(members.get(graph.name, [])),
        )
        for graph in graphs
    )
