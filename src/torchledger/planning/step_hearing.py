"""The step of a program that runs without its device: when it is heard, how long others are looked on, what is kept."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import time
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from torchledger.capturing.conditionals import Conditional, Decision, Loop, asker_of, find_decisions
from torchledger.capturing.session import Capture
from torchledger.memory.record import Heard, record_memory
from torchledger.nouns import Device, Launch, MadeGroup, RarerStep, StepCall
from torchledger.planning.bare_programs import BareWork
from torchledger.planning.communication import collectives_of_step, place_calls
from torchledger.planning.given_up import given_up_note
from torchledger.planning.later_steps import Call, LaterSteps
from torchledger.planning.loading import StepLoading
from torchledger.planning.memory_search import MemorySearch
from torchledger.planning.optimizer_rounds import Rounds
from torchledger.planning.outside_work import OutsideWork
from torchledger.planning.program_threads import (
    Ending,
)
from torchledger.planning.rare_collectives import RareCollectives, do_matter
from torchledger.planning.step_sizes import StepSizes
from torchledger.planning.steps_of_a_turn import StepsOfATurn, steps_of_a_turn
from torchledger.planning.sweeps import Sweep, sweeps_around
from torchledger.planning.trained_behind import trained_behind_note
from torchledger.planning.turns import Turn, Turns
from torchledger.planning.turns_of_calls import TurnsOfCalls, WorkOfCalls
from torchledger.planning.turns_of_messages import Method, TurnOfMessages, TurnsOfMessages
from torchledger.planning.untaken import untaken_note
from torchledger.predicting.replays import replays_in
from torchledger.profiling.profile import StepProfiler
from torchledger.profiling.records import facts_of_recording
from torchledger.program_text import shortened
from torchledger.signals import let_through
from torchledger.stepping.assumed_ways import assumed_times, dearer_ways
from torchledger.stepping.heard import record_heard_step
from torchledger.stepping.record import Ledgered, StepFacts
from torchledger.stepping.recording import StepRecording
from torchledger.stepping.tools import Tools
from torchledger.traces.graph_marks import graph_mark, parse_graph_mark
from torchledger.work.collectives import message_of_call
from torchledger.work.graph_collectives import graph_collectives
from torchledger.work.graph_names import direction_of

if TYPE_CHECKING:
    from torchledger._torch.dynamo import GivenUp
    from torchledger._torch.eager_calls import EagerCalls
    from torchledger._torch.fakes.captures import Captures
    from torchledger._torch.fakes.flow import Flow
    from torchledger._torch.fakes.live_memory import LiveMemory
    from torchledger._torch.fakes.tensors import FakeTensors
    from torchledger._torch.fakes.world import FakeWorld
    from torchledger._torch.module_calls import ModuleCalls

log = logging.getLogger(__name__)

_WARMUP = 1
"""Steps without compilation before the one that is recorded."""

_MOST_LOOKED_ON, _LOOKED_ON_S, _LOOKED_ON_SHARE = 64, 1.0, 0.25
"""Behind a step that may be a part of a longer one so many more are let pass at most, for a second or this share of the
time that the program has taken until then."""

_LITTLE_BYTES, _LITTLE_EXCHANGED_S = 1 << 20, 15.0
"""Behind a step that trains and in which ranks exchange fewer bytes they are let pass for so long: averages of
parameters every some ten steps are then among them."""

_MOST_OF_TURNS, _OF_TURNS_S = 256, 60.0
"""So many steps of an optimizer are looked on, in so many seconds at most, where they seem to be parts of a turn."""

_OF_FIRST_TURN_S = 10.0
"""So long steps are looked on that may be parts of a program's first turn."""

_MOST_GOING_ON, _GOING_ON_S = 4096, 30.0
"""So many calls that go on from each other are looked on, and for so long where they may be parts of a first turn."""

_MOST_BEFORE_TRAINING, _BEFORE_TRAINING_S = 4096, 120.0
"""So many calls that nothing updates are let pass, in so many seconds at most, before the first step of an optimizer
that is there: many programs evaluate before they train."""

_OF_OTHER_THREAD_S = 10.0
"""For so many seconds at most calls that a thread repeats are let pass while the program's own does something else: it
may be about to train."""

_OF_HOST_S = 30.0
"""For so many seconds at most calls that never come near the device are let pass: weights that are made on the host by
modules (weight norm) are called alike."""

