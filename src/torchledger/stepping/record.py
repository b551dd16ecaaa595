"""One step, as a record: its calls in order, with times over the recorded steps, work, lines, modules and phases.

Two recordings of steps of one kind are put together: a trace of some steps (times, shapes, what ran on the device) and,
where there is one, what a dispatch mode heard in another (lines, modules, exact dtypes). They are independent, so that
the number of operators in one can be held against that in the other.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torchledger.nouns import (
    Clock,
    Cost,
    DeviceEvent,
    Difference,
    OptimizerFacts,
    Step,
    StepCall,
    StepFoundBy,
    StepKind,
    TensorArgument,
)
from torchledger.stepping.aligning import (
    align,
    count_heard,
    have_other_sizes,
    is_as_heard,
    is_at_sizes,
    is_counted,
    is_nested,
    operators_of,
    other_routes,
    stopped_places,
    thread_of,
)
from torchledger.stepping.aligning import counted_names as counted_names
from torchledger.stepping.dropped_weights import drops_weights
from torchledger.stepping.entries import Entry, GraphOf, IsComposite, read_entries, recorded_operators
from torchledger.stepping.graph_work import Ledgered as Ledgered
from torchledger.stepping.graph_work import with_graph as with_graph
from torchledger.stepping.idle import device_busy_and_idle, host_busy_and_idle, middle_places
from torchledger.stepping.inner_work import inner_work
from torchledger.stepping.phases import phases_of
from torchledger.stepping.unfolding import Recorded, parts_heard
from torchledger.traces.trace import Trace
from torchledger.work.categories import category_of_operator
from torchledger.work.collectives import bytes_of_call, message_of_call
from torchledger.work.op_costs import op_cost
from torchledger.work.op_shapes import OpCall, Tensor
from torchledger.work.product_costs import overcounted_by_torch
from torchledger.work.settings import Parameter, settings_of

if TYPE_CHECKING:
    from torchledger._torch.eager_calls import EagerCall

_MOST_ARGUMENTS = 8

ParametersOf = Callable[[OpCall], Sequence[Parameter | None] | None]
"""Which arguments of a recorded call are integers; ``None`` where its schema is not known."""


@dataclass(frozen=True)
class StepFacts:
    """What is known of the steps before any trace is read; the fields mean what they mean in ``Step``."""

    found_by: StepFoundBy
    plain_us: tuple[float, ...] = ()
    issued_us: tuple[float, ...] = ()
    profiled_us: tuple[float, ...] = ()
    seen: int = 0
    kinds: tuple[StepKind, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepRecord:
    """A step with its calls. ``index`` is the recorded step that the calls were read from, ``call_of`` maps the rows of
    its device events to the places of their calls, ``places`` what a dispatch mode heard to those of its calls, and
    ``waits`` the waits of the host that it heard. ``entries`` are those of each recorded step."""

    step: Step
    calls: tuple[StepCall, ...]
    index: int
    call_of: Mapping[int, int] = field(default_factory=dict)
    entries: tuple[tuple[Entry, ...], ...] = ()
    places: Mapping[int, int] = field(default_factory=dict)
    waits: Mapping[int, int] = field(default_factory=dict)


def record_step(
    trace: Trace,
    spans: Sequence[tuple[int, int]],
    events: Sequence[DeviceEvent],
    facts: StepFacts,
    ledgered: Ledgered,
    *,
    graph_of: GraphOf,
    is_composite: IsComposite,
    parameters_of: ParametersOf | None = None,
    heard: Sequence[EagerCall] | None = None,
    name: str = "step_0",
    clock: Clock = "cupti",
) -> StepRecord:
    """The record of a step out of a trace of several: ``spans`` are their beginnings and ends on the trace's clock.

    ``events`` are the trace's device events with their entries (none on a CPU), ``heard`` what a dispatch mode heard in
    another step, ``parameters_of`` tells of a call that no mode heard which of its arguments are integers. Raises
    ``ValueError`` without spans.
    """
    heard = None if heard is None else [call for call in heard if call.graph is None]
    if not spans:
        raise ValueError("a step's record needs the beginning and end of at least one step")
    whole = {call.call.name for call in heard or ()}
    counted = {call.call.name for call in heard or () if call.flops is not None}
    nested = {call.call.name for call in heard or () if any(map(is_nested, call.call.tensors))}
    list_dtype = _list_dtype(facts.optimizers)

    def read(span: tuple[int, int], parts: Mapping[int, frozenset[int]] | None = None) -> list[Entry]:
        return read_entries(
            trace,
            span,
            events,
            graph_of=graph_of,
            is_composite=is_composite,
            whole=whole,
            list_dtype=list_dtype,
            parts=parts,
            nested=nested,
            counted=counted,
        )

    each = [read(span) for span in spans]
    if heard and any(len(operators_of(one)) < count_heard(heard) for one in each):
        forests = [recorded_operators(trace, span, graph_of=graph_of, list_dtype=list_dtype) for span in spans]
        parts = [_parts_heard(trace, forest, heard) for forest in forests]
        each = [
            _nearer(read(span, rows), one, heard) if rows else one
            for span, rows, one in zip(spans, parts, each, strict=True)
        ]
    aligned = [align(trace, one, heard or ()) for one in each]
    each = [_without_stopped(one, heard_at, heard or ()) for one, heard_at in zip(each, aligned, strict=True)]
    unlike = [have_other_sizes(one, heard_at) for one, heard_at in zip(each, aligned, strict=True)]
    chosen = unlike.index(False) if heard and True in unlike and False in unlike else _usual(each, heard or ())
    entries, heard_at = each[chosen], aligned[chosen]
    samples = _samples(entries, each, on_device=bool(events))
    forward = forward_calls(heard or ())
    phases = phases_of(
        entries,
        directions=ledgered.directions,
        code={place: call.library for place, call in heard_at.items()},
        modules={place: call.module for place, call in heard_at.items() if call.module},
    )
    numbers = {lane: number for number, lane in enumerate(dict.fromkeys(entry.lane for entry in entries))}
    called: Counter[str] = Counter()
    calls = []
    for place, (entry, phase) in enumerate(zip(entries, phases, strict=True)):
        call = StepCall(
            step=name,
            order=place,
            kind=entry.kind,
            name=entry.name,
            phase=phase,
            thread=numbers[entry.lane],
            start_us=(entry.start_ns - spans[chosen][0]) / 1e3,
            host_us=(entry.end_ns - entry.start_ns) / 1e3,
            samples_us=samples[place],
            kernels=len(entry.events),
            streams=tuple(sorted({f"{event.device}/{event.stream}" for event in entry.events})),
        )
        if entry.kind == "graph":
            made = ledgered.launches.get(entry.name, ())
            inside = inner_work(trace, entry, made, is_composite=is_composite)
            call = with_graph(call, entry, ledgered, called[entry.name], inside)
            called[entry.name] += 1
            if ledgered.directions.get(entry.name) == "forward":
                call = replace(call, recomputed_for=entry.backward_node)
        else:
            call = with_work(call, entry, heard_at.get(place), forward, parameters_of)
            if entry.kind == "collective":
                call = with_group(call, entry, heard_at.get(place))
        calls.append(call)
    step = _sums(trace, spans, events, facts, each, calls, name=name, clock=clock, entries=entries)
    heard_on = {call.thread for call in heard or ()}
    lanes = {lane for lane in numbers if thread_of(trace, lane) in heard_on} or set(numbers)
    operators = operators_of(entries)
    listened = [name for (lane, _), name in operators.items() if lane in lanes]
    step = replace(
        step,
        graph_calls=dict(called),
        operators=len(listened) if heard else len(operators),
        operators_heard=count_heard(heard) if heard else None,
        operators_elsewhere=len(operators) - len(listened) if heard else 0,
        operators_otherwise=other_routes(entries, heard_at, heard or ()),
        operators_by_step=tuple(len(operators_of(one)) for one in each),
        is_heard_at_other_sizes=unlike[chosen],
        is_as_heard=is_as_heard(listened, heard or ()),
    )
    index = {id(call): number for number, call in enumerate(heard or ())}
    places = {index[id(call)]: place for place, call in heard_at.items()}
    return StepRecord(step, tuple(calls), chosen, _places_of_rows(entries), tuple(map(tuple, each)), places)


def _places_of_rows(entries: Sequence[Entry]) -> dict[int, int]:
    return {event.row: place for place, entry in enumerate(entries) for event in entry.events if event.row is not None}


def _without_stopped(
    entries: list[Entry], heard_at: Mapping[int, EagerCall], heard: Sequence[EagerCall]
) -> list[Entry]:
    """The entries, those that did not run without work."""
    found = list(entries)
    for place in stopped_places(entries, heard_at, heard):
        found[place] = replace(found[place], call=None, cost=_STOPPED)
    return found


_STOPPED = Cost(0, 0, "exact", "exact", "a checkpoint ended what it runs again before this ran")


def overcounted(record: StepRecord) -> list[Difference]:
    """What torch's counter would find too much in the step's eager operators."""
    amounts: Counter[str] = Counter()
    for entry in record.entries[record.index] if record.entries else ():
        if entry.call is not None and (flops := overcounted_by_torch(entry.call)):
            amounts[entry.name] += flops
    reason = "torch counts the weight's gradient of a grouped convolution as if it had one group"
    return [Difference("step_flops", f"{record.step.name}:{name}", reason, -flops) for name, flops in amounts.items()]


def _parts_heard(
    trace: Trace, forest: Mapping[int, Sequence[Recorded]], heard: Sequence[EagerCall]
) -> dict[int, frozenset[int]]:
    found: dict[int, frozenset[int]] = {}
    for lane, roots in forest.items():
        calls = [call.call for call in heard if call.thread == thread_of(trace, lane) and is_counted(call)]
        found |= parts_heard(roots, calls)
    return found


def _nearer(one: list[Entry], other: list[Entry], heard: Sequence[EagerCall]) -> list[Entry]:
    """Of two readings of a step the one whose operators are nearer to what a mode heard, by their names."""
    theirs = Counter(call.call.name.rstrip("_") for call in heard if is_counted(call))

    def apart(entries: list[Entry]) -> int:
        ours = Counter(entry.name.rstrip("_") for entry in entries if entry.kind == "operator")
        return abs(len(operators_of(entries)) - theirs.total()) + (theirs - ours).total() + (ours - theirs).total()

    return min(one, other, key=apart)


def _usual(each: Sequence[Sequence[Entry]], heard: Sequence[EagerCall]) -> int:
    """The last recorded step of those whose calls most others share, where as many share others' one that does what was
    heard: what the first frees may be older than the profile, which does not see it go."""
    shapes = [tuple(map(_key, entries)) for entries in each]
    counts = Counter(shapes)
    usual = [shape for shape in counts if counts[shape] == max(counts.values())]
    places = [max(place for place, each_shape in enumerate(shapes) if each_shape == shape) for shape in usual]
    return next((place for place in places if is_as_heard(operators_of(each[place]).values(), heard)), places[0])


def _key(entry: Entry) -> Hashable:
    return entry.kind, entry.name, entry.call and entry.call.arguments


def _samples(entries: Sequence[Entry], each: Sequence[Sequence[Entry]], *, on_device: bool) -> list[tuple[float, ...]]:
    """Per entry its time in every recorded step that has it: the same call, for the same how manieth time."""
    times: dict[Hashable, list[float]] = defaultdict(list)
    for step in each:
        occurrences: Counter[Hashable] = Counter()
        for entry in step:
            key = _key(entry)
            ns = entry.device_ns if on_device else entry.host_work_ns
            times[key, occurrences[key]].append(ns / 1e3)
            occurrences[key] += 1
    occurrences = Counter()
    found = []
    for entry in entries:
        key = _key(entry)
        found.append(tuple(times[key, occurrences[key]]))
        occurrences[key] += 1
    return found


def forward_calls(heard: Sequence[EagerCall]) -> dict[int, EagerCall]:
    """Autograd's sequence number to the forward operator that was given it."""
    found: dict[int, EagerCall] = {}
    for call in heard:
        if call.node is None and call.sequence is not None:
            found.setdefault(call.sequence, call)
    return found


