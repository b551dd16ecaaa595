"""What a buffer held, and what was found wrong with it."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
    ``<moment>.<buffer>#2``). ``sequence`` orders all launches of the run. ``elements`` is the whole tensor as text,
    where it is small; a number that a launch is given (a size, a scalar) has its Python type as ``dtype`` and no
    statistics.
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
    elements: str | None = None


@dataclass(frozen=True)
class ValueTable:
    """What the statistics of all calls of a graph with the same input shapes share: which tensors, in which order.

    ``entries`` lack what differs from call to call: their ``call_index`` is -1, and their ``sequence`` is counted from
    the start of the call. ``rows`` holds for each the row of its numbers in a ``ValueCall``, or -1 where its numbers
    are the same in every call and stand in the entry.
    """

    key: str
    entries: tuple[ValueStats, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True)
class ValueCall:
    """The statistics of one call of a graph, as numbers for the entries of the ``ValueTable`` named ``table``.

    ``numbers`` is base64 of little-endian float64, in rows of ``VALUE_NUMBERS``; NaN is a statistic that does not
    exist. ``sequence`` is that of the call's start.
    """

    table: str
    call_index: int
    sequence: int
    numbers: str


VALUE_NUMBERS = ("n_nan", "n_inf", "minimum", "maximum", "mean", "std", "n_zero", "n_subnormal")


def expand(table: ValueTable, call: ValueCall) -> Iterator[ValueStats]:
    """The statistics of one call as records.

    Raises ``ValueError`` if the numbers are not whole.
    """
    flat = array("d", base64.b64decode(call.numbers, validate=True))
    if sys.byteorder == "big":
        flat.byteswap()
    width = len(VALUE_NUMBERS)
    for entry, row in zip(table.entries, table.rows, strict=True):
        numbers = {name: getattr(entry, name) for name in VALUE_NUMBERS}
        if row >= 0:
            values = flat[row * width : (row + 1) * width]
            if len(values) != width:
                raise ValueError(f"call {call.call_index} of {table.key} has {len(flat)} numbers: too few")
            numbers = {
                name: None if value != value else int(value) if name.startswith("n_") else value
                for name, value in zip(VALUE_NUMBERS, values, strict=True)
            }
        sequence = None if entry.sequence is None else entry.sequence + call.sequence
        yield replace(entry, call_index=call.call_index, sequence=sequence, **numbers)


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
