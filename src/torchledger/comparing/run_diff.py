"""Align the launches of two ledgers by what they compute, and say where the time of a step went.

A launch covers nodes of its graph. Graphs are paired by direction and by the operators they hold; in a pair, launches
that cover the same nodes belong together, and so do launches that share a node which no other launch computes. What
hangs together that way is one group. Names of kernels, buffers and graphs play no part.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import SequenceMatcher

from torchledger.balance import read_memory, read_step
from torchledger.comparing.repetition import align_repeated
from torchledger.comparing.step_diff import eager_changes
from torchledger.errors import MeasureError
from torchledger.memory.change import memory_change
from torchledger.memory.live_set import MemoryTotals
from torchledger.nouns import Breakdown, Graph, Launch, Measurement, Profile, Run
from torchledger.nouns.run_diff import DiffSide, LaunchGroup, ReadChange, Regrouping, RunDiff, SettingChange
from torchledger.stepping.totals import StepTotals, call_us, stale_graphs
from torchledger.store import LedgerReader, open_ledger
from torchledger.store.latest import latest, latest_measurements

_NAMES_SUFFICE = 0.9
_LONGEST_EXACT_ALIGNMENT = 4000
_NODE = re.compile(r'^\s*(\w+)(?:\s*:\s*"[^"]*")?\s*=\s', re.MULTILINE)


@dataclass(frozen=True)
class RecordedRun:
    """What a comparison needs of one ledger; ``name`` is what notes call it."""

    name: str
    launches: Sequence[Launch]
    graphs: Sequence[Graph] = ()
    measurements: Sequence[Measurement] = ()
    breakdown: Breakdown | None = None
    profile: Profile | None = None
    step: StepTotals | None = None
    run: Run | None = None
    memory: MemoryTotals | None = None


@dataclass(frozen=True)
class _Entry:
    """A launch with the meaning of its nodes, the same in both runs, and how often a step calls its graph."""

    launch: Launch
    nodes: frozenset[Hashable]
    calls: int = 1


def diff_ledgers(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    progress: Callable[[int, int, str], None] | None = None,
) -> RunDiff:
    """``diff_runs`` of two files; ``progress`` is told steps done, their number, and what is done next."""
    tell = progress or (lambda done, total, what: None)
    tell(0, 3, "reading the first")
    with open_ledger(first) as reader:
        one = read_run(reader)
    tell(1, 3, "reading the second")
    with open_ledger(second) as reader:
        other = read_run(reader)
    tell(2, 3, "aligning")
    found = diff_runs(one, other)
    tell(3, 3, "aligned")
    return found


def read_run(reader: LedgerReader) -> RecordedRun:
    """Launches, graphs, the profile and the step of a ledger."""
    launches = reader.read(Launch)
    step = read_step(reader, Counter(launch.graph for launch in launches if launch.is_call))
    return RecordedRun(
        str(reader.path),
        launches,
        reader.read(Graph),
        latest_measurements(reader, kind="profile"),
        latest(reader, Breakdown),
        latest(reader, Profile),
        step,
        latest(reader, Run),
        None if step is None else read_memory(reader, step.step.name),
    )


def diff_runs(first: RecordedRun, second: RecordedRun) -> RunDiff:
    """Group the launches of both runs by what they compute; groups with the largest change come first.

    Compares device time per step where both runs have a profile, else minimum bytes and FLOPs; notes say which and why.
    Where both hold a step, a graph counts as often as its step calls it, those that it does not call are left out and
    named, and calls outside of graphs are compared too.

    Raises ``MeasureError`` naming a run that holds neither launches nor, as the other does, a step.
    """
    holds_steps = first.step is not None and second.step is not None
    for run in (first, second):
        if not run.launches and not holds_steps:
            raise MeasureError(
                f"{run.name} holds no launches: nothing was compiled while it was recorded. "
                f"Look at it with `torchledger show {run.name}`."
            )
    calls_one, calls_other = _graph_calls(first, holds_steps), _graph_calls(second, holds_steps)
    one, other = _calls_by_graph(first, calls_one), _calls_by_graph(second, calls_other)
    pairs = _pair_graphs(one, other, _directions(first), _directions(second))
    times_one, times_other = _step_times(first, calls_one), _step_times(second, calls_other)
    notes = _notes(first, second, times_one, times_other)
    is_timed = times_one is not None and times_other is not None
    if not is_timed:
        times_one = times_other = None
    groups = []
    for name_one, name_other in pairs:
        launches = one.get(name_one or "", []), other.get(name_other or "", [])
        sources = _fx_source(first, name_one), _fx_source(second, name_other)
        counts = (calls_one.get(name_one or "", 1), calls_other.get(name_other or "", 1))
        meanings = _common_nodes(
            _node_ops(launches[0], sources[0]),
            _node_ops(launches[1], sources[1]),
            is_ordered=None not in sources,
            calls=counts,
        )
        entries = [
            _entries(part, meaning, count) for part, meaning, count in zip(launches, meanings, counts, strict=True)
        ]
        for members in _components(*entries):
            groups.append(_group(*members, times_one, times_other))
    outside_one, outside_other = (
        (_outside_ns(first, holds_steps), _outside_ns(second, holds_steps)) if is_timed else (None, None)
    )
    inside_one, inside_other = (
        (_inside_ns(first, times_one), _inside_ns(second, times_other)) if is_timed and holds_steps else (None, None)
    )
    eager = eager_changes(first.step, second.step) if first.step is not None and second.step is not None else ()
    return RunDiff(
        basis="time" if is_timed else "bytes",
        groups=tuple(sorted(groups, key=_size_of_change, reverse=True)),
        graphs=tuple(pairs),
        first_ns=_device_ns(first, holds_steps) if is_timed else None,
        second_ns=_device_ns(second, holds_steps) if is_timed else None,
        first_outside_ns=outside_one,
        second_outside_ns=outside_other,
        notes=tuple(notes),
        holds_steps=holds_steps,
        eager=eager,
        first_inside_ns=inside_one,
        second_inside_ns=inside_other,
        settings=(*setting_changes(first.run, second.run), *_config_changes(first.graphs, second.graphs)),
        memory=memory_change(first.memory, second.memory) if first.memory is not None and second.memory else None,
    )


def setting_changes(first: Run | None, second: Run | None) -> tuple[SettingChange, ...]:
    """What differs between the software, the settings and the devices of two runs."""
    if first is None or second is None:
        return ()
    one, other = _settings(first), _settings(second)
    return tuple(
        SettingChange(name, one.get(name), other.get(name))
        for name in dict.fromkeys((*one, *other))
        if one.get(name) != other.get(name)
    )


def _config_changes(first: Sequence[Graph], second: Sequence[Graph]) -> tuple[SettingChange, ...]:
    """Settings of Inductor that the graphs of two runs were compiled with and that are not the same."""
    one, other = _configs(first), _configs(second)
    return tuple(
        SettingChange(f"inductor.{name}", one.get(name, _DEFAULT), other.get(name, _DEFAULT))
        for name in sorted({*one, *other})
        if one.get(name, _DEFAULT) != other.get(name, _DEFAULT)
    )


_DEFAULT = "torch's default"


def _configs(graphs: Sequence[Graph]) -> dict[str, str]:
    """Each setting that some graph changed; with all its values where graphs differ."""
    values: defaultdict[str, set[str]] = defaultdict(set)
    for name in {name for graph in graphs for name in graph.config}:
        values[name] = {graph.config.get(name, _DEFAULT) for graph in graphs}
    return {name: " or ".join(sorted(each)) for name, each in values.items()}


def _settings(run: Run) -> dict[str, str]:
    environment = run.environment
    named = {field.name: getattr(environment, field.name) for field in fields(environment) if field.name != "settings"}
    found = {name: str(value) for name, value in named.items() if value is not None and not isinstance(value, Mapping)}
    found |= {name: str(value) for name, value in environment.settings.items()}
    return found | {"devices": ", ".join(dict.fromkeys(device.name for device in run.devices))}


def _size_of_change(group: LaunchGroup) -> tuple[int, int, int, bool]:
    moved = group.delta_ns, group.delta_bytes, group.delta_flops
    time, traffic, flops = (abs(delta or 0) for delta in moved)
    return time, traffic, flops, group.kind != "same"


# --- times of one step ------------------------------------------------------------------------------------------


def _steps(run: RecordedRun) -> int:
    found = (run.profile.steps if run.profile else None) or (run.breakdown.steps if run.breakdown else None)
    return found or 1


def _last_measurements(run: RecordedRun) -> dict[str, Measurement]:
    """By launch; of a ledger that was profiled twice, the later profile's."""
    return {item.subject: item for item in run.measurements if item.kind == "profile" and item.samples_us}


