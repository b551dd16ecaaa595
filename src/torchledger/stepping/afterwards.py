"""After a recording: plain steps are timed once more, or all of it begins again for a kind that has become more."""

from __future__ import annotations

from torchledger.stepping.finder import FoundStep
from torchledger.stepping.states import State, States

_AFTER_STEPS, _MOST_AFTER = 2, 400
"""After the recording at least, and at most, so many plain steps are timed."""


def begin_after(states: States) -> None:
    """Time plain steps from here on."""
    states.tools.synchronize()
    states.begin_timing(State.AFTER)


def time_after(states: States, step: FoundStep) -> None:
    """A plain step has ended: after enough of them, so has the recording."""
    states.steps.append(step.calls)
    states.clock.tick()
    if _is_outnumbered(states):
        _record_anew(states)
        return
    n_wanted = states.steps.count(states.wanted or ())
    is_enough = n_wanted >= _AFTER_STEPS and states.clock.elapsed_us >= states.after_us
    if is_enough or len(states.steps) >= _MOST_AFTER:
        states.keep_plain()
        states.end()


def _is_outnumbered(states: States) -> bool:
    """Whether steps of the recorded kind come no more since something compiled, and those of another kind have
    become more: what was recorded were the steps of before."""
    usual, counted = states.finder.usual, states.finder.counted
    if states.outcome.before is not None or states.meeting is not None or not states.outcome.kinds_before or not usual:
        return False
    wanted = states.wanted or ()
    return not counted[wanted] and counted[usual] > states.outcome.kinds_before[wanted]


def _record_anew(states: States) -> None:
    """Begin a second recording; the first stays for a program that ends before it is there."""
    states.keep_plain()
    states.outcome.set_aside(states.wanted or ())
    states.operators, states.n_heard, states.tries = (), 0, 0
    states.begin_timing(State.TIMING)
