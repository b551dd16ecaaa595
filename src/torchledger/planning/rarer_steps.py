"""What steps of a program take that do otherwise than the recorded one: priced as that one is, with what they do more
and without what they lack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import PlannedRarerStep, PlannedStep, RarerStep, StepCall
from torchledger.planning.outside_work import OUTSIDE
from torchledger.predicting.step_calls import price_calls
from torchledger.printable import counted
from torchledger.program_text import shortened

_MATTERS = 0.02
"""Steps are told of by which the mean step differs from the recorded one by this share, or more."""

_MOST_NAMED = 3


def with_rarer_steps(
    step: PlannedStep,
    rarer: Sequence[RarerStep],
    recorded: Sequence[StepCall],
    model: TimeModel,
    duration_us: Callable[[RarerStep | None], float],
) -> PlannedStep:
    """A step, and those that differ from it enough to change the mean.

    ``duration_us`` is what such a step takes, or the ``recorded`` one (``None``), microseconds, with nothing between
    ranks.
    """
    usual_us = duration_us(None) if rarer else 0.0
    priced, places = [], []
    for each, more_us in _alike_as_one([(each, duration_us(each) - usual_us) for each in rarer]):
        if abs(each.share * more_us) < _MATTERS * step.duration_us:
            continue
        calls = each.calls if more_us > 0 else [call for call in recorded if call.order in each.lacks]
        operator, source = _dearest(model, calls)
        priced.append(PlannedRarerStep(each.every, len(each.places), each.seen, each.share, more_us, source, operator))
        places.append(each.places)
    if not priced:
        return step
    longer_each_time = _rise(places, priced)
    priced.sort(key=lambda each: -abs(each.share * each.more_us))
    step = replace(step, rarer=tuple(priced))
    # What is counted in operators alone is priced now.
    others = (note for note in step.notes if not note.startswith(OUTSIDE))
    return replace(step, notes=(_note(step, longer_each_time=longer_each_time), *others))


def _alike_as_one(priced: Sequence[tuple[RarerStep, float]]) -> list[tuple[RarerStep, float]]:
    """Kinds of steps that cost as much more are one: a checkpoint that is saved tells them apart, and costs nothing."""
    kinds: dict[int, list[tuple[RarerStep, float]]] = {}
    for each, more_us in priced:
        kinds.setdefault(round(more_us), []).append((each, more_us))
    return [
        (replace(alike[0][0], places=tuple(sorted(place for each, _ in alike for place in each.places))), alike[0][1])
        for alike in kinds.values()
    ]


def _rise(places: Sequence[Sequence[int]], priced: Sequence[PlannedRarerStep]) -> bool:
    """Whether steps take longer the later they come, of several kinds that each come one time after the other."""
    by_place = sorted((place, each.more_us) for at, each in zip(places, priced, strict=True) for place in at)
    took = [more_us for _, more_us in by_place]
    return len(priced) > 1 and took == sorted(took) and took[0] > 0


def _note(step: PlannedStep, *, longer_each_time: bool) -> str:
    """How often others than the recorded step come, what they do, and what a step takes with them in the mean."""
    told = [_told(each) for each in step.rarer[:_MOST_NAMED]]
    further = len(step.rarer) - len(told)
    if further and not any(each.every for each in step.rarer):
        told = [_told_as_one(step, longer_each_time)]
    elif further:
        told.append(f"and {counted(further, 'further kind')} of steps")
    mean, own = _ms(step.mean_us), _ms(step.duration_us)
    return f"{'; '.join(told)}: {mean} a step in the mean, where the recorded one, which is priced, takes {own}"


def _told_as_one(step: PlannedStep, longer_each_time: bool) -> str:
    """Many kinds of steps, none of which comes evenly, are steps whose work changes: with a history, say."""
    took = [step.duration_us + each.more_us for each in step.rarer]
    dearest = step.rarer[0]
    what = "other work" if dearest.operator is None else f"{dearest.operator} and the like"
    at = "" if dearest.source is None else f", {dearest.source}"
    unlike = "do more from one to the next" if longer_each_time else "do not all do as much"
    others = f"{sum(each.times for each in step.rarer):,} of {dearest.seen:,} seen"
    later = " and later ones may take more" if longer_each_time else ""
    return f"steps {unlike} ({what}{at}), {others} take {_ms(min(took))} to {_ms(max(took))}{later}"


def _told(rarer: PlannedRarerStep) -> str:
    if rarer.every:
        who, does = f"every {_ordinal(rarer.every)} step", "does"
    elif rarer.times == 1:
        who, does = f"a step of {rarer.seen:,} seen", "does"
    else:
        who, does = f"{rarer.times:,} steps of {rarer.seen:,} seen", "do"
    does = f"also {does}" if rarer.more_us > 0 else f"{does} without"
    what = "other work" if rarer.operator is None else f"{rarer.operator} and the like"
    at = "" if rarer.source is None else f" ({rarer.source})"
    change = f"{_ms(abs(rarer.more_us))} {'more' if rarer.more_us > 0 else 'less'}"
    return f"{who} {does} {what}{at}, about {change}"


def _dearest(model: TimeModel, calls: Sequence[StepCall]) -> tuple[str | None, str | None]:
    """The operator that takes most of the device's time in these calls, else the first graph that is called, and the
    innermost line that leads to all of its calls."""
    took: dict[str, float] = {call.name: 0.0 for call in calls if call.kind == "graph"}
    for call, found in price_calls(model, calls, ran_on_cpu=False):
        took[call.name] = took.get(call.name, 0.0) + found.duration_us
    name = max(took, key=lambda each: took[each], default=None)
    led = [call.sources for call in calls if call.name == name and call.sources]
    common = takewhile(lambda lines: len(set(lines)) == 1, zip(*led, strict=False))
    line = next(reversed([lines[0] for lines in common]), None)
    return name, None if line is None else shortened(line)


def _ms(us: float) -> str:
    """
    >>> _ms(41_234.5), _ms(0.3)
    ('41.2 ms', '0.0003 ms')
    """
    return f"{us / 1e3:,.3g} ms"


def _ordinal(number: int) -> str:
    """
    >>> _ordinal(2), _ordinal(6), _ordinal(11), _ordinal(23)
    ('2nd', '6th', '11th', '23rd')
    """
    is_teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