_UNTRAINED = (
    "the program has an optimizer that made no step in {:,} such calls, which were looked on: if it trains behind "
    "them, plan it with less before that"
)

_SEVERAL = (
    "what is priced is a turn in which optimizers make {} steps: {} of them take turns, and some step more often than "
    "others; end each step with torchledger.step() to price one"
)

_WARM_UPS = 11
"""So many steps run at most before a CUDA graph is captured: what torch's documents ask for with DDP."""


class StepHearer(StepProfiler):
    """Has one step of a program heard, writes it down, and ends the program."""

    def __init__(
        self,
        capture: Capture,
        ending: Ending,
        tensors: FakeTensors,
        devices: Sequence[Device],
        rare: RareCollectives,
        captures: Captures,
        loading: StepLoading,
        memory: LiveMemory,
        around: FakeWorld | None = None,
        *,
        looks_for_rarer: bool = True,
        looks_for_turns: bool = True,
        turn: Turn | TurnOfMessages | None = None,
        hears_lines: bool = False,
    ) -> None:
        self._looks_for_rarer, self._n_heard = looks_for_rarer, 0
        self._looks_for_turns, self._given_turn = looks_for_turns, turn
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self._ending, self._tensors, self._devices, self._rare = ending, tensors, devices, rare
        self._captures = captures
        self._marks: list[str] = []
        self._listeners: list[tuple[EagerCalls, int]] = []
        self._groups: Mapping[str, MadeGroup] = {} if around is None else around.groups
        self._notes: Sequence[str] = () if around is None else around.notes
        self._left_over = (lambda: None) if around is None else around.left_over
        self._is_a_rank = around is not None
        self.has_step = False
        self._is_running = True
        self._kept: StepRecording | None = None
        self._heard_s, self._look_on_s, self._looked_on = time.monotonic(), 0.0, 0
        self._may_train = False
        self._exchanged = 0
        self._steps_of_turn: StepsOfATurn | None = None
        self._outside, self._sizes = OutsideWork(lambda: self._made), StepSizes()
        self._rounds = Rounds()
        self._later = LaterSteps(lambda: self._n_inside > 0, self._graph_name)
        tensors.flows.append(self._later)
        self.rarer: tuple[RarerStep, ...] = ()
        self._sweeps: list[Sweep] = []
        self._trained_behind: str | None = None
        self._turns = Turns(lambda: self._made, self._follow, turn if isinstance(turn, Turn) else None)
        self._turns_of_messages: TurnsOfMessages | None = None
        if looks_for_turns and around is not None and not isinstance(turn, Turn):
            self._turns_of_messages = TurnsOfMessages(around.spec.rank, turn)
            around.on_message = self._message_begins
        self._bare = BareWork(lambda: self._outside.has_begun or hears_lines, ending.end)
        if not self._is_a_rank:
            tensors.flows += [self._sizes, self._bare, memory]
        self._search = MemorySearch()
        memory.on_run_out = self._search.ran_out
        self._turns_of_calls: TurnsOfCalls | None = None
        self._kept_turn: Turn | None = None
        self._n_inside = 0
        if looks_for_turns and around is None and turn is None:
            self._look_for_turns_of_calls()
        self._later_modules: ModuleCalls | None = None
        self._loading = loading
        self._given_up: list[GivenUp] = []
        self._n_replayed = 0
        captures.around_replay, captures.is_inside = self._replaying, lambda: self._n_inside > 0
        tools = _tools(self._marks, self._listeners, self._hearing_begins, tensors)
        super().__init__(capture, warmup=_WARMUP, only_hears=True, tools=tools)

    def _hear_modules_until_compiled(self) -> None:
        """The compiler is there from the start, whether or not the program compiles."""
        from torchledger._torch.steps import watch_compile

        self._patches.append(watch_compile(self._compiles))

    def _compiles(self) -> None:
        super()._hear_modules_until_compiled()
        if self._later_modules is not None:
            self._later_modules.undo()

    def _watch_replays(self) -> None:
        """Whoever stands in for CUDA graphs tells of their replays."""

    def _hear_later_modules(self) -> None:
        """Where nothing is compiled modules say where turns begin, also once optimizers say where steps end."""
        from torchledger._torch.module_calls import ModuleCalls

        looks = self._looks_for_turns and self._given_turn is None
        if self._later_modules is None and not self._is_compiling and looks:
            self._later_modules = ModuleCalls(lambda _: self._later_model_called(), self._recorder.failed)
            self._patches.append(self._later_modules)

    def _has_compiled(self) -> bool:
        """What this process compiled before is none of the program's."""
        return False

    def on_ready(self) -> bool:
        from torchledger._torch.dynamo import hear_given_up
        from torchledger._torch.optimizers import hear_begins

        self._patches.append(hear_given_up(self._given_up.append))
        self._patches.append(hear_begins(self._optimizer_begins))
        return super().on_ready()

    def on_graph(self, name: str, compiled: Any, launches: Sequence[Launch]) -> None:
        """What its wrapper asks for is asked by the user's line, and the dearer way of a conditional is taken."""
        from torchledger._torch.inductor import wrapper_file

        super().on_graph(name, compiled, launches)
        if (path := wrapper_file(compiled)) is not None:
            ways = dearer_ways(launches, self._forks[name])
            decisions = find_decisions(compiled.source_code or "")
            self._tensors.decide(path, {line: _decided(each, launches, ways) for line, each in decisions.items()})

    def _optimizer_stepped(self, optimizer: Any) -> None:
        from torchledger._torch.user_lines import frames_behind_hook

        self._captures.optimizer_stepped(lambda: self._optimizer_stepped(optimizer), is_alone=not self._is_a_rank)
        if self._captures.is_open:  # nothing runs: the step is made where this is replayed
            self._stepped.add(optimizer)
            return
        self._search.optimizer_stepped((frame.f_code.co_filename, line) for frame, line in frames_behind_hook())
        self._forget_what_was_tried()
        if self._kept is None:
            self._steps_of_turn = steps_of_a_turn(frames_behind_hook())
        self._rounds.optimizer_stepped(frames_behind_hook())
        self._end_of_turns_of_calls()
        self._rare.optimizer_stepped()
        self._outside.optimizer_stepped()
        self._sizes.optimizer_stepped()
        if self._turns_of_messages is not None:
            self._turns_of_messages.optimizer_stepped()
        self._stepped.add(optimizer)
        ends = self._ends_turn()
        super()._optimizer_stepped(optimizer)
        self._hear_later_modules()
        if ends:
            self._recorder.marked("turn")

    def _ends_turn(self) -> bool:
        """Whether a turn of several steps ends with the one that an optimizer has made."""
        from torchledger._torch.user_lines import frames_behind_hook

        if not self._looks_for_turns or self._recorder.is_in_backward:  # those of a backward are one
            return False
        if self._turns_of_messages is not None and self._turns_of_messages.turn is not None:
            return False
        is_part = self._kept is not None and self._kept.found_by == "optimizer"
        return self._turns.optimizer_stepped(frames_behind_hook(), beyond=self._outside.updates if is_part else None)

    def _message_begins(self, method: Method, peer: int) -> None:
        """A message is about to be sent to a rank or received from it."""
        from torchledger._torch.user_lines import user_line

        turns = self._turns_of_messages
        if self._recorder.is_in_backward:  # what is exchanged there is part of a step
            return
        if turns is not None and turns.message(peer, method, beyond=self._beyond, at=lambda: shortened(user_line())):
            self._recorder.marked("turn")

    @property
    def _beyond(self) -> int | None:
        """Steps of optimizers, or calls where there are none, that are known to belong together; ``None`` where that
        is not known, and where something else says where steps end."""
        if self._kept is None or self._kept.found_by not in ("optimizer", "period") or self._found_turn is not None:
            return None
        if self._kept.found_by == "optimizer":
            return self._outside.updates
        return sum(count for kind in self._kept.kinds[:1] for count in kind.calls.values())

    def _later_model_called(self) -> None:
        self._turns.model_called()
        self._sizes.model_called()
        self._rounds.model_called()

    def _profiler_stepped(self) -> None:
        from torchledger._torch.optimizers import has_other_optimizer

        # Such a mark may end each microbatch, or the first of them, before there are states of an optimizer.
        if not has_other_optimizer(frozenset(), self._tensors):
            super()._profiler_stepped()

    def _optimizer_begins(self) -> None:
        self._outside.optimizer_begins()
        self._sizes.optimizer_begins()

    def hear_lines(self, *, from_products: bool) -> contextlib.AbstractContextManager[Any]:
        """While entered lines that call torch say what repeats, from the first product on if there are any."""
        from torchledger._torch.line_calls import LineCalls

        def is_open() -> bool:
            return not self._outside.has_begun and (self._bare.n_products > 0 or not from_products)

        return LineCalls(self._line_reached, is_open)

    def _line_reached(self, line: str) -> None:
        from torchledger._torch import steps

        self._called(keeps_gradients=steps.keeps_gradients())
        self._recorder.line_reached(shortened(line))

    @property
    def is_bare(self) -> bool:
        """Whether nothing was called that says where steps end."""
        return not self._outside.has_begun and not self._is_a_rank

    @property
    def may_repeat(self) -> bool:
        """Whether a line of such a program may be found to repeat."""
        return self._bare.comes_again

    @property
    def n_products(self) -> int:
        """How many products the program has made."""
        return self._bare.n_products

    def _forget_what_was_tried(self) -> None:
        """Steps of a search for what fits into memory are none of those that come behind it."""
        if not self._search.has_just_ended():
            return
        self._kept = None
        self._outside.begin_anew()
        self._sizes.begin_anew()
        self._recorder.forget_steps()

    def _model_called(self) -> None:
        from torchledger._torch.user_lines import frames_behind_hook

        if not self._recorder.is_in_backward:
            self._search.model_called((frame.f_code.co_filename, line) for frame, line in frames_behind_hook())
            self._forget_what_was_tried()
        self._outside.model_called()
        self._later_model_called()
        if self._turns_of_messages is not None:
            self._turns_of_messages.model_called()

    def _follow(self) -> Flow:
        groups = [group for each in self._stepped for group in each.param_groups]
        return self._tensors.follow(each for group in groups for each in group["params"])

    @property
    def _made(self) -> int:
        """Operators that the calling thread has called so far, and launches of its graphs."""
        return self._tensors.n_operators

    def _module_called(self, module: Any) -> None:
        from torchledger._torch import steps

        self._model_called()
        self._called(keeps_gradients=steps.keeps_gradients())
        super()._module_called(module)

    def _called(self, *, keeps_gradients: bool) -> None:
        """Ends a turn of calls that nothing updates with the first of the next; what keeps gradients for an optimizer
        is no such call."""
        from torchledger._torch.optimizers import has_other_optimizer
        from torchledger._torch.user_lines import frames_behind_hook

        turns = self._turns_of_calls
        if turns is None or not turns.called(frames_behind_hook(), keeps_gradients=keeps_gradients):
            return
        if keeps_gradients and has_other_optimizer(frozenset(), self._tensors):
            self._end_of_turns_of_calls()
            return
        if turns.is_lengthened:
            turns.is_lengthened = False
            self._recorder.forget_turns()
        self._recorder.marked("turn")

    def _look_for_turns_of_calls(self) -> None:
        self._turns_of_calls = TurnsOfCalls()
        self._tensors.flows.append(WorkOfCalls(self._turns_of_calls, lambda: self._n_inside > 0))

    def _end_of_turns_of_calls(self) -> None:
        if self._turns_of_calls is not None:
            self._turns_of_calls.end()
            self._turns_of_calls = None
            self._tensors.flows[:] = [each for each in self._tensors.flows if not isinstance(each, WorkOfCalls)]

    @contextlib.contextmanager
    def _replaying(self) -> Iterator[None]:
        """A CUDA graph of the program's own is replayed: one call, as a compiled graph's is, whatever it holds."""
        if not self._n_replayed:
            self._outside.begin_anew()
            if self._turns_of_calls is not None:  # those before were of warm-ups
                self._end_of_turns_of_calls()
                self._look_for_turns_of_calls()
        self._model_called()
        self._called(keeps_gradients=False)
        with self._recorder.replaying():
            self._n_replayed += 1
            yield

    def _around_call(self, compiled: Any, inputs: Sequence[Any], proceed: Callable[[], Any]) -> Any:
        # What its wrapper calls is in its launches; it calls more at first, and in some versions of torch each time.
        before = self._tensors.n_operators
        if not self._recorder.is_replaying:
            self._model_called()
            self._called(keeps_gradients=direction_of(self._recorder.name_of(compiled) or "") != "inference")
        self._n_inside += 1
        try:
            begun = [(flow, flow.graph_begins(compiled, inputs)) for flow in self._tensors.flows]
            result = super()._around_call(compiled, inputs, proceed)
            for flow, read in begun:
                flow.graph_called(read, result)
            return result
        finally:
            self._n_inside -= 1
            launched = len(self._launches.get(self._recorder.name_of(compiled) or "", ()))
            self._tensors.count_operators(before + launched)
            if self._turns_of_calls is not None:
                self._turns_of_calls.worked(launched)

    def on_close(self) -> bool:
        """The program has ended: nothing more is recorded."""
        self._is_running = False
        self._stop()
        self._keep()
        return True

    def end(self) -> None:
        """The program has ended, and what was heard of it is about to be told of; ``why_not`` says what fails."""
        try:
            self.on_close()
        except Exception as error:  # whoever closes the capture comes here again
            let_through(error)
            log.debug("the step was not kept", exc_info=error)

    def _hear_no_calls(self) -> None:
        super()._hear_no_calls()
        if not self._is_running:
            return
        try:
            self._keep()
        finally:
            self._ending.end()

    def _keep(self) -> None:
        """Write down the step that was heard, if it was not yet."""
        recording = self._recorder.result()
        if self._kept is not None and (recording.heard is None or recording.heard is self._kept.heard):
            recording = self._kept  # what was found since is of a longer step, which was not heard
        if not self.has_step and recording.heard is not None and recording.memory is not None:
            self._rare.hearing_ended()
            try:
                self._capture.add(*self._records(recording))
            except Exception as error:
                self._why_not_written = f"{type(error).__name__}: {error}"
                raise
            self.has_step = True

    def _hearing_begins(self) -> None:
        gc.collect()  # cycles that compiling has left hold tensors until Python happens to look for them
        self._rare.hearing_begins()
        self._later.step_begins()
        self._outside.hearing_begins()
        self._loading.hearing_begins()

    def _lingers(self) -> bool:
        self._later.step_ended()
        looks_on = self._looks_on()
        if looks_on and self._looks_for_other_work:
            self._later.step_begins()
        return looks_on

    @property
    def _looks_for_other_work(self) -> bool:
        """Whether to look what the next step does that the recorded one does not. Nothing says how often calls that are
        steps as they repeat come otherwise, and replays are alike."""
        is_known = self._kept is not None and self._kept.found_by != "period" and not self._n_replayed
        return is_known and self._looks_for_rarer and self._later.are_wanted

    def _graph_name(self, compiled: Any) -> str | None:
        return self._recorder.name_of(compiled)

    def _looks_on(self) -> bool:
        from torchledger._torch.optimizers import has_other_optimizer

        recording = self._recorder.result()
        if recording.heard is None or recording.memory is None:
            return False
        now_s = time.monotonic()
        if self._kept is None or self._kept.heard is not recording.heard:
            self._outside.hearing_ended()
            self._sizes.hearing_ended()
            self._rounds.hearing_ended()
            self._loading.hearing_ended()
            self._rare.hearing_ended()
            self._later.recorded()
            self._exchanged = self._exchanged_bytes(recording)
            if self._kept is None:
                self._look_on_s = max(_LOOKED_ON_S, _LOOKED_ON_SHARE * (now_s - self._heard_s))
                if self._is_a_rank and self._exchanged < _LITTLE_BYTES and recording.found_by == "optimizer":
                    self._look_on_s = max(_LITTLE_EXCHANGED_S, self._look_on_s)
            self._heard_s, self._looked_on, self._n_heard = now_s, 0, self._n_heard + 1
            self._kept_turn = self._found_turn
            self._read_text_around(recording)
            self._may_train = recording.found_by == "period" and has_other_optimizer(frozenset(), self._tensors)
        self._kept = recording
        self._looked_on += 1
        self._rare.called_again()
        if self._waits_for_training:
            return self._looked_on <= _MOST_BEFORE_TRAINING and now_s < self._heard_s + _BEFORE_TRAINING_S
        if _is_of_host(recording) and self._looked_on <= _MOST_BEFORE_TRAINING and now_s < self._heard_s + _OF_HOST_S:
            return True
        if (
            recording.found_by == "period"
            and self._ending.goes_on_elsewhere
            and now_s < self._heard_s + _OF_OTHER_THREAD_S
        ):
            return True
        may_follow = self._may_exchange_later if self._is_a_rank else self._may_be_a_part
        if self._comes_before_replays(recording) or self._search.is_likely:
            return True
        if recording.found_by != "turn" and self._is_in_turn(now_s):
            return True
        if recording.found_by == "turn" and self._is_in_longer_turn(now_s):
            return True
        if self._looks_for_other_work:
            return True
        is_wanted = may_follow(recording) or self._outside.is_looked_for or self._sizes.may_differ
        return self._looked_on <= _MOST_LOOKED_ON and now_s < self._heard_s + self._look_on_s and is_wanted

    def _read_text_around(self, recording: StepRecording) -> None:
        """Note the loops over sizes that the step that has just ended stands in, and training behind them."""
        from torchledger._torch.user_lines import frames_behind_hook

        frames = list(frames_behind_hook())
        turn = self._found_turn if recording.found_by == "turn" else None
        self._sweeps = sweeps_around(frames, turn.around if turn is not None else None)
        self._trained_behind = trained_behind_note(frames) if recording.found_by == "optimizer" else None

    def _is_in_turn(self, now_s: float) -> bool:
        """Whether the steps at hand seem to be parts of a turn, not too long after the last that was heard."""
        calls, messages, beyond = self._turns_of_calls, self._turns_of_messages, self._beyond
        goes_on = calls is not None and calls.goes_on
        is_likely = self._turns.is_likely or (calls is not None and calls.is_likely)
        if is_likely or (messages is not None and messages.is_likely(beyond)):
            return (
                self._looked_on <= (_MOST_GOING_ON if goes_on else _MOST_OF_TURNS)
                and now_s < self._heard_s + _OF_TURNS_S
            )
        is_possible = self._turns.is_possible or (calls is not None and calls.is_possible)
        is_possible = is_possible or (messages is not None and messages.is_possible(beyond))
        most, longest_s = (_MOST_GOING_ON, _GOING_ON_S) if goes_on else (_MOST_LOOKED_ON, _OF_FIRST_TURN_S)
        return is_possible and self._looked_on <= most and now_s < self._heard_s + longest_s

    def _is_in_longer_turn(self, now_s: float) -> bool:
        """Whether turns at hand seem to be parts of a longer one, not too long after the last that was heard."""
        calls = self._turns_of_calls
        is_part = calls is not None and calls.may_be_a_part
        return is_part and self._looked_on <= _MOST_GOING_ON and now_s < self._heard_s + _OF_TURNS_S

    @property
    def _waits_for_training(self) -> bool:
        """Whether calls that nothing updates were heard in a program with an optimizer, which has made no step yet."""
        return self._may_train and not self._outside.has_updates

    def _may_exchange_later(self, recording: StepRecording) -> bool:
        """Whether a program has groups of several ranks, and no collective has been seen that its step lacks and that
        matters beside those that it has: some are asked for every so many steps alone."""
        has_groups = self._looks_for_rarer and any(len(group.ranks) > 1 for group in self._groups.values())
        return has_groups and not do_matter(self._rare.found, self._exchanged)

    def _exchanged_bytes(self, recording: StepRecording) -> int:
        """Bytes of the messages between ranks in a step, as far as they are known."""
        messages = [
            message.nbytes
            for each in recording.heard or ()
            if each.group is not None and (each.group_size or 0) > 1
            if (message := message_of_call(each.call, each.group_size)) is not None
        ]
        calls = Counter(name for kind in recording.kinds[:1] for name in kind.calls)
        for name, count in calls.items():
            for each in graph_collectives(self._launches.get(name, ())).values():
                made = self._groups.get(each.group or "")
                size = each.group_size if made is None else len(made.ranks)
                if (size or 0) > 1:
                    messages.append(count * (each.message_bytes(size) or 0))
        return sum(messages)

    def _may_be_captured(self, recording: StepRecording) -> bool:
        """Whether a step ran beside the stream that programs compute on, as those do that come before a CUDA graph of
        the program's own, and none has been captured yet."""
        from torchledger._torch.fakes.streams import COMPUTE

        if self._is_a_rank or self._captures.n_begun:
            return False
        streams = Counter(each.placed.stream for each in recording.heard or () if each.placed is not None)
        return streams[COMPUTE] < streams.total() / 2

    def _comes_before_replays(self, recording: StepRecording) -> bool:
        """Whether steps are those of a warm-up or a capture, behind which replays come."""
        is_possible = self._captures.n_begun > 0 and not self._n_replayed
        if recording.found_by == "period":  # a warm-up is many calls then
            is_soon = self._looked_on <= _MOST_BEFORE_TRAINING and time.monotonic() < self._heard_s + _BEFORE_TRAINING_S
        else:
            is_soon = self._looked_on <= (2 if is_possible else 1) * _WARM_UPS
        return is_soon and (is_possible or self._may_be_captured(recording))

    def _may_be_a_part(self, recording: StepRecording) -> bool:
        """Whether more may belong to a turn of the program's loop than the step that was heard: the rest of calls that
        nothing updates, graphs that it does not call, or an optimizer that has not stepped in it."""
        from torchledger._torch.optimizers import has_other_optimizer

        if recording.found_by not in ("optimizer", "period"):
            return False
        called = {name for kind in recording.kinds[:1] for name in kind.calls}
        others = recording.found_by == "period" or not self._launches.keys() <= called
        return others or has_other_optimizer(self._recorder.optimizers, self._tensors)

    def _is_one_of_several(self, recording: StepRecording) -> bool:
        """Whether what was recorded is one step of an optimizer: a turn of several optimizers holds them all."""
        return recording.found_by == "optimizer" and self._outside.updates == 1

    @property
    def is_steady(self) -> bool:
        """Whether the first step that was heard is the one that is kept, and what was looked on behind it was like it:
        no step held more, and none asked for a collective that it lacks."""
        was_looked_on = self._n_heard == 1 and self._looked_on > 1
        if not was_looked_on or self._kept is None or self._kept.found_by != "optimizer":
            return False
        return not self._rare.found and self._outside.note() is None

    @property
    def turn(self) -> Turn | TurnOfMessages | None:
        """What the step that is kept is, where it is a turn."""
        if self._kept is None or self._kept.found_by != "turn":
            return None
        messages = self._turns_of_messages
        return self._kept_turn or (messages.turn if messages is not None else None)

    @property
    def _found_turn(self) -> Turn | None:
        calls = self._turns_of_calls
        return self._turns.turn or (calls.turn if calls is not None else None)

    def _note_on_turn(self) -> str | None:
        """What the step is made of, where it is a turn."""
        if self._kept_turn is not None:
            return self._kept_turn.note()
        return self._turns_of_messages.note() if self._turns_of_messages is not None else None

    @property
    def has_heard(self) -> bool:
        """True once a step was heard that comes near the device: what comes of the program behind it is not asked."""
        return self._kept is not None and not _is_of_host(self._kept)

    def why_not(self) -> str:
        """Why there is no step."""
        recording = self._recorder.result()
        if self._why_not_written is not None:
            return f"one was heard, and could not be written down: {self._why_not_written}"
        if recording.why_not is None and recording.why_not_heard is not None:
            return f"one ended, and was not heard as a plan needs it: {recording.why_not_heard}"
        return recording.why_not or self._too_few_steps(recording)

    def _records(self, recording: StepRecording) -> list[Any]:
        facts = facts_of_recording(recording)
        assert facts is not None and recording.heard is not None and recording.memory is not None
        directions = {name: direction_of(name) for name in self._launches}
        assumed = {name: assumed_times(self._launches[name], forks) for name, forks in self._forks.items()}
        ledgered = Ledgered(directions, dict(self._launches), forks=dict(self._forks), assumed=assumed)
        listener, begin = next(each for each in self._listeners if each[0].memory is recording.memory)
        marked = [parse_graph_mark(mark) for mark in self._marks[begin : begin + _graph_calls(recording)]]
        record = record_heard_step(
            recording.memory.entries,
            recording.heard,
            facts,
            ledgered,
            host_waits=listener.host_waits,
            own_work=listener.own_work,
            sizes=dict(enumerate(mark[1] for mark in marked if mark is not None)),
        )
        memory = record_memory(
            Heard(recording.memory, recording.heard),
            record,
            ledgered.launches,
            devices=self._devices,
        )
        calls = place_calls(record, recording.heard, listener.graphs, listener.host_waits)
        if replays_in(calls):
            self._captures.replays_were_heard()
        collectives = collectives_of_step(
            calls,
            ledgered.launches,
            {name: group.ranks for name, group in self._groups.items()},
            {order: recording.heard[place] for place, order in record.places.items()},
        )
        self.rarer = tuple(self._later.rarer(record.calls, functools.partial(_as_calls, facts, ledgered)))
        said = _UNTRAINED.format(self._looked_on) if self._waits_for_training else self._outside.note()
        if recording.found_by == "turn":
            said = self._note_on_turn()
        loading = None if self._is_a_rank else self._loading.note()
        if said is None and self._steps_of_turn is not None and self._is_one_of_several(recording):
            said = self._steps_of_turn.note()
        n_optimizers = len(self._recorder.optimizers)
        if said is None and self._is_one_of_several(recording):
            said = self._sizes.note()
        if said is None and recording.found_by == "optimizer" and n_optimizers > 1:
            said = self._rounds.note(self._outside.updates)
        if said is None and recording.found_by == "optimizer" and 1 < n_optimizers < self._outside.updates:
            said = _SEVERAL.format(self._outside.updates, n_optimizers)
        sweeps = (each.note() for each in self._sweeps)
        untaken = untaken_note(self._tensors.stand_ins)
        of_text = (*sweeps, untaken, self._trained_behind)
        own = (said, self._search.note(), *of_text, loading, given_up_note(self._given_up), self._left_over())
        notes = (*record.step.notes, *self._notes, *(each for each in own if each is not None))
        step = replace(record.step, notes=notes)
        return [step, *calls, *collectives, *memory]


