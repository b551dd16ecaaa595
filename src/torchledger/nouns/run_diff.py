"""Two runs side by side, aligned by what their kernels compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchledger.nouns.memory import MemoryChange
from torchledger.nouns.step import Phase

Regrouping = Literal["same", "changed", "split", "merged", "regrouped", "only first", "only second"]
"""``same``: one launch each, of the same FX nodes. ``changed``: one each, of nodes that differ in part. ``split``: one
launch became several; ``merged``: several became one; ``regrouped``: several became several others."""


@dataclass(frozen=True)
class DiffSide:
    """One run's part of a group: its launches with their kernels, in order, and what they cost in one step.

    ``time_ns`` sums the launches' median times, each as often as a step runs it; ``None`` where the run has no profile,
    and where none of the launches ran in the profiled steps. ``untimed`` counts launches that a profiled run did not
    see. ``calls`` is how often a step calls the graph, 1 where the two ledgers do not both hold a step; ``bytes_moved``
    and ``flops`` are of all these calls, ``None`` if one launch's are unknown.
    """

    launches: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    time_ns: int | None = None
    bytes_moved: int | None = 0
    flops: int | None = 0
    untimed: int = 0
    calls: int = 1


@dataclass(frozen=True)
class EagerSide:
    """One step's part of an eager group: its calls, their time (``None``: none ran on the device) and their work."""

    calls: int = 0
    time_ns: int | None = 0
    bytes_moved: int | None = 0
    flops: int | None = 0
    source: str | None = None
    phase: Phase | None = None


class _Sides:
    """What two runs have of the same, and by how much they differ."""

    first: DiffSide | EagerSide
    second: DiffSide | EagerSide

    @property
    def delta_ns(self) -> int | None:
        """Time of the second run less that of the first."""
        return _less(self.second.time_ns, self.first.time_ns)

    @property
    def delta_bytes(self) -> int | None:
        """Minimum traffic of the second run less that of the first."""
        return _less(self.second.bytes_moved, self.first.bytes_moved)

    @property
    def delta_flops(self) -> int | None:
        """FLOPs of the second run less those of the first."""
        return _less(self.second.flops, self.first.flops)


@dataclass(frozen=True)
class EagerChange(_Sides):
    """Calls of two steps outside compiled graphs that share a name and a source line."""

    name: str
    first: EagerSide
    second: EagerSide

    @property
    def kind(self) -> Regrouping:
        """``changed``: another number of calls."""
        if not self.first.calls or not self.second.calls:
            return "only first" if self.first.calls else "only second"
        return "same" if self.first.calls == self.second.calls else "changed"


@dataclass(frozen=True)
class SettingChange:
    """A version, setting or device that differs between two runs; ``None`` where one does not have it."""

    name: str
    first: str | None
    second: str | None


@dataclass(frozen=True)
class ReadChange:
    """A tensor that a group's launches read another number of times in the second run.

    ``buffer`` is its name in the second run, or in the first where only that reads it; ``bytes_read`` is what the
    second run reads more of it (below zero: less).
    """

    buffer: str
    fx_node: str | None
    first: int
    second: int
    bytes_read: int | None


@dataclass(frozen=True)
class LaunchGroup(_Sides):
    """Launches of two runs that compute the same part of the model, as small as they can be told apart.

    ``shape`` is that of the largest tensor that its last launch writes.
    """

    kind: Regrouping
    first: DiffSide
    second: DiffSide
    aten_ops: tuple[str, ...] = ()
    source: str | None = None
    module: str | None = None
    reads: tuple[ReadChange, ...] = ()
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class RunDiff:
    """What changed between two runs.

    ``basis`` is ``"time"`` where both runs have a profile, else ``"bytes"``. Times are of one step, in whole
    nanoseconds: ``explained_ns + remainder_ns == delta_ns``. The remainder's parts have names: ``outside_ns``, device
    events that belong to no entry; ``inside_ns``, time inside calls of compiled graphs that no launch was given (known
    where both hold a step); ``unseen_ns``, groups of which one run's profile saw nothing; and the rest, by which the
    entries' mean times move other than their medians. ``graphs`` pairs the graphs' names; a graph without partner
    stands with ``None``.

    ``holds_steps``: both ledgers hold a step, so that graphs count as often as it calls them and ``eager`` has the
    calls outside of them. ``settings`` are what differs between the two runs' software and devices, ``memory`` the
    peaks of both steps where both were watched.
    """

    basis: Literal["time", "bytes"]
    groups: tuple[LaunchGroup, ...]
    graphs: tuple[tuple[str | None, str | None], ...] = ()
    first_ns: int | None = None
    second_ns: int | None = None
    first_outside_ns: int | None = None
    second_outside_ns: int | None = None
    notes: tuple[str, ...] = ()
    holds_steps: bool = False
    eager: tuple[EagerChange, ...] = ()
    first_inside_ns: int | None = None
    second_inside_ns: int | None = None
    settings: tuple[SettingChange, ...] = ()
    memory: MemoryChange | None = None

    @property
    def delta_ns(self) -> int | None:
        """Device time of one step of the second run less that of the first."""
        return _less(self.second_ns, self.first_ns)

    @property
    def explained_ns(self) -> int | None:
        """Sum over the groups, eager ones too; ``None`` without two profiles."""
        if self.basis != "time":
            return None
        in_graphs = sum(group.delta_ns or 0 for group in self.groups)
        return in_graphs + sum(change.delta_ns or 0 for change in self.eager)

    @property
    def remainder_ns(self) -> int | None:
        """What the groups do not explain."""
        return _less(self.delta_ns, self.explained_ns)

    @property
    def outside_ns(self) -> int | None:
        """The part of the remainder that lies in device events of no entry."""
        return _less(self.second_outside_ns, self.first_outside_ns)

    @property
    def inside_ns(self) -> int | None:
        """The part of the remainder that lies inside calls of compiled graphs, in no launch."""
        return _less(self.second_inside_ns, self.first_inside_ns)

    @property
    def unseen_ns(self) -> int | None:
        """The part of the remainder that lies in groups whose time only one of the runs has."""
        if self.basis != "time":
            return None
        sides = [(group.first.time_ns, group.second.time_ns) for group in self.groups]
        sides += [(change.first.time_ns, change.second.time_ns) for change in self.eager]
        return sum((second or 0) - (first or 0) for first, second in sides if first is None or second is None)


def _less(second: int | None, first: int | None) -> int | None:
    return None if first is None or second is None else second - first
