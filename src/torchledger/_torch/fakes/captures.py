"""CUDA graphs that a program captures itself, on a device that is not there: what they hold runs at each replay."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import torch

from torchledger._torch.captured_work import CapturedWork
from torchledger._torch.cuda_graphs import is_asked_by_torch
from torchledger.nouns import STEP_GRAPH

if TYPE_CHECKING:
    from torchledger._torch.fakes.streams import StreamOrder
    from torchledger._torch.fakes.tensors import FakeTensors

_CAPTURED = "a CUDA graph that the program captures is priced by what it holds, at each of its replays"

_NO_POOL = (0, 0)


class Captures:
    """The captures of a program; ``n_begun`` counts them. ``decisions`` are told
    how these are priced, ``tensors`` tell what the program calls, and ``order`` places what is replayed.

    ``around_replay`` is entered while a graph is replayed; ``is_inside`` tells whether a compiled graph is at work,
    whose operators are its own.
    """

    def __init__(self, decisions: MutableMapping[str, int], tensors: FakeTensors, order: StreamOrder) -> None:
        self._decisions, self._tensors, self._order = decisions, tensors, order
        self._open: list[CapturedWork] = []
        self._began = 0
        self._replays = itertools.count()
        self.n_begun = 0
        self.around_replay: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        self.is_inside: Callable[[], bool] = lambda: False

    @property
    def is_open(self) -> bool:
        """True while the program captures."""
        return bool(self._open)

    def begin(self) -> CapturedWork:
        """A capture begins."""
        work = CapturedWork(lambda: self.is_inside())
        self._began = self._tensors.n_operators
        self._open.append(work)
        self._tensors.flows.append(work)
        self.n_begun += 1
        self._decisions[_CAPTURED] = self._decisions.get(_CAPTURED, 0) + 1
        return work

    def end(self) -> None:
        """The capture that began last ends."""
        if self._open:
            work = self._open.pop()
            self._tensors.flows.remove(work)
            work.close()
            self._tensors.count_operators(self._began)  # it runs at replays alone

    def replay(self, work: CapturedWork, *, is_by_torch: bool = False) -> None:
        """What was captured runs. What torch replays itself, of callables that it has captured (``is_by_torch``), is a
        part of their calls."""
        around = contextlib.nullcontext if is_by_torch else self.around_replay
        with around(), self._order.replaying(next(self._replays)):
            work.run()

    def optimizer_stepped(self, tell: Callable[[], None], *, is_alone: bool) -> None:
        """An optimizer has made its step: what a rank that ``is_alone`` captures now is a whole step, and is replayed
        as one. ``tell`` tells of such a step again."""
        if self._open:
            self._open[-1].stepped(tell)
        if self._open and is_alone:
            self._decisions.pop(_CAPTURED, None)
            self._decisions[STEP_GRAPH] = 1

    def replays_were_heard(self) -> None:
        """The step that is priced holds replays, each as one."""
        self._decisions.pop(STEP_GRAPH, None)
        self._decisions.setdefault(_CAPTURED, self.n_begun)

    def names(self) -> dict[str, Any]:
        """What stands in ``torch.cuda`` for graphs and their captures."""
        return {
            "CUDAGraph": _graphs_of(self),
            "graph": self._context(),
            "graph_pool_handle": lambda: _NO_POOL,
            "is_current_stream_capturing": lambda: self.is_open,
            "make_graphed_callables": _without_pool(torch.cuda.graphs.make_graphed_callables),
        }

    def _context(self) -> Callable[..., contextlib.AbstractContextManager[None]]:
        @contextlib.contextmanager
        def graph(cuda_graph: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
            cuda_graph.capture_begin()
            try:
                yield
            finally:
                cuda_graph.capture_end()

        return graph


def _without_pool(make_graphed_callables: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, pool=None, **kwargs: make_graphed_callables(*args, pool=pool or _NO_POOL, **kwargs)


def _graphs_of(captures: Captures) -> type:
    class Graph:
        """A CUDA graph whose replays run what was captured."""

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return super().__new__(cls)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._work: CapturedWork | None = None

        def capture_begin(self, *args: Any, **kwargs: Any) -> None:
            self._work = captures.begin()

        def capture_end(self) -> None:
            captures.end()

        def replay(self) -> None:
            if self._work is not None:
                captures.replay(self._work, is_by_torch=is_asked_by_torch(sys._getframe(1)))

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *args, **kwargs: None

    return Graph
