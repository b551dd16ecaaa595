"""Whether the steps of a program compute as much as the one that was recorded: batches of several lengths or
resolutions, a curriculum, tasks that take turns.

Counted in elements of what operators and graphs make between the first call of a model and the optimizer.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchledger.planning.outside_work import LONG

_ALIKE = 1.1
"""So many times as much is as much."""

_ENOUGH = 4
"""So many steps behind the recorded one say what the others are like."""


class _Work(threading.local):
    """What a thread has made so far, in elements and calls, and how much of it before its next optimizer's models."""

    def __init__(self) -> None:
        self.made = self.calls = 0
        self.began: tuple[int, int] | None = None


@dataclass
class StepSizes:
    """Told of a program's calls (among those that follow its operators) and of where its optimizers begin and end. A
    step is what the thread has made that steps the optimizer: others may serve meanwhile."""

    _work: _Work = field(default_factory=_Work)
    _sizes: list[tuple[int, int]] = field(default_factory=list)
    _recorded: int | None = None

    def called(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """An operator has been called."""
        self._work.made += _elements(result)
        self._work.calls += 1

    def graph_begins(self, compiled: Any, inputs: Sequence[Any]) -> int:
        """A compiled graph is about to be called."""
        return _elements(inputs)

    def graph_called(self, begun: int, outputs: Any) -> None:
        """A compiled graph has been called: what it keeps to itself goes with what it is given and makes."""
        self._work.made += begun + _elements(outputs)
        self._work.calls += 1

    def model_called(self) -> None:
        """A module or a graph is about to be called."""
        if self._work.began is None:
            self._work.began = self._work.made, self._work.calls

    def optimizer_begins(self) -> None:
        """An optimizer is about to make its step."""
        if self._work.began is not None:
            made, calls = self._work.began
            self._sizes.append((max(1, self._work.made - made), max(1, self._work.calls - calls)))
        self._work.began = None

    def optimizer_stepped(self) -> None:
        """An optimizer has made its step, at whose models it looks no more."""
        self._work.began = None

    def begin_anew(self) -> None:
        """Steps so far were others than those to come, and say nothing of them."""
        self._sizes.clear()
        self._recorded = self._work.began = None

    def hearing_ended(self) -> None:
        """The step that ended last was recorded."""
        self._recorded = len(self._sizes) - 1 if self._sizes else None

    @property
    def may_differ(self) -> bool:
        """Whether steps are known that compute more than the recorded one, or less, and few are known behind it; the
        first may only have warmed up."""
        if self._recorded is None or len(self._sizes) - self._recorded > _ENOUGH:
            return False
        return _differ(self._shares())

    def note(self) -> str | None:
        """How far other steps than the first differ from the recorded one; ``None`` where none is known to."""
        shares = self._shares()[1:]
        if not _differ(shares):
            return None
        return (
            f"steps differ in size: the {len(shares)} seen make {min(shares):.2f} to {max(shares):.2f} times as many "
            f"elements as the recorded one, {sum(shares) / len(shares):.2f} in the mean; time and memory are those of "
            "that one"
        )

    def _shares(self) -> list[float]:
        """What steps make, as shares of the recorded one; those of many more calls do something beside."""
        if self._recorded is None:
            return []
        recorded, usual = self._sizes[self._recorded]
        return [size / recorded for size, calls in self._sizes if usual / LONG < calls < LONG * usual]


def _differ(shares: Sequence[float]) -> bool:
    return bool(shares) and (max(shares) > _ALIKE or min(shares) < 1 / _ALIKE)


def _elements(made: Any) -> int:
    values = made if isinstance(made, (list, tuple)) else (made,)
    return sum(each.numel() for each in values if hasattr(each, "numel") and not _is_sparse(each))


def _is_sparse(tensor: Any) -> bool:
    """Whether most of the elements that a tensor says it has are nowhere."""
    return getattr(tensor, "is_sparse", False) or getattr(tensor, "is_sparse_csr", False)
