"""Streams and events of a device that is not there: they run nothing, and remember what waits for what.

A program puts work on streams and has streams wait for each other. Without the device that order is all there is of it:
each piece of work gets a number, its stream, and the numbers of the work on other streams that has to end before it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchledger._torch.patching import Patches
from torchledger._torch.tensors import memory_key, tensors_in

COMPUTE = "compute"
"""The stream that a program computes on when it says nothing."""

HOST = "host"
"""Where the host itself waits, as if it were a stream."""


@dataclass(frozen=True)
class Placed:
    """Where work was put. ``number`` counts all work in the order in which the host asked for it; ``waits_for`` are
    the numbers of the work on other streams that ends before it begins. ``batch`` is a number that sends and receives
    share that were asked for together, ``replay`` one that the work of one replay of a CUDA graph shares."""

    number: int
    stream: str
    waits_for: tuple[int, ...] = ()
    batch: int | None = None
    replay: int | None = None


class StreamOrder:
    """The streams of one process, and what was put on them."""

    def __init__(self) -> None:
        self.on_host_wait: Callable[[str, Placed], None] | None = None
        self._threads = threading.local()
        self._lock = threading.RLock()
        self._batches = itertools.count()
        self._names: set[str] = set()
        self._handles = {COMPUTE: 0}
        self.begin()

    def begin(self) -> None:
        """Forget what was put anywhere: numbers count from here."""
        with self._lock:
            self._numbers = itertools.count()
            self._stream_of: dict[int, str] = {}
            self._last: dict[str, int] = {}
            self._pending: dict[str, dict[str, int]] = defaultdict(dict)
            self._waited: dict[str, dict[str, int]] = defaultdict(dict)
            self._results: dict[int, tuple[int, ...]] = {}

    @property
    def current(self) -> str:
        """The name of the stream that the calling thread puts work on."""
        stack = self._stack()
        return stack[-1] if stack else COMPUTE

    def place(self, stream: str | None = None) -> Placed:
        """Put a piece of work on a stream (``None``: the current one)."""
        name = stream or self.current
        with self._lock:
            waits = self._pending.pop(name, {})
            needed = tuple(
                sorted(number for source, number in waits.items() if self._waited[name].get(source, -1) < number)
            )
            self._waited[name].update(waits)
            number = next(self._numbers)
            self._stream_of[number], self._last[name] = name, number
        return Placed(number, name, needed, *(getattr(self._threads, each, None) for each in ("batch", "replay")))

    def place_operator(self, name: str, args: Sequence[Any], result: Any) -> Placed:
        """Put an eager operator where it runs: functional collectives on their group's stream, which they tell nobody.

        ``wait_tensor`` is on the stream that waits.
        """
        namespace, _, kind = name.partition("::")
        waits_itself = kind == "shard_dim_alltoall"
        if "c10d_functional" not in namespace and not waits_itself:
            return self.place()
        if kind.startswith("wait_tensor"):
            for tensor in tensors_in(args):
                self.wait(self.current, self._results.get(memory_key(tensor.untyped_storage()), ()))
            return self.place()
        given = reversed(args)
        group = next((name for each in given if isinstance(name := getattr(each, "group_name", each), str)), "")
        stream = communication_stream(group)
        self.wait(stream, self.mark(self.current))
        placed = self.place(stream)
        for tensor in tensors_in(result):
            self._results[memory_key(tensor.untyped_storage())] = (placed.number,)
        if waits_itself:
            self.wait(self.current, (placed.number,))
        return placed

    def mark(self, stream: str) -> tuple[int, ...]:
        """What has to end for all that was put on a stream so far to have ended."""
        with self._lock:
            last = self._last.get(stream)
            return (*self._pending.get(stream, {}).values(), *(() if last is None else (last,)))

    def wait(self, stream: str, numbers: Iterable[int]) -> None:
        """What is put on a stream from here on begins after this work."""
        with self._lock:
            for number in numbers:
                source = self._stream_of.get(number, stream)
                if source != stream and self._pending[stream].get(source, -1) < number:
                    self._pending[stream][source] = number

    def host_waits(self, name: str, numbers: Iterable[int] | None = None) -> None:
        """The host waits for this work (``None``: for all that was put anywhere), by a call of this name."""
        with self._lock:
            every = numbers is None
            self.wait(
                HOST, [number for stream in self._last for number in self.mark(stream)] if every else numbers or ()
            )
            placed = self.place(HOST)
        if self.on_host_wait is not None:
            self.on_host_wait(name, placed)

    @contextlib.contextmanager
    def replaying(self, number: int) -> Iterator[None]:
        """What the calling thread puts anywhere belongs to one replay."""
        self._threads.replay = number
        try:
            yield
        finally:
            self._threads.replay = None

    def enter(self, stream: str) -> None:
        """The calling thread puts work on this stream until it leaves it."""
        self._stack().append(stream)

    def leave(self) -> None:
        """The calling thread is on the stream again that it was on before."""
        self._stack().pop()

    @contextlib.contextmanager
    def on(self, stream: str) -> Iterator[None]:
        """The calling thread puts work on this stream inside."""
        self.enter(stream)
        try:
            yield
        finally:
            self.leave()

    def number_of(self, stream: str) -> int:
        """A number for a stream; 0 is the default one's."""
        return self._handles.setdefault(stream, len(self._handles))

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Sends and receives that are asked for inside run at the same time, each in a lane of its stream."""
        self._threads.batch, self._threads.lanes = next(self._batches), {}
        try:
            yield
        finally:
            for stream, (_, count) in self._threads.lanes.items():
                for number in range(count):
                    self.wait(stream, self.mark(_lane_of(stream, number)))
            self._threads.batch = None

    @property
    def is_together(self) -> bool:
        """True inside ``together``."""
        return getattr(self._threads, "batch", None) is not None

    def lane(self, stream: str) -> str:
        """The name of a stream's next lane inside ``together``, after what was on the stream before."""
        before, count = self._threads.lanes.get(stream) or (self.mark(stream), 0)
        self._threads.lanes[stream] = (before, count + 1)
        name = _lane_of(stream, count)
        self.wait(name, before)
        return name

    def set_current(self, stream: str) -> None:
        """The calling thread puts work on this stream until it says otherwise."""
        stack = self._stack()
        if stack:
            stack[-1] = stream
        else:
            stack.append(stream)

    def new_name(self, wanted: str = "stream") -> str:
        """A name for a stream that no other has."""
        name = next(
            each
            for each in (wanted, *(f"{wanted} {number}" for number in range(2, len(self._names) + 3)))
            if each not in self._names
        )
        self._names.add(name)
        return name

    def _stack(self) -> list[str]:
        stack: list[str] | None = getattr(self._threads, "stack", None)
        if stack is None:
            stack = self._threads.stack = []
        return stack


