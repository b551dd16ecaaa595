"""The price of a recorded step over ranks: entries out of each distinct rank's calls, played together on a fabric."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Fabric, Host, PlannedRank, PlannedStep
from torchledger.planning.rank_entries import EntryMaker, RankProgram, TimedRank, time_entries
from torchledger.planning.rank_host import slowness_of_ranks
from torchledger.planning.sharing import find_sharing
from torchledger.planning.timeline import PlayedStep, RankTimeline, Sharing, play
from torchledger.predicting.host_steps import expected_host
from torchledger.predicting.host_work import WORK_ERROR
from torchledger.predicting.overheads import Mode, overheads_of
from torchledger.predicting.waits import waits_notes
from torchledger.printable import counted

_COUNTS = 0.02
"""A share of the device's time that is worth a sentence."""

_MOST_NAMED = 4


def price_ranks(
    programs: Sequence[RankProgram],
    model: TimeModel,
    fabric: Fabric | None,
    *,
    subject: str = "step",
    mode: Mode = "eager",
    host: Host | None = None,
    sharing: Sharing | None = None,
    allow_tf32: bool = False,
    convolution_tf32: bool = True,
) -> tuple[PlannedStep, Mapping[int, Mapping[int, float]]]:
    """The step of a world, and for each given rank what its calls take alone, microseconds by their ``order``.

    Raises ``PredictError`` for collectives without a fabric, and for ranks whose collectives do not meet.
    """
    sharing = find_sharing(model.device) if sharing is None else sharing
    overheads = overheads_of(model)
    alone, host_error = expected_host(host)
    stands_in = {rank: program.rank for program in programs for rank in (*program.stands_for, program.rank)}
    slowness = slowness_of_ranks(alone, len(stands_in))
    settings = {"allow_tf32": allow_tf32, "convolution_tf32": convolution_tf32}
    timed = {
        program.rank: time_entries(
            EntryMaker(program, model, fabric, stands_in, overheads, mode, sharing, slowness), settings
        )
        for program in programs
    }
    unmet = _unmet_note(programs, timed, stands_in)
    _drop_absent(timed)
    played = play({rank: each.entries for rank, each in timed.items()}, sharing=sharing)
    slowed = [
        each.slow_down(played.duration_us, played.ranks[rank].held_us, model.machine) for rank, each in timed.items()
    ]
    if any(slowed):
        played = play({rank: each.entries for rank, each in timed.items()}, sharing=sharing)
    step = _as_step(programs, model, fabric, timed, played, subject, overheads, sharing, host_error)
    if unmet is not None:
        step = replace(step, notes=(unmet, *step.notes))
    waits = next((each.waits for each in timed.values() if each.waits), ())
    times = {rank: each.times_us for rank, each in timed.items()}
    if not waits:
        return step, times
    at_once = play({rank: each.without_waits() for rank, each in timed.items()}, sharing=sharing)
    notes = waits_notes(waits, played.duration_us - at_once.duration_us)
    return replace(step, notes=(*step.notes, *notes)), times


def roofline_note(unlearned_us: float, device_us: float, calls: Mapping[str, int]) -> str | None:
    """What is priced at its roofline alone, where that is a share of the device's time that counts; ``calls`` are those
    of operators among it."""
    if not unlearned_us or unlearned_us < _COUNTS * device_us:
        return None
    named = ", ".join(f"{name} ({count:,})" for name, count in Counter(calls).most_common(_MOST_NAMED))
    more = ", and others" if len(calls) > _MOST_NAMED else ""
    share = f"{unlearned_us / device_us:.0%} of the device's time"
    return f"{share} is at its roofline alone, as the device's model has not learned it: {named or 'launches'}{more}"


