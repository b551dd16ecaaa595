"""What loading the batches of the recorded step takes: it is in no price, and decides many small steps."""

from __future__ import annotations

from collections.abc import Callable

_LITTLE_S = 5e-4
"""Seconds of loading in a step that are not worth a sentence."""


class StepLoading:
    """Told where the step to record begins and ends, counts what is loaded in it. ``loaded_s`` asks how many seconds
    loaders have taken so far of the program's own thread, and of processes that load beside it."""

    def __init__(self, loaded_s: Callable[[], tuple[float, float]]) -> None:
        self._loaded_s = loaded_s
        self._begin_s = self._step_s = (0.0, 0.0)

    def hearing_begins(self) -> None:
        """The step to record begins."""
        self._begin_s = self._loaded_s()

    def hearing_ended(self) -> None:
        """The step that began last was recorded."""
        own_s, elsewhere_s = self._loaded_s()
        self._step_s = own_s - self._begin_s[0], elsewhere_s - self._begin_s[1]

    def note(self) -> str | None:
        """What loading the recorded step's batches takes, which is not priced; ``None`` where that is little.

        What the plan itself takes for the operators of torch that load is not among it, but for a rest of it.
        """
        own_s, elsewhere_s = self._step_s
        if max(own_s, elsewhere_s) < _LITTLE_S:
            return None
        most = f"at most {1e3 * max(own_s, elsewhere_s):.1f} ms a step on the machine that plans, not in the price"
        if own_s > elsewhere_s:
            return (
                f"its batches are loaded on the thread that launches, {most}: the host needs so much more for a step; "
                "num_workers has other processes load"
            )
        return f"its loader's processes load beside it, {most}; where they take longer than the step, they decide"
