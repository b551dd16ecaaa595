"""Which of a recorded step's entries are what a dispatch mode heard in another step, and where the two part.

Both hold the same operators in the same order, but for two things that torch does: a checkpoint ends what it runs again
once the backward has what it needs, at an operator that was recorded and does not run; and some of autograd's formulas
take another route while a mode listens.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from torchledger.stepping.entries import Entry
from torchledger.traces.trace import Trace
from torchledger.work.op_costs import op_cost
from torchledger.work.op_shapes import Tensor

if TYPE_CHECKING:
    from torchledger._torch.eager_calls import EagerCall

_UNCOUNTED = frozenset(
    {
        "aten::alias",
        "aten::detach",
        "aten::detach_",
        "aten::empty",
        "aten::lift_fresh",
        "aten::_fw_primal",
        "aten::_make_dual",
        "aten::_indices",
        "aten::_values",
        "aten::_nested_get_jagged_dummy",
        "aten::_nested_get_lengths",
        "aten::_nested_get_max_seqlen",
        "aten::_nested_get_min_seqlen",
        "aten::_nested_get_offsets",
        "aten::_nested_get_ragged_idx",
        "aten::_nested_get_values",
        "aten::_nested_tensor_size",
        "aten::_nested_view_from_jagged",
    }
)
"""Allocations and aliases, which move nothing. A dispatch mode causes some (autograd saves outputs by ``detach`` under
a mode) and does not hear others (``torch.tensor`` builds below it, ``torch.func`` makes dual tensors and takes them
apart there, autograd takes a sparse gradient apart below it, ``as_subclass`` makes its alias there, and jagged tensors
answer for what they hold), so that they are left out of both counts."""


def is_uncounted(name: str) -> bool:
    """Whether an operator is an allocation or an alias, which neither of the two counts holds.

    >>> is_uncounted("aten::detach"), is_uncounted("aten::add")
    (True, False)
    """
    return name in _UNCOUNTED


def operators_of(entries: Sequence[Entry]) -> dict[tuple[int, int], str]:
    """Lane and row of each operator that a dispatch mode would hear, with its name: one for all parts of a custom
    operator."""
    found = {}
    for entry in entries:
        if entry.part_of is not None:
            row, name = entry.part_of
            found[entry.lane, row] = name
        elif (entry.call is not None or entry.kind == "collective") and not is_uncounted(entry.name):
            found[entry.lane, entry.row] = entry.name
    return found


def is_as_heard(operators: Iterable[str], heard: Sequence[EagerCall]) -> bool:
    """Whether a step's operators, by name, are those that a mode heard in another: the two did the same."""
    theirs = Counter(call.call.name.rstrip("_") for call in heard if is_counted(call))
    return bool(theirs) and Counter(name.rstrip("_") for name in operators) == theirs


def count_heard(heard: Sequence[EagerCall]) -> int:
    """How many of the operators that a mode heard profilers count too."""
    return sum(map(is_counted, heard))


def is_counted(heard: EagerCall) -> bool:
    """Whether an operator that a mode heard is one of those that profilers count too."""
    return heard.call.name not in _UNCOUNTED


def counted_names(heard: Sequence[EagerCall]) -> Counter[str]:
    """How often a mode heard which operators, by names that a profiler has too."""
    # Under a mode autograd adds to no gradient in place.
    eager = [call for call in heard if call.graph is None and is_counted(call)]
    return Counter(call.call.name for call in eager if call.call.name != "aten::add")


def align(trace: Trace, entries: Sequence[Entry], heard: Sequence[EagerCall]) -> dict[int, EagerCall]:
    """Place of an entry to what the mode heard of it, or of what it is a part of: by thread, in order, by name."""
    entries_of: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    names: dict[int, str] = {}
    for place, entry in enumerate(entries):
        row, name = entry.part_of or (entry.row, entry.name)
        if entry.call is not None or entry.kind == "collective" or entry.part_of is not None:
            entries_of[entry.lane][row].append(place)
            names[row] = name
    heard_of: dict[int, list[EagerCall]] = defaultdict(list)
    for call in heard:
        heard_of[call.thread].append(call)
    found: dict[int, EagerCall] = {}
    for lane, places in entries_of.items():
        calls = heard_of.get(thread_of(trace, lane))
        if calls is None and len(entries_of) == len(heard_of) == 1:
            calls = next(iter(heard_of.values()))
        rows = list(places)
        # Under a mode autograd adds to no gradient in place: ``add`` was heard where ``add_`` was recorded.
        ours_named = [names[row].rstrip("_") for row in rows]
        for ours, theirs in _pairs(ours_named, [each.call.name.rstrip("_") for each in calls or ()]):
            assert calls is not None
            found.update(dict.fromkeys(places[rows[ours]], calls[theirs]))
    return found


