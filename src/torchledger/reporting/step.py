"""What a step takes, where it goes and what to do about it: the first lines of an overview, and the step's tables."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from torchledger.nouns import Phase, Step, StepCall, StepFoundBy
from torchledger.printable import counted, ended
from torchledger.reporting.columns import (
    UNTIMED,
    format_bytes,
    format_count,
    format_share,
    format_si,
    format_us,
)
from torchledger.reporting.document import Facts, Section, Sentence, Table, as_plain, columns
from torchledger.roofline import USUAL_FLOPS_PER_BYTE
from torchledger.stepping.totals import PHASES, StepTotals, Work, call_us, launched_on_device, on_host

_FOUND_BY: Mapping[StepFoundBy, str] = {
    "torchledger.step": "torchledger.step() marks it",
    "profiler_step": "the profiler's step() marks it",
    "turn": "a turn of the loop around several steps of an optimizer and the work that they use, or several calls, or "
    "what comes between messages of ranks",
    "optimizer": "from one optimizer's step to the next",
    "period": "the period of the sequence of calls",
    "call": "one call of the function that was profiled",
}
"""How a step was found, in words; of an optimizer's the common case."""

PHASE_WORDS: Mapping[Phase, str] = {
    "input": "input",
    "forward": "forward",
    "loss": "loss",
    "backward": "backward",
    "clipping": "gradient clipping",
    "optimizer": "optimizer",
    "communication": "communication",
    "other": "other work",
}

_MEDIANS_APART = 0.05
"""Share of a step's device time by which the sum of its calls' medians may differ from it unsaid."""

_MUCH_IDLE = 0.2


def how_found(step: Step) -> str:
    """How a step was found, in words: of several steps of optimizers that are one, that they are."""
    kind = step.kinds[0].calls if step.kinds else {}
    count = sum(times for name, times in kind.items() if name.endswith(".step"))
    if step.found_by == "optimizer" and count > 1:
        return f"from one round of {count:,} optimizer steps to the next"
    return _FOUND_BY[step.found_by]


def step_as_plain(totals: StepTotals | None) -> dict[str, Any] | None:
    """What ``show --json`` prints under ``step``; ``None`` where the ledger holds no step. Keys are stable."""
    if totals is None:
        return None
    step, whole = totals.step, totals.whole
    return {
        "found_by": step.found_by,
        "count": step.seen,
        "recorded": step.recorded,
        "kinds": as_plain(step.kinds),
        "duration_us": step.duration_us,
        "device_us": step.device_us,
        "busy_us": step.busy_us,
        "idle_us": dict(step.idle_us),
        "launches": whole.launches,
        "flops": whole.flops,
        "bytes_moved": whole.bytes_moved,
        "covered_share": step.covered_share,
        "known_share": step.known_us / step.device_us if step.device_us else None,
        "graph_calls": dict(step.graph_calls),
        "operators": step.operators,
        "phases": {phase: _phase_as_plain(phase, work, totals) for phase, work in totals.by_phase.items()},
        "optimizers": as_plain(step.optimizers),
        "clock": step.clock,
        "notes": list(step.notes),
    }


def _phase_as_plain(phase: Phase, work: Work, totals: StepTotals) -> dict[str, Any]:
    """A phase's sums; what a step without times takes is unknown, and not 0."""
    plain: dict[str, Any] = as_plain(work) | {"share": _share(work, totals)}
    if not totals.step.is_measured:
        members = [call for call in totals.calls if call.phase == phase]
        plain |= {"device_us": None, "unknown_us": None, "predicted_us": _predicted_us(members)}
    return plain


def verdict_of_step(totals: StepTotals) -> tuple[str, ...]:
    """Three lines: what a step takes, where it goes, what to look at first."""
    if not totals.step.is_measured:
        return _verdict_of_dry_run(totals)
    return (_what_it_takes(totals), _where_it_goes(totals), _what_to_do(totals))


