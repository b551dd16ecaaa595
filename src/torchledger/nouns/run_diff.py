"""Two runs side by side, aligned by what their kernels compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Regrouping = Literal["same", "changed", "split", "merged", "regrouped", "only first", "only second"]
"""``same``: one launch each, of the same FX nodes. ``changed``: one each, of nodes that differ in part. ``split``: one
launch became several; ``merged``: several became one; ``regrouped``: several became several others."""


@dataclass(frozen=True)
class DiffSide:
    """One run's part of a group: its launches with their kernels, in order, and what they cost in one step.

    ``time_ns`` sums the launches' median times, each as often as a step runs it; ``None`` where the run has no profile.
    ``untimed`` counts launches that a profiled run did not see. ``bytes_moved`` and ``flops`` are of each launch once;
    ``None`` if one launch's are unknown.
    """

    launches: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    time_ns: int | None = None
    bytes_moved: int | None = 0
    flops: int | None = 0
    untimed: int = 0


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
class LaunchGroup:
    """Launches of two runs that compute the same part of the model, as small as they can be told apart."""

    kind: Regrouping
    first: DiffSide
    second: DiffSide
    aten_ops: tuple[str, ...] = ()
    source: str | None = None
    module: str | None = None
    reads: tuple[ReadChange, ...] = ()

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
        """Tensor FLOPs of the second run less those of the first."""
        return _less(self.second.flops, self.first.flops)


@dataclass(frozen=True)
class RunDiff:
    """What changed between two runs.

    ``basis`` is ``"time"`` where both runs have a profile, else ``"bytes"``. Times are of one step, in whole
    nanoseconds: ``explained_ns + remainder_ns == delta_ns``. The remainder has two parts: ``outside_ns``, device events
    that belong to no entry, and the rest, by which the entries' mean times move other than their medians.
    ``graphs`` pairs the graphs' names; a graph without partner stands with ``None``.
    """

    basis: Literal["time", "bytes"]
    groups: tuple[LaunchGroup, ...]
    graphs: tuple[tuple[str | None, str | None], ...] = ()
    first_ns: int | None = None
    second_ns: int | None = None
    first_outside_ns: int | None = None
    second_outside_ns: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def delta_ns(self) -> int | None:
        """Device time of one step of the second run less that of the first."""
        return _less(self.second_ns, self.first_ns)

    @property
    def explained_ns(self) -> int | None:
        """Sum over the groups; ``None`` without two profiles."""
        if self.basis != "time":
            return None
        return sum(group.delta_ns or 0 for group in self.groups)

    @property
    def remainder_ns(self) -> int | None:
        """What the groups do not explain."""
        return _less(self.delta_ns, self.explained_ns)

    @property
    def outside_ns(self) -> int | None:
        """The part of the remainder that lies in device events of no entry."""
        return _less(self.second_outside_ns, self.first_outside_ns)


def _less(second: int | None, first: int | None) -> int | None:
    return None if first is None or second is None else second - first
