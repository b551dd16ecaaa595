"""What was seen of one call of a watched graph, and who hears of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from torchledger.nouns import Launch
from torchledger.watching.planned import Plan, has_bad, summaries_of
from torchledger.watching.reductions import Reducer, Summary
from torchledger.watching.rewrite import Site
from torchledger.watching.roles import Operand


class Watched(Protocol):
    """A graph whose calls are watched, as far as the records of a call and who hears of them ask for it."""

    name: str | None
    launches: dict[int, Launch]
    input_names: tuple[str, ...]
    module: Any

    def subject(self, site: Site) -> str:
        """What a finding at a site is about."""


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

    graph: Watched
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

    graph: Watched
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

    def takes_call(self, watch: Watched, index: int) -> bool:
        """True if a call is to be watched."""

    def takes_launch(self, launch: Launch | None) -> bool:
        """True if a launch is to be watched."""

    def make_reducer(self) -> Reducer:
        """A reducer for one call."""

    def on_call_start(self, watch: Watched, index: int, inputs: list[tuple[str, torch.Tensor]]) -> Any:
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
