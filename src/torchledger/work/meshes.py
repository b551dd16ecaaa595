"""Meshes of ranks: their sizes by name, and that they divide the world."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

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


def unlike_mesh(text: str, groups: Mapping[str, Collection[int]]) -> str | None:
    """What a program's groups have otherwise than a mesh says, ``None`` where nothing. ``groups`` are sizes by what a
    group is for: ``mesh_dp`` is the axis ``dp`` of a device mesh, and other names say nothing of axes.

    >>> unlike_mesh("dp=4,tp=16", {"mesh_dp": {8}, "mesh_tp": {8}})
    "the script's mesh has dp=8, tp=8 where --mesh says dp=4, tp=16: the plan is of the script's"
    >>> unlike_mesh("dp=8,tp=2", {"": {8, 2}})
    """
    sizes = parse_mesh(text)
    named = {name: set(groups.get(f"mesh_{name}", ())) for name in sizes}
    every = {size for some in groups.values() for size in some}
    other = [name for name, size in sizes.items() if named[name] and size not in named[name]]
    lacking = [name for name, size in sizes.items() if not named[name] and size > 1 and size not in every]
    if other:
        has = ", ".join(f"{name}={'/'.join(map(str, sorted(named[name])))}" for name in other)
        says = ", ".join(f"{name}={sizes[name]}" for name in other)
        return f"the script's mesh has {has} where --mesh says {says}: the plan is of the script's"
    if lacking:
        says = ", ".join(f"{name}={sizes[name]}" for name in lacking)
        return f"no group of the script has the ranks of {says} in --mesh: the plan is of the script's groups"
    return None


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


def undivided(owner: str, count: int, ranks: int, world: int, of_what: str = "heads") -> str:
    """That so many of something do not divide over the ranks of a mesh, and the nearest number of ranks over which they
    do; where the mesh is a part of the world, one that divides that, too.

    >>> undivided("attention", 20, 8, 16)
    'attention has 20 heads, which do not divide over 8 ranks: the nearest that works is 4'
    """
    fitting = (each for each in range(1, count + 1) if count % each == 0 and (ranks == world or world % each == 0))
    nearest = min(fitting, key=lambda each: (abs(each - ranks), each))
    return f"{owner} has {count} {of_what}, which do not divide over {ranks} ranks: the nearest that works is {nearest}"


_NO_VIEW = re.compile(r"shape '\[([-\d, ]+)\]' is invalid for input of size (\d+)")


def uneven_view(said: str, meshes: Iterable[int], world: int) -> str | None:
    """Why a view of what a rank of tensor parallelism holds fails, by what torch says of it and the ranks of each mesh:
    it fits what all ranks of one hold, and not a rank's part; ``None`` where neither is so.

    >>> uneven_view("shape '[4, 2048, -1, 128]' is invalid for input of size 2621440", [8], 16)
    'the view as [4, 2048, -1, 128] has 20 heads of 128, which do not divide over 8 ranks: the nearest that works is 4'
    """
    if (found := _NO_VIEW.search(said)) is None:
        return None
    shape, numel = [int(size) for size in found[1].split(",")], int(found[2])
    given = math.prod(size for size in shape if size != -1)
    view = f"the view as {shape}"
    for ranks in meshes:
        if -1 not in shape and given == numel * ranks:
            return (
                f"{view} has the size of what all {ranks} ranks of a mesh hold, of which each holds a part: its heads "
                "are those of one rank, or -1"
            )
        if -1 in shape and given and numel % given and numel * ranks % given == 0:
            each = math.prod(shape[shape.index(-1) + 1 :])
            of_what = "heads" if shape.index(-1) == len(shape) - 2 else "parts"
            return undivided(view, numel * ranks // given, ranks, world, f"{of_what} of {each}")
    return None
