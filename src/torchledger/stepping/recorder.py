"""Some steps of a running program, recorded: a few plain ones timed, a few under the profiler, one heard, plain again.

Here the program is heard, on whatever thread, and the ends of its steps are found; ``states.py`` says what each step is
for, ``advancing.py`` what follows from its end, on the one thread whose steps these are: what torch's profiler begins
on a thread has to end there. Whatever fails ends the recording and never the program.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

from torchledger.nouns import StepFoundBy
from torchledger.signals import let_through
from torchledger.stepping.advancing import advance, cut, interrupt
from torchledger.stepping.afterwards import hear_again
from torchledger.stepping.finder import FoundStep, StepFinder
from torchledger.stepping.graph_calls import told
from torchledger.stepping.listening import before_function
from torchledger.stepping.meeting import Meeting
from torchledger.stepping.quiet import Quiet
from torchledger.stepping.recording import StepRecording
from torchledger.stepping.states import State, States
from torchledger.stepping.tools import Tools
from torchledger.work.graph_names import direction_of

log = logging.getLogger(__name__)

_MOST_PARAMETERS = 4096

_REPLAY, _HOLD_UPDATES = "CUDAGraph.replay", 8
"""The call of a CUDA graph of the program's own; so many, and no step of an optimizer between, hold what it does."""

REPLAYED = (
    "the program captured a CUDA graph of its own, and replays it too seldom, or has torch replay it unheard: "
    "call torchledger.step() behind each replay that ends a step"
)