def step_sections(totals: StepTotals, *, top: int, shorten: Any = str) -> tuple[Section, ...]:
    """The step in tables: by phase, its heaviest calls, its idle time; ``shorten`` makes source lines short."""
    return (
        _facts_section(totals),
        _phase_section(totals),
        _calls_section(totals, top=top, shorten=shorten),
        _idle_section(totals),
    )


def _verdict_of_dry_run(totals: StepTotals) -> tuple[str, ...]:
    """Three lines on a step without times: that it has none, what it does, how to price it."""
    graphs = [call for call in totals.calls if call.kind == "graph"]
    eager = [call for call in totals.calls if call.kind in ("operator", "collective") and call.kernels]
    held = f"{counted(totals.graph_launches, 'launch')} in {counted(len(graphs), 'call')} of compiled graphs"
    beside = f", {counted(len(here), 'operator')} on the host" if (here := on_host(totals)) else ""
    work = f"{format_si(totals.whole.flops)}FLOP, {format_bytes(totals.whole.bytes_moved)} of minimum traffic"
    return (
        f"A step that ran without its device: nothing of it was measured. Found by: {how_found(totals.step)}.",
        f"It makes {held if graphs else 'no call of a compiled graph'} and {counted(len(eager), 'eager operator')}: "
        f"{counted(launched_on_device(totals), 'launch')} of kernels{beside}, {work}.",
        "What it would take: torchledger predict-step, with --device.",
    )


def _what_it_takes(totals: StepTotals) -> str:
    step = totals.step
    timed = len(step.plain_us)
    if step.duration_us is None:
        takes = f"A step was recorded under the profiler only ({format_us(step.wall_us or 0)} there)"
    else:
        median = "" if timed == 1 else "median of "
        takes = f"A step takes {format_us(step.duration_us)} ({median}{timed} timed without the profiler{_range(step)})"
    worker = "operators run" if step.clock == "cpu_profiler" else "the device is busy"
    if step.busy_us is None:
        busy = ""
    else:
        # The profiler makes operators longer: on a CPU more than a step takes without it.
        fits = step.duration_us is None or step.busy_us <= step.duration_us
        busy = f"; {worker} {format_us(step.busy_us)} {'of it' if fits else 'under the profiler, which adds to it'}"
    return f"{takes}{busy}. Found by: {how_found(step)}.{_rarity(step)}"


def _rarity(step: Step) -> str:
    """That far more of the program's steps were of another kind than of the recorded one, where they were."""
    counts = [kind.count for kind in step.kinds]
    if not counts or max(counts) < 2 * counts[0]:
        return ""
    return f" Only {counts[0]:,} of {step.seen:,} steps seen were like it."


def _range(step: Step) -> str:
    """How much plain steps differ, in words."""
    if step.plain_range_us is None or len(step.plain_us) == 1:
        return ""
    low, high = map(format_us, step.plain_range_us)
    said = f"{low} to {high}" if len(step.plain_us) < 4 else f"half of them {low} to {high}"
    return f", {said}" if step.is_steady else f", {said}: not steady, was the machine busy?"


def _where_it_goes(totals: StepTotals) -> str:
    ranked = sorted(totals.by_phase.items(), key=lambda item: -item[1].device_us)
    shares = [
        f"{PHASE_WORDS[phase]} {format_share(_share(work, totals) or 0.0)}"
        for phase, work in ranked
        if (_share(work, totals) or 0.0) >= 0.005
    ]
    graphs = [call for call in totals.calls if call.kind == "graph"]
    graph_us = sum(map(call_us, graphs))
    share = graph_us / totals.whole.device_us if totals.whole.device_us else 0.0
    inside = (
        f"{format_share(share)} of it in {counted(len(graphs), 'call')} of "
        f"{counted(len(totals.step.graph_calls), 'compiled graph')}"
        if graphs
        else "no compiled graph ran in it"
    )
    eager = [call for call in totals.calls if call.kind not in ("graph", "synchronization")]
    return (
        f"It goes to {', '.join(shares) or 'nothing that was measured'}; {inside}, "
        f"{'the rest' if graphs else 'all'} in {counted(len(eager), 'eager operator')}."
    )


