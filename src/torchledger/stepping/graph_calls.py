"""The calls of compiled graphs, made as the program makes them, while something is recorded of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchledger.signals import let_through
from torchledger.stepping.tools import Tools
from torchledger.traces.graph_marks import graph_mark

log = logging.getLogger(__name__)


class GraphCalls:
    """Makes calls under a mark, told to a listener, or each recorded alone; a call's result is always the program's.

    ``first`` holds the traces of calls that were recorded alone, by graph; what could not be goes to ``notes``.
    """

    def __init__(self, notes: list[str]) -> None:
        self.first: list[tuple[str, Path]] = []
        self._notes = notes
        self._inside = threading.local()

    def inside(self) -> str | None:
        """The graph that the calling thread is in a marked call of."""
        return getattr(self._inside, "graph", None)

    def marked(
        self, tools: Tools, name: str, proceed: Callable[[], Any], sizes: Callable[[], Mapping[str, int]]
    ) -> Any:
        """Make the call under a mark that tells its graph, and the sizes of its symbols where they are known."""
        try:
            mark = graph_mark(name, sizes())
        except Exception as error:  # the call is recorded without its sizes
            let_through(error)
            log.debug("the sizes of a call of %s are not known", name, exc_info=error)
            mark = graph_mark(name)
        former = self.inside()
        self._inside.graph = name
        try:
            with tools.mark(mark):
                return proceed()
        finally:
            self._inside.graph = former

    def alone(self, tools: Tools, name: str, proceed: Callable[[], Any]) -> Any:
        """The first call of a graph runs un-graphed: record which kernels it launches, to know them in replays."""
        recording = tools.recording()
        try:
            recording.start()
        except Exception as error:  # the program's call must go on
            let_through(error)
            self._notes.append(f"{name}: its un-graphed call could not be recorded: {error}")
            return proceed()
        try:
            with tools.mark(graph_mark(name)):
                return proceed()
        finally:
            try:
                recording.stop()
                # At once: the next recording takes its memory over.
                self.first.append((name, recording.export()))
            except Exception as error:  # the program's call has its result
                let_through(error)
                self._notes.append(f"{name}: its un-graphed call could not be recorded: {error}")


def told(listener: Any, name: str, proceed: Callable[[], Any], inputs: Sequence[Any]) -> Callable[[], Any]:
    """The same call, of which ``listener`` is told."""

    def call() -> Any:
        try:
            listener.graph_begins(name, inputs)
        except Exception as error:  # the program's call must go on
            let_through(error)
            log.debug("the storages of %s were not noted", name, exc_info=error)
        result = None
        try:
            result = proceed()
        finally:
            try:
                listener.graph_ends(result)
            except Exception as error:  # the program's call has its result
                let_through(error)
                log.debug("the storages of %s were not noted", name, exc_info=error)
        return result

    return call