def have_other_sizes(entries: Sequence[Entry], heard_at: Mapping[int, EagerCall]) -> bool:
    """Whether what a mode heard of some operators had other sizes than these: steps of a dynamic program may."""
    return any(
        not is_at_sizes(entries[place], call) and not any(map(is_nested, call.call.tensors))
        for place, call in heard_at.items()
    )


def is_nested(tensor: Tensor) -> bool:
    """True for a nested tensor, which has no shape."""
    return not tensor.shape and tensor.strides is None


def is_at_sizes(entry: Entry, heard: EagerCall) -> bool:
    """Whether the tensors that an entry was given have the sizes of those that the mode heard."""
    if entry.call is None or entry.part_of is not None or entry.name != heard.call.name:
        return True
    if entry.cost.bytes_moved == 0:
        # Views, of what autograd saves among them, may stand in another order when they are heard.
        return True
    ours, theirs = entry.call.tensors, heard.call.tensors
    if not ours and not theirs:  # it makes a tensor: the sizes that it was asked for stand in its cost alone
        made = op_cost(heard.call).bytes_moved
        return None in (made, entry.cost.bytes_moved) or made == entry.cost.bytes_moved
    return len(ours) != len(theirs) or all(one.shape == other.shape for one, other in zip(ours, theirs, strict=True))


def thread_of(trace: Trace, lane: int) -> int:
    """The number that the system gives the thread of a trace's lane; -1 where the trace has none."""
    thread = trace.lanes[lane].thread
    return thread if isinstance(thread, int) else -1


def _pairs(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """Places of the same operators on both sides, in order: first of those that count, then of what lies between them.

    Allocations and aliases come by the thousand, and a mode hears others: among all names at once they would part each
    run of operators, and cost the square of their number.
    """
    if list(left) == list(right):
        return [(place, place) for place in range(len(left))]
    ours, theirs = ([place for place, name in enumerate(names) if name not in _UNCOUNTED] for names in (left, right))
    anchors = _matched([left[place] for place in ours], [right[place] for place in theirs])
    found: list[tuple[int, int]] = []
    begin, other = 0, 0
    for end, other_end in [*((ours[one], theirs[two]) for one, two in anchors), (len(left), len(right))]:
        between = _matched(left[begin:end], right[other:other_end])
        found += [(begin + one, other + two) for one, two in between]
        if end < len(left):
            found.append((end, other_end))
        begin, other = end + 1, other_end + 1
    return found


def _matched(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    if list(left) == list(right):
        return [(place, place) for place in range(len(left))]
    blocks = SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    return [(block.a + offset, block.b + offset) for block in blocks for offset in range(block.size)]


def stopped_places(entries: Sequence[Entry], heard_at: Mapping[int, EagerCall], heard: Sequence[EagerCall]) -> set[int]:
    """Places of operators that were recorded and did not run: a checkpoint ended what it ran again when they were about
    to, as the mode heard (``EagerCall.stops``)."""
    stops = [number for number, call in enumerate(heard) if call.stops]
    if not stops:
        return set()
    numbers = {id(call): number for number, call in enumerate(heard)}
    place_of = {numbers[id(call)]: place for place, call in heard_at.items()}
    found = set()
    for stop in stops:
        thread = heard[stop].thread
        places = [(number, place) for number, place in place_of.items() if heard[number].thread == thread]
        before = max((place for number, place in places if number <= stop), default=-1)
        after = min((place for number, place in places if number > stop), default=len(entries))
        between = [place for place in range(before + 1, after) if place not in heard_at and _is_counted(entries[place])]
        if len(between) == 1:
            found.add(between[0])
    return found


def other_routes(
    entries: Sequence[Entry], heard_at: Mapping[int, EagerCall], heard: Sequence[EagerCall]
) -> dict[str, int]:
    """Nodes of autograd's whose formulas took another route while a mode listened, and how many operators more they
    called in the recorded step.

    Of such a node each side has operators that the other lacks; where one only lacks some, they are missing.
    """
    ours: dict[str, Counter[str]] = defaultdict(Counter)
    theirs: dict[str, Counter[str]] = defaultdict(Counter)
    for place, entry in enumerate(entries):
        if place not in heard_at and _is_counted(entry) and entry.backward_node:
            ours[entry.backward_node][entry.name.rstrip("_")] += 1
    known = {id(call) for call in heard_at.values()}
    for call in heard:
        if id(call) not in known and is_counted(call) and call.node:
            theirs[call.node][call.call.name.rstrip("_")] += 1
    return {
        node: names.total() - theirs[node].total()
        for node, names in ours.items()
        if node in theirs and names - theirs[node] and theirs[node] - names and names.total() != theirs[node].total()
    }


def _is_counted(entry: Entry) -> bool:
    return entry.call is not None and entry.part_of is None and entry.name not in _UNCOUNTED