def with_work(
    call: StepCall,
    entry: Entry,
    heard: EagerCall | None,
    forward: Mapping[int, EagerCall],
    parameters_of: ParametersOf | None = None,
) -> StepCall:
    """An eager entry with its work, arguments and origin, of which the mode heard more than the trace holds."""
    is_heard_itself = heard is not None and entry.part_of is None and is_at_sizes(entry, heard)
    shapes = heard.call if heard is not None and is_heard_itself else entry.call
    cost = entry.cost
    if heard is not None and is_heard_itself and entry.kind == "operator":
        exact = op_cost(_as_made(entry, heard.call))
        cost = exact if exact.is_known or not cost.is_known else cost
        if heard.flops is not None:
            cost = replace(cost, flops=heard.flops, flops_quality="exact", reason=None)
    origin = heard
    if heard is not None and heard.node is not None and heard.sequence is not None:
        origin = forward.get(heard.sequence)
    tensors = shapes.tensors if shapes is not None else ()
    if heard is not None and is_heard_itself:
        settings = settings_of(heard.call, heard.parameters)
    else:
        known = parameters_of(entry.call) if entry.call is not None and parameters_of is not None else None
        settings = settings_of(entry.call, known) if entry.call is not None else None
    if settings is not None and shapes is not None and drops_weights(shapes):
        settings = (*settings, ("dropout", (1,)))
    lists = [argument for argument in (shapes.arguments if shapes is not None else ()) if isinstance(argument, tuple)]
    return replace(
        call,
        category="collective" if entry.kind == "collective" else category_of_operator(entry.name),
        device=heard.device if heard is not None else None,
        arguments=tuple(_argument(tensor) for tensor in tensors[:_MOST_ARGUMENTS]),
        tensors=len(lists[0]) if lists and lists[0] else None,
        elements=sum(tensor.numel for tensor in lists[0]) if lists and lists[0] else None,
        modules=(origin.module,) if origin is not None and origin.module else (),
        sources=origin.sources if origin is not None else (),
        flops=cost.flops,
        flops_quality=cost.flops_quality,
        bytes_moved=cost.bytes_moved,
        bytes_quality=cost.bytes_quality,
        reason=cost.reason,
        settings=settings,
    )


