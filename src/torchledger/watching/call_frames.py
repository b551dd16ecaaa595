"""One running call of a watched graph: what its launches read and write is looked at, and leaves as a record."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

import torch

from torchledger._torch.tensors import memory_key
from torchledger.signals import let_through
from torchledger.watching.call_records import CallRecord, Event, Planned, PlannedRecord, Seen, Sink, Watched
from torchledger.watching.planned import Look, Place, Plan, PlannedCall
from torchledger.watching.reductions import Queued, Summary
from torchledger.watching.rewrite import Site
from torchledger.watching.roles import Roles, operands, results, scalars


class _Order:
    """Numbers that order all launches of a process."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, many: int = 1) -> int:
        """The first of ``many`` numbers in a row."""
        first, self._next = self._next, self._next + many
        return first


_ORDER = _Order()


class FrameMaker(Watched, Protocol):
    """What a frame asks of the graph that made it."""

    sink: Sink
    sites: tuple[Site, ...]
    seen: set[int]

    @property
    def asked_buffers(self) -> frozenset[str] | None:
        """What the launches that are asked for read and write; ``None`` where all launches are."""

    def roles(self, site: Site, function: Any) -> Roles:
        """What a site does with its arguments."""

    def plan(
        self,
        looks: Sequence[Look],
        queued: Mapping[int, Queued],
        done: Mapping[int, Summary],
        written: Mapping[int, set[int]],
    ) -> Plan | None:
        """The plan of a call, from what was looked at and written in it; ``None`` where there is none."""

    def run_for(self, plan: Plan) -> Callable[[list[Any]], Any]:
        """The wrapper's ``call`` with nothing in it but what a plan looks at."""

    def keep_plan(self, key: Hashable, planned: Planned | None) -> None:
        """Follow a plan in later calls with the same key; ``None``: there is no plan for such calls."""

    def drop_plans(self) -> None:
        """Follow no plan any more."""


class Frame:
    """One running call of a graph, in which it is found out what every launch reads and writes."""

    def __init__(self, watch: FrameMaker, index: int, *, plan_key: Hashable | None = None) -> None:
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
        """The call starts, with these arguments."""
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
        """Memory was allocated, which nothing has written to yet."""
        if isinstance(tensor, torch.Tensor):
            key = _storage(tensor)
            self._unwritten.add(key)
            self._versions[key] = _ORDER.take()

    def before(self, site_index: int, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Event:
        """A launch is about to start: look at what it reads."""
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
        """A launch has been started: look at what it wrote."""
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
        """The call is over: hand its record on."""
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


class PlannedFrame:
    """One running call of a graph that does what an earlier call did."""

    def __init__(self, watch: FrameMaker, index: int, planned: Planned) -> None:
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
        """The call starts, with these arguments: queue the reductions of those that are looked at."""
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
        """The call is over: hand its record on."""
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
