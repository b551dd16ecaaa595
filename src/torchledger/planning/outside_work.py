"""What a program does outside the step that was recorded: rollouts, generation, evaluation between its steps.

Counted in operators, which is all that a program without its device can be weighed by before anything is priced.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

LONG = 2.0
"""So many times as long as the recorded step is one in which more is done than in it."""

_MATTERS = 1.1
"""A mean so many times the recorded step is worth a sentence."""

OUTSIDE = "work outside the recorded step (rollouts, generation, evaluation) is not in the price"
"""So begin the notes on it."""


@dataclass
class _Ends:
    """What a thread had made when it first called a model, at the end of each step of an optimizer, and since the
    beginning of that."""

    first_call: int | None = None
    ends: list[int] = field(default_factory=list)
    update_began: int | None = None
    updating: list[int] = field(default_factory=list)


@dataclass
class OutsideWork:
    """Told where a program's steps end, counts what it does in each by ``made``, which asks how many operators the
    calling thread has called so far: what others do beside it is no work between steps."""

    made: Callable[[], int]
    _threads: defaultdict[int, _Ends] = field(default_factory=lambda: defaultdict(_Ends))
    _of_steps: _Ends = field(default_factory=_Ends)
    _begin: tuple[int, int] = (0, 0)
    _recorded: tuple[int, int] | None = None
    _n_updates: int = 0

    @property
    def _here(self) -> _Ends:
        return self._threads[threading.get_ident()]

    def model_called(self) -> None:
        """A module or a graph is about to be called; what comes before the first makes the model."""
        here = self._here
        if here.first_call is None:
            here.first_call = self.made()

    def optimizer_begins(self) -> None:
        """An optimizer is about to make its step."""
        here = self._here
        if here.update_began is None:
            here.update_began = self.made()

    def optimizer_stepped(self) -> None:
        """An optimizer has made its step."""
        made, here = self.made(), self._here
        here.ends.append(made)
        began, here.update_began = here.update_began, None
        here.updating.append(0 if began is None else made - began)
        self._n_updates += 1

    def begin_anew(self) -> None:
        """Steps so far were made otherwise than those to come, and say nothing of what these hold."""
        self._threads.clear()
        self._of_steps, self._n_updates = _Ends(), 0

    def hearing_begins(self) -> None:
        """The step to record begins, on the thread that makes it."""
        self._of_steps = self._here
        self._begin = self.made(), self._n_updates

    def hearing_ended(self) -> None:
        """The step that began last was recorded."""
        self._recorded = max(1, self.made() - self._begin[0]), self._n_updates - self._begin[1]

    @property
    def has_updates(self) -> bool:
        """Whether an optimizer has made a step."""
        return self._n_updates > 0

    @property
    def has_begun(self) -> bool:
        """Whether a module or a graph was called, or an optimizer has made a step."""
        return self.has_updates or any(each.first_call is not None for each in self._threads.values())

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
        first_call, ends, updating = self._of_steps.first_call, self._of_steps.ends, self._of_steps.updating
        if first_call is None or not ends:
            return 0
        usual = max(updating[1:], default=updating[0])
        return ends[0] - first_call - max(0, updating[0] - usual)

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
        ends = self._of_steps.ends
        steps = pairwise(ends)
        long = [place for place, (begin, end) in enumerate(steps, 1) if end - begin > LONG * self._recorded[0]]
        return long[-1] if long else None

    def note(self) -> str | None:
        """That a turn of the program's loop holds more than the recorded step; ``None`` where none is known to."""
        if self._recorded is None or not self._recorded[1]:
            return None
        made, n_updates = self._recorded
        if (last := self._last_long) is not None:
            # From the end of the first step to that of the last long one there are whole turns.
            ends = self._of_steps.ends
            mean = (ends[last] - ends[0]) / last * n_updates
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
            f"none as long came again in the {len(self._of_steps.ends) - 1:,} that were seen"
        )
