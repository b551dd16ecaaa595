"""Steps that a program only tries, to see whether memory runs out: what it trains with comes behind them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from torchledger.memory_searches import catches_running_out
from torchledger.printable import counted
from torchledger.program_text import shortened

_MOST_TRIED, _TRIED_S = 64, 60.0
"""So many steps are looked on, in so many seconds at most, behind one that may only have been tried: a program that
trains inside such a ``try`` goes on so for ever."""


@dataclass
class MemorySearch:
    """Told of calls of models, optimizers' steps and memory that has run out, knows whether a program searches, and
    when it ceases to: with a step outside the ``try``, or with the next call of a model once memory has run out. Where
    no optimizer steps inside the ``try``, the first call outside of it says that the last try has not run out."""

    _place: str | None = None
    _ran_out: list[str] = field(default_factory=list)
    _has_ended: bool = False
    _tried: int = 0
    _since_s: float = field(default_factory=time.monotonic)
    _trains_at: str | None = None
    _n_called: int = 0
    _is_trying: bool = False
    _has_left: bool = False

    def ran_out(self, place: str) -> None:
        """Memory has run out inside the ``try`` at a place."""
        self._ran_out.append(place)
        self._has_ended = True

    def model_called(self, lines: Iterable[tuple[str, int]]) -> None:
        """A model is about to be called from these lines of a stack, innermost first."""
        self._n_called += 1
        is_looked_for = self._n_called <= _MOST_TRIED or self._is_trying or self._ran_out
        if not is_looked_for or self._has_left or self._place is not None or self._trains_at is not None:
            return
        was_trying, self._is_trying = self._is_trying, catches_running_out(lines) is not None
        self._has_left = was_trying and not self._is_trying
        self._has_ended = self._has_ended or self._has_left

    def optimizer_stepped(self, lines: Iterable[tuple[str, int]]) -> None:
        """An optimizer has made its step on these lines of a stack, innermost first."""
        found = list(lines)
        place = catches_running_out(found)
        if place is None:
            self._has_ended = self._has_ended or (self._place is not None and self._trains_at is None)
            self._trains_at = self._trains_at or (shortened(":".join(map(str, found[0]))) if found else "unknown")
        else:
            if self._place is None:
                self._since_s = time.monotonic()
            self._place, self._tried = place, self._tried + 1

    def has_just_ended(self) -> bool:
        """Whether the steps so far were tried, as has become known since this was asked last."""
        has_ended, self._has_ended = self._has_ended, False
        return has_ended

    @property
    def is_likely(self) -> bool:
        """Whether the steps at hand may only be tried, and not too many were."""
        is_tried = self._place is not None and self._trains_at is None
        return is_tried and self._tried <= _MOST_TRIED and time.monotonic() < self._since_s + _TRIED_S

    def note(self) -> str | None:
        """Which steps are priced and which are not; ``None`` where nothing was tried."""
        if self._place is None and not self._ran_out:
            return None
        tried = f"steps inside the try at {self._place or self._ran_out[0]}, which catches that memory runs out"
        times = counted(len(self._ran_out), "time")
        ran_out = f" (it did {times}, by the plan's own count)" if self._ran_out else ""
        if self._trains_at is not None:
            return f"{tried}{ran_out}, are not priced: the step is one behind them, at {self._trains_at}"
        return f"{tried}{ran_out}, are priced: none outside it was found"
