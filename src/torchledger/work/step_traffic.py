"""How many bytes a whole step moves, which decides what one step leaves in the cache for the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchledger.nouns import Launch, StepCall


def moved_bytes(launches: Iterable[Launch], graph_calls: Mapping[str, int], calls: Iterable[StepCall]) -> int:
    """Bytes of a step's launches, as often as it calls their graphs, and of its eager operators; what is unknown is
    left out."""
    compiled = sum(graph_calls.get(launch.graph, 0) * (launch.bytes_moved or 0) for launch in launches)
    return compiled + sum(call.bytes_moved or 0 for call in calls if call.kind == "operator")
