"""Which launches of two runs hang together, by the nodes that they cover, and what changed in such a group."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchledger.nouns import Launch
from torchledger.nouns.run_diff import DiffSide, LaunchGroup, ReadChange, Regrouping


@dataclass(frozen=True)
class Entry:
    """A launch with the meaning of its nodes, the same in both runs, and how often a step calls its graph."""

    launch: Launch
    nodes: frozenset[Hashable]
    calls: int = 1


def entries_of(launches: Sequence[Launch], meanings: Mapping[str, Hashable], calls: int) -> list[Entry]:
    return [
        Entry(
            launch,
            frozenset(meanings[node] for node in launch.fx_nodes)
            or frozenset({("operators", launch.aten_ops) if launch.aten_ops else ("kernel", launch.kernel_name)}),
            calls,
        )
        for launch in launches
    ]


def connected(one: Sequence[Entry], other: Sequence[Entry]) -> list[tuple[list[Entry], list[Entry]]]:
    """Connected parts of the graph whose edges join launches of both runs that compute the same."""
    edges = _edges_of_equals(one, other)
    taken_one, taken_other = {edge[0] for edge in edges}, {edge[1] for edge in edges}
    rest_one = [place for place in range(len(one)) if place not in taken_one]
    rest_other = [place for place in range(len(other)) if place not in taken_other]
    edges |= _edges_by_node(one, other, rest_one, rest_other)
    edges |= _edges_of_leftovers(one, other, edges)
    root: dict[tuple[int, int], tuple[int, int]] = {}

    def find(place: tuple[int, int]) -> tuple[int, int]:
        while (above := root.setdefault(place, place)) != place:
            root[place] = root[above]
            place = above
        return place

    for place_one, place_other in sorted(edges):
        root[find((1, place_other))] = find((0, place_one))
    found: dict[tuple[int, int], tuple[list[Entry], list[Entry]]] = {}
    for side, entries in enumerate((one, other)):
        for place, entry in enumerate(entries):
            found.setdefault(find((side, place)), ([], []))[side].append(entry)
    return list(found.values())


def _edges_of_equals(one: Sequence[Entry], other: Sequence[Entry]) -> set[tuple[int, int]]:
    """Launches of the same nodes: in order where both runs have as many, else all of them together."""
    places: dict[frozenset[Hashable], tuple[list[int], list[int]]] = {}
    for side, entries in enumerate((one, other)):
        for place, entry in enumerate(entries):
            places.setdefault(entry.nodes, ([], []))[side].append(place)
    edges: set[tuple[int, int]] = set()
    for here, there in places.values():
        if len(here) == len(there):
            edges |= set(zip(here, there, strict=True))
        else:
            edges |= {(first, second) for first in here for second in there}
    return edges


def _edges_by_node(
    one: Sequence[Entry], other: Sequence[Entry], rest_one: Sequence[int], rest_other: Sequence[int]
) -> set[tuple[int, int]]:
    """Launches that share a node which one launch of each run computes.

    A node that several launches compute is cheap and was computed again in each of its users, which ties none of them
    together. It counts only for a launch that nothing else ties: a kernel that was inlined into all its users.
    """
    here, there = _places_by_node(one, rest_one), _places_by_node(other, rest_other)
    edges = {(here[node][0], there[node][0]) for node in here if len(here[node]) == len(there.get(node, ())) == 1}
    tied_one, tied_other = {edge[0] for edge in edges}, {edge[1] for edge in edges}
    for node in here.keys() & there.keys():
        if len(here[node]) == 1 and here[node][0] not in tied_one:
            edges |= {(here[node][0], place) for place in there[node]}
        if len(there[node]) == 1 and there[node][0] not in tied_other:
            edges |= {(place, there[node][0]) for place in here[node]}
    return edges


def _places_by_node(entries: Sequence[Entry], rest: Iterable[int]) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = {}
    for place in rest:
        for node in entries[place].nodes:
            found.setdefault(node, []).append(place)
    return found


def _edges_of_leftovers(
    one: Sequence[Entry], other: Sequence[Entry], edges: Collection[tuple[int, int]]
) -> set[tuple[int, int]]:
    """A launch that nothing ties yet goes to the one of the other run that it shares most with, if any."""
    tied = {edge[0] for edge in edges}, {edge[1] for edge in edges}
    here, there = _places_by_node(one, range(len(one))), _places_by_node(other, range(len(other)))
    found: set[tuple[int, int]] = set()
    for place, entry in enumerate(one):
        if place not in tied[0] and (best := _closest(entry, other, there)) is not None:
            found.add((place, best))
    for place, entry in enumerate(other):
        if place not in tied[1] and (best := _closest(entry, one, here)) is not None:
            found.add((best, place))
    return found


def _closest(entry: Entry, entries: Sequence[Entry], places_by_node: Mapping[Hashable, Sequence[int]]) -> int | None:
    candidates = {place for node in entry.nodes for place in places_by_node.get(node, ())}
    shares = [
        (len(entry.nodes & entries[place].nodes) / len(entry.nodes | entries[place].nodes), -place)
        for place in candidates
    ]
    return -max(shares)[1] if shares else None


def launch_group(
    one: Sequence[Entry],
    other: Sequence[Entry],
    times_one: Mapping[str, int] | None,
    times_other: Mapping[str, int] | None,
) -> LaunchGroup:
    kind = _kind(one, other)
    last = (other or one)[-1].launch
    launches = [entry.launch for entry in (other or one)]
    # One call of a layer names its tensors once, the same layers in one graph each of theirs: nothing to compare.
    is_unrolled = bool(one and other) and one[0].calls != other[0].calls
    return LaunchGroup(
        kind=kind,
        first=_side(one, times_one),
        second=_side(other, times_other),
        aten_ops=tuple(dict.fromkeys(op for launch in launches for op in launch.aten_ops)),
        source=last.source,
        module=last.module,
        reads=() if is_unrolled or kind in ("only first", "only second") else _read_changes(one, other),
        shape=_written_shape(last),
    )


def _written_shape(launch: Launch) -> tuple[int, ...] | None:
    written = [buffer.shape for buffer in launch.buffers if buffer.role in ("output", "inout")]
    return max(written, key=math.prod, default=None)


def _kind(one: Sequence[Entry], other: Sequence[Entry]) -> Regrouping:
    if not one or not other:
        return "only first" if one else "only second"
    if sum(entry.calls for entry in one) == sum(entry.calls for entry in other) and (
        len({entry.nodes for entry in (*one, *other)}) == 1 and len(one) != len(other)
    ):
        return "same"  # a loop over layers in the program, and the same layers in one graph
    if len(one) == len(other) == 1:
        return "same" if one[0].nodes == other[0].nodes else "changed"
    return "split" if len(one) == 1 else "merged" if len(other) == 1 else "regrouped"


def _side(entries: Sequence[Entry], times: Mapping[str, int] | None) -> DiffSide:
    launches = [entry.launch for entry in entries]
    calls = entries[0].calls if entries else 1
    timed = [launch.launch_id for launch in launches if times is not None and launch.launch_id in times]
    return DiffSide(
        launches=tuple(launch.launch_id for launch in launches),
        kernels=tuple(launch.kernel_name for launch in launches),
        time_ns=None if times is None or (launches and not timed) else sum(times[name] for name in timed),
        bytes_moved=_sum(_times(launch.bytes_moved, calls) for launch in launches),
        flops=_sum(_times(launch.flops, calls) for launch in launches),
        untimed=0 if times is None else len(launches) - len(timed),
        calls=calls,
    )


def _times(count: int | None, calls: int) -> int | None:
    return None if count is None else count * calls


def _sum(counts: Iterable[int | None]) -> int | None:
    found = list(counts)
    known = [count for count in found if count is not None]
    return sum(known) if len(known) == len(found) else None


@dataclass(frozen=True)
class _Read:
    buffer: str
    fx_node: str | None
    bytes_read: int | None


def _read_changes(one: Sequence[Entry], other: Sequence[Entry]) -> tuple[ReadChange, ...]:
    """Tensors that the launches of one run read more often than those of the other, most bytes first."""
    here, there = _reads(one), _reads(other)
    found = []
    for meaning in dict.fromkeys([*there, *here]):
        before, after = here.get(meaning, []), there.get(meaning, [])
        if len(before) != len(after):
            bytes_one, bytes_other = (_sum(read.bytes_read for read in reads) for reads in (before, after))
            change = None if bytes_one is None or bytes_other is None else bytes_other - bytes_one
            named = (after or before)[0]
            found.append(ReadChange(named.buffer, named.fx_node, len(before), len(after), change))
    return tuple(sorted(found, key=lambda read: abs(read.bytes_read or 0), reverse=True))


def _reads(entries: Sequence[Entry]) -> dict[Hashable, list[_Read]]:
    """By what identifies a tensor in either run: its node, its name as a graph's input, else its dtype and shape."""
    found: dict[Hashable, list[_Read]] = {}
    for entry in entries:
        for buffer in entry.launch.buffers:
            if buffer.role in ("input", "inout") and buffer.bytes_read != 0:
                is_graph_input = buffer.fx_node is None and not buffer.name.startswith("buf")
                meaning = buffer.fx_node or (buffer.name if is_graph_input else (buffer.dtype, buffer.shape))
                found.setdefault(meaning, []).append(_Read(buffer.name, buffer.fx_node, buffer.bytes_read))
    return found