def _what_to_do(totals: StepTotals) -> str:
    """One sentence: the largest thing that somebody could change, with its size."""
    step = totals.step
    length = _undisturbed_us(step)
    idle = max(0.0, length - (step.busy_us or 0.0)) / length if length and step.busy_us is not None else 0.0
    if idle > _MUCH_IDLE and step.idle_us:
        cause = max(step.idle_us, key=lambda name: step.idle_us[name])
        nothing = "no operator runs" if step.clock == "cpu_profiler" else "the device waits"
        return f"Look first at the {idle:.0%} of the step in which {nothing}: mostly, {cause}."
    groups = _grouped(totals)
    if not groups:
        return "Nothing in it took measurable time."
    (kind, name, source), members = max(groups.items(), key=lambda item: sum(map(call_us, item[1])))
    us = sum(map(call_us, members))
    share = us / totals.whole.device_us if totals.whole.device_us else 0.0
    where = f" at {source}" if source else ""
    times = "" if len(members) == 1 else f" ({len(members):,} calls)"
    if kind == "graph":
        return f"Look first at compiled graph {name}{times}: {format_share(share)} of the time; its kernels are below."
    phase = PHASE_WORDS[Counter(call.phase for call in members).most_common(1)[0][0]]
    return (
        f"Look first at the eager {name}{times}{where} ({phase}): {format_share(share)} of the time, outside every "
        "compiled graph."
    )


def _undisturbed_us(step: Step) -> float | None:
    """How long a step takes without the profiler; under it, where that was shorter: other work was in the way then."""
    if step.duration_us is None or not step.profiled_us:
        return step.duration_us
    return min(step.duration_us, statistics.median(step.profiled_us))


def _facts_section(totals: StepTotals) -> Section:
    step = totals.step
    rows = [("found by", how_found(step))]
    kinds = f" of {len(step.kinds)} kinds" if len(step.kinds) > 1 else ""
    how = "recorded under the profiler" if step.is_measured else "heard without its device"
    rows.append(("steps", f"{format_count(step.seen)} seen{kinds}, {step.recorded} {how}"))
    if step.duration_us is not None:
        rows.append(("step time", f"{format_us(step.duration_us)} without the profiler (host clock)"))
    if step.device_us is not None:
        rows.append(("device time", _device_time(totals)))
    calls = ", ".join(f"{graph} x{count}" for graph, count in step.graph_calls.items())
    if calls:
        rows.append(("graph calls", calls))
    for name in dict.fromkeys(optimizer.name for optimizer in step.optimizers):
        alike = [optimizer for optimizer in step.optimizers if optimizer.name == name]
        tensors, elements = (sum(getattr(each, field) for each in alike) for field in ("tensors", "elements"))
        said = name if len(alike) == 1 else f"{name} x{len(alike)}"
        rows.append(("optimizer", f"{said}: {counted(tensors, 'tensor')}, {format_si(elements)} elements"))
    sentences = tuple(Sentence(ended(note), "quiet") for note in step.notes)
    return Section("One step", (Facts(tuple(rows)), *sentences))


def _device_time(totals: StepTotals) -> str:
    """A recorded step's device time, and what of it the tables hold, which add the median of each call."""
    step, whole_us = totals.step, totals.whole.device_us
    assert step.device_us is not None
    text = f"{format_us(step.device_us)} (clock: {step.clock})"
    if step.covered_share is None:
        return text
    if abs(whole_us - step.device_us * step.covered_share) <= _MEDIANS_APART * step.device_us:
        return f"{text}, {format_share(step.covered_share)} of it in the table below"
    return (
        f"{text}, {format_share(step.covered_share)} of it in calls; the table below adds each call's median over "
        f"{counted(step.recorded, 'recorded step')}: {format_us(whole_us)}"
    )


