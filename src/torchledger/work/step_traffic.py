"""How many bytes a whole step moves and holds, which decides what one step leaves in the cache for the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from torchledger.nouns import Launch, StepCall
from torchledger.work.graph_names import direction_of


@dataclass(frozen=True)
class StepTraffic:
    """Bytes that a step moves where one step follows the other, and those of them that its optimizer moves.

    ``optimizer_bytes`` is ``None`` of a step that does not train. ``held_bytes`` are those of the memory that it
    touches at all, what was freed used again: however often a step goes over them, they are what a cache would have to
    hold; ``None`` where that was not counted.
    """

    bytes_moved: int
    optimizer_bytes: int | None = None
    held_bytes: int | None = None

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
    launches: Iterable[Launch],
    graph_calls: Mapping[str, int],
    calls: Iterable[StepCall] = (),
    *,
    times: Mapping[str, int] | None = None,
) -> StepTraffic:
    """Bytes of a step's launches, as often as it makes them, and of its eager operators; what is unknown is left out.

    ``times`` says how often it makes each launch, by ``launch_id`` (``None``: as often as it calls their graphs).
    """
    total = optimizer = held = held_by_backward = held_by_optimizer = 0
    of_graph: dict[str, list[Launch]] = {}
    for launch in launches:
        of_graph.setdefault(launch.graph, []).append(launch)
    calls = tuple(calls)
    for call in calls:
        if call.kind == "operator":
            moved = call.bytes_moved or 0
            total += moved
            if call.phase == "optimizer":
                optimizer += moved
                # One operator after another goes over the same tensors.
                held_by_optimizer = max(held_by_optimizer, moved)
            elif call.phase == "backward":
                held_by_backward = max(held_by_backward, moved)
            else:
                # Half of it is read, and there already.
                held += moved // 2
    called = {graph: found for graph, found in of_graph.items() if graph_calls.get(graph)}
    total += sum(
        (graph_calls[graph] if times is None else times[launch.launch_id]) * (launch.bytes_moved or 0)
        for graph in called
        for launch in called[graph]
    )
    held += held_by_backward + held_by_optimizer + _held_by_graphs(called, graph_calls)
    return StepTraffic(total, optimizer if step_trains(graph_calls, calls) else None, held)


def _held_by_graphs(graphs: Mapping[str, Sequence[Launch]], graph_calls: Mapping[str, int]) -> int:
    """What graphs are given, those of one number sharing it (a backward is given what its forward saved), and the most
    that one of them makes on the way: its own buffers that are alive at once, each from its first use to its last."""
    given: dict[tuple[str, str], int] = {}
    most = 0
    for graph, launches in graphs.items():
        number, calls = graph.rpartition("_")[2], graph_calls[graph]
        made: dict[str, tuple[int, int, int]] = {}
        for place, launch in enumerate(launches):
            for buffer in launch.buffers:
                name, size = buffer.name, max(buffer.bytes_read or 0, buffer.bytes_written or 0)
                if not name.startswith("buf") and buffer.role in ("input", "inout"):
                    given[number, name] = max(given.get((number, name), 0), calls * size)
                elif (known := made.get(name)) is not None:
                    made[name] = known[0], place, max(known[2], size)
                elif buffer.role != "inout":
                    # What takes over another's memory is not more of it.
                    made[name] = place, place, size
        most = max(most, _most_alive(made.values(), len(launches)))
    return sum(given.values()) + most


def _most_alive(spans: Iterable[tuple[int, int, int]], count: int) -> int:
    """The largest sum of sizes at one of ``count`` places, of (first place, last place, size)."""
    changes = [0] * (count + 1)
    for first, last, size in spans:
        changes[first] += size
        changes[last + 1] -= size
    return max(accumulate(changes), default=0)
