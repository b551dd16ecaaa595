"""Which graphs of two runs belong together, and which of their nodes are the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher

from torchledger.comparing.repetition import align_repeated
from torchledger.nouns import Launch

_NAMES_SUFFICE = 0.9
_LONGEST_EXACT_ALIGNMENT = 4000
_NODE = re.compile(r'^\s*(\w+)(?:\s*:\s*"[^"]*")?\s*=\s', re.MULTILINE)


def pair_graphs(
    one: Mapping[str, Sequence[Launch]],
    other: Mapping[str, Sequence[Launch]],
    directions_one: Mapping[str, str],
    directions_other: Mapping[str, str],
) -> list[tuple[str | None, str | None]]:
    """The graphs that share most operators first, of equals those at the same place; never forward with backward."""
    candidates = []
    ops_one, ops_other = ({name: _operators(part) for name, part in run.items()} for run in (one, other))
    for place_one, (name_one, held_one) in enumerate(ops_one.items()):
        for place_other, (name_other, held_other) in enumerate(ops_other.items()):
            backward = [
                directions[name] == "backward"
                for directions, name in ((directions_one, name_one), (directions_other, name_other))
            ]
            likeness = _likeness(held_one, held_other)
            if backward[0] == backward[1] and likeness > 0:
                is_other_direction = directions_one[name_one] != directions_other[name_other]
                rank = (is_other_direction, -likeness, abs(place_one - place_other), place_one)
                candidates.append((rank, name_one, name_other))
    partner: dict[str, str] = {}
    taken: set[str] = set()
    for _, name_one, name_other in sorted(candidates):
        if name_one not in partner and name_other not in taken:
            partner[name_one] = name_other
            taken.add(name_other)
    pairs: list[tuple[str | None, str | None]] = [(name, partner.get(name)) for name in one]
    return pairs + [(None, name) for name in other if name not in taken]


def _likeness(one: Counter[str], other: Counter[str]) -> float:
    """Shared operators over all operators of both, 0 to 1."""
    union = (one | other).total()
    return (one & other).total() / union if union else 0.0


def _operators(launches: Iterable[Launch]) -> Counter[str]:
    """Each node once, however many launches compute it."""
    nodes = {node: op for launch in launches for node, op in zip(launch.fx_nodes, launch.aten_ops, strict=False)}
    unnamed = [op for launch in launches if not launch.fx_nodes for op in launch.aten_ops or (launch.kernel_name,)]
    return Counter(nodes.values()) + Counter(unnamed)


def node_ops(launches: Sequence[Launch], fx_source: str | None) -> dict[str, str]:
    """Operator by node, in the order of the graph where its source is known, else of the launches."""
    ops = {
        node: launch.aten_ops[place] if place < len(launch.aten_ops) else ""
        for launch in launches
        for place, node in enumerate(launch.fx_nodes)
    }
    if not fx_source:
        return ops
    place_of = {name: place for place, name in enumerate(_NODE.findall(fx_source))}
    return dict(sorted(ops.items(), key=lambda item: place_of.get(item[0], len(place_of))))


def common_nodes(
    one: Mapping[str, str], other: Mapping[str, str], *, is_ordered: bool, calls: tuple[int, int] = (1, 1)
) -> tuple[dict[str, Hashable], dict[str, Hashable]]:
    """A meaning for each node of either graph: equal for the nodes that correspond.

    Nodes of equal names and operators correspond where that holds for all. One more node early in a graph renumbers
    those after it, so other graphs are aligned as sequences of operators; where the nodes' order is not known
    (``is_ordered``), only if names leave many without partner.

    A graph that one step calls often may be unrolled in the other: ``calls`` is how often each step calls its graph,
    and a node of the smaller graph then corresponds to one in each of its repetitions.
    """
    if calls[0] > calls[1] and len(one) < len(other):
        return _unrolled(one, other)
    if calls[1] > calls[0] and len(other) < len(one):
        meanings = _unrolled(other, one)
        return meanings[1], meanings[0]
    by_name = {name for name, op in one.items() if other.get(name) == op}
    n_sufficient = max(len(one), len(other)) if is_ordered else _NAMES_SUFFICE * min(len(one), len(other))
    if len(by_name) >= n_sufficient:
        match = {name: name for name in by_name}
    else:
        names_one, names_other = list(one), list(other)
        is_long = max(len(one), len(other)) > _LONGEST_EXACT_ALIGNMENT
        matcher = SequenceMatcher(None, list(one.values()), list(other.values()), autojunk=is_long)
        match = {
            names_other[block.b + place]: names_one[block.a + place]
            for block in matcher.get_matching_blocks()
            for place in range(block.size)
        }
    return (
        {name: ("node", name) for name in one},
        {name: ("node", match[name]) if name in match else ("second", name) for name in other},
    )


def _unrolled(layer: Mapping[str, str], whole: Mapping[str, str]) -> tuple[dict[str, Hashable], dict[str, Hashable]]:
    """Meanings where ``whole`` holds the nodes of ``layer`` again and again, with others between them."""
    names = list(layer)
    places = align_repeated(list(layer.values()), list(whole.values()))
    return (
        {name: ("node", name) for name in layer},
        {
            name: ("other", name) if place is None else ("node", names[place])
            for name, place in zip(whole, places, strict=True)
        },
    )