def _as_calls(facts: StepFacts, ledgered: Ledgered, called: Sequence[Call]) -> Sequence[StepCall]:
    """What was called, as calls of a step; collectives are told of by themselves."""
    heard = [each for each in called if not isinstance(each, str)]
    numbers = iter(range(len(heard)))
    entries = [each if isinstance(each, str) else next(numbers) for each in called]
    record = record_heard_step(entries, heard, facts, ledgered)
    return [call for call in record.calls if call.kind != "collective"]


def _decided(
    decision: Decision, launches: Sequence[Launch], ways: Mapping[Conditional, int]
) -> tuple[str | None, tuple[bool, ...]]:
    """The user's line that asks, and what it is told, in turn: a loop goes on once."""
    asker = asker_of(decision.fork, launches)
    if isinstance(decision.fork, Loop):
        return asker, (True, False) if decision.goes_on else (True,)
    return asker, (ways[decision.fork] == 0,)


def _graph_calls(recording: StepRecording) -> int:
    assert recording.memory is not None
    return sum(isinstance(entry, str) for entry in recording.memory.entries)


def _is_of_host(recording: StepRecording) -> bool:
    """Whether a step that nothing ends but that it repeats is of the host alone."""
    if recording.found_by != "period" or recording.heard is None or _graph_calls(recording):
        return False
    return all(call.device == "cpu" for call in recording.heard)