def _lane_of(stream: str, number: int) -> str:
    return f"{stream} #{number}"


def communication_stream(group: str, pair: tuple[int, int] | None = None) -> str:
    """The stream that a process group moves its messages on; ``pair`` are the ranks of a send that stands alone.

    >>> communication_stream("2"), communication_stream("2", (1, 0))
    ('communication 2', 'communication 2 0:1')
    """
    return f"communication {group}" + ("" if pair is None else f" {min(pair)}:{max(pair)}")


class FakeEvent:
    """An event that has always happened already, and knows after what."""

    def __init__(self, order: StreamOrder) -> None:
        self._order = order
        self.after: tuple[int, ...] = ()

    def record(self, stream: Any = None) -> FakeEvent:
        """It happens once all that is on the stream has ended."""
        self.after = self._order.mark(_name_of(stream, self._order))
        return self

    def wait(self, stream: Any = None) -> None:
        """The stream goes on once it has happened."""
        self._order.wait(_name_of(stream, self._order), self.after)

    def synchronize(self) -> None:
        """The host goes on once it has happened."""
        self._order.host_waits("cudaEventSynchronize", self.after)

    def query(self) -> bool:
        """Always."""
        return True

    def elapsed_time(self, end: Any) -> float:
        """A stand-in: one millisecond, as nothing has run."""
        return 1.0


