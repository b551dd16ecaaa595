"""What follows from the end of a step: the move from one state of a recording to the next."""

from __future__ import annotations

from torchledger.stepping.afterwards import begin_after, time_after
from torchledger.stepping.finder import FoundStep
from torchledger.stepping.listening import begin_hearing, count_step, hear_no_more, hear_step, keep_heard
from torchledger.stepping.profiled_steps import begin_session, end_times, record_step, time_step
from torchledger.stepping.states import MOST_TRIES, TOO_SOON, UNDER_PROFILER, State, States


def advance(states: States, step: FoundStep | None) -> None:
    """A step has ended; ``None`` if what ended is not known to be one."""
    states.ended["period"] += 1
    has_compiled, states.has_compiled = states.has_compiled, False
    states.functions.step_ended()
    if step is not None:
        states.row = (step.calls, states.row[1] + 1 if states.row[0] == step.calls else 1)
        states.longest_row[step.calls] = max(states.longest_row[step.calls], states.row[1])
    if states.now is State.WARMING:
        _warm(states)
    elif step is None:
        return
    elif has_compiled and states.now not in (State.COUNTING, State.AFTER, State.BY_EVENTS):
        states.begin_again()
    elif states.now is State.TIMING:
        time_step(states, step)
    elif states.now is State.PAUSING:
        states.step_passed()
    elif states.now is State.SETTLING:
        states.now = State.RECORDING
        states.tools.synchronize()
        states.clock = states.tools.clock()
        states.clock.tick()
        states.session.open_step(states.tools.mark, 0)
    elif states.now is State.RECORDING:
        record_step(states, step)
    elif states.now is State.HEARING:
        hear_step(states, step)
    elif states.now is State.COUNTING:
        count_step(states, step)
    elif states.now is State.AFTER:
        time_after(states, step)
    elif states.now is State.LINGERING:
        states.linger()
    elif states.now is State.BY_EVENTS:
        states.outcome.update(n_steps=states.outcome.found.n_steps + 1)
        if states.outcome.found.n_steps >= states.repeats:
            states.end()


def _warm(states: States) -> None:
    finder = states.finder
    if finder.found_by is None or not (finder.is_settled and finder.knows_turns):
        return
    is_together = finder.seen >= states.warmup - 1 and _has_met(states)
    if finder.seen < states.warmup or not is_together:
        return
    if states.only_hears and not finder.is_believed:
        return
    if finder.turns is not None and finder.turns > 1:
        states.outcome.notes.append(
            f"every {finder.turns} steps of the optimizer are one step here: they take turns, and no kind of them is "
            "the most frequent"
        )
    finder.keeps_owner, states.recorded_by = True, finder.found_by
    if states.only_hears:
        states.wanted = finder.usual
        begin_hearing(states)
        return
    states.tools.synchronize()
    states.begin_timing(State.TIMING)


def _has_met(states: States) -> bool:
    """True once the other ranks begin, too: one step after this rank and they are ready, which is the last step of
    the warm-up where all warm up alike."""
    if states.meeting is None:
        states.meeting = None if states.only_hears or states.warmup < 1 else states.find_meeting()
    if states.meeting is None:
        return True
    states.tools.synchronize()  # so that no rank's host is steps ahead of the others'
    begins = states.meeting.may_begin(_count_of_steps(states))
    if begins and states.meeting.note is not None and states.meeting.note not in states.outcome.notes:
        states.outcome.notes.append(states.meeting.note)
    return begins


def _count_of_steps(states: States) -> int:
    """The number of the step that has ended, the same on all ranks, whatever each has compiled."""
    if states.finder.found_by == "optimizer":
        return states.ended["optimizer"] // states.finder.optimizers_in_step
    return states.ended[states.finder.found_by or "period"]


def interrupt(states: States) -> None:
    """The process is about to fork, as for the workers of an epoch: its child may not inherit what is open. That is
    begun anew behind the step under way; steps that were recorded are kept."""
    if states.now is State.COUNTING:
        states.drop_session()
        states.outcome.why_no_count = "the program began a process in the step that was counted"
        begin_after(states)
        return
    if states.now is State.RECORDING and states.steps:
        said = f"the program began a process after {len(states.steps)} of {states.repeats} steps to profile"
        end_times(states, has_too_few=said)
        if states.now is State.RECORDING:
            states.tries = 0
            states.pause(1, begin_hearing)
        return
    resume = begin_hearing if states.now is State.HEARING else begin_session
    states.drop_session()
    states.tries += 1
    if states.tries <= MOST_TRIES:
        states.pause(1, resume)
    elif resume is begin_session:
        states.give_up(f"the program began a process in each of {MOST_TRIES} recordings of its steps")
    else:
        states.outcome.not_heard("eager operators were not heard: the program began a process in each step")
        hear_no_more(states)


def cut(states: States) -> None:
    """End what is open in the middle of a step."""
    if not states.session.is_open:
        return
    if states.has_lost_session():
        states.lose_session()
    elif states.now in UNDER_PROFILER:
        _stop_early(states)
    else:
        listener = states.session.close()
        if states.now is State.HEARING and states.finder.under_way == states.wanted:
            keep_heard(states, listener)
        states.end()


def _stop_early(states: States) -> None:
    """The program ends in the middle of a step: keep the steps before it, or that one if there are none and it has
    all calls of one: what a program does behind its last step is none."""
    if not states.steps and states.finder.under_way != states.wanted:
        states.drop_session()
        states.outcome.why_not = TOO_SOON
        states.end()
        return
    if states.steps:
        said = f"the program ended after {len(states.steps)} of {states.repeats} steps to profile"
    elif states.now is State.RECORDING:
        said = "the program ended in the first step to profile: its time on the host is not known"
    else:
        said = "the program ended in the first step under the profiler, which is slower than later ones"
    end_times(states, has_too_few=said)
    if states.now is not State.BY_EVENTS:
        states.end()
