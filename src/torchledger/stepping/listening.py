"""One step is heard for its eager operators, and one more, with nothing compiled, counted for its FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchledger.stepping.afterwards import begin_after
from torchledger.stepping.finder import FoundStep
from torchledger.stepping.outcome import optimizers_in
from torchledger.stepping.states import MOST_TRIES, State, States

if TYPE_CHECKING:
    from torchledger._torch.eager_calls import EagerCall

_MOST_HEARD = 5
"""How many steps are heard at most until one has no operator more often than a recorded one: a program may write a log,
or begin anew, in some of its steps."""


def begin_hearing(states: States) -> None:
    """Hear the step that begins; where that cannot be, go on without."""
    if states.session.open(states.tools.listener(states.graph_calls.inside)):
        states.now = State.HEARING
    else:
        states.outcome.not_heard("eager operators were not heard: the program runs in a dispatch mode of its own")
        _begin_counting(states)


def hear_step(states: States, step: FoundStep) -> None:
    """A step has ended that was heard: keep it, or hear another one."""
    listener = states.session.close()
    states.n_heard += step.calls == states.wanted
    if step.calls == states.wanted and (states.n_heard == _MOST_HEARD or _is_like_recorded(states, listener.calls)):
        keep_heard(states, listener)
    elif step.calls == states.wanted:
        begin_hearing(states)
        return
    elif states.tries < MOST_TRIES:
        states.tries += 1
        if states.only_hears:  # what was taken for a step before may have been a part of one
            states.wanted = states.finder.usual or states.wanted
        begin_hearing(states)
        return
    elif states.only_hears:
        states.wanted = step.calls
        states.outcome.notes.append(
            f"no step of {states.tries + 1} was like the most frequent: the last of them is recorded"
        )
        keep_heard(states, listener)
    _begin_counting(states)


def _is_like_recorded(states: States, heard: Sequence[EagerCall]) -> bool:
    """Whether some recorded step has every operator at least as often as the step that was heard."""
    from torchledger.stepping.record import counted_names

    if not states.operators or states.meeting is not None:  # ranks go on together
        return True
    names = counted_names(heard)
    return any(names <= operators for operators in states.operators)


def keep_heard(states: States, listener: Any) -> None:
    """Keep what was heard of a step."""
    states.outcome.update(heard=tuple(listener.calls), memory=listener.memory)
    if states.outcome.found.allocations is not None and states.finder.other_threads.total() > states.calls_elsewhere:
        states.outcome.update(allocations=None)
        states.outcome.notes.append(
            "no peak was counted: other threads have tensors, and a profile counts one thread's"
        )
    if listener.faults:
        states.outcome.not_heard(f"not heard of the step ({len(listener.faults)}): {listener.faults[0]}")


def hear_no_more(states: States) -> None:
    """Go on without an eager step that is counted."""
    if states.only_hears:
        states.linger()
    else:
        begin_after(states)


def _begin_counting(states: States) -> None:
    if states.only_hears or not states.counts_eager:
        hear_no_more(states)
        return
    states.now = State.COUNTING
    if states.finder.found_by != "period" or not states.has_graphs():
        _count_now(states)
        return
    # This step began inside a compiled function, and an eager one calls no graphs: the calls of that function
    # tell where the next step begins, and where it ends.
    if not states.functions.wait():
        states.outcome.why_no_count = "what calls the graphs was not seen"
        begin_after(states)


def before_function(states: States, function: int) -> None:
    """A compiled function, given by ``id``, is about to be called from outside."""
    if states.now is not State.COUNTING:
        states.functions.called(function)
    elif not states.functions.has_come(function):
        return
    elif states.session.is_open:
        _keep_count(states)
        begin_after(states)
    else:
        states.functions.wait()
        _count_now(states)


def _count_now(states: States) -> None:
    if not states.session.open(states.tools.eager_flops()):
        states.outcome.why_no_count = "the program runs in a dispatch mode or a compiled region"
        begin_after(states)


def count_step(states: States, step: FoundStep) -> None:
    """A step has ended that may have been counted."""
    if not states.session.is_open or (states.finder.found_by == "period" and states.has_graphs()):
        return
    states.finder.forget(step)
    if optimizers_in(step.calls) == optimizers_in(states.wanted or ()):
        _keep_count(states)
    else:
        states.session.close()
        states.tries += 1
        if states.tries < MOST_TRIES:
            _count_now(states)
            return
        states.outcome.why_no_count = f"the recorded kind did not come in {MOST_TRIES} tries"
    begin_after(states)


def _keep_count(states: States) -> None:
    counted = states.session.close()
    if counted.faults:
        states.outcome.why_no_count = str(counted.faults[0])
    else:
        states.outcome.update(eager_flops=counted.by_operator())
