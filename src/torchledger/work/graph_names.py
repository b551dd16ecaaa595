"""What a ledger calls its graphs: the direction and a number."""

from __future__ import annotations

from torchledger.nouns import Direction


def graph_name(direction: Direction, number: int) -> str:
    """``"forward_0"``."""
    return f"{direction}_{number}"


def direction_of(graph: str) -> Direction:
    """The direction that a graph's name tells; ``"inference"`` of a name that tells none.

    >>> direction_of("backward_0")
    'backward'
    """
    match graph.partition("_")[0]:
        case "forward" | "backward" as direction:
            return direction
        case _:
            return "inference"
