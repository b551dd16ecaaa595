"""After a recording: plain steps are timed once more, or all of it begins again for a kind that has become more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchledger.stepping.finder import FoundStep
from torchledger.stepping.quiet import QuietSteps, calls_of_graphs, is_here
from torchledger.stepping.states import State, States

_AFTER_STEPS, _MOST_AFTER = 2, 400
"""After the recording at least, and at most, so many plain steps are timed."""


def begin_after(states: States) -> None:
    """Time plain steps from here on, quietly where all steps so far were alike."""
    states.tools.synchronize()
    states.begin_timing(State.AFTER)
    wanted = states.wanted or ()
    calls = calls_of_graphs(wanted, list(states.graphs().values())).total()
    if not calls or states.finder.other_threads or set(states.finder.counted) != {wanted}:
        return
    # By the period of its calls a step begins with the one that is about to be made, else with the next.
    before_first = calls - 1 if states.finder.found_by == "period" else 0
    quiet = QuietSteps(calls, before_first, states.quietly(lambda graphs: _quiet_step_begins(states, graphs)))
    if states.ask_quiet(quiet.called):
        states.quiet, states.clock = quiet, states.tools.clock()


def _quiet_step_begins(states: States, graphs: Sequence[int]) -> None:
    quiet = states.quiet
    if quiet is None:
        return
    quiet.n_begun += 1
    if quiet.n_begun > 1:
        if quiet.usual is None:
            quiet.usual = list(graphs) if _are_wanted(states, graphs) else []
        if graphs != quiet.usual or not is_here(states.finder.owner):
            hear_again(states)
            return
        states.steps.append(states.wanted or ())
    states.clock.tick()
    if quiet.n_begun > 1 and _are_enough(states, len(states.steps)):
        states.keep_plain()
        states.end()


def _are_wanted(states: States, graphs: Sequence[int]) -> bool:
    names = states.graphs()
    wanted = calls_of_graphs(states.wanted or (), list(names.values()))
    return Counter(names.get(graph, "") for graph in graphs) == wanted


def hear_again(states: States) -> None:
    """What was counted are no steps, or something is told that quiet steps do not have: hear everything again."""
    states.end_quiet()
    states.begin_timing(State.AFTER)


def time_after(states: States, step: FoundStep) -> None:
    """A plain step has ended: after enough of them, so has the recording."""
    if states.quiet is not None:
        hear_again(states)
        return
    states.steps.append(step.calls)
    states.clock.tick()
    if _is_outnumbered(states):
        _record_anew(states)
        return
    if _are_enough(states, states.steps.count(states.wanted or ())):
        states.keep_plain()
        states.end()


def _are_enough(states: States, n_wanted: int) -> bool:
    is_long = n_wanted >= _AFTER_STEPS and states.clock.elapsed_us >= states.after_us
    return is_long or len(states.steps) >= _MOST_AFTER


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
