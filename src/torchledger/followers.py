"""Whoever is told of what a planned program calls, as it calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Follower(Protocol):
    """Told of operators and of graphs, outside of compilation; whoever does not care for graphs leaves their methods as
    they are."""

    def called(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """An operator has been called."""

    def graph_begins(self, compiled: Any, inputs: Sequence[Any]) -> Any:
        """A compiled graph is about to be called; returns what is to be known of its inputs, which it may free."""
        return None

    def graph_called(self, begun: Any, outputs: Any) -> None:
        """A compiled graph has been called; ``begun`` is what ``graph_begins`` returned."""
        return
