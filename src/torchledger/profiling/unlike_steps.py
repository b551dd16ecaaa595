"""What steps of a program that are of several kinds call differently, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torchledger.nouns import Launch, StepKind
from torchledger.stepping.finder import OTHER_KINDS

_MOST_NAMED = 3


def what_differs(kinds: Sequence[StepKind], lines: Mapping[str, str] | None = None) -> str | None:
    """Which graphs, modules and optimizers some kinds of steps call more often than others, how often a step; ``None``
    where no two kinds are known. ``lines`` are those of the program that graphs come of.

    >>> what_differs([StepKind(2, {"forward_0": 1}), StepKind(1, {"forward_0": 4})], {"forward_0": "train.py:12"})
    'forward_0 (of train.py:12) 1 to 4 times'
    """
    known = [kind.calls for kind in kinds if tuple(kind.calls.items()) != OTHER_KINDS]
    named = []
    for name in dict.fromkeys(name for calls in known for name in calls):
        counts = [calls.get(name, 0) for calls in known]
        least, most = min(counts), max(counts)
        if least != most:
            of = f" (of {lines[name]})" if lines and name in lines else ""
            named.append(f"{name}{of} {least} {'or' if most == least + 1 else 'to'} {most} times")
    if not named:
        return None
    further = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return ", ".join(named[:_MOST_NAMED]) + further


def lines_of_graphs(launches: Mapping[str, Iterable[Launch]]) -> dict[str, str]:
    """The program's first line in each graph that knows of one: ``{"forward_0": "train.py:12"}``."""
    found: dict[str, str] = {}
    for graph, members in launches.items():
        for launch in members:
            if launch.sources and graph not in found:
                first = launch.sources[0]
                found[graph] = f"{first.file.rpartition('/')[2]}:{first.line}"
    return found
