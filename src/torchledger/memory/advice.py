"""What recomputing modules in the backward would free, and what it would cost.

A module that is recomputed keeps what other modules read of it and drops the rest until its own backward begins. The
live set is added up again with those shorter lives, so that what is said to be freed is of the whole step's peak: it
cannot be more than what is between the first peak and the next. The cost is that of the module's forward, once more:
its time on the device where the device decides what a step takes, else the time in which the host makes its calls, and
what ``torch.utils.checkpoint`` needs of it for itself.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchledger.memory.live_set import MemoryTotals, live_curve
from torchledger.nouns import LiveStorage

_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")
_LEAST_SHARE = 0.01
_MOST_CANDIDATES = 60
_HOST_DECIDES = 0.9
"""Of a step's time: where its device is busy for less, the device waits for the host."""

_CHECKPOINT_US, _SAVED_US = 60.0, 15.0
"""What ``torch.utils.checkpoint`` (not reentrant) takes of the host for itself, a call and a tensor that is saved in
it: about the least of several runs of ``benchmarks/machines/checkpoint_cost.py`` on an AMD EPYC with torch 2.13."""


@dataclass(frozen=True)
class Recomputation:
    """Modules that one could recompute: ``pattern`` (``"layers.*.mlp"``), how many instances of it there are, how many
    bytes the peak would fall by and to what, and by how many microseconds a step would take longer (``None`` where its
    forward was not measured), also as a share of the step's. ``is_least``: the host decides, and a slower one needs
    more for ``torch.utils.checkpoint`` around eager modules, or modules that are graphs of their own."""

    pattern: str
    instances: int
    freed_bytes: int
    peak_bytes: int
    added_us: float | None
    added_share: float | None
    host_decides: bool = False
    is_least: bool = False


@dataclass(frozen=True)
class ForwardTimes:
    """What a step takes without the profiler (``None``: it was not timed) and how long its device is busy; and of its
    forward, by module path, the time on the device and that in which the host made its calls. In microseconds."""

    step_us: float | None = None
    busy_us: float | None = None
    device_us: Mapping[str, float] = field(default_factory=dict)
    host_us: Mapping[str, float] = field(default_factory=dict)

    @property
    def host_decides(self) -> bool:
        """True where the device waits for the host, so that work of the host is what makes the step longer."""
        return self.step_us is not None and self.busy_us is not None and self.busy_us < _HOST_DECIDES * self.step_us


def recomputations(totals: MemoryTotals, times: ForwardTimes) -> list[Recomputation]:
    """The modules whose recomputation lowers the peak by 1 % or more, those that free most first."""
    activations = [each for each in totals.storages if each.category == "activations" and each.module]
    groups: dict[str, list[list[LiveStorage]]] = defaultdict(list)
    for path, members in _by_path(activations).items():
        groups[_INDEX.sub("*", path)] += _instances(members)
    heaviest = sorted(groups, key=lambda pattern: -sum(_size(groups[pattern])))[:_MOST_CANDIDATES]
    found = []
    for pattern in heaviest:
        peak = _peak_without(totals, pattern, groups[pattern])
        freed = totals.peak_live_bytes - peak
        if freed < _LEAST_SHARE * totals.peak_live_bytes:
            continue
        added = _added_us(pattern, groups[pattern], times, groups)
        share = added / times.step_us if added is not None and times.step_us else None
        is_least = times.host_decides and bool(_called_alone(groups[pattern]))
        found.append(
            Recomputation(pattern, len(groups[pattern]), freed, peak, added, share, times.host_decides, is_least)
        )
    return sorted(_without_twins(found), key=lambda each: -each.freed_bytes)


def _added_us(
    pattern: str,
    instances: Sequence[Sequence[LiveStorage]],
    times: ForwardTimes,
    known: Collection[str],
) -> float | None:
    """By how much a step becomes longer when the forward of these modules runs once more."""
    device, host = _time_of(pattern, times.device_us, known), _time_of(pattern, times.host_us, known)
    if device is None or host is None or not times.host_decides or times.step_us is None or times.busy_us is None:
        return device
    alone = _called_alone(instances)
    host += _CHECKPOINT_US * len(alone) + _SAVED_US * sum(map(len, alone))
    return max(host, times.busy_us + device - times.step_us)


