"""What a compiled backward computes and nobody asks for.

``autograd.grad`` for some inputs alone (an attack, a penalty on slopes) has eager code compute these; a compiled
backward is one call, and gives the gradients of all weights as well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torchledger.nouns import Graph, Launch, StepCall

_ASSIGNED = re.compile(r'^ +(\w+)(?:: "[^"]*")? = ([^;]*)')
_RETURNED = re.compile(r"^ +return \((.*)\)")
_NAME = re.compile(r"\w+")


def with_unasked(
    calls: Iterable[StepCall], entries: Sequence[int | str], unasked: Mapping[int, tuple[int, ...]]
) -> tuple[StepCall, ...]:
    """The calls of a step, those of backward graphs with their results that nobody asked for in another step.

    ``entries`` are what ran in that step, in order (the names of graphs among them), and ``unasked`` maps places of
    these to places of results.
    """
    counted: Counter[str] = Counter()
    found: dict[tuple[str, int | None], tuple[int, ...]] = {}
    for place, entry in enumerate(entries):
        if isinstance(entry, str):
            if place in unasked:
                found[entry, counted[entry]] = unasked[place]
            counted[entry] += 1
    return tuple(
        replace(call, unasked=found[call.name, call.call])
        if call.kind == "graph" and (call.name, call.call) in found
        else call
        for call in calls
    )


def unasked_flops(graph: Graph, launches: Sequence[Launch], unasked: Sequence[int]) -> int | None:
    """FLOPs of the launches on which none but these results depend; ``None`` if the graph does not tell.

    ``launches`` are the graph's, at the sizes of the call.
    """
    lines = (graph.fx_source or "").splitlines()
    made = [(found[1], _names_in(found[2])) for line in lines if (found := _ASSIGNED.match(line))]
    returned = next((found[1] for line in reversed(lines) if (found := _RETURNED.match(line))), None)
    if returned is None:
        return None
    results = [each.strip() for each in returned.split(",") if each.strip()]
    if any(place >= len(results) for place in unasked):
        return None
    read = {name for _, names in made for name in names}
    live = {name for place, name in enumerate(results) if place not in unasked}
    for name, names in reversed(made):
        # What nobody reads and is no result is made for what it writes to.
        if name in live or (name not in read and name not in results):
            live.update((name, *names))
    dead = {name for name, _ in made} - live
    return sum(launch.flops or 0 for launch in launches if launch.fx_nodes and dead.issuperset(launch.fx_nodes))


def _names_in(text: str) -> list[str]:
    """Names in a call's arguments, or in what is taken out of a tuple; an operator may be called as a value is."""
    called, _, arguments = text.partition("(")
    return _NAME.findall(arguments or called)
