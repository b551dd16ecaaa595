"""Whether the steps of a program compute as much as the one that was recorded: batches of several lengths or
resolutions, a curriculum, tasks that take turns.

Counted in elements of what operators and graphs make between the first call of a model and the optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchledger.planning.outside_work import LONG

_ALIKE = 1.1
"""So many times as much is as much."""

_ENOUGH = 4
"""So many steps behind the recorded one say what the others are like."""


@dataclass
class StepSizes:
    """Told of a program's calls (among those that follow its operators) and of where its optimizers begin and end."""

    _made: int = 0
    _calls: int = 0
    _began: tuple[int, int] | None = None
    _sizes: list[tuple[int, int]] = field(default_factory=list)
    _recorded: int | None = None

    def called(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """An operator has been called."""
        self._made += _elements(result)
        self._calls += 1

    def graph_begins(self, compiled: Any, inputs: Sequence[Any]) -> int:
        """A compiled graph is about to be called."""
        return _elements(inputs)

    def graph_called(self, begun: int, outputs: Any) -> None:
        """A compiled graph has been called: what it keeps to itself goes with what it is given and makes."""
        self._made += begun + _elements(outputs)
        self._calls += 1

    def model_called(self) -> None:
        """A module or a graph is about to be called."""
        if self._began is None:
            self._began = self._made, self._calls

    def optimizer_begins(self) -> None:
        """An optimizer is about to make its step."""
        if self._began is not None:
            made, calls = self._began
            self._sizes.append((max(1, self._made - made), max(1, self._calls - calls)))
        self._began = None

    def optimizer_stepped(self) -> None:
        """An optimizer has made its step, at whose models it looks no more."""
        self._began = None

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
    return sum(each.numel() for each in values if hasattr(each, "numel"))