def _tools(
    marks: list[str],
    listeners: list[tuple[EagerCalls, int]],
    hearing_begins: Callable[[], None],
    tensors: FakeTensors,
) -> Tools:
    """What a recorder needs of torch, on a device that does nothing; it keeps marks of graph calls, and listeners, each
    with how many marks there were before it."""
    from torchledger._torch import steps
    from torchledger._torch.optimizers import has_other_optimizer

    @contextlib.contextmanager
    def mark(name: str) -> Iterator[None]:
        place = len(marks)
        marks.append(name)
        with tensors.sizes_in_graph() as made:
            yield
        if made and (marked := parse_graph_mark(name)) is not None:
            marks[place] = graph_mark(marked[0], {**marked[1], **made})

    def listener(inside: Callable[[], str | None]) -> EagerCalls:
        listeners.append((steps.listener(inside), len(marks)))
        hearing_begins()
        return listeners[-1][0]

    tools = types.SimpleNamespace(**vars(steps))
    tools.listener = listener
    # Graphs are given what is gathered of sharded parameters, which no optimizer holds.
    tools.holds_optimizer = lambda parameters: has_other_optimizer(frozenset(), tensors)
    tools.mark, tools.has_cuda, tools.synchronize = mark, lambda: False, lambda: None
    tools.is_profiling = lambda: True  # a first call under CUDA graphs is not recorded
    return cast(Tools, tools)
