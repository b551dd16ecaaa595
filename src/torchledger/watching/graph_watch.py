"""One loaded wrapper and its calls: what each launch reads and writes is looked at, then handed on."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

import torch

from torchledger._torch.kernel_marks import note_wrapper
from torchledger._torch.tensors import memory_key
from torchledger.claims import claim
from torchledger.nouns import Launch
from torchledger.signals import let_through
from torchledger.watching.planned import Look, Place, Plan, PlannedCall, has_bad, summaries_of
from torchledger.watching.reductions import Queued, Reducer, Summary
from torchledger.watching.rewrite import ALLOCATE, LAUNCH, Rewritten, Site, launch_name, rewrite_wrapper
from torchledger.watching.roles import Operand, Roles, operands, results, scalars

log = logging.getLogger(__name__)

_PLANS_KEPT = 16


class _Order:
    """Numbers that order all launches of a process."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, many: int = 1) -> int:
        """The first of ``many`` numbers in a row."""
        first, self._next = self._next, self._next + many
        return first


_ORDER = _Order()


@dataclass(frozen=True)
class Seen:
    """A tensor before or after a launch: its name, kind, and the tickets of what was reduced for it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    tickets: tuple[int, ...]
    note: str | None = None
    elements: str | None = None


@dataclass
class Event:
    """One launch in one call: what it read and wrote."""

    site: Site
    launch: Launch | None
    sequence: int
    before: list[Seen] = field(default_factory=list)
    after: list[Seen] = field(default_factory=list)
    unwritten: list[Seen] = field(default_factory=list)
    kept: dict[str, torch.Tensor] = field(default_factory=dict)
    views: dict[str, list[Any]] = field(default_factory=dict)
    path: str | None = None
    paths: dict[str, str] = field(default_factory=dict)
    scalars: list[Seen] = field(default_factory=list)


@dataclass
class CallRecord:
    """One call of a graph, when it is over: its events and what was reduced for them.

    ``outputs`` are those that a watched launch wrote; of a graph whose launches cannot be watched, all of them.
    """

    graph: GraphWatch
    index: int
    events: list[Event]
    inputs: list[Seen]
    outputs: list[Seen]
    summaries: dict[int, Summary]
    sequence: int


@dataclass(frozen=True)
class Planned:
    """A plan with the records of the call that it was made of, which those of later calls repeat with other numbers.

    ``key`` is a name for it, ``run`` the wrapper's ``call`` that follows it; sequences of later calls are those of its
    events from ``first_sequence`` on, shifted.
    """

    key: str
    plan: Plan
    run: Callable[[list[Any]], Any]
    record: CallRecord
    first_sequence: int
    n_sequences: int
    has_unwritten: bool


@dataclass(frozen=True)
class PlannedRecord:
    """One call that followed a plan: the rows of its numbers (``planned.PlannedCall.fetch``)."""

    graph: GraphWatch
    index: int
    planned: Planned
    sequence: int
    rows: Any

    @property
    def is_clean(self) -> bool:
        """True if nothing in it is NaN or Inf, and nothing was read before it was written."""
        return not has_bad(self.rows) and not self.planned.has_unwritten

    def whole(self) -> CallRecord:
        """The same as the record of a call that was watched anew."""
        shift = self.sequence - self.planned.first_sequence
        record = self.planned.record
        events = [dataclasses.replace(event, sequence=event.sequence + shift) for event in record.events]
        summaries = summaries_of(self.planned.plan, self.rows)
        return dataclasses.replace(
            record, index=self.index, events=events, summaries=summaries, sequence=record.sequence + shift
        )


class Sink(Protocol):
    """Who hears what a watched graph does. A fault in it is reported to ``on_fault`` and goes no further."""

    is_active: bool
    is_full: bool
    takes_tensors: bool
    most_elements: int

    def takes_call(self, watch: GraphWatch, index: int) -> bool:
        """True if a call is to be watched."""

    def takes_launch(self, launch: Launch | None) -> bool:
        """True if a launch is to be watched."""

    def make_reducer(self) -> Reducer:
        """A reducer for one call."""

    def on_call_start(self, watch: GraphWatch, index: int, inputs: list[tuple[str, torch.Tensor]]) -> Any:
        """A call starts; what is returned is given to the methods below."""

    def on_launch(self, state: Any, event: Event, read: list[Operand]) -> None:
        """A launch is about to start."""

    def on_launched(self, state: Any, event: Event, written: list[Operand]) -> None:
        """A launch has been started (on a device, it may still run)."""

    def on_call(self, state: Any, record: CallRecord) -> None:
        """A call is over."""

    def plans_for(self) -> Hashable | None:
        """What the present questions ask of a call, if it can be planned; ``None`` if each call is watched anew."""

    def on_planned_call(self, record: PlannedRecord) -> None:
        """A call is over that followed a plan."""

    def on_fault(self, where: str, error: Exception) -> None:
        """Watching failed at a place; the user's program goes on."""