def _graph_calls(run: RecordedRun, holds_steps: bool) -> Mapping[str, int]:
    """How often a step calls each graph; empty where that is not compared."""
    return run.step.step.graph_calls if run.step is not None and holds_steps else {}


def _step_times(run: RecordedRun, calls: Mapping[str, int]) -> dict[str, int] | None:
    """Nanoseconds per step by launch: its median, as often as a step runs it. ``None`` without a profile."""
    measured = _last_measurements(run)
    if calls:
        return {
            name: round(item.duration_us * 1e3 * calls.get(name.rpartition("#")[0], 0))
            for name, item in measured.items()
        }
    if not measured:
        return {} if run.step is not None and not run.launches else None
    steps = _steps(run)
    return {name: round(item.duration_us * 1e3 * item.repeats / steps) for name, item in measured.items()}


def _sampled_ns(run: RecordedRun) -> int:
    return round(sum(sum(item.samples_us) for item in _last_measurements(run).values()) * 1e3 / _steps(run))


def _device_ns(run: RecordedRun, holds_steps: bool) -> int:
    """Device time of one step: as its record has it, else of all events of a breakdown, else of the entries."""
    if holds_steps and run.step is not None:
        recorded = run.step.step.device_us
        return round((run.step.whole.device_us if recorded is None else recorded) * 1e3)
    if run.breakdown is None:
        return _sampled_ns(run)
    return round(run.breakdown.device_us * 1e3 / (run.breakdown.steps or _steps(run)))


