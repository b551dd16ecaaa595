"""Two recorded runs, side by side: where their values first part.

Tensors are matched by what they mean, not by which launch made them: by graph, call and the FX node whose value they
hold, so that another fusion, device or torch version can be compared. What has no FX node is matched by its launch's
operators, in order.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from torchledger.errors import ValuesError
from torchledger.nouns import Launch, ValueStats
from torchledger.store import LedgerReader
from torchledger.store.value_stats import iterate_value_stats

DEFAULT_TOLERANCE = 1e-3

_Key = tuple[str, int, str, str, int]


@dataclass(frozen=True)
class ValuePair:
    """One tensor in both runs, and how far apart it is.

    ``difference`` is the largest difference of the two over the largest magnitude in the first: of all elements
    where both runs saved the tensor (``is_elementwise``), else of minimum, maximum, mean and std. Infinite where
    the counts of NaN or Inf, or the shapes, differ.
    """

    first: ValueStats
    second: ValueStats
    difference: float
    is_elementwise: bool
    source: str | None = None


@dataclass(frozen=True)
class ValuesDiff:
    """All pairs in the order of the first run, and how many tensors have no partner."""

    pairs: tuple[ValuePair, ...]
    only_first: int
    only_second: int
    tolerance: float

    @property
    def apart(self) -> tuple[ValuePair, ...]:
        """The pairs beyond the tolerance, the earliest first."""
        return tuple(pair for pair in self.pairs if pair.difference > self.tolerance)


def compare_values(first: LedgerReader, second: LedgerReader, *, tolerance: float = DEFAULT_TOLERANCE) -> ValuesDiff:
    """Compare the statistics (and saved tensors) of two ledgers.

    Raises ``ValuesError`` if one of them holds no statistics.
    """
    one, other = _by_key(first), _by_key(second)
    for reader, found in ((first, one), (second, other)):
        if not found:
            raise ValuesError(
                f"{reader.path} holds no statistics. Record some with `torchledger values -o {reader.path} SCRIPT`."
            )
    sources = {launch.launch_id: launch.source for launch in first.iterate(Launch)}
    pairs = []
    for key, stats in one.items():
        partner = other.get(key)
        if partner is not None:
            difference, is_elementwise = _difference(stats, partner)
            pairs.append(ValuePair(stats, partner, difference, is_elementwise, sources.get(stats.subject)))
    return ValuesDiff(tuple(pairs), len(one) - len(pairs), len(other) - len(pairs), tolerance)


def _by_key(reader: LedgerReader) -> dict[_Key, ValueStats]:
    """Inputs and what launches wrote, in the order of the run, by what identifies them in any run."""
    operators = {launch.launch_id: ",".join(launch.aten_ops) for launch in reader.iterate(Launch)}
    found: dict[_Key, ValueStats] = {}
    seen: Counter[tuple[str, int, str, str]] = Counter()
    for stats in iterate_value_stats(reader):
        if stats.moment == "before":
            continue
        graph = stats.subject.split("#")[0]
        if stats.moment == "input":
            meaning = stats.buffer
        else:
            meaning = stats.fx_node or f"[{operators.get(stats.subject, stats.subject)}]"
        place = (graph, stats.call_index, stats.moment, meaning)
        found[(*place, seen[place])] = stats
        seen[place] += 1
    return found


def _difference(first: ValueStats, second: ValueStats) -> tuple[float, bool]:
    if math.prod(first.shape) != math.prod(second.shape):
        return math.inf, False
    if (first.n_nan, first.n_inf) != (second.n_nan, second.n_inf):
        return math.inf, False
    if first.path and second.path:
        found = _saved_difference(first, second)
        if found is not None:
            return found, True
    extremes = [value for value in (first.minimum, first.maximum) if value is not None]
    scale = max((abs(value) for value in extremes), default=0.0)
    largest = 0.0
    for name in ("minimum", "maximum", "mean", "std"):
        one, other = getattr(first, name), getattr(second, name)
        if one is not None and other is not None:
            largest = max(largest, abs(one - other))
    return (largest / scale if scale else largest), False


def _saved_difference(first: ValueStats, second: ValueStats) -> float | None:
    """Of all elements; ``None`` if a file is gone."""
    import torch

    from torchledger.watching.saving import load_tensors

    try:
        one = load_tensors(first.path or "")[f"{first.moment}.{first.buffer}"]
        other = load_tensors(second.path or "")[f"{second.moment}.{second.buffer}"]
    except (OSError, KeyError):
        return None
    kind = torch.complex128 if one.is_complex() or other.is_complex() else torch.float64
    one, other = one.to(kind).reshape(-1), other.to(kind).reshape(-1)
    keep = one.isfinite() & other.isfinite()
    if not bool(keep.any()):
        return 0.0
    scale = float(one[keep].abs().max())
    largest = float((one[keep] - other[keep]).abs().max())
    return largest / scale if scale else largest
