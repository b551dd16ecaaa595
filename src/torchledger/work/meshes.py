"""Meshes of ranks: their sizes by name, and that they divide the world."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchledger.errors import UsageError


def parse_mesh(text: str) -> dict[str, int]:
    """The sizes of a mesh by name. Raises ``UsageError`` with the form that is read.

    >>> parse_mesh("dp=8,tp=4")
    {'dp': 8, 'tp': 4}
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = part.strip().partition("=")
        if not name or not equals or not size.isdigit() or int(size) < 1 or name in sizes:
            raise UsageError(
                f"{part.strip()!r} in the mesh {text!r} is no NAME=SIZE. Write it as dp=8,tp=4: each "
                "name once, each size 1 or more."
            )
        sizes[name] = int(size)
    return sizes


def check_mesh(mesh: str, sizes: Sequence[int], world: int) -> None:
    """Raises ``UsageError`` for a mesh that does not divide the world, with the nearest worlds that it does."""
    ranks = math.prod(sizes)
    if ranks <= 0 or world % ranks == 0:
        return
    below = world // ranks * ranks
    nearest = " or ".join(f"--world {each}" for each in (below, below + ranks) if each)
    raise UsageError(
        f"{mesh} is of {ranks} ranks, which do not divide a world of {world}. The nearest that works is {nearest}."
    )


def check_nodes(ranks_per_node: int, world: int) -> None:
    """Raises ``UsageError`` for nodes of so many ranks that the last one would not be full, with the nearest that are.

    >>> check_nodes(4, 8), check_nodes(8, 2)
    (None, None)
    """
    if ranks_per_node >= world or world % ranks_per_node == 0:
        return
    fitting = [each for each in range(1, world + 1) if world % each == 0]
    nearest = min(fitting, key=lambda each: (abs(each - ranks_per_node), each))
    raise UsageError(
        f"a world of {world} ranks does not fill nodes of {ranks_per_node}. The nearest that works is --node {nearest}."
    )
