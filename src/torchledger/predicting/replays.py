"""What a step calls by replays of CUDA graphs that its program captured itself, apart from what it calls one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from torchledger.nouns import StepCall
from torchledger.predicting.host_steps import replays_us
from torchledger.stepping.totals import StepTotals


def replays_in(calls: Iterable[StepCall]) -> int:
    """How many replays a step's calls belong to.

    >>> replays_in([])
    0
    """
    return len({call.replay for call in calls if call.replay is not None})


@dataclass
class ReplayCosts:
    """What replays cost a host of slowness 1, which is told of all calls of a step in their order."""

    _replay: int | None = None

    @property
    def is_inside(self) -> bool:
        """Whether the call told of last belongs to a replay."""
        return self._replay is not None

    def us(self, call: StepCall) -> float | None:
        """A replay's own call before the first that belongs to it, nothing for the others; ``None`` of those that the
        host launches itself."""
        before, self._replay = self._replay, call.replay
        return None if call.replay is None else replays_us(call.replay != before)


def has_own_backward(calls: Iterable[StepCall]) -> bool:
    """Whether the host itself asks for a backward, beside those that replays hold."""
    return any(call.phase == "backward" and call.replay is None for call in calls)


def without_replays(record: StepTotals) -> StepTotals:
    """The step as its host launches it: without what replays call."""
    return _of_calls(record, [call for call in record.calls if call.replay is None])


def replayed(record: StepTotals) -> StepTotals:
    """What replays alone call of the step."""
    return _of_calls(record, [call for call in record.calls if call.replay is not None])


def _of_calls(record: StepTotals, calls: list[StepCall]) -> StepTotals:
    graphs = Counter(call.name for call in calls if call.kind == "graph")
    return replace(record, step=replace(record.step, graph_calls=dict(graphs)), calls=tuple(calls))