def _as_made(entry: Entry, heard: OpCall) -> OpCall:
    """What was heard, as the recorded call: where somebody listens some gradients are made anew that are else written
    in place."""
    return replace(heard, name=entry.name) if entry.name == f"{heard.name}_" else heard


def _argument(tensor: Tensor) -> TensorArgument:
    return TensorArgument(tensor.shape, tensor.dtype, tensor.strides, tensor.held_bytes)


def with_group(call: StepCall, entry: Entry, heard: EagerCall | None) -> StepCall:
    """A collective with its group and message: as the profiler wrote them, else as the operator was called."""
    size = entry.facts.get("Group size", "")
    group = entry.facts.get("Process Group Name") or entry.facts.get("Process Group Description")
    ranks = int(size) if size.isdigit() else None
    if heard is not None:
        group, ranks = group or heard.group, ranks or heard.group_size
    given = heard.call if heard is not None else entry.call
    message = entry.message or (message_of_call(given, ranks) if given is not None else None)
    moved = bytes_of_call(given, ranks) if given is not None and call.bytes_moved is None else None
    if moved is not None:
        call = replace(call, flops=0, flops_quality="exact", bytes_moved=moved, bytes_quality="exact", reason=None)
    return replace(call, group=group, group_size=ranks, message_bytes=message.nbytes if message is not None else None)


