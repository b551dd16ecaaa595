"""What operators of the program's own (``torch.library``) did inside the calls of compiled graphs.

A compiler knows such an operator by its name alone, so that its launch has no FLOPs unless the program registers a
formula. Where it is made of operators of torch's, a profiler sees these run inside it; one that calls a library of its
own, or a Triton kernel, stays unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from torchledger.nouns import Launch, Quality, StepCall
from torchledger.stepping.entries import Entry, IsComposite, read_entries
from torchledger.store.rows import LaunchRow
from torchledger.traces.trace import Trace


class InnerWork(NamedTuple):
    """FLOPs of the operators that ran inside a launch."""

    flops: int
    quality: Quality


def inner_work(
    trace: Trace, entry: Entry, launches: Sequence[Launch], *, is_composite: IsComposite
) -> dict[str, InnerWork]:
    """FLOPs of those launches of a graph, by ``launch_id``, that have none of their own and were seen in this call.

    ``entry`` is the graph's call and ``launches`` are those that it makes, in order.
    """
    unknown = _of_own_operators(launches)
    if not unknown:
        return {}
    window = (entry.start_ns, entry.end_ns + 1)
    found = read_entries(
        trace, window, (), graph_of=lambda name: None, is_composite=is_composite, whole=frozenset(unknown)
    )
    runs: dict[str, dict[int, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for each in found:
        row, name = each.part_of or (each.row, each.name)
        if each.lane == entry.lane and name in unknown:
            runs[name][row].append(each)
    work: dict[str, InnerWork] = {}
    for name, members in unknown.items():
        if len(runs[name]) == len(members):
            for launch, parts in zip(members, runs[name].values(), strict=True):
                flops = [part.cost.flops for part in parts]
                if None not in flops:
                    is_exact = all(part.cost.flops_quality == "exact" for part in parts)
                    total = sum(each for each in flops if each is not None)
                    work[launch.launch_id] = InnerWork(total, "exact" if is_exact else "estimated")
    return work


def _of_own_operators(launches: Sequence[Launch]) -> dict[str, list[Launch]]:
    """Launches of library calls without FLOPs, by the operator's name in a profile (``"mine::product"``)."""
    found: dict[str, list[Launch]] = defaultdict(list)
    for launch in launches:
        if launch.flops is None and launch.category == "extern" and launch.is_call and launch.aten_ops:
            found[launch.aten_ops[-1].replace(".", "::", 1)].append(launch)
    return found


def with_inner_work(launches: Sequence[LaunchRow], calls: Sequence[StepCall]) -> list[LaunchRow]:
    """The launches, those without FLOPs of their own with what ran inside them in a step's calls of their graph.

    Where calls differ in that, one number would be that of none of them.
    """
    seen: dict[tuple[str, int], set[int]] = defaultdict(set)
    for call in calls:
        for order, flops in call.inside:
            seen[call.name, order].add(flops)
    return [
        launch._replace(flops=next(iter(found)), flops_quality="measured", reason=SEEN_INSIDE)
        if launch.flops is None and len(found := seen.get((launch.graph, launch.order), set())) == 1
        else launch
        for launch in launches
    ]


SEEN_INSIDE = "FLOPs of the operators that ran inside it in the recorded step"
