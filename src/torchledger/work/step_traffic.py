"""How many bytes a whole step moves, which decides what one step leaves in the cache for the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchledger.nouns import Launch, StepCall
from torchledger.work.graph_names import direction_of


@dataclass(frozen=True)
class StepTraffic:
    """Bytes that a step moves where one step follows the other, and those of them that its optimizer moves.

    ``optimizer_bytes`` is ``None`` of a step that does not train.
    """

    bytes_moved: int
    optimizer_bytes: int | None = None

    @property
    def trains(self) -> bool:
        """As ``step_trains`` says of the step."""
        return self.optimizer_bytes is not None


def step_trains(graph_calls: Mapping[str, int], calls: Iterable[StepCall]) -> bool:
    """True of a step that calls the graph of a backward, or has any call in its backward."""
    return any(direction_of(graph) == "backward" and count for graph, count in graph_calls.items()) or any(
        call.phase == "backward" for call in calls
    )


def step_traffic(
    launches: Iterable[Launch], graph_calls: Mapping[str, int], calls: Iterable[StepCall] = ()
) -> StepTraffic:
    """Bytes of a step's launches, as often as it calls their graphs, and of its eager operators; what is unknown is
    left out."""
    total = optimizer = 0
    of_graph: dict[str, int] = {}
    for launch in launches:
        of_graph[launch.graph] = of_graph.get(launch.graph, 0) + (launch.bytes_moved or 0)
    calls = tuple(calls)
    for call in calls:
        if call.kind == "operator":
            total += call.bytes_moved or 0
            optimizer += (call.bytes_moved or 0) if call.phase == "optimizer" else 0
    total += sum(count * of_graph.get(graph, 0) for graph, count in graph_calls.items())
    return StepTraffic(total, optimizer if step_trains(graph_calls, calls) else None)
