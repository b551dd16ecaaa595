"""What the host computes itself in a planned step, on the thread that launches: random numbers, batches, what is left
to it of a model. What is launched behind it comes so much later.

Calls that were recorded on a device have it in the times of their steps; those of a plan have no times. Of one that a
data loader makes the plan says what loading takes.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence

from torchledger.nouns import StepCall
from torchledger.printable import counted
from torchledger.work.categories import operator_name

RANDOM_NS: Mapping[str, float] = {
    "uniform": 1.9,
    "normal": 2.4,
    "integers": 2.0,
    "bernoulli": 10.0,
    "exponential": 15.0,
    "permutation": 3.5,
    "long permutation": 18.0,
}
"""Nanoseconds of one random number, as ``benchmarks/machines/host_tensors.py`` prints them: an AMD EPYC (Turin), torch
2.11 and 2.13, 2026-11-28, which differ by a tenth at most (permutations of more than a million: 11 to 23 from run to
run). Torch draws them on one thread, whatever it may use."""

MOVED_NS = 0.02
"""A byte that any other operator reads or writes there: the median of eighteen on one thread, from 0.006 (in place) to
0.35 (``argmax``). A second thread halves most of them where its core is free. Where others have it, each operator waits
for them: up to 0.26 s for 40 MB here, and 0.12 s for 25 MB in a recording beside an H200."""

NEW_NS, NEW_BYTES = 0.33, 1 << 22
"""A byte of a new tensor of this size takes so much longer, in memory that the system has just given: here so in all of
more than 32 MiB, which glibc never keeps for the next one. Beside H200s random tensors of 3 and 4 MB took no longer,
those of 19 and 39 MB did, and copies of 7 and 14 MB took longer yet. Why those below 32 MiB do there is not known."""

USUAL_SLOWNESS = 2.3
"""So many times as long takes a host of slowness 1, as one beside an H200 is: numbers of ``torch.rand`` took 4.4 ns in
nine calls of two programs (``benchmarks/public/library_scripts``, ``gan_penalty.py`` and ``detection.py``, profiled on
2026-11-28, two programs at a time on 32 cores). In ``moco.py`` and ``timm_vit_ema.py`` those of tensors of 19 and 39 MB
took 7.3 and 8.4 ns (``randn``), which these constants say are 7.4 and 8.6."""

WORK_ERROR = 0.6
"""By what share that may be off: hosts differ by a factor of two, and so do two moments of one."""

_FLOP_PER_US = 500_000.0
"""Products, where they take longer than their bytes: 16 cores of 110 GFLOP/s here, ``USUAL_SLOWNESS`` times as slow,
and two thirds of them at work."""

_LEAST_US, _LEAST_CALL_US = 100.0, 1.0
"""Less in a step, and in a call, is in what every step costs its host."""

_LONG_PERMUTATION = 1 << 20
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("rand", "rand_like", "uniform"), "uniform"),
    **dict.fromkeys(("randn", "randn_like", "normal", "log_normal"), "normal"),
    **dict.fromkeys(("randint", "randint_like", "random"), "integers"),
    "bernoulli": "bernoulli",
    "exponential": "exponential",
    "randperm": "permutation",
}
_MOST_LINES = 3
_MILLION, _BILLION = 1e6, 1e9


def host_work_us(calls: Sequence[StepCall]) -> Mapping[int, float]:
    """Microseconds that a host of slowness 1 computes in a planned step, by the ``order`` of its calls; empty where
    that is little.

    >>> rand = StepCall("s", 0, "operator", "aten::rand", "input", device="cpu", settings=(("size", (1000, 1000)),))
    >>> host_work_us([rand])
    {0: 4370.0}
    """
    found = {call.order: us for call in calls if _is_of_host(call) and (us := _call_us(call)) >= _LEAST_CALL_US}
    return found if sum(found.values()) >= _LEAST_US else {}


def host_work_notes(calls: Sequence[StepCall], work_us: Mapping[int, float]) -> tuple[str, ...]:
    """That a step's price has ``work_us`` in it, what that is and which lines ask for most of it."""
    if not work_us:
        return ()
    worked = [call for call in calls if call.order in work_us]
    numbers = sum(_numbers(call) for call in worked if _kind(call) is not None)
    moved = sum(call.bytes_moved or 0 for call in worked if _kind(call) is None)
    parts = [f"{_counted(numbers)} random numbers"] if numbers else []
    parts += [f"{_size(moved)} read or written"] if moved else []
    times = counted(len(worked), "call")
    return (
        f"the program computes on the host: {' and '.join(parts)} in {times}{_lines(worked, work_us)}, about "
        f"{sum(work_us.values()) / 1e3:,.3g} ms on a usual host, in the price",
    )


