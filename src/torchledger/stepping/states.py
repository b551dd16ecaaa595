"""What the step under way is for, and what follows from its end: the states of a recording of steps.

Moved on the one thread whose steps these are, by ``recorder.py``, which hears the program and guards what is done here.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from torchledger.claims import claim
from torchledger.nouns import StepFoundBy
from torchledger.signals import let_through
from torchledger.stepping.finder import FoundStep, Signature, StepFinder
from torchledger.stepping.function_calls import FunctionCalls
from torchledger.stepping.graph_calls import GraphCalls
from torchledger.stepping.marks import STEP_MARK
from torchledger.stepping.meeting import Meeting
from torchledger.stepping.outcome import Outcome, optimizers_in
from torchledger.stepping.recording import StepRecording
from torchledger.stepping.session import Session
from torchledger.stepping.tools import Tools
from torchledger.work.graph_names import direction_of

if TYPE_CHECKING:
    from torchledger._torch.eager_calls import EagerCall

log = logging.getLogger(__name__)

_MOST_TRIES = 8
"""How often a session is begun anew because another kind of step came, or something compiled in it."""

_PAUSES = 4
"""Before a session is begun anew, 0 to 3 steps pass in turn: steps of two kinds may alternate as sessions do."""

_MOST_HEARD = 5
"""How many steps are heard at most until one has no operator more often than a recorded one: a program may write a log,
or begin anew, in some of its steps."""

_AFTER_STEPS, _MOST_AFTER = 2, 100
"""After the recording at least, and at most, so many plain steps are timed."""


class State(Enum):
    """What the step under way is for."""

    WARMING = auto()
    TIMING = auto()
    PAUSING = auto()
    SETTLING = auto()
    RECORDING = auto()
    HEARING = auto()
    COUNTING = auto()
    AFTER = auto()
    BY_EVENTS = auto()
    DONE = auto()


_TOO_SOON = "the program ended before a step of the most frequent kind came again: give it some more steps"

_PLAIN = (State.WARMING, State.TIMING, State.PAUSING, State.AFTER)
_UNDER_PROFILER = (State.SETTLING, State.RECORDING)


class States:
    """Moves at the end of each step, from plain steps to recorded ones and back; ``found`` is what came of it so far.

    ``tools`` is asked for where it is needed first, ``finder`` knows the steps, ``has_graphs`` says whether the program
    has compiled something that lives. The other arguments are those of ``StepRecorder``.
    """

    def __init__(
        self,
        tools: Callable[[], Tools],
        finder: StepFinder,
        *,
        warmup: int,
        timed: int,
        repeats: int,
        after_us: float,
        counts_eager: bool,
        only_hears: bool,
        has_graphs: Callable[[], bool],
        on_done: Callable[[], None],
        on_again: Callable[[], bool],
        later_steps: Callable[[], Mapping[Hashable, int]],
        on_thread_end: Callable[[], None],
        find_meeting: Callable[[], Meeting | None],
    ) -> None:
        self.now = State.WARMING
        self.warmup, self._timed, self._repeats = warmup, timed, repeats
        self._ask_tools, self._finder = tools, finder
        self._after_us = after_us
        self._counts_eager = counts_eager
        self._only_hears = only_hears
        self._has_graphs = has_graphs
        self._on_done, self._on_again, self._later_steps = on_done, on_again, later_steps
        self._find_meeting = find_meeting
        self.meeting: Meeting | None = None
        self.ended: Counter[str] = Counter()
        self.has_compiled = False
        self.tries = 0
        self._wanted: Signature | None = None
        self._clock: Any = None
        self._steps: list[Signature] = []
        self._pauses = 0
        self._row: tuple[Signature | None, int] = (None, 0)
        self._longest_row: Counter[Signature] = Counter()
        self._functions = FunctionCalls()
        self.outcome = Outcome()
        self.session = Session(on_thread_end)
        self.graph_calls = GraphCalls(self.outcome.notes)
        self.call_timer: Any = None
        self._calls_elsewhere = 0
        self._is_closed = False
        self._trainer: Hashable = None
        self._recorded_by: StepFoundBy | None = None
        self._operators: tuple[Counter[str], ...] = ()
        self._n_heard = 0

    @property
    def _tools(self) -> Tools:
        return self._ask_tools()

    @property
    def is_plain(self) -> bool:
        """True while a step costs what it costs without us: nothing is open."""
        return self.now in _PLAIN and not self.session.is_open

    @property
    def needed(self) -> int:
        """How many steps without compilation it takes before one is recorded."""
        return self.warmup + (0 if self._only_hears else self._timed) + 1

    def compiles(self) -> None:
        """Something was compiled: the steps seen before begin anew, but what was recorded keeps those it came of."""
        if self.outcome.found.times is not None:
            self.outcome.kinds_before += self._finder.counted
        self._finder.compiled()
        if self.now is State.DONE:
            self.outcome.compiles_later(self._later_steps().get(self._finder.owner, 0))
        if self.now is State.TIMING:
            self.begin_again()
        self.has_compiled = True

    # --- what the program does in a step ------------------------------------------------------------------------

    def before_function(self, function: int) -> None:
        """A compiled function, given by ``id``, is about to be called from outside."""
        if self.now is not State.COUNTING:
            self._functions.called(function)
        elif not self._functions.has_come(function):
            return
        elif self.session.is_open:
            self._keep_count()
            self._begin_after()
        else:
            self._functions.wait()
            self._count_now()

    def ignores(self, optimizer: Any) -> bool:
        """True while an eager step is counted and this optimizer was not in the recorded one: it steps for others."""
        return self.now is State.COUNTING and id(optimizer) not in self.outcome.optimizers

    def optimizer_stepped(self, optimizer: Any) -> None:
        """An optimizer has made its step: in the step that is heard, note what it updates."""
        if self.now is not State.HEARING:
            return
        if id(optimizer) not in self.outcome.optimizers:
            self.outcome.optimizers[id(optimizer)] = self._tools.facts_of_optimizer(optimizer)
        if self.session.is_open:
            try:
                self.session.tool.optimizer_stepped()
            except Exception as error:  # the step is heard all the same
                let_through(error)
                log.debug("the gradients were not named", exc_info=error)

    # --- from step to step --------------------------------------------------------------------------------------

    def advance(self, step: FoundStep | None) -> None:
        """A step has ended; ``None`` if what ended is not known to be one."""
        self.ended["period"] += 1
        has_compiled, self.has_compiled = self.has_compiled, False
        self._functions.step_ended()
        if step is not None:
            self._row = (step.calls, self._row[1] + 1 if self._row[0] == step.calls else 1)
            self._longest_row[step.calls] = max(self._longest_row[step.calls], self._row[1])
        if self.now is State.WARMING:
            self._warm()
        elif step is None:
            return
        elif has_compiled and self.now not in (State.COUNTING, State.AFTER, State.BY_EVENTS):
            self.begin_again()
        elif self.now is State.TIMING:
            self._time(step)
        elif self.now is State.PAUSING:
            self._pause()
        elif self.now is State.SETTLING:
            self.now = State.RECORDING
            self._tools.synchronize()
            self._clock = self._tools.clock()
            self._clock.tick()
            self.session.open_step(self._tools.mark, 0)
        elif self.now is State.RECORDING:
            self._record(step)
        elif self.now is State.HEARING:
            self._hear(step)
        elif self.now is State.COUNTING:
            self._count(step)
        elif self.now is State.AFTER:
            self._time_after(step)
        elif self.now is State.BY_EVENTS:
            self.outcome.update(n_steps=self.outcome.found.n_steps + 1)
            if self.outcome.found.n_steps >= self._repeats:
                self.end()

    def _warm(self) -> None:
        if self._finder.found_by is None or not self._finder.is_settled:
            return
        is_together = self._finder.seen >= self.warmup - 1 and self._has_met()
        if self._finder.seen < self.warmup or not is_together:
            return
        if self._only_hears and not self._finder.is_believed:
            return
        self._finder.keeps_owner, self._recorded_by = True, self._finder.found_by
        if self._only_hears:
            self._wanted = self._finder.usual
            self._begin_hearing()
            return
        self._tools.synchronize()
        self.now, self._steps, self._clock = State.TIMING, [], self._tools.clock()
        self._clock.tick()

    def _has_met(self) -> bool:
        """True once the other ranks begin, too: one step after this rank and they are ready, which is the last step of
        the warm-up where all warm up alike."""
        if self.meeting is None:
            self.meeting = None if self._only_hears or self.warmup < 1 else self._find_meeting()
        if self.meeting is None:
            return True
        self._tools.synchronize()  # so that no rank's host is steps ahead of the others'
        begins = self.meeting.may_begin(self._count_of_steps())
        if begins and self.meeting.note is not None and self.meeting.note not in self.outcome.notes:
            self.outcome.notes.append(self.meeting.note)
        return begins

    def _count_of_steps(self) -> int:
        """The number of the step that has ended, the same on all ranks, whatever each has compiled."""
        if self._finder.found_by == "optimizer":
            return self.ended["optimizer"] // self._finder.optimizers_in_step
        return self.ended[self._finder.found_by or "period"]

    def _time(self, step: FoundStep) -> None:
        self._steps.append(step.calls)
        self._clock.tick()
        usual = self._finder.usual
        if self._steps.count(usual or ()) < self._timed and len(self._steps) < self._timed + _MOST_TRIES:
            return
        self._tools.synchronize()
        self._wanted = usual
        self.outcome.update(plain_us=self._wanted_times())
        self._begin_session()

    def _wanted_times(self) -> tuple[float, ...]:
        """Times of the plain steps that are of the kind to be recorded."""
        durations = self._clock.durations_us()
        return tuple(took for took, calls in zip(durations, self._steps, strict=False) if calls == self._wanted)

    def _begin_session(self) -> None:
        if self._tools.is_profiling():
            self._fall_back("another profiler is running: it owns the device's clock")
            return
        self.session.open(self._tools.recording())
        self._calls_elsewhere = self._finder.other_threads.total()
        self.now, self._steps = State.SETTLING, []

    @claim
    def _record(self, step: FoundStep) -> bool:
        """A step that may be one to record has ended; true: passed over, it would be taken for a part of the next."""
        is_wanted = step.calls == self._wanted
        is_row = bool(self._steps) and len(self._steps) >= self._longest_row[self._steps[-1]]
        if not is_wanted and not is_row and self.tries < _MOST_TRIES:
            self._drop_session()
            self._pauses, self.tries = self.tries % _PAUSES + 1, self.tries + 1
            self.now = State.PAUSING
            self._pause()
            return True
        if not is_wanted and not self._steps:
            self.outcome.notes.append(
                f"steps of the most frequent kind did not come again in {_MOST_TRIES} tries: another kind is recorded"
            )
            self._wanted = step.calls
            self.outcome.update(plain_us=())
        if step.calls == self._wanted:
            self._steps.append(step.calls)
            # Before the mark ends, as the first tick lies before the first mark: what both cost falls into both times.
            self._clock.tick()
            self.session.close_step()
            if len(self._steps) < self._repeats:
                self.session.open_step(self._tools.mark, len(self._steps))
                return True
        self._end_times()
        if self.now is State.RECORDING:
            self.tries = 0
            self._begin_hearing()
        return True

    def _pause(self) -> None:
        self._pauses -= 1
        if self._pauses == 0:
            self._begin_session()

    def _end_times(self, *, has_too_few: str | None = None) -> None:
        """End the recording of times with the steps that it has; ``has_too_few`` says why those are not all."""
        self.session.close_step()
        self._tools.synchronize()
        n_steps = max(len(self._steps), 1)
        self.outcome.update(n_steps=n_steps)
        if self._steps:
            durations = self._clock.durations_us()
            self.outcome.update(profiled_us=(sum(durations) / len(durations),))
        if has_too_few is not None or 0 < len(self._steps) < self._repeats:
            self.outcome.notes.append(has_too_few or f"{len(self._steps)} of {self._repeats} steps were recorded")
        recording = self.session.close()
        if self._tools.has_cuda() and not recording.saw_device():
            recording.discard()
            self._fall_back("the profiler recorded nothing of the device (is CUPTI there?)")
            return
        marks = [f"{STEP_MARK}#{index}" for index in range(n_steps)]
        allocations, self._operators = recording.allocations(marks), recording.operators(marks)
        self.outcome.update(allocations=allocations, times=recording.export(), found_by=self._finder.found_by)
        self.outcome.drop_former_times()

    def _begin_hearing(self) -> None:
        if self.session.open(self._tools.listener(self.graph_calls.inside)):
            self.now = State.HEARING
        else:
            self.outcome.not_heard("eager operators were not heard: the program runs in a dispatch mode of its own")
            self._begin_counting()

    def _hear(self, step: FoundStep) -> None:
        listener = self.session.close()
        self._n_heard += step.calls == self._wanted
        if step.calls == self._wanted and (self._n_heard == _MOST_HEARD or self._is_like_recorded(listener.calls)):
            self._keep_heard(listener)
        elif step.calls == self._wanted:
            self._begin_hearing()
            return
        elif self.tries < _MOST_TRIES:
            self.tries += 1
            if self._only_hears:  # what was taken for a step before may have been a part of one
                self._wanted = self._finder.usual or self._wanted
            self._begin_hearing()
            return
        elif self._only_hears:
            self._wanted = step.calls
            self.outcome.notes.append(
                f"no step of {self.tries + 1} was like the most frequent: the last of them is recorded"
            )
            self._keep_heard(listener)
        self._begin_counting()

    def _is_like_recorded(self, heard: Sequence[EagerCall]) -> bool:
        """Whether some recorded step has every operator at least as often as the step that was heard."""
        from torchledger.stepping.record import counted_names

        if not self._operators or self.meeting is not None:  # ranks go on together
            return True
        names = counted_names(heard)
        return any(names <= operators for operators in self._operators)

    def _keep_heard(self, listener: Any) -> None:
        self.outcome.update(heard=tuple(listener.calls), memory=listener.memory)
        if self.outcome.found.allocations is not None and self._finder.other_threads.total() > self._calls_elsewhere:
            self.outcome.update(allocations=None)
            self.outcome.notes.append(
                "no peak was counted: other threads have tensors, and a profile counts one thread's"
            )
        if listener.faults:
            self.outcome.not_heard(f"not heard of the step ({len(listener.faults)}): {listener.faults[0]}")

    def _begin_counting(self) -> None:
        if self._only_hears:
            self.end()
            return
        if not self._counts_eager:
            self._begin_after()
            return
        self.now = State.COUNTING
        if self._finder.found_by != "period" or not self._has_graphs():
            self._count_now()
            return
        # This step began inside a compiled function, and an eager one calls no graphs: the calls of that function
        # tell where the next step begins, and where it ends.
        if not self._functions.wait():
            self.outcome.why_no_count = "what calls the graphs was not seen"
            self._begin_after()

    def _count_now(self) -> None:
        if not self.session.open(self._tools.eager_flops()):
            self.outcome.why_no_count = "the program runs in a dispatch mode or a compiled region"
            self._begin_after()

    def _count(self, step: FoundStep) -> None:
        if not self.session.is_open or (self._finder.found_by == "period" and self._has_graphs()):
            return
        self._finder.forget(step)
        if optimizers_in(step.calls) == optimizers_in(self._wanted or ()):
            self._keep_count()
        else:
            self.session.close()
            self.tries += 1
            if self.tries < _MOST_TRIES:
                self._count_now()
                return
            self.outcome.why_no_count = f"the recorded kind did not come in {_MOST_TRIES} tries"
        self._begin_after()

    def _keep_count(self) -> None:
        counted = self.session.close()
        if counted.faults:
            self.outcome.why_no_count = str(counted.faults[0])
        else:
            self.outcome.update(eager_flops=counted.by_operator())

    def _begin_after(self) -> None:
        self._tools.synchronize()
        self.now, self._steps, self._clock = State.AFTER, [], self._tools.clock()
        self._clock.tick()

    def _time_after(self, step: FoundStep) -> None:
        self._steps.append(step.calls)
        self._clock.tick()
        if self._is_outnumbered():
            self._record_anew()
            return
        n_wanted = self._steps.count(self._wanted or ())
        is_enough = n_wanted >= _AFTER_STEPS and self._clock.elapsed_us >= self._after_us
        if is_enough or len(self._steps) >= _MOST_AFTER:
            self.outcome.update(plain_after_us=self._wanted_times())
            self.end()

    def _is_outnumbered(self) -> bool:
        """Whether steps of the recorded kind come no more since something compiled, and those of another kind have
        become more: what was recorded were the steps of before."""
        usual, counted = self._finder.usual, self._finder.counted
        if self.outcome.before is not None or self.meeting is not None or not self.outcome.kinds_before or not usual:
            return False
        wanted = self._wanted or ()
        return not counted[wanted] and counted[usual] > self.outcome.kinds_before[wanted]

    def _record_anew(self) -> None:
        """Begin a second recording; the first stays for a program that ends before it is there."""
        self.outcome.update(plain_after_us=self._wanted_times())
        self.outcome.set_aside(self._wanted or ())
        self._operators, self._n_heard, self.tries = (), 0, 0
        self.now, self._steps, self._clock = State.TIMING, [], self._tools.clock()
        self._clock.tick()

    # --- training that begins behind recorded calls --------------------------------------------------------------

    @property
    def waits_for_training(self) -> bool:
        """Whether calls are or were recorded that no optimizer follows: the first step of one begins anew, once."""
        is_possible = (
            self.outcome.of_calls is None and self.meeting is None and not self._only_hears and not self._is_closed
        )
        return (
            is_possible
            and self._recorded_by == "period"
            and self.outcome.why_not is None
            and not self._finder.owner_updates
        )

    def puts_off_training(self, thread: Hashable) -> bool:
        """An optimizer has made a step on ``thread``. Where calls that nothing updates were taken for steps, those of
        this thread are looked for instead: at once, or, which makes this True, when what is open on another thread has
        ended there.

        A backward among those calls tells that they are a training whose optimizer has a thread of its own.
        """
        if self.now is State.WARMING or not self.waits_for_training:
            return False
        is_own = thread == self._finder.owner
        called = self._wanted or self._finder.usual or ()
        if self.now is not State.DONE if is_own else any(direction_of(name) == "backward" for name, _ in called):
            return False
        if self.session.is_open:
            self._trainer = thread
            return True
        if self.now is not State.DONE or self._on_again():
            self._begin_for(thread)
        return False

    def _begin_for(self, thread: Hashable) -> None:
        """Look for the steps of a thread that trains; what was recorded stays for a program that ends before that."""
        self.outcome.set_calls_aside(self.found())
        self._trainer = self._wanted = None
        self._operators, self._n_heard, self.tries = (), 0, 0
        self._row, self._longest_row = (None, 0), Counter()
        self.ended.clear()
        self.now, self._steps, self.has_compiled = State.WARMING, [], False
        self._finder.hand_over(thread)

    # --- what is open, and how it ends -----------------------------------------------------------------------------

    def _drop_session(self) -> None:
        if self.session.is_open:
            self.session.close_step()
            dropped = self.session.close()
            if self.now in _UNDER_PROFILER:
                dropped.discard()

    def begin_again(self) -> None:
        """Something compiled where nothing should: wait until the program has warmed up again."""
        self._drop_session()
        self.tries += 1
        if self.tries > _MOST_TRIES:
            self.give_up(f"the program compiled in each of {_MOST_TRIES} steps to record")
            return
        self._finder.keeps_owner = False
        self.now, self._steps = State.WARMING, []
        self.outcome.update(plain_us=())

    def has_lost_session(self) -> bool:
        """True if the program has begun a profile of its own, which ended ours."""
        return self.session.is_open and self.now in _UNDER_PROFILER and self.session.is_lost

    def lose_session(self) -> None:
        """The program has begun a profile of its own, which ended ours or waits for its end."""
        self.session.forget().leave()
        self._fall_back("the program started a profiler of its own meanwhile: it owns the device's clock")

    def _fall_back(self, reason: str) -> None:
        """Without the device's own records: on a GPU time the next steps' graphs by events, and say so."""
        self.outcome.why_not = reason
        self.outcome.update(n_steps=0)
        if self._tools.has_cuda():
            self.call_timer = self._tools.call_timer()
            self.now = State.BY_EVENTS
        else:
            self.end()

    def give_up(self, reason: str) -> None:
        """Record nothing further; what is open on this thread is closed, whatever comes of it."""
        self.outcome.why_not = self.outcome.why_not or reason
        is_recording = self.now in _UNDER_PROFILER
        self.now = State.DONE
        if self.session.is_here:
            tool = self.session.forget()
            self.session.cancel_thread_end()
            try:
                tool.stop()
                if is_recording:
                    tool.discard()
            except Exception as error:  # what could be done was
                let_through(error)
                log.debug("a session could not be ended", exc_info=error)
        self.end()

    def end(self) -> None:
        """Want nothing further of the program, unless a thread has begun to train meanwhile."""
        self.now = State.DONE
        if self.session.is_open:
            return
        if self._trainer is not None and self.waits_for_training:
            self._begin_for(self._trainer)
            return
        try:
            self._on_done()
        except Exception as error:  # the program goes on with what still listens to it
            let_through(error)
            log.debug("what listens to the program could not be ended", exc_info=error)
            self.outcome.notes.append(
                f"what listens to the program could not be ended: {type(error).__name__}: {error}"
            )

    def cut(self) -> None:
        """End what is open in the middle of a step."""
        if not self.session.is_open:
            return
        if self.has_lost_session():
            self.lose_session()
        elif self.now in _UNDER_PROFILER:
            self._stop_early()
        else:
            listener = self.session.close()
            if self.now is State.HEARING and self._finder.under_way == self._wanted:
                self._keep_heard(listener)
            self.end()

    def _stop_early(self) -> None:
        """The program ends in the middle of a step: keep the steps before it, or that one if there are none and it has
        all calls of one: what a program does behind its last step is none."""
        if not self._steps and self._finder.under_way != self._wanted:
            self._drop_session()
            self.outcome.why_not = _TOO_SOON
            self.end()
            return
        if self._steps:
            said = f"the program ended after {len(self._steps)} of {self._repeats} steps to profile"
        elif self.now is State.RECORDING:
            said = "the program ended in the first step to profile: its time on the host is not known"
        else:
            said = "the program ended in the first step under the profiler, which is slower than later ones"
        self._end_times(has_too_few=said)
        if self.now is not State.BY_EVENTS:
            self.end()

    def close(self) -> None:
        """The program ends in a step that nothing ends: what it was for is kept as far as it went."""
        self._is_closed = True
        if self.now is State.AFTER:
            self.outcome.update(plain_after_us=self._wanted_times())
        elif self.now is State.PAUSING:
            self.outcome.why_not = _TOO_SOON
        elif self.now is State.BY_EVENTS:
            # The one under way: its calls have been timed.
            self.outcome.update(n_steps=self.outcome.found.n_steps + 1)

    def after_fork(self) -> None:
        """In a child of a fork: what is under way is the parent's."""
        if self.now is not State.WARMING or self.tries:
            self.session.forget()
            self.graph_calls.first.clear()
            self.outcome.leave_to_parent()
            self.now = State.DONE

    def found(self) -> StepRecording:
        """What was recorded; complete once the state is ``DONE``."""
        later = dict(self._later_steps())
        return self.outcome.whole(
            self._finder,
            self._wanted or (),
            own_later=later.pop(self._finder.owner, 0),
            elsewhere_later=sum(later.values()),
            counts_eager=self._counts_eager,
            n_updates=self.ended["optimizer"],
            needed=self.needed + self._repeats,
            first_calls=tuple(self.graph_calls.first),
            spans=tuple(self.call_timer.spans()) if self.call_timer is not None else (),
        )