def _called_alone(instances: Sequence[Sequence[LiveStorage]]) -> list[Sequence[LiveStorage]]:
    """Those around which ``torch.utils.checkpoint`` runs: of modules that one call of a graph holds, the compiler makes
    it a part of the graph."""
    of_call = Counter(members[0].born_in for members in instances if members[0].born_launch is not None)
    return [each for each in instances if each[0].born_launch is None or of_call[each[0].born_in] == 1]


def _by_path(activations: Sequence[LiveStorage]) -> dict[str, list[LiveStorage]]:
    """The activations of each module and of those that hold it, in the order in which they were made."""
    found: dict[str, list[LiveStorage]] = defaultdict(list)
    for each in sorted(activations, key=lambda each: -1 if each.born is None else each.born):
        parts = (each.module or "").split(".")
        for length in range(1, len(parts) + 1):
            found[".".join(parts[:length])].append(each)
    return found


def _instances(members: Sequence[LiveStorage]) -> list[list[LiveStorage]]:
    """A module's activations by its calls: by those of a graph, and eager ones where a backward lies between."""
    of_graphs: dict[int | None, list[LiveStorage]] = defaultdict(list)
    eager: list[list[LiveStorage]] = []
    first_freed: float = -1
    for each in members:
        if each.born_launch is not None:
            of_graphs[each.born_in].append(each)
            continue
        if not eager or (each.born is not None and each.born > first_freed):
            eager.append([])
            first_freed = math.inf
        eager[-1].append(each)
        first_freed = min(first_freed, math.inf if each.freed is None else each.freed)
    return [*of_graphs.values(), *eager]


def _size(instances: Sequence[Sequence[LiveStorage]]) -> list[int]:
    return [each.nbytes for members in instances for each in members]


def _without_twins(found: Sequence[Recomputation]) -> list[Recomputation]:
    """Of a module and a part of it that free the same, within 1 %, the part."""
    return [
        each
        for each in found
        if not any(
            other.pattern.startswith(f"{each.pattern}.") and other.freed_bytes >= (1 - _LEAST_SHARE) * each.freed_bytes
            for other in found
        )
    ]


def _peak_without(totals: MemoryTotals, pattern: str, instances: Sequence[Sequence[LiveStorage]]) -> int:
    """The peak with the activations of these modules dropped after their forward and made again for the backward."""
    again: dict[int, list[LiveStorage]] = {}
    depth = pattern.count(".") + 1
    for members in instances:
        path = ".".join((members[0].module or "").split(".")[:depth])
        dropped = [each for each in members if each.freed is not None and not _is_read_outside(each, path)]
        if not dropped:
            continue
        last = max((each for each in members if each.born is not None), key=lambda each: each.born or 0)
        begins = min(each.freed for each in dropped if each.freed is not None)
        for each in dropped:
            first = replace(each, freed=last.born, freed_in=last.born_in)
            second = replace(each, number=-1, born=begins, born_in=each.freed_in)
            again[each.number] = [first, second] if (last.born or 0) < begins else [each]
    storages: list[LiveStorage] = []
    for each in totals.storages:
        storages += again.get(each.number, [each])
    return live_curve(storages, rounding=totals.memory.rounding).peak.nbytes


def _is_read_outside(storage: LiveStorage, path: str) -> bool:
    """True if what comes after the module reads it before the backward: it is its output, or part of it."""
    return any(
        reader.startswith("@") or not (reader == path or reader.startswith(f"{path}.")) for reader in storage.read_by
    )


def _time_of(pattern: str, forward_us: Mapping[str, float], known: Collection[str]) -> float | None:
    """The forward's time of a pattern; a graph of a part of the model names its modules from that part on."""
    times = []
    for module, us in forward_us.items():
        generic = _INDEX.sub("*", module)
        if generic not in known:
            generic = next((each for each in known if each.endswith(f".{generic}")), generic)
        if generic == pattern or generic.startswith(f"{pattern}."):
            times.append(us)
    return sum(times) if times else None