def own_work_us(calls: Sequence[StepCall]) -> float:
    """Microseconds that a planned program computes on the host beside torch, on the machine that planned it."""
    return sum(call.own_us or 0.0 for call in calls)


def own_work_notes(calls: Sequence[StepCall]) -> tuple[str, ...]:
    """That a step's price has such work in it, and which lines take most of it."""
    lines: dict[str, float] = defaultdict(float)
    for call in calls:
        if call.own_us and call.own_source is not None:
            lines[os.path.basename(call.own_source)] += call.own_us
    if not lines:
        return ()
    ms = sum(lines.values()) / 1e3
    return (
        f"the program computes on the host beside torch, in NumPy or Python{_named(lines)}: {ms:,.3g} ms on the machine"
        " that plans, in the price as they are",
    )


def _is_of_host(call: StepCall) -> bool:
    is_planned = call.host_us is None and not call.samples_us
    is_loaded = ("loaded", (1,)) in (call.settings or ())
    return call.kind == "operator" and (call.device or "").startswith("cpu") and is_planned and not is_loaded


def _call_us(call: StepCall) -> float:
    moved = call.bytes_moved or 0
    kind = _kind(call)
    ns = _numbers(call) * RANDOM_NS[kind] if kind is not None else moved * MOVED_NS
    if (made := _new_bytes(call)) >= NEW_BYTES:
        ns += made * NEW_NS
    return max(USUAL_SLOWNESS * ns / 1e3, (call.flops or 0) / _FLOP_PER_US)


def _kind(call: StepCall) -> str | None:
    """Which of ``RANDOM_NS`` a call draws; ``None`` for what draws nothing.

    One chance for all elements (``bernoulli_(0.5)``, dropout) is drawn by a library, on all threads of an Intel's.
    """
    name = operator_name(call.name)[1]
    if name == "bernoulli" and call.name.endswith("_") and len(call.arguments) == 1:
        return None
    kind = _KINDS.get(name)
    is_long = kind == "permutation" and _numbers(call) > _LONG_PERMUTATION
    return "long permutation" if is_long else kind


def _numbers(call: StepCall) -> int:
    """Elements of what a call makes or fills."""
    shape = _asked_shape(call)
    if shape is None:
        shape = call.arguments[0].shape if call.arguments else (0,)
    return math.prod(shape)


def _asked_shape(call: StepCall) -> tuple[int, ...] | None:
    """The shape that a factory is given; ``None`` of any other call."""
    settings = dict(call.settings or ())
    return settings.get("size", settings.get("n"))


def _new_bytes(call: StepCall) -> int:
    """Bytes of the tensor that a call makes: all that a factory writes, and half of what any other one moves."""
    is_given_one = call.name.endswith("_") or bool(call.arguments and _asked_shape(call))
    if is_given_one or call.category == "reduction" or not call.bytes_moved:
        return 0
    return call.bytes_moved // 2 if call.arguments and _kind(call) is None else call.bytes_moved


def _size(nbytes: int) -> str:
    return f"{nbytes / _BILLION:,.3g} GB" if nbytes >= _BILLION else f"{nbytes / _MILLION:,.3g} MB"


def _counted(numbers: int) -> str:
    return f"{numbers / _MILLION:,.1f} million" if numbers >= _MILLION else f"{numbers:,}"


def _lines(worked: Sequence[StepCall], work_us: Mapping[int, float]) -> str:
    """The lines that ask for most of it; empty where none is known."""
    lines: dict[str, float] = defaultdict(float)
    for call in worked:
        if call.sources:
            lines[os.path.basename(call.sources[-1])] += work_us[call.order]
    return _named(lines)


def _named(lines: Mapping[str, float]) -> str:
    named = sorted(lines, key=lambda line: -lines[line])[:_MOST_LINES]
    more = len(lines) - len(named)
    further = f" and {more} more line{'s' * (more > 1)}" if more else ""
    return f" ({', '.join(named)}{further})" if named else ""