_OF_PLANS = ("calls", "launches", "predicted_total_us", "predicted_share", "flops", "bytes_moved")
"""The columns of a step that ran without its device: rates of times that nobody measured would say nothing."""

_COLUMNS = ("calls", "launches", "total_us", "time_share", "flops", "achieved_tflops_per_s", "bytes_moved")


def _phase_section(totals: StepTotals) -> Section:
    if not totals.step.is_measured:
        return _planned_phases(totals)
    rows = [
        (
            PHASE_WORDS[phase],
            *_work_cells(totals.by_phase[phase], [call for call in totals.calls if call.phase == phase], totals),
        )
        for phase in PHASES
        if phase in totals.by_phase
    ]
    total = ("total", *_work_cells(totals.whole, totals.calls, totals))
    return Section("Step by phase", (Table(columns("phase", *_COLUMNS), tuple(rows), total),))


def _planned_phases(totals: StepTotals) -> Section:
    rows = [
        (PHASE_WORDS[phase], *_planned_cells([call for call in totals.calls if call.phase == phase], work, totals))
        for phase in PHASES
        if (work := totals.by_phase.get(phase)) is not None
    ]
    total = ("total", *_planned_cells(totals.calls, totals.whole, totals))
    return Section("Step by phase", (Table(columns("phase", *_OF_PLANS), tuple(rows), total),))


def _planned_cells(members: Sequence[StepCall], work: Work, totals: StepTotals) -> tuple[Any, ...]:
    return (
        len([call for call in members if call.kind != "synchronization"]),
        work.launches,
        *_predicted_cells(members, totals),
        work.flops,
        work.bytes_moved,
    )


def _predicted_cells(members: Sequence[StepCall], totals: StepTotals) -> tuple[Any, Any]:
    """The predicted time of calls, and which share of the whole step's that is."""
    us, whole_us = _predicted_us(members), _predicted_us(totals.calls)
    if us is None:
        return UNTIMED, UNTIMED
    return us, us / whole_us if whole_us else UNTIMED


def _predicted_us(members: Sequence[StepCall]) -> float | None:
    """What a plan says that calls take; ``None`` where it said nothing of any of them."""
    known = [call.predicted_us for call in members if call.predicted_us is not None]
    return sum(known) if known else None


def _weight(call: StepCall) -> float:
    """What puts a call of a step without times before others."""
    return call.predicted_us or 0.0


def _size(call: StepCall) -> float:
    return (call.bytes_moved or 0) + (call.flops or 0) / USUAL_FLOPS_PER_BYTE


def _work_cells(work: Work, members: Sequence[StepCall], totals: StepTotals) -> tuple[Any, ...]:
    """A phase's sums; ``members`` are its calls."""
    return (
        work.calls,
        work.launches,
        work.device_us,
        _share(work, totals),
        work.flops,
        _tflops_per_s(members),
        work.bytes_moved,
    )


def _tflops_per_s(members: Sequence[StepCall]) -> float | str:
    """Tensor FLOPs over the time of the calls whose FLOPs are known, be they none, as in the tables of a breakdown."""
    known = [call for call in members if call.flops is not None]
    flops, us = sum(call.flops or 0 for call in known), sum(map(call_us, known))
    return flops / us / 1e6 if flops and us else ""


def _share(work: Work, totals: StepTotals) -> float | None:
    return work.device_us / totals.whole.device_us if totals.whole.device_us else None


def _grouped(totals: StepTotals) -> dict[tuple[str, str, str], list[StepCall]]:
    """Calls that share kind, name and source line."""
    groups: dict[tuple[str, str, str], list[StepCall]] = defaultdict(list)
    for call in totals.calls:
        if call.kind != "synchronization":
            groups[call.kind, call.name, call.sources[-1] if call.sources else ""].append(call)
    return groups