def _list_dtype(optimizers: Sequence[OptimizerFacts]) -> str | None:
    dtypes = {dtype for optimizer in optimizers for dtype in optimizer.dtypes}
    return dtypes.pop() if len(dtypes) == 1 else None


def _sums(
    trace: Trace,
    spans: Sequence[tuple[int, int]],
    events: Sequence[DeviceEvent],
    facts: StepFacts,
    each: Sequence[Sequence[Entry]],
    calls: Sequence[StepCall],
    *,
    name: str,
    clock: Clock,
    entries: Sequence[Entry],
) -> Step:
    number = len(spans)
    window = (spans[0][0], spans[-1][1])
    uncovered: dict[str, float] = {}
    if events:
        given = {event.row for step in each for entry in step for event in entry.events}
        inside = [event for event in events if _belongs(event, window)]
        device_us = sum(event.duration_ns for event in inside) / 1e3 / number
        covered_us = sum(event.duration_ns for event in inside if event.row in given) / 1e3 / number
        for event in inside:
            if event.row not in given:
                reason = "its launch is not in the trace"
                uncovered[reason] = uncovered.get(reason, 0.0) + event.duration_ns / 1e3 / number
        busy, idle, window = device_busy_and_idle(trace, inside, window) if inside else (0, {}, window)
        wall, summed = window[1] - window[0], number
    else:
        covered_us = device_us = statistics.median(sum(entry.host_work_ns for entry in step) / 1e3 for step in each)
        # In a mean would stand, beside medians of all else, what held up one step alone.
        middle = middle_places([end - start for start, end in spans])
        busy, idle = _added(host_busy_and_idle(trace, each[place], spans[place]) for place in middle)
        wall, summed = sum(spans[place][1] - spans[place][0] for place in middle), len(middle)
    known = {call.order for call in calls if call.flops or call.bytes_moved is not None}
    total = sum(_median(call.samples_us) for call in calls)
    known_us = sum(_median(call.samples_us) for call in calls if call.order in known)
    return Step(
        name=name,
        found_by=facts.found_by,
        clock=clock,
        plain_us=facts.plain_us,
        issued_us=facts.issued_us,
        profiled_us=facts.profiled_us,
        seen=facts.seen,
        recorded=number,
        kinds=facts.kinds,
        device_us=device_us,
        covered_us=covered_us,
        known_us=known_us / total * covered_us if total else 0.0,
        uncovered_us=uncovered,
        busy_us=busy / 1e3 / summed,
        wall_us=wall / 1e3 / summed,
        idle_us={cause: ns / 1e3 / summed for cause, ns in idle.items()},
        optimizers=facts.optimizers,
        notes=facts.notes,
    )


def _added(steps: Iterable[tuple[int, Mapping[str, int]]]) -> tuple[int, Mapping[str, int]]:
    """Busy time, and idle time by cause with the longest first, of some steps together."""
    busy, causes = 0, Counter[str]()
    for busy_of_one, idle in steps:
        busy += busy_of_one
        causes.update(idle)
    return busy, dict(causes.most_common())


def _median(samples: Sequence[float]) -> float:
    return statistics.median(samples) if samples else 0.0


def _belongs(event: DeviceEvent, window: tuple[int, int]) -> bool:
    """True if an event was launched in the window; one whose launch is not known, if it ran there."""
    moment = event.launch_start_ns if event.launch_start_ns is not None else event.start_ns
    return window[0] <= moment < window[1]