def _outside_ns(run: RecordedRun, holds_steps: bool) -> int:
    """Device time that belongs to no entry."""
    if holds_steps and run.step is not None:
        step = run.step.step
        return 0 if step.device_us is None else round((step.device_us - step.covered_us) * 1e3)
    return _device_ns(run, holds_steps) - _sampled_ns(run)


def _inside_ns(run: RecordedRun, times: Mapping[str, int] | None) -> int:
    """Time of a step's calls of compiled graphs that none of their launches was given."""
    assert run.step is not None
    in_calls = sum(call_us(call) for call in run.step.calls if call.kind == "graph")
    return round(in_calls * 1e3) - sum((times or {}).values())


def _notes(
    first: RecordedRun,
    second: RecordedRun,
    times_one: Mapping[str, int] | None,
    times_other: Mapping[str, int] | None,
) -> list[str]:
    notes = []
    if (first.step is None) != (second.step is None):
        lacks = first if first.step is None else second
        notes.append(f"{lacks.name} holds no step: only compiled graphs are compared, calls outside of them are not")
    for run in (first, second):
        stale = stale_graphs(run.step.step, dict.fromkeys(launch.graph for launch in run.launches)) if run.step else ()
        if stale:
            notes.append(f"compiled in {run.name}, not called in its step: {', '.join(stale)}")
    without = [run.name for run, times in ((first, times_one), (second, times_other)) if times is None]
    if without:
        return [
            *notes,
            f"no times in {' and '.join(without)}: minimum bytes and FLOPs are compared instead, each launch once; "
            "record times with `torchledger run --profile`",
        ]
    clocks = [sorted({item.clock for item in _last_measurements(run).values()}) for run in (first, second)]
    if clocks[0] != clocks[1]:
        notes.append(f"two clocks: {', '.join(clocks[0])} in the first run, {', '.join(clocks[1])} in the second")
    for run in (first, second):
        if run.breakdown is None and run.step is None:
            notes.append(f"{run.name} holds no breakdown: its total is the sum of its entries")
    return notes


# --- which graphs belong together -------------------------------------------------------------------------------


def _calls_by_graph(run: RecordedRun, calls: Mapping[str, int]) -> dict[str, list[Launch]]:
    timed = _last_measurements(run)
    found: dict[str, list[Launch]] = {}
    for launch in sorted(run.launches, key=lambda launch: launch.order):
        if calls and not calls.get(launch.graph):
            continue
        if launch.is_call or launch.launch_id in timed:
            found.setdefault(launch.graph, []).append(launch)
    order = {name: place for place, name in enumerate(dict.fromkeys(launch.graph for launch in run.launches))}
    return dict(sorted(found.items(), key=lambda item: order[item[0]]))


def _directions(run: RecordedRun) -> dict[str, str]:
    known = {graph.name: str(graph.direction) for graph in run.graphs}
    return {launch.graph: known.get(launch.graph, launch.graph.rsplit("_", 1)[0]) for launch in run.launches}


