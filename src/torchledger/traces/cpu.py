"""A trace without a device: the operators' own time on the CPU.

An operator's *own* time is its time without that of the operators that it calls, so that the times of all operators of
a thread add up to the time in which it ran any. Work goes to the innermost operator whose formula explains it.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from torchledger.nouns import Breakdown, Cost, DeviceEvent, TimeCategory
from torchledger.traces.contents import problems_of, step_durations, with_modules_and_lines
from torchledger.traces.idle import busy_time
from torchledger.traces.recorded_calls import call_from_arguments, shapes_text
from torchledger.traces.summary import summarize
from torchledger.traces.trace import NONE, EventKind, Trace
from torchledger.traces.verdict import verdict
from torchledger.work.categories import category_of_operator
from torchledger.work.op_costs import NO_TENSOR_SHAPES, has_formula, op_cost

DEVICE = "cpu"
COUNTED_INSIDE = "its work is counted at the operators that it calls"
NO_WORK_OF_ITS_OWN = "dispatch, autograd, or compiled code whose kernels record nothing"
NO_OPERATOR_RAN = "no operator was running"

_CPP_KERNEL = re.compile(r"(^|_)cpp_(CppMicroGemm|fused|bmm|\w*template)")
_SURROUNDINGS = re.compile(
    r"^(Torch-Compiled Region|TorchDynamo|Pregraph|AOTDispatcher|CompiledFunction|Optimizer\.|autograd::|torch::|\w+$)"
)
"""Names that stand around operators and are none: they have shapes, and no work beside what is inside them."""


def cpu_events(trace: Trace) -> list[DeviceEvent]:
    """Every operator that ran on the CPU, in order of their starts, each with its own time and its own work."""
    events = trace.events
    rows = trace.rows(EventKind.OP)
    parents = trace.op_of
    own_ns = events.duration_ns.copy()
    called = rows[parents[rows] != NONE]
    np.subtract.at(own_ns, parents[called], events.duration_ns[called])
    np.maximum(own_ns, 0, out=own_ns)
    costs = _own_costs(trace, rows)
    ordered = rows[np.lexsort((-events.duration_ns[rows], events.start_ns[rows]))]
    found = []
    for row in ordered.tolist():
        name = trace.name(row)
        call = call_from_arguments(name, trace.arguments(row))
        lane = trace.lanes[int(events.lane[row])]
        found.append(
            DeviceEvent(
                name=name,
                kind="kernel",
                category=_category(name),
                start_ns=int(events.start_ns[row]),
                duration_ns=int(own_ns[row]),
                device=DEVICE,
                stream=lane.thread,
                op=name,
                cost=costs[row],
                shapes=None if call is None else shapes_text(call),
                row=row,
            )
        )
    return found


def cpu_breakdown(trace: Trace, events: list[DeviceEvent]) -> Breakdown:
    """Where the CPU's time went; ``events`` are ``cpu_events(trace)``, at least one."""
    columns = trace.events
    place = {event.row: index for index, event in enumerate(events)}
    rows = trace.rows(EventKind.OP)
    outermost = rows[trace.op_of[rows] == NONE]
    index = np.array([place[row] for row in outermost.tolist()], dtype=np.int64)
    busy = busy_time(DEVICE, columns.start_ns[outermost], columns.end_ns[outermost], index)
    result = summarize(with_modules_and_lines(trace, events), source=trace.source, clock="trace", busy=[busy])
    steps = step_durations(trace)
    notes = ["no device in the trace: each operator's own time on the CPU, without the operators that it calls"]
    if not any("Input Dims" in trace.arguments(row) for row in rows[:1000].tolist()):
        notes.append("recorded without record_shapes=True: FLOPs and bytes cannot be computed")
    if any("Call CompiledFxGraph" in name for name in trace.names) and not any(map(_CPP_KERNEL.search, trace.names)):
        notes.append(
            "compiled C++ kernels record nothing by themselves: their time stands at the compiled region around them; "
            "`torchledger run --profile SCRIPT` times each"
        )
    idle = result.idle_us
    problems = problems_of(trace)
    result = replace(
        result,
        steps=len(steps) or None,
        step_us=tuple(steps),
        idle_causes={NO_OPERATOR_RAN: idle} if idle > 0 else {},
        gaps=tuple(replace(gap, cause=NO_OPERATOR_RAN) for gap in result.gaps),
        is_partial=trace.is_truncated or any(problem.leaves_out for problem in problems),
        problems=tuple(problem.text for problem in problems),
        notes=tuple(notes),
        is_of_operators=True,
    )
    return replace(result, verdict=verdict(result))


def _own_costs(trace: Trace, rows: np.ndarray) -> dict[int, Cost]:
    """Per operator the work that no operator inside it accounts for."""
    inside: dict[int, tuple[int, int]] = {}
    parents, duration = trace.op_of, trace.events.duration_ns
    known: dict[tuple[int, int], Cost] = {}
    costs: dict[int, Cost] = {}
    # What lies inside another is no longer than it, and starts no earlier: so it comes first here.
    for row in rows[np.lexsort((-trace.events.start_ns[rows], duration[rows]))].tolist():
        key = (int(trace.events.name[row]), int(trace.events.argument[row]))
        if key not in known:
            known[key] = _cost(trace, row)
        cost = known[key]
        flops, moved = inside.get(row, (0, 0))
        if flops or moved:
            if cost.is_known:
                cost = _without(cost, flops, moved)
            elif trace.name(row).startswith("aten::"):
                cost = Cost(reason=COUNTED_INSIDE)
        costs[row] = cost
        parent = int(parents[row])
        if parent != NONE:
            before = inside.get(parent, (0, 0))
            inside[parent] = (
                before[0] + flops + (cost.flops or 0),
                before[1] + moved + (cost.bytes_moved or 0),
            )
    return costs


def _without(cost: Cost, flops: int, moved: int) -> Cost:
    """What is left of an operator's work: of a product its FLOPs decide, of others their bytes."""
    if cost.flops:
        return replace(cost, flops=cost.flops - flops) if cost.flops > flops else Cost(reason=COUNTED_INSIDE)
    if cost.bytes_moved is None or cost.bytes_moved <= moved:
        return Cost(reason=COUNTED_INSIDE)
    return replace(cost, bytes_moved=cost.bytes_moved - moved)


def _cost(trace: Trace, row: int) -> Cost:
    name = trace.name(row)
    if _SURROUNDINGS.match(name) and not _CPP_KERNEL.search(name):
        return Cost(reason=NO_WORK_OF_ITS_OWN)
    if not has_formula(name):
        # Most of these are views and wrappers: a guess from their shapes would be wrong.
        return Cost(reason=f"no formula for {name}")
    call = call_from_arguments(name, trace.arguments(row))
    return Cost(reason=NO_TENSOR_SHAPES) if call is None else op_cost(call)


def _category(name: str) -> TimeCategory:
    if _CPP_KERNEL.search(name):
        return "cpp"
    return category_of_operator(name) or "other"
