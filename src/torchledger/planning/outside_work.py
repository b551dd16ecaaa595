"""What a program does outside the step that was recorded: rollouts, generation, evaluation between its steps.

Counted in operators, which is all that a program without its device can be weighed by before anything is priced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

LONG = 2.0
"""So many times as long as the recorded step is one in which more is done than in it."""

_MATTERS = 1.1
"""A mean so many times the recorded step is worth a sentence."""

OUTSIDE = "work outside the recorded step (rollouts, generation, evaluation) is not in the price"
"""So begin the notes on it."""


@dataclass
class OutsideWork:
    """Told where a program's steps end, counts what it does in each by ``made``, which asks how many operators it has
    called so far."""

    made: Callable[[], int]
    _first_call: int | None = None
    _ends: list[int] = field(default_factory=list)
    _begin: tuple[int, int] = (0, 0)
    _recorded: tuple[int, int] | None = None
    _update_began: int | None = None
    _updating: list[int] = field(default_factory=list)

    def model_called(self) -> None:
        """A module or a graph is about to be called; what comes before the first makes the model."""
        if self._first_call is None:
            self._first_call = self.made()

    def optimizer_begins(self) -> None:
        """An optimizer is about to make its step."""
        if self._update_began is None:
            self._update_began = self.made()

    def optimizer_stepped(self) -> None:
        """An optimizer has made its step."""
        made = self.made()
        self._ends.append(made)
        began, self._update_began = self._update_began, None
        self._updating.append(0 if began is None else made - began)

    def begin_anew(self) -> None:
        """Steps so far were made otherwise than those to come, and say nothing of what these hold."""
        self._first_call = self._update_began = None
        self._ends.clear()
        self._updating.clear()

    def hearing_begins(self) -> None:
        """The step to record begins."""
        self._begin = self.made(), len(self._ends)

    def hearing_ended(self) -> None:
        """The step that began last was recorded."""
        self._recorded = max(1, self.made() - self._begin[0]), len(self._ends) - self._begin[1]

    @property
    def has_updates(self) -> bool:
        """Whether an optimizer has made a step."""
        return bool(self._ends)

    @property
    def has_begun(self) -> bool:
        """Whether a module or a graph was called, or an optimizer has made a step."""
        return self._first_call is not None or bool(self._ends)

    @property
    def updates(self) -> int:
        """Steps of optimizers in the step that was recorded."""
        return 0 if self._recorded is None else self._recorded[1]

    @property
    def is_looked_for(self) -> bool:
        """Whether the first step was much longer than the recorded one, and none that is as long has come again."""
        return self._is_long_at_first and self._last_long is None

    @property
    def _before(self) -> int:
        """Operators from the first call of a model to the end of the first step, whose optimizer is taken to call as
        many as one of its later steps does: the first also makes its state."""
        if self._first_call is None or not self._ends:
            return 0
        usual = max(self._updating[1:], default=self._updating[0])
        return self._ends[0] - self._first_call - max(0, self._updating[0] - usual)

    @property
    def _is_long_at_first(self) -> bool:
        if self._recorded is None or not self._recorded[1]:
            return False
        # With several optimizers in a turn the first of them has made only its part.
        return self._before > LONG * self._recorded[0]

    @property
    def _last_long(self) -> int | None:
        """The place of the last step that was much longer than the recorded one, the first step aside."""
        assert self._recorded is not None
        steps = zip(self._ends, self._ends[1:], strict=False)
        long = [place for place, (begin, end) in enumerate(steps, 1) if end - begin > LONG * self._recorded[0]]
        return long[-1] if long else None

    def note(self) -> str | None:
        """That a turn of the program's loop holds more than the recorded step; ``None`` where none is known to."""
        if self._recorded is None or not self._recorded[1]:
            return None
        made, n_updates = self._recorded
        if (last := self._last_long) is not None:
            # From the end of the first step to that of the last long one there are whole turns.
            mean = (self._ends[last] - self._ends[0]) / last * n_updates
            if mean <= _MATTERS * made:
                return None
            return (
                f"{OUTSIDE}: for each of its steps the program calls {mean / made:.1f} times as many operators as "
                f"that one does, in the mean of {last:,}; end a whole turn with torchledger.step() to price it"
            )
        if not self._is_long_at_first:
            return None
        return (
            f"{OUTSIDE}: the first step called {self._before / made:.1f} times as many operators as that one, and "
            f"none as long came again in the {len(self._ends) - 1:,} that were seen"
        )
