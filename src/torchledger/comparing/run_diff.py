"""Align the launches of two ledgers by what they compute, and say where the time of a step went.

A launch covers nodes of its graph. Graphs are paired by direction and by the operators they hold; in a pair, launches
that cover the same nodes belong together, and so do launches that share a node which no other launch computes. What
hangs together that way is one group. Names of kernels, buffers and graphs play no part.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from torchledger.books import read_memory, read_step
from torchledger.comparing.graph_pairs import common_nodes, node_ops, pair_graphs
from torchledger.comparing.launch_groups import connected, entries_of, launch_group
from torchledger.comparing.step_diff import eager_changes
from torchledger.errors import MeasureError
from torchledger.memory.change import memory_change
from torchledger.memory.live_set import MemoryTotals
from torchledger.nouns import Breakdown, Graph, Launch, Measurement, Profile, Run
from torchledger.nouns.run_diff import LaunchGroup, RunDiff, SettingChange
from torchledger.stepping.totals import StepTotals, call_us, stale_graphs
from torchledger.store import LedgerReader, open_ledger
from torchledger.store.latest import latest, latest_measurements
from torchledger.work.graph_names import direction_of


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
                f"{run.name} holds no launches: nothing was compiled while it was recorded, or it is of a trace alone. "
                f"Look at it with `torchledger show {run.name}`."
            )
    calls_one, calls_other = _graph_calls(first, holds_steps), _graph_calls(second, holds_steps)
    one, other = _calls_by_graph(first, calls_one), _calls_by_graph(second, calls_other)
    pairs = pair_graphs(one, other, _directions(first), _directions(second))
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
        meanings = common_nodes(
            node_ops(launches[0], sources[0]),
            node_ops(launches[1], sources[1]),
            is_ordered=None not in sources,
            calls=counts,
        )
        entries = [
            entries_of(part, meaning, count) for part, meaning, count in zip(launches, meanings, counts, strict=True)
        ]
        for members in connected(*entries):
            groups.append(launch_group(*members, times_one, times_other))
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
    if _is_planned(run):
        return None
    if calls:
        return {
            name: round(item.duration_us * 1e3 * calls.get(name.rpartition("#")[0], 0))
            for name, item in measured.items()
        }
    if not measured:
        return {} if run.step is not None and not run.launches else None
    steps = _steps(run)
    return {name: round(item.duration_us * 1e3 * item.repeats / steps) for name, item in measured.items()}


def _is_planned(run: RecordedRun) -> bool:
    """Whether its step ran without its device: it has calls, and no times."""
    return run.step is not None and not run.step.step.is_measured and not _last_measurements(run)


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
            f"no times in {' and '.join(dict.fromkeys(without))}: minimum bytes and FLOPs are compared instead, each "
            f"launch {'as often as its step calls it' if first.step and second.step else 'once'}; "
            f"{_how_to_time(first, second)}",
        ]
    clocks = [sorted({item.clock for item in _last_measurements(run).values()}) for run in (first, second)]
    if clocks[0] != clocks[1]:
        notes.append(f"two clocks: {', '.join(clocks[0])} in the first run, {', '.join(clocks[1])} in the second")
    for run in (first, second):
        if run.breakdown is None and run.step is None:
            notes.append(f"{run.name} holds no breakdown: its total is the sum of its entries")
    return notes


def _how_to_time(first: RecordedRun, second: RecordedRun) -> str:
    if _is_planned(first) and _is_planned(second):
        return "both are plans, whose prices `--fail-if 'predicted > +0'` compares"
    return "record times with `torchledger run --profile`"


# --- what is compared ---------------------------------------------------------------------------------------------


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
    return {launch.graph: known.get(launch.graph, direction_of(launch.graph)) for launch in run.launches}


def _fx_source(run: RecordedRun, graph: str | None) -> str | None:
    return next((found.fx_source for found in run.graphs if found.name == graph), None)