class FakeStream:
    """A stream by its name."""

    name: str
    _order: StreamOrder

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Everything is set where it is made."""

    @property
    def cuda_stream(self) -> int:
        """A number for what asks for the driver's handle; 0 is the default stream's."""
        return self._order.number_of(self.name)

    def wait_event(self, event: Any) -> None:
        """What follows on it begins after the event."""
        self._order.wait(self.name, getattr(event, "after", ()))

    def wait_stream(self, stream: Any) -> None:
        """What follows on it begins after all that is on the other one."""
        self._order.wait(self.name, self._order.mark(_name_of(stream, self._order)))

    def record_event(self, event: Any = None) -> Any:
        """An event after all that is on it."""
        event = FakeEvent(self._order) if event is None else event
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The host waits for all that is on it."""
        self._order.host_waits("cudaStreamSynchronize", self._order.mark(self.name))

    def query(self) -> bool:
        """Nothing runs: always done."""
        return True

    def __enter__(self) -> Any:
        self._order.enter(self.name)
        return self

    def __exit__(self, *error: object) -> None:
        self._order.leave()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeStream) and other.name == self.name

    def __hash__(self) -> int:
        return id(self._order)  # a stream is renamed once its owner is known

    def __repr__(self) -> str:
        return f"<stream {self.name!r}>"


def install_streams(patches: Patches, order: StreamOrder, module: Any = torch.cuda) -> None:
    """Have a device's module (``torch.cuda``) make such streams and events, until the patches are undone."""
    global _active
    base: Any = torch.Stream if module is torch.cuda else object
    known: dict[str, Any] = {}

    class Stream(FakeStream, base):
        """A stream that a program makes."""

        def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
            given = {} if base is object else {"device": "cuda:0", "priority": priority}
            made = base.__new__(cls, **given)
            made._order, made.name = order, kwargs.get("name") or order.new_name()
            known[made.name] = made
            return made

    class Event(FakeEvent):
        """An event that a program makes."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(order)

    class StreamContext:
        """The calling thread is on a stream until it is left; ``None`` changes nothing."""

        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            order.enter(_name_of(self.stream, order))

        def __exit__(self, *error: object) -> None:
            order.leave()

    def named(name: str) -> Any:
        return known[name] if name in known else Stream(name=name)

    def rename(owner: Any) -> None:
        for attribute, value in list(vars(owner).items()):
            if isinstance(value, FakeStream) and attribute.endswith("_stream"):
                value.name = attribute.removesuffix("_stream")
                known[value.name] = value

    for name, value in (
        ("Stream", Stream),
        ("Event", Event),
        ("StreamContext", StreamContext),
        ("stream", StreamContext),
        ("current_stream", lambda device=None: named(order.current)),
        ("default_stream", lambda device=None: named(COMPUTE)),
        ("set_stream", lambda stream: order.set_current(_name_of(stream, order))),
        ("synchronize", lambda device=None: order.host_waits("cudaDeviceSynchronize")),
    ):
        patches.set_or_add(module, name, value)
    if module is torch.cuda:
        patches.set(torch.cuda.streams, "Stream", Stream)
        patches.set(torch.cuda.streams, "Event", Event)
    patches.set(torch.accelerator, "current_stream", lambda device=None: named(order.current))
    patches.set(torch.accelerator, "synchronize", lambda device=None: order.host_waits("cudaDeviceSynchronize"))
    _name_streams_of_fsdp(patches, rename)
    former, _active = _active, order
    patches.on_undo(lambda: _make_active(former))


_active: StreamOrder | None = None


def active_order() -> StreamOrder | None:
    """The streams of the device that stands for one in this process; ``None`` where there is none."""
    return _active


def _make_active(order: StreamOrder | None) -> None:
    global _active
    _active = order


def _name_streams_of_fsdp(patches: Patches, rename: Callable[[Any], None]) -> None:
    """FSDP's streams are called what it calls them."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    def lazy_init(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        rename(self)
        return result

    patches.around(_fsdp_param_group.FSDPCommContext, "lazy_init", lazy_init)


def _name_of(stream: Any, order: StreamOrder) -> str:
    return order.current if stream is None else getattr(stream, "name", COMPUTE)
