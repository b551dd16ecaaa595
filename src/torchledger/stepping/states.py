"""What the step under way is for, what has come of a recording of steps so far, and how it ends.

Moved on the one thread whose steps these are, by ``advancing.py``. ``recorder.py`` hears the program and guards what is
done here.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum, auto
from typing import Any

from torchledger.nouns import StepFoundBy
from torchledger.signals import let_through
from torchledger.stepping.finder import Signature, StepFinder
from torchledger.stepping.function_calls import FunctionCalls
from torchledger.stepping.graph_calls import GraphCalls
from torchledger.stepping.meeting import Meeting
from torchledger.stepping.outcome import Outcome
from torchledger.stepping.quiet import Quiet, QuietSteps
from torchledger.stepping.recording import StepRecording
from torchledger.stepping.session import Session
from torchledger.stepping.tools import Tools
from torchledger.work.graph_names import direction_of

log = logging.getLogger(__name__)

MOST_TRIES = 8
"""How often a session is begun anew because another kind of step came, or something compiled in it."""

TOO_SOON = "the program ended before a step of the most frequent kind came again"


def _nothing(_: States) -> None:
    """What follows steps that pass, before any have."""


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
    LINGERING = auto()
    BY_EVENTS = auto()
    DONE = auto()


_PLAIN = (State.WARMING, State.TIMING, State.PAUSING, State.AFTER, State.LINGERING)

UNDER_PROFILER = (State.SETTLING, State.RECORDING)
"""States in which a session of the profiler is open."""

_BEFORE_ALL_IS_HEARD = (State.TIMING, State.PAUSING, *UNDER_PROFILER, State.HEARING, State.LINGERING)
"""States in which more of a step is to come, or is looked for."""


class States:
    """``now`` is the state, ``found`` what came of the recording so far.

    ``wanted`` is the kind of steps to record, ``steps`` are the kinds of those that ``clock`` has timed in this state,
    and ``ended`` counts the ends that were told, by what told them.

    ``tools`` is asked for where it is needed first, ``finder`` knows the steps, ``has_graphs`` says whether the program
    has compiled something that lives, ``graphs`` names what it has compiled by ``id``, and ``quietly`` guards what is
    done where a quiet step begins; ``quiet`` are those under way. The other arguments are those of ``StepRecorder``.
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
        ask_quiet: Quiet,
        quietly: Callable[[Callable[[Sequence[int]], None]], Callable[[Sequence[int]], None]],
        graphs: Callable[[], Mapping[int, str]],
        lingers: Callable[[], bool],
    ) -> None:
        self.now = State.WARMING
        self.warmup, self.timed, self.repeats = warmup, timed, repeats
        self._ask_tools, self.finder = tools, finder
        self.after_us = after_us
        self.counts_eager = counts_eager
        self.only_hears = only_hears
        self.has_graphs = has_graphs
        self._on_done, self._on_again, self._later_steps = on_done, on_again, later_steps
        self.find_meeting, self.lingers = find_meeting, lingers
        self.ask_quiet, self.quietly, self.graphs = ask_quiet, quietly, graphs
        self.quiet: QuietSteps | None = None
        self.meeting: Meeting | None = None
        self.ended: Counter[str] = Counter()
        self.has_compiled = False
        self.tries = 0
        self.wanted: Signature | None = None
        self.clock: Any = None
        self.steps: list[Signature] = []
        self._has_replays = False
        self._pauses = 0
        self._resume: Callable[[States], None] = _nothing
        self.row: tuple[Signature | None, int] = (None, 0)
        self.longest_row: Counter[Signature] = Counter()
        self.functions = FunctionCalls()
        self.outcome = Outcome()
        self.session = Session(on_thread_end)
        self.graph_calls = GraphCalls(self.outcome.notes)
        self.call_timer: Any = None
        self.calls_elsewhere = 0
        self._is_closed = False
        self._trainer: Hashable = None
        self.recorded_by: StepFoundBy | None = None
        self.operators: tuple[Counter[str], ...] = ()
        self.n_heard = 0

    @property
    def tools(self) -> Tools:
        """What is asked of torch."""
        return self._ask_tools()

    @property
    def is_plain(self) -> bool:
        """True while a step costs what it costs without us: nothing is open."""
        return self.now in _PLAIN and not self.session.is_open

    @property
    def needed(self) -> int:
        """How many steps without compilation it takes until one is recorded.

        The profiler settles in the one before, which does for one where the program ends in the middle of the last.
        """
        if self.only_hears:
            return self.warmup + 1
        return self.warmup + self.timed + (1 if self.finder.found_by in (None, "period") else 2)

    @property
    def patience(self) -> int:
        """How often a step of the wanted kind is waited for until it is timed and recorded."""
        return MOST_TRIES if self.finder.comes_again else 0

    def keep_plain(self) -> None:
        """Keep what the plain steps took that are of the kind to be recorded, and their host; all of them where no kind
        comes twice."""
        times, issued = self._of_wanted(self.clock.durations_us()), self._of_wanted(self.clock.issued_us())
        if self.now is State.AFTER:
            self.outcome.update(plain_after_us=times, issued_after_us=issued)
        else:
            self.outcome.update(plain_us=times, issued_us=issued)

    def _of_wanted(self, durations_us: tuple[float, ...]) -> tuple[float, ...]:
        takes_any = not self.finder.comes_again
        return tuple(
            took for took, calls in zip(durations_us, self.steps, strict=False) if takes_any or calls == self.wanted
        )

    def compiles(self) -> None:
        """Something was compiled: the steps seen before begin anew, but what was recorded keeps those it came of."""
        if self.outcome.found.times is not None:
            self.outcome.kinds_before += self.finder.counted
        self.finder.compiled()
        if self.now is State.DONE:
            self.outcome.compiles_later(self._later_steps().get(self.finder.owner, 0))
        if self.now is State.TIMING:
            self.begin_again()
        self.has_compiled = True

    # --- what the program does in a step ------------------------------------------------------------------------

    def ignores(self, optimizer: Any) -> bool:
        """True while an eager step is counted and this optimizer was not in the recorded one: it steps for others."""
        return self.now is State.COUNTING and id(optimizer) not in self.outcome.optimizers

    def optimizer_stepped(self, optimizer: Any) -> None:
        """An optimizer has made its step: in the step that is heard, note what it updates."""
        if self.now is not State.HEARING:
            return
        if id(optimizer) not in self.outcome.optimizers:
            self.outcome.optimizers[id(optimizer)] = self.tools.facts_of_optimizer(optimizer)
        if self.session.is_open:
            try:
                self.session.tool.optimizer_stepped()
            except Exception as error:  # the step is heard all the same
                let_through(error)
                log.debug("the gradients were not named", exc_info=error)

    # --- training that begins behind recorded calls --------------------------------------------------------------

    @property
    def waits_for_training(self) -> bool:
        """Whether calls are or were recorded that no optimizer follows: the first step of one begins anew, once."""
        is_possible = (
            self.outcome.of_calls is None and self.meeting is None and not self.only_hears and not self._is_closed
        )
        return (
            is_possible
            and self.recorded_by == "period"
            and self.outcome.why_not is None
            and not self.finder.owner_updates
        )

    def puts_off_training(self, thread: Hashable) -> bool:
        """An optimizer has made a step on ``thread``. Where calls that nothing updates were taken for steps, those of
        this thread are looked for instead: at once, or, which makes this True, when what is open on another thread has
        ended there.

        A backward among those calls tells that they are a training whose optimizer has a thread of its own.
        """
        if self.now is State.WARMING or not self.waits_for_training:
            return False
        is_own = thread == self.finder.owner
        called = self.wanted or self.finder.usual or ()
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
        self._trainer = self.wanted = None
        self.operators, self.n_heard, self.tries = (), 0, 0
        self.row, self.longest_row = (None, 0), Counter()
        self.ended.clear()
        self.now, self.steps, self.has_compiled = State.WARMING, [], False
        self.finder.hand_over(thread)

    def give_way(self, thread: Hashable) -> None:
        """Look for the steps of a thread, or where it is ``None`` of the first that calls, in place of those of another
        that is heard; a profiler has to end on the thread that began it, before which nothing changes."""
        if self.session.is_open and not (self.only_hears or self.session.is_here):
            return
        self.finder.hand_over(thread)
        if self.now in _BEFORE_ALL_IS_HEARD:
            self.begin_again()

    # --- steps that pass ------------------------------------------------------------------------------------------

    def pause(self, n_steps: int, resume: Callable[[States], None]) -> None:
        """Let so many steps pass before ``resume``; one that is under way is the first."""
        self.now, self._pauses, self._resume = State.PAUSING, n_steps, resume

    def step_passed(self) -> None:
        """A step that was to pass has ended."""
        self._pauses -= 1
        if self._pauses == 0:
            self._resume(self)

    # --- what is open, and how it ends -----------------------------------------------------------------------------

    def drop_session(self) -> None:
        """End what is open, and keep nothing of it."""
        if self.session.is_open:
            self.session.close_step()
            dropped = self.session.close()
            if self.now in UNDER_PROFILER:
                dropped.discard()

    def begin_timing(self, state: State) -> None:
        """Go to a state in which steps are timed, by a clock of its own."""
        self.now, self.steps, self.clock = state, [], self.tools.clock()
        self.clock.tick()

    def begin_again(self) -> None:
        """Something compiled where nothing should: wait until the program has warmed up again."""
        self.drop_session()
        self.tries += 1
        if self.tries > MOST_TRIES:
            self.give_up(f"the program compiled in each of {MOST_TRIES} steps to record")
            return
        self.finder.keeps_owner = False
        self.now, self.steps = State.WARMING, []
        self.outcome.update(plain_us=(), issued_us=())

    def linger(self) -> None:
        """A step was heard and is kept: look on for a while whether it is a part of a longer one."""
        if self.lingers():
            self.now = State.LINGERING
        else:
            self.end()

    def replays_come(self) -> None:
        """A CUDA graph of the program's own is replayed: what was heard before the first was its warm-up, and calls
        that nothing updates were parts of a step."""
        is_first, self._has_replays = not self._has_replays, True
        if not is_first:
            return
        if self.now is State.WARMING or self.now in _BEFORE_ALL_IS_HEARD:
            self.forget_steps()
        elif self.waits_for_training and not self.session.is_open and (self.now is not State.DONE or self._on_again()):
            self._begin_for(threading.get_ident())

    def forget_steps(self) -> None:
        """Steps so far came before those that are to be recorded."""
        if self.now is State.WARMING:
            self.finder.forget_steps()
        elif self.now in _BEFORE_ALL_IS_HEARD and (self.session.is_here or not self.session.is_open):
            self.finder.forget_steps()
            self.begin_again()

    def hear_anew(self) -> None:
        """Steps begin elsewhere from here on than the one that is only heard, if one is."""
        if self.only_hears and self.now is State.HEARING:
            self.begin_again()

    def turns_are_longer(self) -> None:
        """What was marked so far were parts of longer steps, which are looked for anew."""
        self.finder.forget_marks()
        if self.now is State.LINGERING:
            self.begin_again()

    def look_on(self) -> None:
        """Something was called behind the step that was heard: what it was a part of is looked for anew."""
        if self.now is State.LINGERING and not (self.finder.has_round and self.finder.found_by == self.recorded_by):
            self.begin_again()

    def has_lost_session(self) -> bool:
        """True if the program has begun a profile of its own, which ended ours."""
        return self.session.is_open and self.now in UNDER_PROFILER and self.session.is_lost

    def lose_session(self) -> None:
        """The program has begun a profile of its own, which ended ours or waits for its end."""
        self.session.forget().leave()
        self.fall_back("the program started a profiler of its own meanwhile: it owns the device's clock")

    def fall_back(self, reason: str) -> None:
        """Without the device's own records: on a GPU time the next steps' graphs by events, and say so."""
        self.outcome.why_not = reason
        self.outcome.update(n_steps=0)
        if self.tools.has_cuda():
            self.call_timer = self.tools.call_timer()
            self.now = State.BY_EVENTS
        else:
            self.end()

    def give_up(self, reason: str) -> None:
        """Record nothing further; what is open on this thread is closed, whatever comes of it."""
        self.outcome.why_not = self.outcome.why_not or reason
        is_recording = self.now in UNDER_PROFILER
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
        self.end_quiet()
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

    def end_quiet(self) -> None:
        """Steps that went by quietly were seen all the same."""
        quiet, self.quiet = self.quiet, None
        if quiet is not None:
            self.finder.passed(self.wanted or (), len(self.steps))
            self.ask_quiet(None)

    def close(self) -> None:
        """The program ends in a step that nothing ends: what it was for is kept as far as it went."""
        self._is_closed = True
        if self.now is State.AFTER:
            self.keep_plain()
        elif self.now is State.PAUSING and self.outcome.found.times is None:
            self.outcome.why_not = TOO_SOON
        elif self.now is State.BY_EVENTS:
            # The one under way: its calls have been timed.
            self.outcome.update(n_steps=self.outcome.found.n_steps + 1)

    def after_fork(self) -> None:
        """In a child of a fork: what is under way is the parent's, and so is a step that is only heard."""
        if self.only_hears or self.now is not State.WARMING or self.tries:
            listener = self.session.forget()
            if self.only_hears and listener is not None:
                listener.stop()
            self.quiet = None
            self.graph_calls.first.clear()
            self.outcome.leave_to_parent()
            self.now = State.DONE

    def found(self) -> StepRecording:
        """What was recorded; complete once the state is ``DONE``."""
        later = dict(self._later_steps())
        return self.outcome.whole(
            self.finder,
            self.wanted or (),
            own_later=later.pop(self.finder.owner, 0),
            elsewhere_later=sum(later.values()),
            counts_eager=self.counts_eager,
            n_updates=self.ended["optimizer"],
            needed=self.needed + self.repeats,
            first_calls=tuple(self.graph_calls.first),
            spans=tuple(self.call_timer.spans()) if self.call_timer is not None else (),
        )
