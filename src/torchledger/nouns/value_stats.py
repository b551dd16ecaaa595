"""What a buffer held, and what was found wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Moment = Literal["input", "before", "after"]

Verdict = Literal["created here", "passed through", "stopped here", "came in", "read before written"]
"""``created here``: what the launch reads is clean, what it writes is not. ``passed through``: both are bad.
``stopped here``: it reads bad values and writes none (a later op masks them). ``came in``: a graph's input was bad.
``read before written``: it reads memory that nothing has written since it was allocated."""


@dataclass(frozen=True)
class ValueStats:
    """Statistics of one tensor before or after one launch of one call of a graph.

    ``subject`` is a launch id, or a graph's name for its inputs (``moment`` ``"input"``) and, where its launches
    cannot be watched, its outputs (``"after"``). Counts are of elements.
    ``minimum``, ``maximum``, ``mean`` and ``std`` (of the population) are over the finite elements; of complex tensors,
    over magnitudes. ``None`` where a statistic does not exist (an empty tensor has no mean) or was not taken.
    ``path`` is the safetensors file that holds the tensor, as ``<moment>.<buffer>`` (further views of one buffer as
    ``<moment>.<buffer>#2``). ``sequence`` orders all launches of the run.
    """

    subject: str
    call_index: int
    buffer: str
    moment: Moment
    dtype: str
    shape: tuple[int, ...]
    n_nan: int | None = None
    n_inf: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    std: float | None = None
    n_zero: int | None = None
    n_subnormal: int | None = None
    path: str | None = None
    note: str | None = None
    sequence: int | None = None
    fx_node: str | None = None


@dataclass(frozen=True)
class ValueFinding:
    """A launch whose values answer the question that was asked (``nan``, ``inf``, ``overflow`` or a predicate).

    ``count`` elements of ``buffer`` are bad, ``indices`` are some of them, the first first. ``reaches_output`` is False
    when no output of that call of the graph is bad: a later launch masked it.
    """

    question: str
    verdict: Verdict
    subject: str
    call_index: int
    sequence: int
    buffer: str
    dtype: str
    shape: tuple[int, ...]
    count: int | None = None
    indices: tuple[tuple[int, ...], ...] = ()
    reaches_output: bool | None = None
    note: str | None = None


@dataclass(frozen=True)
class ValueComparison:
    """One output of a launch against the same ops run eagerly on the same inputs, both judged by them in float64.

    ``*_error`` is the largest absolute difference to float64 over the largest magnitude there; ``*_ulps`` the largest
    distance to it in units in the last place of ``dtype``; ``n_different`` counts unequal elements where values are no
    floats. ``None`` where it could not be computed; ``note`` says why.
    """

    subject: str
    call_index: int
    sequence: int
    buffer: str
    fx_node: str
    dtype: str
    shape: tuple[int, ...]
    compiled_error: float | None = None
    eager_error: float | None = None
    compiled_ulps: float | None = None
    eager_ulps: float | None = None
    n_different: int | None = None
    tolerance: float | None = None
    is_within: bool | None = None
    note: str | None = None

    @property
    def further(self) -> Literal["compiled", "eager", "neither"] | None:
        """Which of the two is further from float64."""
        if self.compiled_error is None or self.eager_error is None:
            return None
        if self.compiled_error == self.eager_error:
            return "neither"
        return "compiled" if self.compiled_error > self.eager_error else "eager"


@dataclass(frozen=True)
class WatchedGraph:
    """How much of a graph was watched: launches in the ledger, those with a watched call, those that ran watched."""

    graph: str
    launches: int
    watched: int
    seen: int
    calls: int
    note: str | None = None