class GraphWatch:
    """Stands in for the ``call`` of one loaded wrapper."""

    def __init__(self, sink: Sink, module: ModuleType, source: str, rewritten: Rewritten | None) -> None:
        self.sink = sink
        self.source = source
        self.name: str | None = None
        self.n_calls = 0
        self.n_watched_calls = 0
        self.sites: tuple[Site, ...] = rewritten.sites if rewritten is not None else ()
        self.launches: dict[int, Launch] = {}
        self.n_launches = 0
        self.module: Any = None
        self.seen: set[int] = set()
        self.input_names: tuple[str, ...] = rewritten.inputs if rewritten is not None else ()
        self._module = module
        self._original = module.call
        self._watched = module.call
        self._roles: dict[int, Roles] = {}
        self._local = threading.local()
        self._plans: dict[Hashable, Planned | None] = {}
        # Freed storage is no launch, and what runs on other streams is not in the order of the lines.
        self._may_hold = "resize_storage_bytes_" not in source and "torch.ops.streams." not in source
        self._may_plan = len({site.function for site in self.sites}) == 1
        if rewritten is not None:
            namespace = dict(vars(module))
            namespace[LAUNCH], namespace[ALLOCATE] = self._launch, self._allocate
            exec(rewritten.code, namespace)
            self._watched = namespace["call"]
            note_wrapper(self._watched)

    @claim
    def stand_in(self) -> bool:
        """Take the place of the wrapper's ``call``, once all is there that a call needs; true once that is done."""
        self._module.call = self  # type: ignore[attr-defined]
        return True

    def identify(self, name: str, launches: Iterable[Launch]) -> None:
        """Tell which graph this is, and which launch stands at each site."""
        self.name = name
        waiting: dict[tuple[int, str], list[Launch]] = {}
        for launch in launches:
            if launch.is_call:
                self.n_launches += 1
                if launch.wrapper_line is not None and launch.call is not None:
                    waiting.setdefault((launch.wrapper_line, launch.call), []).append(launch)
        for site in self.sites:
            found = waiting.get((site.line, site.name))
            if found:
                self.launches[site.index] = found.pop(0)

    @property
    def asked(self) -> frozenset[int]:
        """The sites whose launches are asked for."""
        return frozenset(index for index, launch in self.launches.items() if self.sink.takes_launch(launch))

    @property
    def asked_buffers(self) -> frozenset[str] | None:
        """What the launches that are asked for read and write; ``None`` where all launches are."""
        asked = self.asked
        if len(asked) == len(self.launches):
            return None
        return frozenset(buffer.name for index in asked for buffer in self.launches[index].buffers)

    def subject(self, site: Site) -> str:
        """The launch id of a site, or its line where the ledger has no entry for it."""
        launch = self.launches.get(site.index)
        return launch.launch_id if launch is not None else f"{self.name or 'unrecorded graph'}, line {site.line}"

    # --- what runs in the user's program ------------------------------------------------------------------------

    def __call__(self, args: list[Any]) -> Any:
        frame, run = None, self._original
        try:
            frame, run = self._begin(args)
        except Exception as error:  # the user's program must go on
            let_through(error)
            self._lose(error)
        result = None
        try:
            result = run(args)
        finally:  # what was seen until a fault is what explains it
            try:
                if not self._end(frame, result):
                    raise RuntimeError("what was seen of a call was not kept")
            except Exception as error:  # the user's program has its result
                let_through(error)
                self._lose(error)
        return result

    def _begin(self, args: list[Any]) -> tuple[Any, Callable[[list[Any]], Any]]:
        """The frame of a call, ``None`` if this one is not watched, and what to call in it."""
        index = self.n_calls
        self.n_calls += 1
        if not self.sink.is_active or not self.sink.takes_call(self, index):
            return None, self._original
        self.n_watched_calls += 1
        frames = self._frames()
        key = self._plan_key(args)
        planned = self._plans.get(key) if key is not None else None
        frame: Any
        if planned is not None:
            frame, run = _PlannedFrame(self, index, planned), planned.run
        else:
            frame = _Frame(self, index, plan_key=key if key is not None and key not in self._plans else None)
            run = self._watched
        frame.guard(frame.start, args)
        frames.append(frame)
        return frame, run

    def _end(self, frame: Any, result: Any) -> bool:
        """Keep what was seen of a call; true once that is done."""
        if frame is None:
            return True
        frames = self._frames()
        while frame in frames:
            frames.pop()
        frame.guard(frame.end, result)
        return True

    def _lose(self, error: Exception) -> None:
        """Tell of what failed outside any frame's guard."""
        try:
            self.sink.on_fault(self.name or "a graph", error)
        except Exception as second:  # whoever should list the fault is at fault too
            let_through(second)
            log.warning("torchledger lost what it knew of %s: %s; %s", self.name or "a graph", error, second)

    def _plan_key(self, args: Sequence[Any]) -> Hashable | None:
        """What decides what happens in a call: the question, and the shapes and numbers that come in."""
        question = self.sink.plans_for() if self._may_plan else None
        if question is None:
            return None
        key = (
            question,
            tuple(
                (value.shape, value.stride(), value.dtype) if isinstance(value, torch.Tensor) else value
                for value in args
            ),
        )
        try:
            hash(key)
        except TypeError:  # an input that is neither a tensor nor a number
            return None
        return key

    def run_for(self, plan: Plan) -> Callable[[list[Any]], Any]:
        """The wrapper's ``call`` with nothing in it but what a plan looks at."""
        sites = plan.before.keys() | plan.after.keys() | plan.flushes
        namespace = dict(vars(self._module))
        for site in sites:
            before, after = plan.before.get(site, ()), plan.after.get(site, ())
            namespace[launch_name(site)] = self._planned_launch(before, after, flushes=site in plan.flushes)
        rewritten = rewrite_wrapper(self.source, str(self._module.__file__), only=sites)
        assert rewritten is not None
        exec(rewritten.code, namespace)
        run: Callable[[list[Any]], Any] = namespace["call"]
        note_wrapper(run)
        return run

    def keep_plan(self, key: Hashable, planned: Planned | None) -> None:
        """Follow a plan in later calls with the same key; ``None``: there is no plan for such calls."""
        while len(self._plans) >= _PLANS_KEPT:
            self._plans.pop(next(iter(self._plans)))
        self._plans[key] = planned

    def plan(
        self,
        looks: Sequence[Look],
        queued: Mapping[int, Queued],
        done: Mapping[int, Summary],
        written: Mapping[int, set[int]],
    ) -> Plan | None:
        """The plan of a call, from what was looked at and written in it; ``None`` where there is none."""
        return Plan.make(looks, queued, done, written if self._may_hold else {})

    def drop_plans(self) -> None:
        """Follow no plan any more."""
        self._plans.clear()
        self._may_plan = False

    def _frames(self) -> list[Any]:
        frames: list[Any] | None = getattr(self._local, "frames", None)
        if frames is None:
            frames = self._local.frames = []
        return frames

    def _launch(self, site_index: int, function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        event = frame = None
        try:
            frames = self._frames()
            if frames:
                frame = frames[-1]
                event = frame.guard(frame.before, site_index, function, arguments, keywords)
                if event is None and not frame.is_broken:
                    raise RuntimeError("a launch was not looked at")
        except Exception as error:  # the user's launch must be made
            let_through(error)
            self._lose(error)
        result = function(*arguments, **keywords)
        if event is not None and frame is not None:
            try:
                frame.guard(frame.after, event, function, arguments, keywords, result)
            except Exception as error:  # it has been made
                let_through(error)
                self._lose(error)
        return result

    def _allocate(self, function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        tensor = function(*arguments, **keywords)
        try:
            frames = self._frames()
            if frames:
                frames[-1].guard(frames[-1].allocated, tensor)
        except Exception as error:  # the user has the tensor
            let_through(error)
            self._lose(error)
        return tensor

    def _planned_launch(self, before: Sequence[Any], after: Sequence[Any], *, flushes: bool) -> Callable[..., Any]:
        """What a wrapper calls at one site of a planned call."""

        def launch(function: Any, /, *arguments: Any, **keywords: Any) -> Any:
            frame = None
            try:
                frame = self._frames()[-1]
                if before:
                    frame.guard(frame.look, before, function, arguments, keywords, None)
                if flushes:
                    frame.guard(frame.flush)
            except Exception as error:  # the user's launch must be made
                let_through(error)
                self._lose(error)
            result = function(*arguments, **keywords)
            if after and frame is not None:
                try:
                    frame.guard(frame.look, after, function, arguments, keywords, result)
                except Exception as error:  # it has been made
                    let_through(error)
                    self._lose(error)
            return result

        return launch

    def roles(self, site: Site, function: Any) -> Roles:
        """What a site does with its arguments."""
        found = self._roles.get(site.index)
        if found is None:
            found = self._roles[site.index] = Roles.of(site, function, self.launches.get(site.index))
        return found


class _Frame:
    """One running call of a graph, in which it is found out what every launch reads and writes."""

    def __init__(self, watch: GraphWatch, index: int, *, plan_key: Hashable | None = None) -> None:
        self._plan_key = plan_key
        self._looks: list[Look] = []
        self._written: dict[int, set[int]] = {}
        self._at: tuple[int | None, str] = (None, "input")
        self._first_sequence = _ORDER.take()
        self._n_launched = 0
        self._input_places: dict[tuple[Any, ...], int] = {}
        self._watch = watch
        self._sink = watch.sink
        self._index = index
        self._events: list[Event] = []
        self._inputs: list[Seen] = []
        self._reducer = self._sink.make_reducer()
        self._state: Any = None
        self._unwritten: set[int] = set()
        self._versions: dict[int, int] = {}
        self._tickets: dict[tuple[Any, ...], int] = {}
        self._writers: dict[int, list[int]] = {}
        self.is_broken = False

    def guard(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of ours inside the user's program."""
        if self.is_broken:
            return None
        try:
            with torch.no_grad():
                return method(*arguments)
        except Exception as error:  # the user's program must go on
            let_through(error)
            self.is_broken = True
            self._sink.on_fault(self._watch.name or "a graph", error)
            return None

    def start(self, args: list[Any]) -> None:
        names = self._watch.input_names
        inputs = [
            (names[place] if place < len(names) else f"input {place}", value)
            for place, value in enumerate(args)
            if isinstance(value, torch.Tensor)
        ]
        self._state = self._sink.on_call_start(self._watch, self._index, inputs)
        if self._plan_key is not None:
            self._input_places = {
                self._key(value): place for place, value in enumerate(args) if isinstance(value, torch.Tensor)
            }
        if self._sink.takes_tensors and self._sink.is_full:
            places = {id(value): place for place, value in enumerate(args)}
            asked = self._watch.asked_buffers
            self._inputs = [
                self._seen(name, value, self._read(value, ("argument", places[id(value)])))
                for name, value in inputs
                if asked is None or name in asked
            ]

    def allocated(self, tensor: Any) -> None:
        if isinstance(tensor, torch.Tensor):
            key = _storage(tensor)
            self._unwritten.add(key)
            self._versions[key] = _ORDER.take()

    def before(self, site_index: int, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Event:
        watch = self._watch
        site = watch.sites[site_index]
        watch.seen.add(site_index)
        self._at = (site_index, "before")
        self._n_launched += 1
        launch = watch.launches.get(site_index)
        event = Event(site, launch, _ORDER.take())
        found = list(operands(site, watch.roles(site, function), function, arguments, keywords))
        is_taken = self._sink.takes_launch(launch)
        read = []
        # A kernel may fill a buffer through views (the parts of a cat) and read it back in the same launch.
        filled = {_storage(operand.tensor) for operand in found if operand.is_written}
        for operand in found:
            if not operand.is_read:
                continue
            storage = _storage(operand.tensor)
            if storage in self._unwritten:
                is_memory = operand.tensor.numel() and not operand.name.startswith("workspace")
                if operand.role == "input" and is_memory and storage not in filled:
                    event.unwritten.append(_seen(operand.name, operand.tensor, ()))
            else:
                read.append(operand)
        if is_taken:
            self._sink.on_launch(self._state, event, read)
            if self._sink.takes_tensors:
                event.before = [
                    self._seen(item.name, item.tensor, self._read(item.tensor, item.place)) for item in read
                ]
                self._events.append(event)
            if self._sink.is_full:
                event.scalars = [
                    Seen(name, type(value).__name__, (), (), elements=str(value))
                    for name, value in scalars(site, function, arguments, keywords)
                ]
        return event

    def after(
        self, event: Event, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any
    ) -> None:
        watch, site = self._watch, event.site
        self._at = (site.index, "after")
        written = [
            operand
            for operand in operands(site, watch.roles(site, function), function, arguments, keywords)
            if operand.is_written
        ]
        written += [item for item in results(site, result) if all(item.tensor is not other.tensor for other in written)]
        self._written[site.index] = {_storage(operand.tensor) for operand in written}
        for operand in written:
            key = _storage(operand.tensor)
            self._unwritten.discard(key)
            self._versions[key] = _ORDER.take()
        if not self._sink.takes_launch(event.launch):
            return
        written = [operand for operand in written if not operand.name.startswith("workspace")]
        if self._sink.takes_tensors:
            for operand in written:
                ticket = self._ticket(operand.tensor, operand.place)
                self._remember_writer(operand.tensor, ticket)
                event.after.append(self._seen(operand.name, operand.tensor, (ticket,)))
        self._sink.on_launched(self._state, event, written)

    def end(self, result: Any) -> None:
        outputs = []
        self._at = (None, "output")
        if self._sink.takes_tensors:
            for place, value in enumerate(result if isinstance(result, (tuple, list)) else ()):
                if not isinstance(value, torch.Tensor):
                    continue
                if _storage(value) in self._versions:
                    outputs.append(self._seen(f"output {place}", value, self._read(value, ("argument", place))))
        queued, summaries = self._reducer.queued(), self._reducer.fetch()
        record = CallRecord(
            self._watch, self._index, self._events, self._inputs, outputs, summaries, sequence=_ORDER.take()
        )
        if self._plan_key is not None and result is not None:
            self._watch.keep_plan(self._plan_key, self._plan(record, queued))
        self._sink.on_call(self._state, record)

    def _plan(self, record: CallRecord, queued: Mapping[int, Queued]) -> Planned | None:
        """The plan of this call, if every site ran once."""
        if self._n_launched != len(self._watch.sites):
            return None
        plan = self._watch.plan(self._looks, queued, record.summaries, self._written)
        if plan is None:
            return None
        name = f"{self._watch.name or 'unrecorded graph'}@{self._index}.{self._first_sequence}"
        n_sequences = _ORDER.take() - self._first_sequence
        has_unwritten = any(event.unwritten for event in record.events)
        return Planned(name, plan, self._watch.run_for(plan), record, self._first_sequence, n_sequences, has_unwritten)

    # --- tickets ------------------------------------------------------------------------------------------------

    def _read(self, tensor: torch.Tensor, place: Place) -> tuple[int, ...]:
        """The tickets that tell about a tensor: its own, or where only bad values are looked for, those of what was
        written into its memory."""
        key = self._key(tensor)
        if key in self._tickets:
            return (self._tickets[key],)
        writers = self._writers.get(_storage(tensor))
        if writers and not self._sink.is_full:
            return tuple(writers)
        return (self._ticket(tensor, place),)

    def _ticket(self, tensor: torch.Tensor, place: Place) -> int:
        key = self._key(tensor)
        ticket = self._tickets.get(key)
        if ticket is None:
            ticket = self._tickets[key] = self._reducer.add(tensor)
            if self._plan_key is not None:
                tells_nothing = not (self._sink.is_full or tensor.is_floating_point() or tensor.is_complex())
                site, moment = self._at
                if (
                    key in self._input_places
                ):  # the same at the start of the call, where all inputs are looked at together
                    site, moment, place = None, "input", ("argument", self._input_places[key])
                memory = tensor.untyped_storage()
                is_fixed = tells_nothing or not tensor.numel()
                self._looks.append(Look(site, moment, place, ticket, memory_key(memory), memory.nbytes(), is_fixed))
        return ticket

    def _seen(self, name: str, tensor: torch.Tensor, tickets: tuple[int, ...]) -> Seen:
        seen = _seen(name, tensor, tickets)
        is_whole = self._sink.is_full and 0 < tensor.numel() <= self._sink.most_elements
        return dataclasses.replace(seen, elements=elements_text(tensor)) if is_whole else seen

    def _key(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        storage = _storage(tensor)
        version = self._versions.get(storage, -1)
        if tensor.is_contiguous():
            return (storage, version, tensor.storage_offset(), tensor.numel(), tensor.dtype)
        return (storage, version, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)

    def _remember_writer(self, tensor: torch.Tensor, ticket: int) -> None:
        storage = tensor.untyped_storage()
        if tensor.numel() * tensor.element_size() >= storage.nbytes():
            self._writers[memory_key(storage)] = [ticket]
        else:
            self._writers.setdefault(memory_key(storage), []).append(ticket)


class _PlannedFrame:
    """One running call of a graph that does what an earlier call did."""

    def __init__(self, watch: GraphWatch, index: int, planned: Planned) -> None:
        self._watch = watch
        self._index = index
        self._planned = planned
        self._call: PlannedCall | None = None
        self.is_broken = False

    def guard(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of ours inside the user's program."""
        if self.is_broken:
            return None
        try:
            return method(*arguments)
        except Exception as error:  # the user's program must go on
            let_through(error)
            self.is_broken = True
            self._watch.drop_plans()
            self._watch.sink.on_fault(self._watch.name or "a graph", error)
            return None

    def start(self, args: Sequence[Any]) -> None:
        plan = self._planned.plan
        with torch.cuda.device(plan.device):
            stream = torch.cuda.current_stream(plan.device).cuda_stream
            self._call = PlannedCall(plan, is_full=self._watch.sink.is_full, stream=stream)
            self._call.look_at_inputs(args)

    def look(
        self, reductions: Sequence[Any], function: Any, arguments: Sequence[Any], keywords: dict[str, Any], result: Any
    ) -> None:
        """Queue the reductions of what one launch reads or wrote."""
        look = self._call.look  # type: ignore[union-attr]
        for reduction in reductions:
            look(reduction, reduction.get(function, arguments, keywords, result))

    def flush(self) -> None:
        """Queue the reductions of what is held."""
        self._call.flush()  # type: ignore[union-attr]

    def end(self, result: Any) -> None:
        assert self._call is not None
        plan = self._planned.plan
        if plan.outputs and isinstance(result, (tuple, list)):
            with torch.cuda.device(plan.device):
                self.look(plan.outputs, None, result, {}, None)
        sequence = _ORDER.take(self._planned.n_sequences)
        record = PlannedRecord(self._watch, self._index, self._planned, sequence, self._call.fetch())
        self._watch.sink.on_planned_call(record)


def _seen(name: str, tensor: torch.Tensor, tickets: tuple[int, ...]) -> Seen:
    return Seen(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tickets)


def elements_text(tensor: torch.Tensor) -> str:
    """A tensor's elements as nested lists, numbers to six digits.

    >>> elements_text(torch.tensor([[1.0, float("nan")]]))
    '[[1, nan]]'
    """
    if tensor.is_floating_point() and tensor.element_size() == 1:
        tensor = tensor.float()
    return _text(tensor.detach().cpu().tolist())


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return f"{value:.6g}" if isinstance(value, (float, complex)) else str(value)


def _storage(tensor: torch.Tensor) -> int:
    """What tells memory apart while it is alive."""
    return memory_key(tensor.untyped_storage())
