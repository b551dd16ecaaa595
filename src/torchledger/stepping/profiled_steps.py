"""A few plain steps are timed, and then a few of the most frequent kind recorded under the profiler."""

from __future__ import annotations

from torchledger.claims import claim
from torchledger.stepping.finder import FoundStep
from torchledger.stepping.listening import begin_hearing
from torchledger.stepping.marks import STEP_MARK
from torchledger.stepping.states import MOST_TRIES, State, States

_PAUSES = 4
"""Before a session is begun anew, 0 to 3 steps pass in turn: steps of two kinds may alternate as sessions do."""

_OVERTAKES = 2
"""How many times as often as the kind to record another one has come before that takes its place."""


def time_step(states: States, step: FoundStep) -> None:
    """A plain step has ended: once there are enough, a session begins."""
    states.steps.append(step.calls)
    states.clock.tick()
    usual = states.finder.usual
    if states.steps.count(usual or ()) < states.timed and len(states.steps) < states.timed + states.patience:
        return
    states.tools.synchronize()
    states.wanted = usual
    states.keep_plain()
    begin_session(states)


def begin_session(states: States) -> None:
    """Record the steps behind the next one."""
    if states.tools.is_profiling():
        states.fall_back("another profiler is running: it owns the device's clock")
        return
    states.session.open(states.tools.recording())
    states.calls_elsewhere = states.finder.other_threads.total()
    states.now, states.steps = State.SETTLING, []


@claim
def record_step(states: States, step: FoundStep) -> bool:
    """A step that may be one to record has ended; true: passed over, it would be taken for a part of the next."""
    counted = states.finder.counted
    if not states.steps and counted[step.calls] >= _OVERTAKES * counted[states.wanted or ()]:
        # What seemed the most frequent kind when steps were timed has turned out not to be.
        states.wanted = step.calls
        states.outcome.update(plain_us=(), issued_us=())
    is_wanted = step.calls == states.wanted
    is_row = bool(states.steps) and len(states.steps) >= states.longest_row[states.steps[-1]]
    if not is_wanted and not is_row and states.tries < states.patience:
        states.drop_session()
        n_steps, states.tries = states.tries % _PAUSES, states.tries + 1
        if n_steps:
            states.pause(n_steps, begin_session)
        else:
            begin_session(states)
        return True
    if not is_wanted and not states.steps:
        states.wanted = step.calls
        if states.finder.comes_again:
            states.outcome.notes.append(
                f"steps of the most frequent kind did not come again in {MOST_TRIES} tries: another kind is recorded"
            )
            states.outcome.update(plain_us=(), issued_us=())
        else:
            states.outcome.notes.append(
                f"hardly two of {states.finder.seen} steps make the same calls: one of them is recorded, all are timed"
            )
    if step.calls == states.wanted:
        states.steps.append(step.calls)
        # Before the mark ends, as the first tick lies before the first mark: what both cost falls into both times.
        states.clock.tick()
        states.session.close_step()
        if len(states.steps) < states.repeats:
            states.session.open_step(states.tools.mark, len(states.steps))
            return True
    end_times(states)
    if states.now is State.RECORDING:
        states.tries = 0
        begin_hearing(states)
    return True


def end_times(states: States, *, has_too_few: str | None = None) -> None:
    """End the recording of times with the steps that it has; ``has_too_few`` says why those are not all."""
    states.session.close_step()
    states.tools.synchronize()
    n_steps = max(len(states.steps), 1)
    states.outcome.update(n_steps=n_steps)
    if states.steps:
        durations = states.clock.durations_us()
        # A GPU works behind the host, whose single steps say little of its own.
        mean = (sum(durations) / len(durations),)
        states.outcome.update(profiled_us=mean if states.tools.has_cuda() else tuple(durations))
    if has_too_few is not None or 0 < len(states.steps) < states.repeats:
        were = "was" if len(states.steps) == 1 else "were"
        states.outcome.notes.append(has_too_few or f"{len(states.steps)} of {states.repeats} steps {were} recorded")
    recording = states.session.close()
    if states.tools.has_cuda() and not recording.saw_device():
        recording.discard()
        states.fall_back("the profiler recorded nothing of the device (is CUPTI there?)")
        return
    marks = [f"{STEP_MARK}#{index}" for index in range(n_steps)]
    allocations, states.operators = recording.allocations(marks), recording.operators(marks)
    states.outcome.update(allocations=allocations, times=recording.export(), found_by=states.finder.found_by)
    states.outcome.drop_former_times()