def _pair_graphs(
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


# --- which nodes are the same -----------------------------------------------------------------------------------


def _fx_source(run: RecordedRun, graph: str | None) -> str | None:
    return next((found.fx_source for found in run.graphs if found.name == graph), None)


def _node_ops(launches: Sequence[Launch], fx_source: str | None) -> dict[str, str]:
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


def _common_nodes(
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


def _entries(launches: Sequence[Launch], meanings: Mapping[str, Hashable], calls: int) -> list[_Entry]:
    return [
        _Entry(
            launch,
            frozenset(meanings[node] for node in launch.fx_nodes)
            or frozenset({("operators", launch.aten_ops) if launch.aten_ops else ("kernel", launch.kernel_name)}),
            calls,
        )
        for launch in launches
    ]


# --- which launches hang together -------------------------------------------------------------------------------


def _components(one: Sequence[_Entry], other: Sequence[_Entry]) -> list[tuple[list[_Entry], list[_Entry]]]:
    """Connected parts of the graph whose edges join launches of both runs that compute the same."""
    edges = _edges_of_equals(one, other)
    rest_one = [place for place in range(len(one)) if place not in {edge[0] for edge in edges}]
    rest_other = [place for place in range(len(other)) if place not in {edge[1] for edge in edges}]
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
    found: dict[tuple[int, int], tuple[list[_Entry], list[_Entry]]] = {}
    for side, entries in enumerate((one, other)):
        for place, entry in enumerate(entries):
            found.setdefault(find((side, place)), ([], []))[side].append(entry)
    return list(found.values())


def _edges_of_equals(one: Sequence[_Entry], other: Sequence[_Entry]) -> set[tuple[int, int]]:
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
    one: Sequence[_Entry], other: Sequence[_Entry], rest_one: Sequence[int], rest_other: Sequence[int]
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


def _places_by_node(entries: Sequence[_Entry], rest: Iterable[int]) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = {}
    for place in rest:
        for node in entries[place].nodes:
            found.setdefault(node, []).append(place)
    return found


def _edges_of_leftovers(
    one: Sequence[_Entry], other: Sequence[_Entry], edges: Collection[tuple[int, int]]
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


def _closest(entry: _Entry, entries: Sequence[_Entry], places_by_node: Mapping[Hashable, Sequence[int]]) -> int | None:
    candidates = {place for node in entry.nodes for place in places_by_node.get(node, ())}
    shares = [
        (len(entry.nodes & entries[place].nodes) / len(entry.nodes | entries[place].nodes), -place)
        for place in candidates
    ]
    return -max(shares)[1] if shares else None


# --- what changed in a group ------------------------------------------------------------------------------------


def _group(
    one: Sequence[_Entry],
    other: Sequence[_Entry],
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


def _kind(one: Sequence[_Entry], other: Sequence[_Entry]) -> Regrouping:
    if not one or not other:
        return "only first" if one else "only second"
    if sum(entry.calls for entry in one) == sum(entry.calls for entry in other) and (
        len({entry.nodes for entry in (*one, *other)}) == 1 and len(one) != len(other)
    ):
        return "same"  # a loop over layers in the program, and the same layers in one graph
    if len(one) == len(other) == 1:
        return "same" if one[0].nodes == other[0].nodes else "changed"
    return "split" if len(one) == 1 else "merged" if len(other) == 1 else "regrouped"


def _side(entries: Sequence[_Entry], times: Mapping[str, int] | None) -> DiffSide:
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


def _read_changes(one: Sequence[_Entry], other: Sequence[_Entry]) -> tuple[ReadChange, ...]:
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


def _reads(entries: Sequence[_Entry]) -> dict[Hashable, list[_Read]]:
    """By what identifies a tensor in either run: its node, its name as a graph's input, else its dtype and shape."""
    found: dict[Hashable, list[_Read]] = {}
    for entry in entries:
        for buffer in entry.launch.buffers:
            if buffer.role in ("input", "inout") and buffer.bytes_read != 0:
                is_graph_input = buffer.fx_node is None and not buffer.name.startswith("buf")
                meaning = buffer.fx_node or (buffer.name if is_graph_input else (buffer.dtype, buffer.shape))
                found.setdefault(meaning, []).append(_Read(buffer.name, buffer.fx_node, buffer.bytes_read))
    return found
