"""Times of kernels given to a ledger's entries by their names alone: of recordings that do not say which graph ran.

A name means the entries whose kernel bears it, and those that a profile of the same ledger saw run it. A name that
several graphs share tells nothing apart: its kernels stay without an entry.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from torchledger.nouns import DeviceEvent, Launch, Measurement
from torchledger.profiling.attribution import Attribution, with_entry

SHARED = "its name is that of entries of several graphs"
UNEVEN = "it did not run as often as its graph"


def join_by_name(
    events: Sequence[DeviceEvent], launches: Sequence[Launch], measurements: Iterable[Measurement]
) -> Attribution:
    """Give each kernel the entry that its name means; ``inside_ns`` is the time of all kernels whose name means any.

    A graph was called as often as most of its names say. Entries of one graph that share a name take turns in the order
    of its wrapper; a name that ran another number of times (tuning, a call that the recording cut off) is left alone.
    """
    entries_of = _entries_of_names(launches, measurements)
    places: dict[str, list[int]] = defaultdict(list)
    for index, event in enumerate(events):
        if event.kind == "kernel" and event.name in entries_of:
            places[event.name].append(index)
    says: dict[str, Counter[float]] = defaultdict(Counter)
    for name, indices in places.items():
        graphs = {entry.graph for entry in entries_of[name]}
        if len(graphs) == 1:
            says[graphs.pop()][len(indices) / len(entries_of[name])] += 1
    calls = {graph: counts.most_common(1)[0][0] for graph, counts in says.items()}
    entry_of: dict[int, Launch] = {}
    unmatched: Counter[str] = Counter()
    for name, indices in places.items():
        entries = entries_of[name]
        graphs = {entry.graph for entry in entries}
        times = calls.get(entries[0].graph, 0.0)
        if len(graphs) == 1 and times == int(times) == len(indices) / len(entries):
            ordered = sorted(indices, key=lambda index: events[index].start_ns)
            entry_of |= {index: entries[turn % len(entries)] for turn, index in enumerate(ordered)}
        else:
            unmatched[SHARED if len(graphs) > 1 else UNEVEN] += sum(events[index].duration_ns for index in indices)
    main_of = _longest_names(events, entry_of)
    matched = sum(events[index].duration_ns for index in entry_of)
    return Attribution(
        events=tuple(
            with_entry(event, entry, is_main=main_of[entry.launch_id] == event.name)
            if (entry := entry_of.get(index)) is not None
            else event
            for index, event in enumerate(events)
        ),
        inside_ns=matched + sum(unmatched.values()),
        matched_ns=matched,
        unmatched=dict(unmatched),
        calls={graph: int(calls[graph]) for graph in {entry.graph for entry in entry_of.values()}},
        entries_seen=len({entry.launch_id for entry in entry_of.values()}),
        entries=sum(launch.category != "nop" for launch in launches),
    )


def _entries_of_names(launches: Sequence[Launch], measurements: Iterable[Measurement]) -> dict[str, list[Launch]]:
    """By the name of a kernel on the device, the entries that run it, in the order of their wrappers."""
    symbols = {each.subject: each.symbols for each in measurements if each.kind == "profile"}
    found: dict[str, list[Launch]] = defaultdict(list)
    for launch in sorted(launches, key=lambda launch: (launch.graph, launch.order)):
        if launch.category != "nop":
            for name in symbols.get(launch.launch_id) or (launch.kernel_name,):
                found[name].append(launch)
    return found


def _longest_names(events: Sequence[DeviceEvent], entry_of: dict[int, Launch]) -> dict[str, str]:
    """Of the kernels of each entry the one that takes longest, which carries the entry's work."""
    times: dict[str, Counter[str]] = defaultdict(Counter)
    for index, entry in entry_of.items():
        times[entry.launch_id][events[index].name] += events[index].duration_ns
    return {launch_id: names.most_common(1)[0][0] for launch_id, names in times.items()}