def _as_step(
    programs: Sequence[RankProgram],
    model: TimeModel,
    fabric: Fabric | None,
    timed: Mapping[int, TimedRank],
    played: PlayedStep,
    subject: str,
    overheads: Mapping[str, float],
    sharing: Sharing,
    host_error: float,
) -> PlannedStep:
    duration = played.duration_us
    ranks = []
    for program in programs:
        line = played.ranks[program.rank]
        busy = line.compute_us + line.exposed_us
        ranks.append(
            PlannedRank(
                program.rank,
                line.compute_us,
                line.communication_us,
                line.exposed_us,
                max(0.0, duration - busy - line.bubble_us),
                line.host_us,
                line.bubble_us,
                max(1, len(set(program.stands_for))),
                program.peak_allocated_bytes,
            )
        )
    slowest = max(programs, key=lambda program: played.ranks[program.rank].end_us)
    line = played.ranks[slowest.rank]
    half = overheads["step error"] * duration + _width_us(timed[slowest.rank], line)
    # However fast the host is, no rank ends before its device has done what it does.
    least_us = max(
        (1 - overheads["step error"]) * (each.compute_us + each.exposed_us) - _width_us(timed[rank], each)
        for rank, each in played.ranks.items()
    )
    total = sum(played.decided_by.values())
    if total:
        by_host_us = duration * played.decided_by.get("host", 0.0) / total
        computes = timed[slowest.rank].host_work_us / line.host_us if line.host_us else 0.0
        half += by_host_us * (host_error + (WORK_ERROR - host_error) * computes)
    peaks = [each.peak_allocated_bytes for each in programs if each.peak_allocated_bytes is not None]
    notes = sorted(set().union(*(each.notes for each in timed.values())))
    own = timed[slowest.rank]
    if (said := roofline_note(own.unlearned_us, line.compute_us, own.unlearned_calls)) is not None:
        notes.append(said)
    notes += own.host_work_notes
    if sharing.note and line.communication_us > line.exposed_us:
        notes.append(sharing.note)
    return PlannedStep(
        subject=subject,
        device=model.device,
        fabric=None if fabric is None else fabric.name,
        world_size=len({rank for program in programs for rank in (*program.stands_for, program.rank)}),
        duration_us=duration,
        low_us=max(duration - half, least_us, 0.0),
        high_us=duration + half,
        coverage=COVERAGE,
        device_us=max(rank.compute_us + rank.exposed_us for rank in ranks),
        host_us=max(rank.host_us for rank in ranks),
        decided_by={kind: us / total for kind, us in played.decided_by.items()} if total else {},
        communication_us=line.communication_us,
        exposed_us=line.exposed_us,
        bubble_us=sum(rank.bubble_us for rank in ranks) / len(ranks),
        peak_allocated_bytes=max(peaks, default=None),
        launches=max(each.launches for each in timed.values()),
        ranks=tuple(ranks),
        notes=tuple(notes),
        collectives=tuple(chain.from_iterable(timed[program.rank].collectives for program in programs)),
        host_work_us=own.host_work_us,
    )


def _width_us(rank: TimedRank, line: RankTimeline) -> float:
    """How far what a rank's device does may be off: its kernels apart, and its collectives as far as nothing hides
    them."""
    exposed_share = line.exposed_us / line.communication_us if line.communication_us else 0.0
    return float(np.sqrt(np.square(rank.spread_us).sum())) + rank.collective_spread_us * exposed_share


def _unmet_note(
    programs: Sequence[RankProgram], timed: Mapping[int, TimedRank], stands_in: Mapping[int, int]
) -> str | None:
    """That a rank sends another more or fewer messages in a step than that one receives; ``None`` where all agree, and
    where some ranks that exchange messages were not recorded."""
    if any(stands_in.get(peer) != peer for program in programs for peer in program.peers.values()):
        return None
    told = {
        rank: Counter(
            entry.meets[1:3] for entry in each.entries if entry.meets is not None and entry.meets[0] == "pair"
        )
        for rank, each in timed.items()
    }
    for source, target in sorted(set().union(*told.values())):
        sent, received = told[source][source, target], told[target][source, target]
        if sent != received:
            return (
                f"rank {source} sends rank {target} {counted(sent, 'message')} in a step, of which that one receives "
                f"{received:,}: on the device one of them would wait for ever"
            )
    return None


def _drop_absent(timed: Mapping[int, TimedRank]) -> None:
    """Collectives whose other ranks were not given go on alone: what is like a rank comes when it does."""
    present: dict[Any, int] = defaultdict(int)
    for each in timed.values():
        for entry in each.entries:
            if entry.meets is not None:
                present[entry.meets] += 1
    for each in timed.values():
        for place, entry in enumerate(each.entries):
            if entry.meets is not None:
                expected = 2 if entry.meets[0] == "pair" else len(entry.meets[1])
                if present[entry.meets] < expected:
                    each.entries[place] = replace(entry, meets=None)