def _calls_section(totals: StepTotals, *, top: int, shorten: Any) -> Section:
    if not totals.step.is_measured:
        return _planned_calls(totals, top=top, shorten=shorten)
    groups = sorted(_grouped(totals).items(), key=lambda item: -sum(map(call_us, item[1])))
    shown, rest = (groups, []) if len(groups) <= top + 1 else (groups[:top], groups[top:])
    rows = [
        (name, _phases(members), shorten(source) if source else "", *_call_cells(members, totals))
        for (_, name, source), members in shown
    ]
    if rest:
        members = [call for _, group in rest for call in group]
        rows.append((f"({len(rest):,} others)", "", "", *_call_cells(members, totals)))
    everything = [call for call in totals.calls if call.kind != "synchronization"]
    table = Table(
        columns("step_call", "phase", "source", *(key for key in _COLUMNS if key != "launches"), "achieved_gb_per_s"),
        tuple(rows),
        ("total", "", "", *_call_cells(everything, totals)),
        optional=("achieved_gb_per_s", "phase", "bytes_moved"),
    )
    return Section("Step by call", (table,))


def _planned_calls(totals: StepTotals, *, top: int, shorten: Any) -> Section:
    """The calls of a step without times: those first that a plan says take longest, of others the largest."""
    groups = sorted(_grouped(totals).items(), key=lambda item: (-sum(map(_weight, item[1])), -sum(map(_size, item[1]))))
    shown, rest = (groups, []) if len(groups) <= top + 1 else (groups[:top], groups[top:])

    def cells(members: Sequence[StepCall]) -> tuple[Any, ...]:
        flops = [call.flops for call in members if call.flops is not None]
        moved = [call.bytes_moved for call in members if call.bytes_moved is not None]
        sums = (sum(flops) if flops else None, sum(moved) if moved else None)
        return (len(members), *_predicted_cells(members, totals), *sums)

    rows = [
        (name, _phases(members), shorten(source) if source else "", *cells(members))
        for (_, name, source), members in shown
    ]
    if rest:
        rows.append((f"({len(rest):,} others)", "", "", *cells([call for _, group in rest for call in group])))
    everything = [call for call in totals.calls if call.kind != "synchronization"]
    keys = ("step_call", "phase", "source", *(key for key in _OF_PLANS if key != "launches"))
    table = Table(columns(*keys), tuple(rows), ("total", "", "", *cells(everything)), optional=("phase", "bytes_moved"))
    return Section("Step by call", (table,))


def _phases(members: Sequence[StepCall]) -> str:
    names = list(dict.fromkeys(PHASE_WORDS[call.phase] for call in members))
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _call_cells(members: Sequence[StepCall], totals: StepTotals) -> tuple[Any, ...]:
    us = sum(map(call_us, members))
    flops = [call.flops for call in members if call.flops is not None]
    moved = [call.bytes_moved for call in members if call.bytes_moved is not None]
    with_bytes = sum(call_us(call) for call in members if call.bytes_moved is not None)
    return (
        len(members),
        us,
        us / totals.whole.device_us if totals.whole.device_us else None,
        sum(flops) if flops else None,
        _tflops_per_s(members),
        sum(moved) if moved else None,
        sum(moved) / with_bytes / 1e3 if with_bytes and sum(moved) else "",
    )


def _idle_section(totals: StepTotals) -> Section:
    step = totals.step
    if not step.idle_us or not step.wall_us:
        return Section("Step: idle by cause", ())
    idle = sum(step.idle_us.values())
    ranked = sorted(step.idle_us.items(), key=lambda item: -item[1])
    rows = tuple((cause, us, us / idle if idle else "") for cause, us in ranked)
    table = Table(columns("cause", "idle_us", "idle_share"), rows, ("total", idle, 1.0))
    slower = step.duration_us is None or step.wall_us > step.duration_us
    said = "the host is slower there" if slower else "no more than without it"
    under = Sentence(f"Under the profiler, where a step takes {format_us(step.wall_us)}: {said}.", "quiet")
    return Section("Step: idle by cause", (table, under))
