"""CUDA graphs that a program captures itself, on a device that is not there: what they hold runs once, and is noted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from torchledger.nouns import STEP_GRAPH

_CAPTURED = "a CUDA graph that the program captures is priced launch by launch, and what runs beside its replays is not"


class Captures:
    """The captures of a program; ``n_begun`` counts them, ``n_replays`` the replays of their graphs. ``decisions`` are
    told how these are priced."""

    def __init__(self, decisions: MutableMapping[str, int]) -> None:
        self._decisions = decisions
        self._n_open = 0
        self.n_begun = self.n_replays = 0

    def begin(self) -> None:
        """A capture begins."""
        self._n_open += 1
        self.n_begun += 1
        self._decisions[_CAPTURED] = self._decisions.get(_CAPTURED, 0) + 1

    def end(self) -> None:
        """The capture that began last ends."""
        self._n_open = max(0, self._n_open - 1)

    def optimizer_stepped(self) -> None:
        """An optimizer has made its step: what is captured now is a whole step, and is replayed as one."""
        if self._n_open:
            self._decisions.pop(_CAPTURED, None)
            self._decisions[STEP_GRAPH] = 1

    def names(self) -> dict[str, Any]:
        """What stands in ``torch.cuda`` for graphs and their captures."""
        return {"CUDAGraph": _graphs_of(self), "graph": self._context()}

    def _context(self) -> Callable[..., contextlib.AbstractContextManager[None]]:
        @contextlib.contextmanager
        def graph(*args: Any, **kwargs: Any) -> Iterator[None]:
            self.begin()
            try:
                yield
            finally:
                self.end()

        return graph


def _graphs_of(captures: Captures) -> type:
    class Graph:
        """A CUDA graph whose replays run nothing: what they would run ran when it was captured."""

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return super().__new__(cls)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def capture_begin(self, *args: Any, **kwargs: Any) -> None:
            captures.begin()

        def capture_end(self) -> None:
            captures.end()

        def replay(self) -> None:
            captures.n_replays += 1

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *args, **kwargs: None

    return Graph
