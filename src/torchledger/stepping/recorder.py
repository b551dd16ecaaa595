"""Some steps of a running program, recorded: a few plain ones timed, a few under the profiler, one heard, plain again.

A state machine that moves at the end of each step, on the one thread whose steps these are: what torch's profiler
begins on a thread has to end there. Whatever fails here ends the recording and never the program.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from torchledger.nouns import Direction, OptimizerFacts, StepFoundBy, StepKind
from torchledger.stepping.finder import FoundStep, Signature, StepFinder
from torchledger.stepping.marks import STEP_MARK
from torchledger.stepping.meeting import Meeting
from torchledger.stepping.thread_end import AtThreadEnd
from torchledger.traces.graph_marks import graph_mark

if TYPE_CHECKING:
    from torchledger._torch.eager_calls import EagerCall
    from torchledger._torch.storages import HeardMemory

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

_MOST_PARAMETERS = 4096


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


_PLAIN = (State.WARMING, State.TIMING, State.PAUSING, State.AFTER)
_UNDER_PROFILER = (State.SETTLING, State.RECORDING)


class Tools(Protocol):
    """What the recorder needs of torch: the module ``_torch.steps``, or a test's own."""

    def is_profiling(self) -> bool:
        """True while some profiler records."""

    def has_cuda(self) -> bool:
        """True once the program has used CUDA."""

    def is_in_backward(self) -> bool:
        """True while autograd's engine calls what this thread is at."""

    def synchronize(self) -> None:
        """Wait for the GPU, if there is one in use."""

    def mark(self, name: str) -> Any:
        """A context manager around a named range of a recording."""

    def recording(self) -> Any:
        """A recording of the calling thread under the profiler, not begun yet."""

    def listener(self, inside: Callable[[], str | None]) -> Any:
        """What hears the eager operators of the calling thread, not begun yet."""

    def eager_flops(self) -> Any:
        """What counts the FLOPs of the calling thread while nothing is compiled, not begun yet."""

    def clock(self) -> Any:
        """What times plain steps."""

    def call_timer(self) -> Any:
        """What times calls on a GPU whose profiler is taken."""

    def facts_of_optimizer(self, optimizer: Any) -> OptimizerFacts:
        """What an optimizer updates."""

    def holds_optimizer(self, parameters: Collection[int]) -> bool:
        """True if an optimizer updates one of these parameters, given by ``id``."""


@dataclass(frozen=True)
class StepRecording:
    """What was recorded of a program's steps; times in microseconds.

    ``plain_us`` and ``plain_after_us`` are steps of the recorded kind without a profiler, before and after it;
    ``profiled_us`` holds the mean of those under it. ``times`` is a Kineto trace with ``n_steps`` marked steps that
    are alike, ``first_calls`` are traces of graphs' first calls (before CUDA graphs replay them): files that the
    reader removes. ``heard`` are the eager operators of another step, ``memory`` its storages, ``eager_flops`` the
    FLOPs by operator of one that ran eagerly as a whole, where that was asked for; ``allocations`` what the CPU's
    allocator gave and took back in each recorded step (nanoseconds since its beginning, bytes). ``why_not``
    says why there is no trace; ``spans`` are then the graphs' calls by CUDA events where a GPU was in use. ``begun``
    counts steps with one that was under way, ``called`` what was called in no step, since something compiled for the
    last time.
    """

    found_by: StepFoundBy | None = None
    plain_us: tuple[float, ...] = ()
    plain_after_us: tuple[float, ...] = ()
    profiled_us: tuple[float, ...] = ()
    seen: int = 0
    kinds: tuple[StepKind, ...] = ()
    n_steps: int = 0
    times: Path | None = None
    heard: tuple[EagerCall, ...] | None = None
    eager_flops: Mapping[str, int] | None = None
    memory: HeardMemory | None = None
    allocations: tuple[tuple[tuple[int, int], ...], ...] | None = None
    optimizers: tuple[OptimizerFacts, ...] = ()
    first_calls: tuple[tuple[str, Path], ...] = ()
    spans: tuple[tuple[str, int, int], ...] = ()
    begun: int = 0
    called: Counter[str] = field(default_factory=Counter)
    why_not: str | None = None
    notes: tuple[str, ...] = ()


