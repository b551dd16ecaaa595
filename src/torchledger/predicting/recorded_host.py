"""What the host needed for a recorded step, by how long that step took where nothing listened.

Programs of one shape differ in what they ask of a host (what guards check, what is handed back, how modules are
nested), which no sum over kinds of work says. The plain steps of a recording have all of it, and the moments of that
host in them too: so a host's need is what its work says, drawn towards what was seen.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torchledger.nouns import Host, Launch
from torchledger.predicting.host_steps import OVERLAP, expected_host, slowness_of
from torchledger.predicting.overheads import Mode
from torchledger.predicting.waits import pieces_of_step, waiting_step_us, waits_for_device
from torchledger.stepping.totals import StepTotals

_RAN_AHEAD = 0.9
"""A host that begins the next step before so much of this one is over was not held up by its device."""

_DECIDED = 0.85
"""Where the device is busy for less of a step than this, and nothing waits for it, the step is what its host needs."""

_OTHER_WORK = 3.0
"""A step that takes so many times the median has work that others have not: pictures that are saved, an evaluation."""

_PROGRAM, _HOST, _UNMEASURED_HOST, _AGAIN = 0.09, 0.08, 0.15, 0.09
"""Spreads, in logarithms, by 31 programs on three machines that ran in two processes each: of programs whose work is
the same by its kinds, of a host beside what is expected of it where it was measured, or not, and of one program from
process to process."""

_MOMENT_US, _MOMENT = 40e3, 0.25
"""For how long a host is slow or quick at a time, and how much such moments spread
(``benchmarks/machines/host_cores.py``)."""

_NINE_OF_TEN = 1.645


@dataclass(frozen=True)
class RecordedOn:
    """How a ledger's step ran: its host as measured there (``None``: nobody did), and how launches were made."""

    host: Host | None = None
    mode: Mode = "eager"


@dataclass(frozen=True)
class SeenHost:
    """What a host was seen to need for a step, and how long it was watched, in microseconds."""

    needs_us: float
    watched_us: float


def seen_host(
    record: StepTotals,
    launches: Sequence[Launch],
    times: Mapping[str, int],
    measured: Mapping[str, float],
    *,
    mode: Mode,
    gaps_us: float,
) -> SeenHost | None:
    """What the host needed for a recorded step; ``None`` where its plain steps do not tell.

    Those of a host that ran ahead of its device say it themselves. Where the host decided, the step's length does, and
    where it waited for its device inside the step, what explains that length, with kernels as ``measured``. Steps of a
    rank that waits for others say nothing of its host.
    """
    step = record.step
    if not step.plain_us or step.device_us is None or step.clock == "cpu_profiler":
        return None
    if any(call.kind == "collective" for call in record.calls):
        return None
    most_us = _OTHER_WORK * statistics.median(step.plain_us)
    plain_us = [took for took in step.plain_us if took <= most_us]
    watched_us = sum(plain_us)
    duration_us, device_us = statistics.fmean(plain_us), step.device_us + gaps_us
    if any(map(waits_for_device, record.calls)):
        explains_us = _explains_us(record, launches, times, measured, mode, duration_us, device_us)
        return None if explains_us is None else SeenHost(explains_us, watched_us)
    issued_us = zip(step.issued_us, step.plain_us, strict=False)
    ahead = [issued for issued, took in issued_us if issued < _RAN_AHEAD * took and took <= most_us]
    if len(ahead) > len(plain_us) / 4:
        return SeenHost(statistics.fmean(ahead), sum(ahead))
    if device_us > _DECIDED * duration_us:
        return None
    return SeenHost(float((duration_us**OVERLAP - device_us**OVERLAP) ** (1 / OVERLAP)), watched_us)


def _explains_us(
    record: StepTotals,
    launches: Sequence[Launch],
    times: Mapping[str, int],
    measured: Mapping[str, float],
    mode: Mode,
    duration_us: float,
    device_us: float,
) -> float | None:
    """The host's need with which a step that waits takes as long as it did, by bisection."""
    kernels: dict[str | int, float] = {str(name): us for name, us in measured.items()}
    kernels |= {call.order: statistics.median(call.samples_us) for call in record.calls if call.samples_us}
    pieces = pieces_of_step(record.calls, launches, times, kernels, mode=mode, host_us=1.0, whole_device_us=device_us)

    def takes_us(host_us: float) -> float:
        return waiting_step_us([replace(piece, host_us=host_us * piece.host_us) for piece in pieces])

    if takes_us(0.0) > _DECIDED * duration_us:
        return None
    low, high = 0.0, duration_us
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if takes_us(middle) < duration_us else (low, middle)
    return (low + high) / 2


def drawn_to_seen(host: Host | None, work_us: float, seen: SeenHost | None, on: RecordedOn) -> tuple[float, float]:
    """What ``host`` needs for a step and by what share it may be off: ``work_us`` is what one of slowness 1 needs by
    the step's work, ``seen`` what the host that the step was recorded ``on`` was seen to need.

    What was seen beyond the work's sum is the program, that host, and chance; a share of it is believed, by how far
    each spreads, in which the host counts where it is the one that is asked for.
    """
    slowness, error = expected_host(host)
    is_own, is_measured = host == on.host, on.host is not None and slowness_of(on.host) is not None
    if seen is None or work_us <= 0 or not (is_own or is_measured):
        return slowness * work_us, error
    by_host = (_HOST if is_measured else _UNMEASURED_HOST) ** 2
    by_chance = _AGAIN**2 + _MOMENT**2 / max(1.0, seen.watched_us / _MOMENT_US)
    wanted = _PROGRAM**2 + (by_host if is_own else 0.0)
    share = wanted / (_PROGRAM**2 + by_host + by_chance)
    beyond = seen.needs_us / (expected_host(on.host)[0] * work_us)
    left = math.sqrt(wanted * (1 - share) + _AGAIN**2)
    return slowness * work_us * beyond**share, min(error, _NINE_OF_TEN * left) if is_own else error
