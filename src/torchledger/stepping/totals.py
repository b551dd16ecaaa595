"""A step's sums: over all its calls, and by phase. Computed on reading, stored nowhere."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torchledger.nouns import Launch, Phase, Step, StepCall
from torchledger.work.collectives import Message, collective_kind

PHASES: tuple[Phase, ...] = (
    "input",
    "forward",
    "loss",
    "backward",
    "clipping",
    "optimizer",
    "communication",
    "other",
)
"""In the order in which a training step goes through them."""


@dataclass(frozen=True)
class Work:
    """Sums over calls of a step. ``device_us`` is time on the device (on a CPU: in operators), one step's, from the
    median of each call; ``flops`` and ``bytes_moved`` are over the calls that have them, ``unknown_us`` is the time of
    those that have neither."""

    calls: int
    launches: int
    device_us: float
    flops: int
    bytes_moved: int
    unknown_us: float


@dataclass(frozen=True)
class StepTotals:
    """A step with its sums. ``graph_launches`` are calls times launches of compiled graphs, without those in ways that
    a call did not take."""

    step: Step
    calls: tuple[StepCall, ...]
    whole: Work
    by_phase: Mapping[Phase, Work]
    graph_launches: int


def total_step(step: Step, calls: Sequence[StepCall], launches_of: Mapping[str, int]) -> StepTotals:
    """Add a step up; ``launches_of`` maps a graph to how many launches its wrapper makes."""
    phases: dict[Phase, Work] = {}
    for phase in PHASES:
        members = [call for call in calls if call.phase == phase]
        if members:
            phases[phase] = add_up(members, launches_of)
    return StepTotals(
        step,
        tuple(calls),
        add_up(calls, launches_of),
        phases,
        sum(count * launches_of.get(graph, 0) for graph, count in step.graph_calls.items())
        + sum(call.repeated - call.not_taken for call in calls),
    )


def with_other_calls(
    record: StepTotals, more: Sequence[StepCall], lacks: Collection[int], launches_of: Mapping[str, int]
) -> StepTotals:
    """A step as it would be with some calls ``more``, behind its own, and without those of the ``order`` in
    ``lacks``."""
    kept = [call for call in record.calls if call.order not in lacks]
    behind = 1 + max((call.order for call in record.calls), default=-1)
    added = [replace(call, step=record.step.name, order=order) for order, call in enumerate(more, behind)]
    calls = [*kept, *added]
    graph_calls = Counter(call.name for call in calls if call.kind == "graph")
    return total_step(replace(record.step, graph_calls=dict(graph_calls)), calls, launches_of)


def stale_graphs(step: Step, graphs: Iterable[str]) -> tuple[str, ...]:
    """Graphs that were compiled and that the step does not call: replaced by a recompilation, or used elsewhere."""
    return tuple(graph for graph in graphs if not step.graph_calls.get(graph))


@dataclass(frozen=True)
class StepUse:
    """What a step makes of a launch: how often its graph is called, and which share of the step's device time that is
    (``None`` where the launch or the step has no time)."""

    calls: int
    share: float | None


def use_of(step: Step, graph: str, duration_us: float | None) -> StepUse:
    """The use of a launch of ``graph`` that takes ``duration_us`` inside the step: median times calls."""
    calls = step.graph_calls.get(graph, 0)
    known = duration_us is not None and step.device_us and calls
    return StepUse(calls, calls * duration_us / step.device_us if known and duration_us and step.device_us else None)


def add_up(calls: Iterable[StepCall], launches_of: Mapping[str, int]) -> Work:
    """The sums of some calls."""
    members = list(calls)
    return Work(
        calls=len(members),
        launches=sum(launches_in(call, launches_of) for call in members),
        device_us=sum(call_us(call) for call in members),
        flops=sum(call.flops or 0 for call in members),
        bytes_moved=sum(call.bytes_moved or 0 for call in members),
        unknown_us=sum(call_us(call) for call in members if not call.flops and call.bytes_moved is None),
    )


def times_made(record: StepTotals, launches: Iterable[Launch]) -> dict[str, int]:
    """How often a step makes each of these launches, by ``launch_id``: as often as it calls their graph, but for those
    in ways that a call did not take or that it went through again."""
    apart: Counter[tuple[str, int]] = Counter()
    for call in record.calls:
        for order, times in call.times:
            apart[call.name, order] += times - 1
    calls = record.step.graph_calls
    return {each.launch_id: calls.get(each.graph, 0) + apart[each.graph, each.order] for each in launches}


def launches_in(call: StepCall, launches_of: Mapping[str, int]) -> int:
    """Launches of a call: those of its graph, else its kernels; an operator that ran on a CPU is one."""
    if call.kind == "graph":
        return launches_of.get(call.name, 0) - call.not_taken + call.repeated
    if call.kind == "synchronization":
        return 0
    return call.kernels or int(call.device in (None, "cpu") and bool(call.flops or call.bytes_moved))


def on_host(totals: StepTotals) -> list[StepCall]:
    """The eager calls on the CPU of a step on another device, or of one that ran without its device."""
    return [call for call in totals.calls if call.kind == "operator" and call.device == "cpu"]


def launched_on_device(totals: StepTotals) -> int:
    """Kernels that such a step launches, without the operators that the host computes itself."""
    return totals.whole.launches - sum(launches_in(call, {}) for call in on_host(totals))


def call_us(call: StepCall) -> float:
    """Median over the recorded steps of a call's time on the device, in microseconds; 0 where it took none."""
    return statistics.median(call.samples_us) if call.samples_us else 0.0


def message_of(call: StepCall) -> Message | None:
    """A collective's message, which has algorithm and bus bandwidth; ``None`` for other calls, or where unknown."""
    kind = collective_kind(call.name) if call.kind == "collective" else None
    return None if kind is None or call.message_bytes is None else Message(kind, call.message_bytes, call.group_size)