class StepRecorder:
    """Told of a program's calls, finds its steps and records some of them.

    ``warmup`` steps pass without compilation, ``timed`` are timed plainly, ``repeats`` recorded, and then as many timed
    plainly as fit into ``after_us``, at least two. With ``counts_eager`` one more step runs with nothing compiled, for
    its FLOPs to be counted. With ``only_hears`` nothing is timed: one step is heard after the
    warm-up, and that is all. ``on_done`` is called once nothing more is wanted of the calls. ``meeting`` makes ranks of
    one job begin with the same step; it is asked for once the warm-up is about to end (``None``: there are no others).
    """

    def __init__(
        self,
        *,
        warmup: int,
        timed: int,
        repeats: int,
        tools: Tools | None = None,
        after_us: float = 0.0,
        counts_eager: bool = False,
        only_hears: bool = False,
        on_done: Callable[[], None] = lambda: None,
        meeting: Callable[[], Meeting | None] = lambda: None,
    ) -> None:
        self.warmup, self._timed, self._repeats = warmup, timed, repeats
        self._given_tools = tools
        self._after_us = after_us
        self._counts_eager = counts_eager
        self._only_hears = only_hears
        self._modules: set[int] = set()
        self._functions: Counter[int] = Counter()
        self._functions_of_step: Counter[int] = Counter()
        self._last_function: int | None = None
        self._until_function = 0
        self._eager_flops: Mapping[str, int] | None = None
        self._on_done = on_done
        self._find_meeting = meeting
        self._meeting: Meeting | None = None
        self._ended: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._state = State.WARMING
        self._parameters: set[int] = set()
        self._finder = StepFinder(has_optimizer=lambda: self._tools.holds_optimizer(self._parameters))
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._called: set[str] = set()
        self._inside = threading.local()
        self._is_graphed = False
        self._pending: FoundStep | bool = False
        self._is_held = False
        self._wanted: Signature | None = None
        self._tries = 0
        self._has_compiled = False
        self._clock: Any = None
        self._steps: list[Signature] = []
        self._pauses = 0
        self._row: tuple[Signature | None, int] = (None, 0)
        self._longest_row: Counter[Signature] = Counter()
        self._session: Any = None
        self._session_thread: Hashable = None
        self._step_mark: Any = None
        self._at_thread_end = AtThreadEnd()
        self._call_timer: Any = None
        self._plain: tuple[float, ...] = ()
        self._plain_after: tuple[float, ...] = ()
        self._profiled: tuple[float, ...] = ()
        self._n_steps = 0
        self._times: Path | None = None
        self._found_by: StepFoundBy | None = None
        self._operators: tuple[Counter[str], ...] = ()
        self._n_heard = 0
        self._kinds_before: Counter[Signature] = Counter()
        self._heard: tuple[EagerCall, ...] | None = None
        self._memory: HeardMemory | None = None
        self._allocations: tuple[tuple[tuple[int, int], ...], ...] | None = None
        self._calls_elsewhere = 0
        self._optimizers: dict[int, OptimizerFacts] = {}
        self._first_calls: list[tuple[str, Path]] = []
        self._why_not: str | None = None
        self._notes: list[str] = []

    @property
    def _tools(self) -> Tools:
        if self._given_tools is None:
            from torchledger._torch import steps

            self._given_tools = cast(Tools, steps)
        return self._given_tools

    # --- what the program does ----------------------------------------------------------------------------------

    def graph(self, name: str, compiled: Any, *, is_graphed: bool = False) -> None:
        """A graph was compiled, or loaded from a cache, and is about to be called for the first time."""
        with self._lock:
            # A backward that is compiled late may be compiled outside the setting its forward was compiled under.
            self._is_graphed = self._is_graphed or is_graphed
            key = id(compiled)
            self._names[key] = (weakref.ref(compiled, lambda _: self._names.pop(key, None)), name)
            if self._times is not None:  # what is compiled later takes nothing from what was recorded
                self._kinds_before += self._finder.counted
            self._finder.compiled()
            if self._state is State.TIMING:
                self._begin_again()
            self._has_compiled = True

    def name_of(self, compiled: Any) -> str | None:
        """The name under which a compiled graph was told of."""
        known = self._names.get(id(compiled))
        return known[1] if known is not None and known[0]() is compiled else None

    def marked(self, found_by: StepFoundBy) -> None:
        """The program says that a step ends here."""
        if self._state is not State.DONE:
            self._ended[found_by] += 1
            self._guarded(lambda: self._end_of(self._finder.marked(found_by), is_mark=True))

    def failed(self, error: Exception) -> None:
        """Something of ours that tells of the program failed: the recording is lost, the program is not."""
        with self._lock:
            self._give_up(f"{type(error).__name__}: {error}")

    def optimizer_stepped(self, optimizer: Any) -> None:
        """An optimizer has made its step."""
        if self._state is not State.DONE:
            self._guarded(lambda: self._after_optimizer(optimizer))

    def _after_optimizer(self, optimizer: Any) -> None:
        self._ended["optimizer"] += 1
        if self._state is State.COUNTING and id(optimizer) not in self._optimizers:
            return  # its step is compiled at other times, and then no signal
        if self._state is State.HEARING and id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = self._tools.facts_of_optimizer(optimizer)
        if self._state is State.HEARING and self._session is not None:
            try:
                self._session.optimizer_stepped()
            except Exception as error:  # the step is heard all the same
                log.debug("the gradients were not named", exc_info=error)
        self._end_of(self._finder.optimizer_stepped(id(optimizer), type(optimizer).__name__))

    def module_called(self, module: Any) -> None:
        """A module is about to be called from outside all others, in a program that has compiled nothing."""
        if self._state is State.DONE or self._names:
            return
        self._guarded(lambda: self._before_module(module), waits=self._finder.owner in (None, threading.get_ident()))

    def _before_module(self, module: Any) -> None:
        name, key = f"{type(module).__name__}.forward", id(module)
        if key not in self._modules:
            self._modules.add(key)
            self._parameters.update(map(id, islice(module.parameters(), _MOST_PARAMETERS)))
        self._end_of(self._finder.called(name, key, thread=threading.get_ident()))

    def function_called(self, function: Any) -> None:
        """A compiled function is about to be called from outside: all graphs of a step are called in such calls."""
        if self._state is not State.DONE and self._finder.owner in (None, threading.get_ident()):
            self._guarded(lambda: self._before_function(id(function)))

    def _before_function(self, function: int) -> None:
        if self._state is State.COUNTING and self._until_function and function == self._last_function:
            self._until_function -= 1
            if self._until_function == 0 and self._session is None:
                self._until_function = self._functions_of_step[function]
                self._count_now()
            elif self._until_function == 0:
                self._keep_count()
                self._begin_after()
        elif self._state is not State.COUNTING:
            self._functions[function] += 1
            self._last_function = function

    def tally(self, name: str) -> bool:
        """Count a graph's call where that is all there is to do: a plain step should cost what it costs without us."""
        is_plain = self._state in _PLAIN and self._session is None and not self._pending
        return is_plain and name in self._called and self._finder.tally(name, thread=threading.get_ident())

    def around_call(
        self,
        name: str,
        proceed: Callable[[], Any],
        *,
        identity: Hashable = None,
        parameters: Sequence[int] = (),
        inputs: Sequence[Any] = (),
        sizes: Callable[[], Mapping[str, int]] = dict,
    ) -> Any:
        """Make a graph's call, as a part of whatever step it belongs to; returns what ``proceed()`` returns.

        ``inputs`` are what it is called with; ``sizes`` tells the symbols of a dynamic graph in this call; it is
        asked only where the call is recorded.
        """
        if self._state is State.DONE:
            if self._session is not None and self._session_thread == threading.get_ident():
                self._guarded(self._cut)
            return proceed()
        self._guarded(
            lambda: self._before_call(name, identity, parameters),
            waits=name.startswith("backward") or self._finder.owner in (None, threading.get_ident()),
        )
        is_first = name not in self._called
        self._called.add(name)
        if self._state is State.BY_EVENTS:
            return self._call_timer.call(name, proceed)
        if self._session is not None:
            if self._state is State.HEARING:
                proceed = self._heard_call(name, proceed, inputs)
            return self._call_in_session(name, proceed, sizes)
        if is_first and self._is_graphed and not self._tools.is_profiling():
            return self._learn(name, proceed)
        return proceed()

    def _before_call(self, name: str, identity: Hashable, parameters: Sequence[int]) -> None:
        if len(self._parameters) < _MOST_PARAMETERS:
            self._parameters.update(parameters)
        direction: Direction = (
            "backward" if name.startswith("backward") else "forward" if name.startswith("forward") else "inference"
        )
        thread = threading.get_ident()
        self._end_of(self._finder.called(name, identity, thread=thread, direction=direction))

    def _call_in_session(self, name: str, proceed: Callable[[], Any], sizes: Callable[[], Mapping[str, int]]) -> Any:
        try:
            mark = graph_mark(name, sizes())
        except Exception as error:  # the call is recorded without its sizes
            log.debug("the sizes of a call of %s are not known", name, exc_info=error)
            mark = graph_mark(name)
        former = getattr(self._inside, "graph", None)
        self._inside.graph = name
        try:
            with self._tools.mark(mark):
                return proceed()
        finally:
            self._inside.graph = former

    def _heard_call(self, name: str, proceed: Callable[[], Any], inputs: Sequence[Any]) -> Callable[[], Any]:
        """The same call, of which the listener is told."""
        session = self._session

        def call() -> Any:
            try:
                session.graph_begins(name, inputs)
            except Exception as error:  # the program's call must go on
                log.debug("the storages of %s were not noted", name, exc_info=error)
            result = None
            try:
                result = proceed()
            finally:
                try:
                    session.graph_ends(result)
                except Exception as error:  # the program's call has its result
                    log.debug("the storages of %s were not noted", name, exc_info=error)
            return result

        return call

    def _learn(self, name: str, proceed: Callable[[], Any]) -> Any:
        """The first call of a graph runs un-graphed: record which kernels it launches, to know them in replays."""
        recording = self._tools.recording()
        try:
            recording.start()
        except Exception as error:  # the program's call must go on
            self._notes.append(f"{name}: its un-graphed call could not be recorded: {error}")
            return proceed()
        try:
            with self._tools.mark(graph_mark(name)):
                return proceed()
        finally:
            try:
                recording.stop()
                # At once: the next recording takes its memory over.
                self._first_calls.append((name, recording.export()))
            except Exception as error:  # the program's call has its result
                self._notes.append(f"{name}: its un-graphed call could not be recorded: {error}")

    # --- from step to step --------------------------------------------------------------------------------------

    def _guarded(self, action: Callable[[], None], *, waits: bool = True) -> None:
        """Do ``action`` alone; a thread that does not wait goes on without it while another is at it."""
        if not self._lock.acquire(blocking=waits):
            return
        try:
            action()
        except Exception as error:  # the recording is lost, the program is not
            log.debug("the recording of steps failed", exc_info=error)
            self._give_up(f"{type(error).__name__}: {error}")
        finally:
            self._lock.release()

    def _end_of(self, step: FoundStep | None, *, is_mark: bool = False) -> None:
        """A step has ended. What follows from it is done on the thread of the steps, maybe later."""
        if step is not None or is_mark:
            self._pending = step or True
        if self._has_lost_session():
            if self._session_thread == threading.get_ident():
                self._lose_session()
            return
        if not self._pending or self._finder.owner not in (None, threading.get_ident()):
            return
        if self._tools.is_in_backward():
            # The engine puts back what it found of modes and profilers: what begins in a backward is lost behind it.
            self._is_held = True
            return
        self._is_held = False
        ended, self._pending = self._pending, False
        self._advance(ended if isinstance(ended, FoundStep) else None)

    def _advance(self, step: FoundStep | None) -> None:
        self._ended["period"] += 1
        has_compiled, self._has_compiled = self._has_compiled, False
        self._functions, self._functions_of_step = Counter(), self._functions
        if step is not None:
            self._row = (step.calls, self._row[1] + 1 if self._row[0] == step.calls else 1)
            self._longest_row[step.calls] = max(self._longest_row[step.calls], self._row[1])
        if self._state is State.WARMING:
            self._warm()
        elif step is None:
            return
        elif has_compiled and self._state not in (State.COUNTING, State.AFTER, State.BY_EVENTS):
            self._begin_again()
        elif self._state is State.TIMING:
            self._time(step)
        elif self._state is State.PAUSING:
            self._pause()
        elif self._state is State.SETTLING:
            self._state = State.RECORDING
            self._tools.synchronize()
            self._clock = self._tools.clock()
            self._clock.tick()
            self._open_step()
        elif self._state is State.RECORDING:
            self._record(step)
        elif self._state is State.HEARING:
            self._hear(step)
        elif self._state is State.COUNTING:
            self._count(step)
        elif self._state is State.AFTER:
            self._time_after(step)
        elif self._state is State.BY_EVENTS:
            self._n_steps += 1
            if self._n_steps >= self._repeats:
                self._end()

    def _warm(self) -> None:
        if self._finder.found_by is None:
            return
        is_together = self._finder.seen >= self.warmup - 1 and self._has_met()
        if self._finder.seen < self.warmup or not is_together:
            return
        if self._only_hears and not self._finder.is_believed:
            return
        self._finder.keeps_owner = True
        if self._only_hears:
            self._wanted = self._finder.usual
            self._begin_hearing()
            return
        self._tools.synchronize()
        self._state, self._steps, self._clock = State.TIMING, [], self._tools.clock()
        self._clock.tick()

    def _has_met(self) -> bool:
        """True once the other ranks begin, too: one step after this rank and they are ready, which is the last step of
        the warm-up where all warm up alike."""
        if self._meeting is None:
            self._meeting = None if self._only_hears or self.warmup < 1 else self._find_meeting()
        if self._meeting is None:
            return True
        self._tools.synchronize()  # so that no rank's host is steps ahead of the others'
        begins = self._meeting.may_begin(self._count_of_steps())
        if begins and self._meeting.note is not None and self._meeting.note not in self._notes:
            self._notes.append(self._meeting.note)
        return begins

    def _count_of_steps(self) -> int:
        """The number of the step that has ended, the same on all ranks, whatever each has compiled."""
        if self._finder.found_by == "optimizer":
            return self._ended["optimizer"] // self._finder.optimizers_in_step
        return self._ended[self._finder.found_by or "period"]

    def _time(self, step: FoundStep) -> None:
        self._steps.append(step.calls)
        self._clock.tick()
        usual = self._finder.usual
        if self._steps.count(usual or ()) < self._timed and len(self._steps) < self._timed + _MOST_TRIES:
            return
        self._tools.synchronize()
        self._wanted = usual
        self._plain = self._wanted_times()
        self._begin_session()

    def _wanted_times(self) -> tuple[float, ...]:
        """Times of the plain steps that are of the kind to be recorded."""
        durations = self._clock.durations_us()
        return tuple(took for took, calls in zip(durations, self._steps, strict=False) if calls == self._wanted)

    def _begin_session(self) -> None:
        if self._tools.is_profiling():
            self._fall_back("another profiler is running: it owns the device's clock")
            return
        self._open(self._tools.recording())
        self._calls_elsewhere = self._finder.other_threads.total()
        self._state, self._steps = State.SETTLING, []

    def _open(self, session: Any) -> bool:
        """Begin a session that will end on this thread, at the latest when the thread does."""
        if session.start() is False:
            return False
        self._session, self._session_thread = session, threading.get_ident()
        self._at_thread_end.do(self._thread_ends)
        return True

    def _record(self, step: FoundStep) -> None:
        is_wanted = step.calls == self._wanted
        is_row = bool(self._steps) and len(self._steps) >= self._longest_row[self._steps[-1]]
        if not is_wanted and not is_row and self._tries < _MOST_TRIES:
            self._drop_session()
            self._pauses, self._tries = self._tries % _PAUSES + 1, self._tries + 1
            self._state = State.PAUSING
            self._pause()
            return
        if not is_wanted and not self._steps:
            self._notes.append(
                f"steps of the most frequent kind did not come again in {_MOST_TRIES} tries: another kind is recorded"
            )
            self._wanted, self._plain = step.calls, ()
        if step.calls == self._wanted:
            self._steps.append(step.calls)
            # Before the mark ends, as the first tick lies before the first mark: what both cost falls into both times.
            self._clock.tick()
            self._close_step()
            if len(self._steps) < self._repeats:
                self._open_step()
                return
        self._end_times()
        if self._state is State.RECORDING:
            self._tries = 0
            self._begin_hearing()

    def _pause(self) -> None:
        self._pauses -= 1
        if self._pauses == 0:
            self._begin_session()

    def _end_times(self) -> None:
        """End the recording of times with the steps that it has."""
        self._close_step()
        self._tools.synchronize()
        self._n_steps = max(len(self._steps), 1)
        if self._steps:
            durations = self._clock.durations_us()
            self._profiled = (sum(durations) / len(durations),)
            if len(self._steps) < self._repeats:
                self._notes.append(f"{len(self._steps)} of {self._repeats} steps were recorded")
        session = self._close_session()
        if self._tools.has_cuda() and not session.saw_device():
            session.discard()
            self._fall_back("the profiler recorded nothing of the device (is CUPTI there?)")
            return
        marks = [f"{STEP_MARK}#{index}" for index in range(self._n_steps)]
        self._allocations, self._operators = session.allocations(marks), session.operators(marks)
        self._times, self._found_by = session.export(), self._finder.found_by

    def _begin_hearing(self) -> None:
        if self._open(self._tools.listener(lambda: getattr(self._inside, "graph", None))):
            self._state = State.HEARING
        else:
            self._notes.append("eager operators were not heard: the program runs in a dispatch mode of its own")
            self._begin_counting()

    def _hear(self, step: FoundStep) -> None:
        session = self._close_session()
        self._n_heard += step.calls == self._wanted
        if step.calls == self._wanted and (self._n_heard == _MOST_HEARD or self._is_like_recorded(session.calls)):
            self._keep_heard(session)
        elif step.calls == self._wanted:
            self._begin_hearing()
            return
        elif self._tries < _MOST_TRIES:
            self._tries += 1
            if self._only_hears:  # what was taken for a step before may have been a part of one
                self._wanted = self._finder.usual or self._wanted
            self._begin_hearing()
            return
        self._begin_counting()

    def _is_like_recorded(self, heard: Sequence[EagerCall]) -> bool:
        """Whether some recorded step has every operator at least as often as the step that was heard."""
        from torchledger.stepping.record import counted_names

        if not self._operators or self._meeting is not None:  # ranks go on together
            return True
        names = counted_names(heard)
        return any(names <= operators for operators in self._operators)

    def _keep_heard(self, session: Any) -> None:
        self._heard, self._memory = tuple(session.calls), session.memory
        if self._allocations is not None and self._finder.other_threads.total() > self._calls_elsewhere:
            self._allocations = None
            self._notes.append("no peak was counted: other threads have tensors, and a profile counts one thread's")
        if session.faults:
            self._notes.append(f"not heard of the step ({len(session.faults)}): {session.faults[0]}")

    def _begin_counting(self) -> None:
        if self._only_hears:
            self._end()
            return
        if not self._counts_eager:
            self._begin_after()
            return
        self._state = State.COUNTING
        if self._finder.found_by != "period" or not self._names:
            self._count_now()
            return
        # This step began inside a compiled function, and an eager one calls no graphs: the calls of that function
        # tell where the next step begins, and where it ends.
        self._until_function = self._functions_of_step[self._last_function or 0]
        if not self._until_function:
            self._notes.append("no eager step was counted: what calls the graphs was not seen")
            self._begin_after()

    def _count_now(self) -> None:
        if not self._open(self._tools.eager_flops()):
            self._notes.append("no eager step was counted: the program runs in a dispatch mode or a compiled region")
            self._begin_after()

    def _count(self, step: FoundStep) -> None:
        if self._session is None or (self._finder.found_by == "period" and self._names):
            return
        self._finder.forget(step)
        if _optimizers_in(step.calls) == _optimizers_in(self._wanted or ()):
            self._keep_count()
        else:
            self._close_session()
            self._tries += 1
            if self._tries < _MOST_TRIES:
                self._count_now()
                return
            self._notes.append(f"no eager step was counted: the recorded kind did not come in {_MOST_TRIES} tries")
        self._begin_after()

    def _keep_count(self) -> None:
        counted = self._close_session()
        if counted.faults:
            self._notes.append(f"no eager step was counted: {counted.faults[0]}")
        else:
            self._eager_flops = counted.by_operator()

    def _begin_after(self) -> None:
        self._tools.synchronize()
        self._state, self._steps, self._clock = State.AFTER, [], self._tools.clock()
        self._clock.tick()

    def _time_after(self, step: FoundStep) -> None:
        self._steps.append(step.calls)
        self._clock.tick()
        n_wanted = self._steps.count(self._wanted or ())
        is_enough = n_wanted >= _AFTER_STEPS and self._clock.elapsed_us >= self._after_us
        if is_enough or len(self._steps) >= _MOST_AFTER:
            self._plain_after = self._wanted_times()
            self._end()

    # --- sessions -----------------------------------------------------------------------------------------------

    def _open_step(self) -> None:
        self._step_mark = self._tools.mark(f"{STEP_MARK}#{len(self._steps)}")
        self._step_mark.__enter__()

    def _close_step(self) -> None:
        if self._step_mark is not None:
            self._step_mark.__exit__(None, None, None)
            self._step_mark = None

    def _close_session(self) -> Any:
        session, self._session = self._session, None
        self._at_thread_end.cancel()
        session.stop()
        return session

    def _drop_session(self) -> None:
        if self._session is not None:
            self._close_step()
            session = self._close_session()
            if self._state in _UNDER_PROFILER:
                session.discard()

    def _begin_again(self) -> None:
        """Something compiled where nothing should: wait until the program has warmed up again."""
        self._drop_session()
        self._tries += 1
        if self._tries > _MOST_TRIES:
            self._give_up(f"the program compiled in each of {_MOST_TRIES} steps to record")
            return
        self._finder.keeps_owner = False
        self._state, self._plain, self._steps = State.WARMING, (), []

    def _has_lost_session(self) -> bool:
        return self._session is not None and self._state in _UNDER_PROFILER and bool(self._session.is_lost)

    def _lose_session(self) -> None:
        """The program has begun a profile of its own, which ended ours or waits for its end."""
        session, self._session, self._step_mark = self._session, None, None
        session.leave()
        self._fall_back("the program started a profiler of its own meanwhile: it owns the device's clock")

    def _fall_back(self, reason: str) -> None:
        """Without the device's own records: on a GPU time the next steps' graphs by events, and say so."""
        self._why_not, self._n_steps = reason, 0
        if self._tools.has_cuda():
            self._call_timer = self._tools.call_timer()
            self._state = State.BY_EVENTS
        else:
            self._end()

    def _give_up(self, reason: str) -> None:
        """Record nothing further; what is open on this thread is closed, whatever comes of it."""
        self._why_not = self._why_not or reason
        is_recording = self._state in _UNDER_PROFILER
        self._state = State.DONE
        if self._session is not None and self._session_thread == threading.get_ident():
            session, self._session, self._step_mark = self._session, None, None
            self._at_thread_end.cancel()
            try:
                session.stop()
                if is_recording:
                    session.discard()
            except Exception as error:  # what could be done was
                log.debug("a session could not be ended", exc_info=error)
        self._end()

    def _end(self) -> None:
        self._state = State.DONE
        if self._session is not None:
            return
        try:
            self._on_done()
        except Exception as error:  # the program goes on with what still listens to it
            log.debug("what listens to the program could not be ended", exc_info=error)
            self._notes.append(f"what listens to the program could not be ended: {type(error).__name__}: {error}")

    # --- ends that come too soon --------------------------------------------------------------------------------

    def _thread_ends(self) -> None:
        """The thread of the steps ends now: the last moment at which its session can."""
        self._guarded(self._cut)

    def _cut(self) -> None:
        if self._session is None:
            return
        if self._has_lost_session():
            self._lose_session()
        elif self._state in _UNDER_PROFILER:
            self._stop_early()
        else:
            heard = self._close_session()
            if self._state is State.HEARING and self._finder.under_way == self._wanted:
                self._keep_heard(heard)
            self._end()

    def _stop_early(self) -> None:
        """The program ends in the middle of a step: keep the steps before it, or that one if there are none."""
        if self._steps:
            said = f"the program ended after {len(self._steps)} of {self._repeats} steps to profile"
        elif self._state is State.RECORDING:
            said = "the program ended in the first step to profile: its time on the host is not known"
        else:
            said = "the program ended in the first step under the profiler, which is slower than later ones"
        self._end_times()
        self._notes = [note for note in self._notes if not note.endswith("steps were recorded")] + [said]
        if self._state is not State.BY_EVENTS:
            self._end()

    def close(self) -> None:
        """The program, or the wish to record it, ends: nothing is recorded further. ``result`` says what there is.

        A session of a thread that still runs stays open until that thread's next call, or its end.
        """
        with self._lock:
            if self._state is State.DONE:
                return
            if self._state is State.AFTER:
                self._plain_after = self._wanted_times()
            elif self._state is State.PAUSING:
                self._why_not = "the program ended before a step of the most frequent kind came again"
            elif self._state is State.WARMING and self._is_held:
                self._why_not = (
                    "steps end inside a backward, where nothing can be begun, and nothing is called behind it"
                )
            elif self._state is State.BY_EVENTS:
                self._n_steps += 1  # the one under way: its calls have been timed
            if self._session is None or self._session_thread == threading.get_ident():
                self._guarded(self._cut)
            else:
                self._why_not = "the thread whose steps were recorded still runs, and nobody else can end its recording"
            if not self.is_done:
                self._end()

    def before_fork(self) -> None:
        """The process is about to fork: its child may not inherit a session that is open on this thread."""
        if self._session is not None and self._session_thread == threading.get_ident():
            self._guarded(self._begin_again)

    def leave(self) -> None:
        """The process ends: it meets no other rank any more."""
        if self._meeting is not None:
            self._meeting.leave()

    def after_fork(self) -> None:
        """In a child of a fork: what is under way is the parent's."""
        self._lock = threading.RLock()
        if self._state is not State.WARMING or self._tries:
            self._session, self._times, self._heard, self._first_calls = None, None, None, []
            self._why_not = "this process was forked from one that was being recorded"
            self._state = State.DONE

    # --- what came of it ----------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What the step under way is for."""
        return self._state

    @property
    def is_done(self) -> bool:
        """True once no further step is wanted."""
        return self._state is State.DONE

    @property
    def needed(self) -> int:
        """How many steps without compilation it takes before one is recorded."""
        return self.warmup + (0 if self._only_hears else self._timed) + 1

    def result(self) -> StepRecording:
        """What was recorded; complete once the state is ``DONE``."""
        wanted = dict(self._wanted or ())
        counted = self._kinds_before + self._finder.counted
        kinds = [StepKind(count, dict(calls)) for calls, count in counted.most_common()]
        notes = list(self._notes)
        if self._counts_eager and self._eager_flops is None and not any("eager step" in note for note in notes):
            notes.append("no eager step was counted: the program ended before one")
        if self._times is not None and self._why_not is not None:
            notes.append(f"after the profiled steps nothing was recorded: {self._why_not}")
        elif self._times is not None and self._memory is None and not any("heard" in note for note in notes):
            notes.append("no step was heard after the profiled ones: its storages and its lines are not known")
        others = self._finder.other_threads.total()
        if others:
            notes.append(f"{others} calls of graphs by other threads belong to no step: steps are those of one thread")
        return StepRecording(
            found_by=self._found_by or self._finder.found_by,
            plain_us=self._plain,
            plain_after_us=self._plain_after,
            profiled_us=self._profiled,
            seen=counted.total(),
            kinds=tuple(sorted(kinds, key=lambda kind: kind.calls != wanted)),
            n_steps=self._n_steps,
            times=self._times,
            heard=self._heard,
            eager_flops=self._eager_flops,
            memory=self._memory,
            allocations=self._allocations,
            optimizers=tuple(self._optimizers.values()),
            first_calls=tuple(self._first_calls),
            spans=tuple(self._call_timer.spans()) if self._call_timer is not None else (),
            begun=self._finder.begun,
            called=self._finder.calls_without_step,
            why_not=self._why_not,
            notes=tuple(notes),
        )


def _optimizers_in(calls: Signature) -> Signature:
    """The steps of optimizers: what an eager step and a compiled one have in common."""
    return tuple((name, count) for name, count in calls if name.endswith(".step"))