class StepRecorder:
    """Told of a program's calls, finds its steps and records some of them.

    ``warmup`` steps pass without compilation, ``timed`` are timed plainly, ``repeats`` recorded, and then as many timed
    plainly as fit into ``after_us``, at least two. With ``counts_eager`` one more step runs with nothing compiled, for
    its FLOPs to be counted. With ``only_hears`` nothing is timed: one step is heard after the
    warm-up, and that is all. ``on_done`` is called once nothing more is wanted of the calls, and ``on_again`` if that
    turns out to be untrue, because an optimizer steps where only calls were recorded; it answers whether calls can be
    heard again. ``later_steps`` says how many steps of optimizers each thread has made since ``on_done``. ``meeting``
    makes ranks of one job begin with the same step; it is asked for once the warm-up is about to end (``None``: there
    are no others). ``quiet`` has the plain steps after a recording pass unheard but for the number of their calls.
    ``lingers`` is asked behind a step that was only heard, and behind each that follows, whether to look on for a
    longer step that it is a part of; what was heard is kept until there is one.
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
        on_again: Callable[[], bool] = lambda: True,
        later_steps: Callable[[], Mapping[Hashable, int]] = dict,
        meeting: Callable[[], Meeting | None] = lambda: None,
        quiet: Quiet = lambda _: False,
        lingers: Callable[[], bool] = lambda: False,
    ) -> None:
        self.warmup = warmup
        self._given_tools = tools
        self._modules: set[int] = set()
        self._lock = threading.RLock()
        self._parameters: set[int] = set()
        # Graphs that were given no parameters (a function between eager layers) may be part of anybody's training.
        self._finder = StepFinder(
            has_optimizer=lambda: not self._updaters and self._tools.holds_optimizer(self._parameters or None),
            merges_turns=not only_hears,
        )
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._called: set[str] = set()
        self._updaters: set[str] = set()
        self._replays = threading.local()
        self._unused_replays = 0
        self._is_graphed = False
        self._pending: FoundStep | bool = False
        self._is_held = False
        self._states = States(
            lambda: self._tools,
            self._finder,
            warmup=warmup,
            timed=timed,
            repeats=repeats,
            after_us=after_us,
            counts_eager=counts_eager,
            only_hears=only_hears,
            has_graphs=lambda: bool(self._names),
            on_done=on_done,
            on_again=on_again,
            later_steps=later_steps,
            on_thread_end=self._thread_ends,
            find_meeting=meeting,
            ask_quiet=quiet,
            quietly=lambda begins: lambda graphs: self._guarded(lambda: begins(graphs)),
            graphs=lambda: {key: name for key, (_, name) in self._names.items()},
            lingers=lingers,
        )

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
            if self._modules and not self._names and not self._finder.owner_updates:
                # Modules are told of no more, and a thread that called nothing else has no steps from here on.
                self._guarded(self._give_way_to_graphs)
            self._names[key] = (weakref.ref(compiled, lambda _: self._names.pop(key, None)), name)
            if self._states.quiet is not None:
                self._guarded(lambda: hear_again(self._states))
            self._states.compiles()

    def _give_way_to_graphs(self) -> None:
        if self._finder.owner not in (None, threading.get_ident()):
            self._states.give_way(None)

    def updates(self, name: str) -> None:
        """A graph is about to be called that updates parameters: an optimizer that is compiled, which is no other."""
        self._updaters.add(name)

    def name_of(self, compiled: Any) -> str | None:
        """The name under which a compiled graph was told of."""
        known = self._names.get(id(compiled))
        return known[1] if known is not None and known[0]() is compiled else None

    def marked(self, found_by: StepFoundBy) -> None:
        """The program says that a step ends here; of quiet steps that is known."""
        if self._states.now is not State.DONE and self._states.quiet is None:
            self._states.ended[found_by] += 1
            self._guarded(lambda: self._after_mark(found_by))

    def _after_mark(self, found_by: StepFoundBy) -> None:
        before = self._finder.found_by
        step = self._finder.marked(found_by)
        if step is None and self._finder.found_by != before:  # what is being heard began elsewhere
            self._states.hear_anew()
        self._end_of(step, is_mark=True)

    def forget_turns(self) -> None:
        """What was marked as steps so far were parts of longer ones, which are marked from here on."""
        self._guarded(self._states.turns_are_longer)

    def forget_steps(self) -> None:
        """Steps so far were none of those to record, which begin from here on."""
        self._guarded(self._states.forget_steps)

    def failed(self, error: Exception) -> None:
        """Something of ours that tells of the program failed: the recording is lost, the program is not."""
        log.debug("the recording of steps failed", exc_info=error)
        try:
            with self._lock:
                self._states.give_up(f"{type(error).__name__}: {error}")
        except Exception as second:  # what is recorded next fails again, and the end says so
            let_through(second)
            log.debug("the recording of steps could not be given up", exc_info=second)

    def optimizer_stepped(self, optimizer: Any) -> None:
        """An optimizer has made its step."""
        if self._states.now is not State.DONE or self._states.waits_for_training:
            self._guarded(lambda: self._after_optimizer(optimizer))

    def _after_optimizer(self, optimizer: Any) -> None:
        if self._states.quiet is not None:
            hear_again(self._states)
        thread = threading.get_ident()
        if self._states.puts_off_training(thread) or self._states.now is State.DONE:
            return
        if self._states.only_hears and self._finder.trains_beside(thread):
            self._states.give_way(thread)
        if not self._finder.owns_optimizer(type(optimizer).__name__, thread=thread):
            return
        self._states.ended["optimizer"] += 1
        if self._states.ignores(optimizer):
            return
        self._unused_replays = 0
        self._states.optimizer_stepped(optimizer)
        self._end_of(self._finder.optimizer_stepped(id(optimizer), type(optimizer).__name__))

    def module_called(self, module: Any) -> None:
        """A module is about to be called from outside all others, in a program that has compiled nothing."""
        if self._states.now is State.DONE or self._names:
            return
        waits = self._finder.owner in (None, threading.get_ident())
        if self._finder.found_by == "optimizer":  # what a backward held back can be done here
            self._guarded(lambda: self._between_optimizer_steps(module), waits=waits)
        else:
            self._finder.note_caller(threading.get_ident())  # which whoever does not wait may not come to tell
            self._guarded(lambda: self._before_module(module), waits=waits)

    def _between_optimizer_steps(self, module: Any) -> None:
        self._end_of(None)
        self._finder.add_module(f"{type(module).__name__}.forward", thread=threading.get_ident())

    def _before_module(self, module: Any) -> None:
        name, key = f"{type(module).__name__}.forward", id(module)
        if key not in self._modules:
            self._modules.add(key)
            self._parameters.update(map(id, islice(module.parameters(), _MOST_PARAMETERS)))
        keeps_gradients = self._tools.keeps_gradients()
        thread, site = threading.get_ident(), self._tools.call_site
        self._end_of(self._finder.called(name, key, thread=thread, keeps_gradients=keeps_gradients, site=site))

    def line_reached(self, line: str) -> None:
        """A line of a program that calls nothing else is about to call torch."""
        if self._states.now is not State.DONE:
            self._guarded(lambda: self._before_line(line))

    def _before_line(self, line: str) -> None:
        keeps_gradients, thread = self._tools.keeps_gradients(), threading.get_ident()
        self._end_of(self._finder.called(line, thread=thread, keeps_gradients=keeps_gradients))

    def function_called(self, function: Any) -> None:
        """A compiled function is about to be called from outside: all graphs of a step are called in such calls."""
        if self._states.now is not State.DONE and self._finder.owner in (None, threading.get_ident()):
            self._guarded(lambda: before_function(self._states, id(function)))

    @contextlib.contextmanager
    def replaying(self) -> Iterator[None]:
        """A CUDA graph of the program's own is replayed: a call, as that of a compiled graph is; what it holds is
        none."""
        waits = self._finder.owner in (None, threading.get_ident())
        self._guarded(self._before_replay, waits=waits)
        self._replays.n_open = getattr(self._replays, "n_open", 0) + 1
        try:
            yield
        finally:
            self._replays.n_open -= 1

    def _before_replay(self) -> None:
        self._states.replays_come()
        if self._states.now is State.DONE:
            return
        self._unused_replays += 1
        if self._states.now is State.WARMING and self._unused_replays > _HOLD_UPDATES:
            self._finder.forsake_optimizers()
        thread, site = threading.get_ident(), self._tools.call_site
        # Graphs of a dictionary, one for each size of a batch, are replayed at one place, those of a step's parts at
        # several.
        self._end_of(self._finder.called(_REPLAY, thread=thread, site=site))

    @property
    def is_replaying(self) -> bool:
        """True inside ``replaying``."""
        return getattr(self._replays, "n_open", 0) > 0

    def tally(self, name: str) -> bool:
        """Count a graph's call where that is all there is to do: a plain step should cost what it costs without us."""
        is_plain = self._states.is_plain and not self._pending and not self._ends_steps(name) and not self.is_replaying
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
        if self._states.now is State.DONE:
            if self._states.session.is_here:
                self._guarded(lambda: cut(self._states))
            return proceed()
        if self.is_replaying:
            return self._call(name, proceed, inputs, sizes)
        waits = direction_of(name) == "backward" or self._finder.owner in (None, threading.get_ident())
        self._guarded(lambda: self._before_call(name, identity, parameters), waits=waits)
        result = self._call(name, proceed, inputs, sizes)
        if self._ends_steps(name):
            self._guarded(lambda: self._after_update(name), waits=waits)
        return result

    def _call(
        self,
        name: str,
        proceed: Callable[[], Any],
        inputs: Sequence[Any],
        sizes: Callable[[], Mapping[str, int]],
    ) -> Any:
        is_first = name not in self._called
        self._called.add(name)
        if self._states.now is State.BY_EVENTS:
            return self._states.call_timer.call(name, proceed)
        if self._states.session.is_open:
            if self._states.now is State.HEARING:
                proceed = told(self._states.session.tool, name, proceed, inputs)
            return self._states.graph_calls.marked(self._tools, name, proceed, sizes)
        if is_first and self._is_graphed and not self._tools.is_profiling():
            return self._states.graph_calls.alone(self._tools, name, proceed)
        return proceed()

    def _before_call(self, name: str, identity: Hashable, parameters: Sequence[int]) -> None:
        if len(self._parameters) < _MOST_PARAMETERS:
            self._parameters.update(parameters)
        thread = threading.get_ident()
        self._end_of(
            self._finder.called(name, identity, thread=thread, direction=direction_of(name), site=self._tools.call_site)
        )

    def _ends_steps(self, name: str) -> bool:
        """Whether a graph's call is the step of an optimizer. What counts FLOPs of a step in which nothing is compiled
        goes by the period of the calls alone: there the same step is heard of the optimizer itself."""
        return self._states.only_hears and name in self._updaters and direction_of(name) != "forward"

    def _after_update(self, name: str) -> None:
        if self._states.now is not State.DONE and self._finder.owns_optimizer(name, thread=threading.get_ident()):
            self._states.ended["optimizer"] += 1
            self._end_of(self._finder.optimizer_stepped(name, "Optimizer"))

    # --- from step to step --------------------------------------------------------------------------------------

    def _guarded(self, action: Callable[[], None], *, waits: bool = True) -> None:
        """Do ``action`` alone; a thread that does not wait goes on without it while another is at it.

        What a program does while it captures a CUDA graph of its own is no step: nothing runs, and whoever asks the
        device for anything ruins the capture.
        """
        if self._tools.is_capturing():
            self._states.outcome.has_captured = True
            return
        if not self._lock.acquire(blocking=waits):
            return
        try:
            action()
        except Exception as error:  # the recording is lost, the program is not
            let_through(error)
            self.failed(error)
        finally:
            self._lock.release()

    def _end_of(self, step: FoundStep | None, *, is_mark: bool = False) -> None:
        """A step has ended. What follows from it is done on the thread of the steps, maybe later."""
        if step is not None or is_mark:
            self._pending = step or True
        self._states.look_on()
        if self._states.has_lost_session():
            if self._states.session.is_here:
                self._states.lose_session()
            return
        if not self._pending or self._finder.owner not in (None, threading.get_ident()):
            return
        if self._tools.is_in_backward():
            # The engine puts back what it found of modes and profilers: what begins in a backward is lost behind it.
            self._is_held = True
            return
        self._is_held = False
        ended, self._pending = self._pending, False
        advance(self._states, ended if isinstance(ended, FoundStep) else None)

    # --- ends ---------------------------------------------------------------------------------------------------

    def _thread_ends(self) -> None:
        """The thread of the steps ends now: the last moment at which its session can."""
        self._guarded(lambda: cut(self._states))

    def close(self) -> None:
        """The program, or the wish to record it, ends: nothing is recorded further. ``result`` says what there is.

        A session of a thread that still runs stays open until that thread's next call, or its end.
        """
        with self._lock:
            if self._states.now is State.DONE:
                return
            if self._states.now is State.WARMING and self._is_held:
                self._states.outcome.why_not = (
                    "steps end inside a backward, where nothing can be begun, and no module or graph is called "
                    "behind it: call torchledger.step() there"
                )
            if self._states.now is State.WARMING and self._states.outcome.has_captured:
                self._states.outcome.why_not = REPLAYED
            self._states.close()
            if self._given_tools is None:
                pass  # nothing was heard, and nothing of torch is asked for (or imported) only to end
            elif self._states.session.is_here or not self._states.session.is_open:
                self._guarded(lambda: cut(self._states))
            else:
                self._states.outcome.why_not = (
                    "the thread whose steps were recorded still runs, and nobody else can end its recording"
                )
            if not self.is_done:
                self._states.end()

    def before_fork(self) -> None:
        """The process is about to fork: its child may not inherit a session that is open on this thread, unless nothing
        but a listener is, which the child ends for itself."""
        if self._states.session.is_here and not self._states.only_hears:
            self._guarded(lambda: interrupt(self._states))

    def leave(self) -> None:
        """The process ends: it meets no other rank any more."""
        if self._states.meeting is not None:
            self._states.meeting.leave()

    def after_fork(self) -> None:
        """In a child of a fork: what is under way is the parent's."""
        self._lock = threading.RLock()
        self._states.after_fork()

    @property
    def is_in_backward(self) -> bool:
        """Whether autograd's engine calls what this thread is at."""
        return self._tools.is_in_backward()

    @property
    def looks_for_turns(self) -> bool:
        """Whether what modules are called between an optimizer's steps may still tell that those take turns."""
        return self._finder.looks_for_turns

    @property
    def optimizers(self) -> frozenset[int]:
        """The optimizers of the step that was heard, by ``id``."""
        return frozenset(self._states.outcome.optimizers)

    # --- what came of it ----------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What the step under way is for."""
        return self._states.now

    @property
    def is_done(self) -> bool:
        """True once no further step is wanted."""
        return self._states.now is State.DONE

    @property
    def waits_for_training(self) -> bool:
        """True once calls were recorded that no optimizer followed: its first step begins a recording anew."""
        return self._states.waits_for_training

    @property
    def needed(self) -> int:
        """How many steps without compilation it takes before one is recorded."""
        return self._states.needed

    def result(self) -> StepRecording:
        """What was recorded; complete once the state is ``DONE``."""
        return self._states.found()
