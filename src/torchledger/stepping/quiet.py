"""Plain steps in which nothing of the program is heard but that a graph is called, so that they cost what they cost.

Whoever hears all that tells where steps end doubles what the host needs for a small one. Once the kind of steps is
known that is not needed: each has as many calls of graphs, in the same order.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torchledger.stepping.finder import Signature

Quiet = Callable[[Callable[[Any], None] | None], bool]
"""``quiet(called)`` has ``called`` told of each graph's call and nothing else heard (false if that cannot be),
``quiet(None)`` everything heard again."""


class QuietSteps:
    """Counts calls of graphs: every so many of them a step begins, of which ``begins`` is told with the calls, by
    ``id``, since the one before, the first of the new step included. The first begins after ``before_first`` calls."""

    def __init__(self, calls_in_step: int, before_first: int, begins: Callable[[Sequence[int]], None]) -> None:
        self._calls_in_step, self._begins = calls_in_step, begins
        self._left = before_first + 1
        self._graphs: list[int] = []
        self.usual: list[int] | None = None
        self.n_begun = 0

    def called(self, graph: Any) -> None:
        """A graph is about to be called."""
        self._graphs.append(id(graph))
        self._left -= 1
        if not self._left:
            self._left = self._calls_in_step
            graphs, self._graphs = self._graphs, []
            self._begins(graphs)


def calls_of_graphs(kind: Signature, graphs: Sequence[str]) -> Counter[str]:
    """How often steps of a kind call each of these graphs."""
    known = set(graphs)
    return Counter({name: count for name, count in kind if name in known})


def is_here(owner: object) -> bool:
    """Whether the steps' own thread is the one that asks."""
    return threading.get_ident() == owner
