"""The calls of compiled functions in a step: they tell where a step begins and ends that calls no graphs."""

from __future__ import annotations

from collections import Counter


class FunctionCalls:
    """Counts calls of functions, given by ``id``, from step to step, and then waits for as many as a step has."""

    def __init__(self) -> None:
        self._of_this_step: Counter[int] = Counter()
        self._of_last_step: Counter[int] = Counter()
        self._last: int | None = None
        self._left = 0

    def called(self, function: int) -> None:
        """One is about to be called."""
        self._of_this_step[function] += 1
        self._last = function

    def step_ended(self) -> None:
        """A step has ended, inside the function that was called last."""
        self._of_this_step, self._of_last_step = Counter(), self._of_this_step

    def wait(self) -> bool:
        """Wait for as many calls of the last function as a step has; false if it is not known how many those are."""
        self._left = self._of_last_step[self._last or 0]
        return self._left > 0

    def has_come(self, function: int) -> bool:
        """True if this call is the last of those that were waited for."""
        if not self._left or function != self._last:
            return False
        self._left -= 1
        return self._left == 0
