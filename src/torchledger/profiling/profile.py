"""Profile the steps of a running program and give every kernel's time to its entry in the ledger.

``stepping`` finds the steps and records some of them; here a capture's hooks feed it, and what it recorded becomes
records. What a *step* is: see ``stepping/finder.py``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchledger._torch.dynamo import MAKES_COMPILED, before_compiling, makes_compiled
from torchledger._torch.lazy_import import PACKAGES, after_import, import_what_compiles
from torchledger.capturing.conditionals import Fork, find_forks
from torchledger.capturing.ranks import own_rank, own_world_size
from torchledger.capturing.session import Capture
from torchledger.capturing.watcher import Watcher
from torchledger.device.describe import describe_devices
from torchledger.errors import MeasureError
from torchledger.nouns import Breakdown, Gap, Launch, StepFoundBy
from torchledger.printable import counted
from torchledger.profiling.event_times import breakdown_of_calls
from torchledger.profiling.records import records_of_recording
from torchledger.profiling.unlike_steps import lines_of_graphs, what_differs
from torchledger.signals import let_through, signals_deferred
from torchledger.stepping.marks import PACKAGE_MARK
from torchledger.stepping.meeting import Meeting
from torchledger.stepping.recorder import StepRecorder
from torchledger.stepping.recording import StepRecording
from torchledger.stepping.states import TOO_SOON
from torchledger.stepping.tools import Tools
from torchledger.store.job import job_folder_of
from torchledger.work.graph_names import direction_of

if TYPE_CHECKING:
    from torchledger._torch.module_calls import ModuleCalls
    from torchledger._torch.optimizers import OptimizerWatch

log = logging.getLogger(__name__)

DEFAULT_WARMUP = 3
DEFAULT_TIMED = 3
DEFAULT_REPEATS = 3

_AFTER_US = 3e5
"""How long a program's plain steps are timed after the recording."""

_SPARE_STEPS = 40
"""How often ``profile`` calls a step function at most beyond what it needs: where steps differ."""


class KernelVisibility(Watcher):
    """Has kernels compiled so that a profiler can see them, for as long as a capture runs."""

    def __init__(self) -> None:
        self._patches: Any = None

    def on_ready(self) -> bool:
        from torchledger._torch.profiler import make_kernels_visible

        self._patches = make_kernels_visible()
        return True

    def on_close(self) -> bool:
        if self._patches is not None:
            self._patches.undo()
        return True


class StepProfiler(Watcher):
    """Watches a capture, has its program's steps recorded, and writes what they say of the ledger's entries."""

    def __init__(
        self,
        capture: Capture,
        *,
        warmup: int = DEFAULT_WARMUP,
        repeats: int = DEFAULT_REPEATS,
        timed: int = DEFAULT_TIMED,
        after_us: float = _AFTER_US,
        counts_eager: bool = False,
        only_hears: bool = False,
        tools: Tools | None = None,
    ) -> None:
        self._capture = capture
        self._launches: dict[str, list[Launch]] = {}
        self._forks: dict[str, tuple[Fork, ...]] = {}
        self._places: dict[str, tuple[int, ...]] = {}
        self._patches: list[Any] = []
        self._call_patches: list[Any] = []
        self._quiet_patches: list[Any] = []
        self._optimizers: OptimizerWatch | None = None
        self._recorder = StepRecorder(
            warmup=warmup,
            timed=timed,
            repeats=repeats,
            after_us=after_us,
            counts_eager=counts_eager,
            only_hears=only_hears,
            tools=tools,
            on_done=self._all_recorded,
            on_again=self._hear_calls_again,
            later_steps=lambda: self._optimizers.counted if self._optimizers is not None else {},
            meeting=lambda: _meeting_of(capture),
            quiet=self._hear_quietly,
            lingers=self._lingers,
        )
        self._counts_eager, self._only_hears = counts_eager, only_hears
        self._modules: ModuleCalls | None = None
        self._is_compiling = False
        self._written: list[Any] = []
        self._why_not_written: str | None = None
        # Before anything compiles: what Dynamo traces of an optimizer's step does not change in the middle of a run.
        self._cancels = [
            after_import("torch", import_what_compiles),
            after_import("torch.optim.optimizer", self._watch_optimizers),
            after_import("torch.nn.modules.module", self._watch_modules),
            after_import(MAKES_COMPILED, self._watch_compilation),
            after_import(PACKAGES, self._watch_packages),
            after_import("torch.cuda.graphs", self._watch_replays),
        ]
        _watch_forks(self._recorder)

    def _lingers(self) -> bool:
        """Whether to look on behind a step that was only heard."""
        return False

    # --- watching the capture ----------------------------------------------------------------------------------

    def _watch_optimizers(self) -> None:
        from torchledger._torch.optimizers import OptimizerWatch

        self._optimizers = OptimizerWatch(self._optimizer_stepped, self._recorder.failed)
        self._patches.append(self._optimizers)

    def _watch_packages(self) -> None:
        from torchledger._torch.packages import mark_package_calls

        self._patches.append(mark_package_calls(PACKAGE_MARK))

    def _watch_replays(self) -> None:
        from torchledger._torch.cuda_graphs import watch_replays

        self._patches.append(watch_replays(self._recorder.replaying))

    def _optimizer_stepped(self, optimizer: Any) -> None:
        self._recorder.optimizer_stepped(optimizer)
        # Of a step inside a backward the next module's call says where it ends.
        if not self._recorder.is_in_backward and not self._recorder.looks_for_turns:
            self._hear_no_modules()

    def _watch_modules(self) -> None:
        from torchledger._torch.module_calls import ModuleCalls

        if not self._is_compiling and not self._has_compiled():
            self._modules = ModuleCalls(self._module_called, self._recorder.failed)

    def _module_called(self, module: Any) -> None:
        self._recorder.module_called(module)

    def _has_compiled(self) -> bool:
        """Whether functions of before may compile while the program runs: Dynamo would trace the hooks in them."""
        return makes_compiled()

    def _watch_compilation(self) -> None:
        self._hear_fused()
        self._patches.append(before_compiling(self._hear_modules_until_compiled, made=self._hear_fused))

    def _hear_fused(self) -> None:
        """A compiled step of a fused optimizer may be all that compiles, and has no graph."""
        if self._optimizers is not None:
            self._optimizers.hear_fused()

    def _hear_no_modules(self) -> None:
        """Something else tells where steps end, or is about to be compiled."""
        modules, self._modules = self._modules, None
        if modules is not None:
            modules.undo()

    def _hear_modules_until_compiled(self) -> None:
        """Something is about to be compiled: Dynamo would trace the hooks, and fail where no graph may break."""
        self._is_compiling = True
        self._hear_no_modules()
        if self._modules is not None:
            raise MeasureError("modules are still heard while something compiles: graphs may be compiled twice")

    def on_ready(self) -> bool:
        from torchledger._torch.profiler import make_kernels_visible

        self._hear_modules_until_compiled()
        self._patches.append(make_kernels_visible())
        self._hear_calls()
        return True

    def _hear_calls(self) -> None:
        from torchledger._torch.eager_calls import keep_modes_over_compiled_calls
        from torchledger._torch.profiler import watch_graph_calls
        from torchledger._torch.steps import watch_profiler_steps

        self._call_patches = [
            keep_modes_over_compiled_calls(),
            watch_graph_calls(self._around_call, self._recorder.failed),
            watch_profiler_steps(self._profiler_stepped),
        ]
        if self._counts_eager:
            from torchledger._torch.eager_flops import watch_compiled_functions

            self._call_patches.append(watch_compiled_functions(self._recorder.function_called))

    def _profiler_stepped(self) -> None:
        self._recorder.marked("profiler_step")

    def _hear_quietly(self, called: Callable[[Any], None] | None) -> bool:
        """Only count calls of graphs, so that plain steps cost what they cost without us, or hear all again.

        Optimizers are heard on where one might begin to train what is called.
        """
        from torchledger._torch.profiler import count_graph_calls

        if not self._call_patches:
            return False
        with contextlib.ExitStack() as rest:
            for patches in self._quiet_patches if called is None else self._call_patches:
                rest.callback(patches.undo)
        if self._optimizers is not None:
            self._optimizers.is_muted = called is not None and not self._recorder.waits_for_training
        if called is not None:
            self._quiet_patches = [count_graph_calls(called)]
        elif self._quiet_patches:
            self._quiet_patches = []
            self._hear_calls()
        return True

    def on_graph(self, name: str, compiled: Any, launches: Sequence[Launch]) -> None:
        from torchledger._torch.profiler import compiles_cuda_graphs

        self._launches[name] = list(launches)
        self._recorder.graph(name, compiled, is_graphed=compiles_cuda_graphs())
        if self._recorder.name_of(compiled) is None:
            raise MeasureError(f"calls of {name} are not recorded: the recorder does not know it")
        self._forks[name] = find_forks(getattr(compiled, "source_code", None) or "")

    def on_close(self) -> bool:
        is_hearing = self._is_compiling and bool(self._call_patches)
        self._stop()
        self._recorder.leave()
        try:
            recording = self._recorder.result()
            is_wanted = not self._written and (self._launches or recording.begun)
            records = self._records(recording) if is_wanted else []
            if self._launches and not is_hearing:
                reason = "its hooks were not put in: kernels and steps may have passed unseen"
                records = [*records, Gap("device_time", "profile", reason)]
            untold = set(self._capture.graph_names) - set(self._launches)
            if untold:
                reason = f"the profile was not told of {counted(len(untold), 'graph')}, the first of them {min(untold)}"
                records = [*records, Gap("device_time", "profile", reason)]
            if records:  # a process that neither compiled nor trained writes no ledger
                self._capture.add(*records)
        except Exception as error:  # the profile is lost, the program and its ledger are not
            let_through(error)
            log.debug("profile failed", exc_info=error)
            self._capture.add(Gap("device_time", "profile", f"{type(error).__name__}: {error}"))
        return True

    def _stop(self) -> None:
        if self in _current:
            _current.remove(self)
        with contextlib.ExitStack() as rest:  # each of them, whatever another raises; the last one first
            for patches in (*self._patches, *self._quiet_patches):
                rest.callback(patches.undo)
            rest.callback(self._recorder.close)
            rest.callback(self._hear_no_modules)
            for cancel in self._cancels:
                rest.callback(cancel)

    def _all_recorded(self) -> None:
        """Nothing more is wanted. A rank writes what there is now: when another fails, its launcher ends all of them,
        and nothing is written any more."""
        self._hear_no_calls()
        if (own_world_size() or 1) < 2 or own_rank() is None:
            return
        recording = self._recorder.result()
        if recording.times is None or self._written:
            return
        try:
            with signals_deferred(at_end=True):
                records = self._records(recording)
                self._capture.add(*records)
                self._written = records
        except Exception as error:  # what it was is said when the program ends: the trace is read but once
            let_through(error)
            log.debug("the profile was not written", exc_info=error)
            self._why_not_written = f"{type(error).__name__}: {error}"

    def _hear_no_calls(self) -> None:
        """From here on calls of graphs cost what they do without us; steps of optimizers are only counted."""
        if self in _current:
            _current.remove(self)
        with contextlib.ExitStack() as rest:  # each of them, whatever another raises
            for patches in self._call_patches:
                rest.callback(patches.undo)
            if self._optimizers is not None and not self._recorder.waits_for_training:
                rest.callback(self._optimizers.only_count)
            rest.callback(self._hear_no_modules)

    def _hear_calls_again(self) -> bool:
        """An optimizer steps where only calls were recorded: calls are heard again, unless all is written."""
        if self._written:
            return False
        if self._call_patches:
            self._hear_calls()
        return True

    # --- the program's steps -----------------------------------------------------------------------------------

    def step(self, found_by: StepFoundBy = "torchledger.step") -> None:
        """A step ends here: the program says so."""
        self._hear_no_modules()
        self._recorder.marked(found_by)

    @property
    def is_done(self) -> bool:
        """True once no further step is wanted."""
        return self._recorder.is_done

    def _around_call(self, compiled: Any, inputs: Sequence[Any], proceed: Callable[[], Any]) -> Any:
        name = self._recorder.name_of(compiled)
        if name is None or self._recorder.tally(name):
            return proceed()

        from torchledger._torch.call_sizes import symbol_values
        from torchledger._torch.steps import identity_of, parameter_places, updates_parameters

        places = self._places.get(name)
        if places is None:
            places = self._places[name] = parameter_places(compiled, inputs)
            if updates_parameters(compiled, inputs):
                self._recorder.updates(name)
        parameters = [id(inputs[place]) for place in places if place < len(inputs)]
        return self._recorder.around_call(
            name,
            proceed,
            identity=identity_of(inputs, places),
            parameters=parameters,
            inputs=inputs,
            sizes=lambda: symbol_values(inputs, self._capture.symbol_inputs.get(name, {})),
        )

    # --- what is made of it -------------------------------------------------------------------------------------

    def result(self) -> Breakdown:
        """End the profile now, write it into the ledger and return its breakdown.

        Raises ``MeasureError`` if nothing was recorded, or the recording holds nothing of the ledger.
        """
        self._capture.unwatch(self)
        self._stop()
        recording = self._recorder.result()
        if recording.times is None and recording.why_not is None:
            raise MeasureError("nothing was profiled: did the step call a compiled model?")
        records = self._written or self._records(recording)
        if not self._written:
            self._capture.add(*records)
        for record in records:
            if isinstance(record, Breakdown):
                return record
        raise MeasureError(f"nothing was profiled: {self._why_not_written or recording.why_not}.")

    def abandon(self) -> None:
        """End the profile and keep nothing of it: what it should have watched has failed."""
        self._capture.unwatch(self)
        self._stop()
        recording = self._recorder.result()
        for path in (recording.times, *(path for _, path in recording.first_calls)):
            if path is not None:
                path.unlink(missing_ok=True)

    def _records(self, recording: StepRecording) -> list[Any]:
        if self._why_not_written is not None:
            return [Gap("device_time", "profile", self._why_not_written)]
        launches = [launch for group in self._launches.values() for launch in group]
        if recording.times is not None:
            return records_of_recording(
                recording,
                launches,
                devices=describe_devices(),
                trace_path=self._capture.own_path().with_suffix(".trace.json.gz"),
                forks={name: found for name, found in self._forks.items() if found},
            )
        if recording.why_not in (None, TOO_SOON):
            return [Gap("device_time", "profile", self._too_few_steps(recording))]
        if not recording.spans:
            return [Gap("device_time", "profile", recording.why_not)]
        reason = f"{recording.why_not}; graphs are timed as a whole, by CUDA events, and entries have no times"
        return [
            Gap("device_time", "profile", reason),
            breakdown_of_calls(recording.spans, launches, n_steps=recording.n_steps, plain_us=recording.plain_us),
        ]

    def _too_few_steps(self, recording: StepRecording) -> str:
        graphs = len([name for name in self._launches if direction_of(name) != "backward"])
        recorder = self._recorder
        return why_no_step(
            recording,
            graphs=graphs,
            warmup=recorder.warmup,
            needed=recorder.needed,
            is_plan=self._only_hears,
            lines=lines_of_graphs(self._launches),
        )


def why_no_step(
    recording: StepRecording,
    *,
    graphs: int,
    warmup: int,
    needed: int,
    is_plan: bool = False,
    lines: Mapping[str, str] | None = None,
) -> str:
    """Why nothing was profiled, or with ``is_plan`` planned, and the options with which the steps there were would do.

    ``graphs`` is how many forwards and inference graphs were compiled, ``needed`` how many steps a profile takes,
    ``warmup`` of them before it; ``lines`` are those of the program that graphs come of.
    """
    least, seen, called = needed - warmup, recording.begun, sum(recording.called.values())
    who = "a plan" if is_plan else "the profile"
    if seen <= 1 and graphs > 2 and called < needed:
        compiled, wanted = counted(graphs, "graph"), counted(needed, "step")
        return f"the program compiled to its end ({compiled}), and {who} needs {wanted} without"
    if recording.found_by is None and called > 1:
        calls = ", ".join(f"{name} x{count}" for name, count in recording.called.most_common(3))
        if recording.waited_for_optimizer:
            return (
                f"no step was found: what the program called since it last compiled ({calls}) repeats itself, and "
                f"{who} waited for a step of the optimizer that holds its parameters, which made none. End each step "
                "with torchledger.step(), or make no optimizer"
            )
        return (
            f"no step was found: what the program called since it last compiled ({calls}) repeats itself in no "
            f"order that {who} knows, and it needs {counted(needed, 'step')}. End each with torchledger.step()"
        )
    steps, differs = f"{seen} step{'' if seen == 1 else 's'}", what_differs(recording.kinds, lines)
    reason = f"the program ended after {steps} without compilation, and {who} needs {needed}. "
    if seen >= needed and recording.why_not == TOO_SOON:
        alike = recording.kinds[0].count if recording.kinds else 0
        unlike = "" if differs is None else f" (they differ in how often one calls: {differs})"
        return (
            f"the program ended after {steps} without compilation, {alike} of them of the most frequent kind, before "
            f"one of these came again to be recorded{unlike}. Run more steps, or end each with torchledger.step()"
        )
    if is_plan and seen > needed and differs is not None:
        return (
            f"the program ended after {steps} without compilation, and those that {who} heard were not alike: one "
            f"calls {differs}. One is planned as it is when nine were not: run more steps, or have each call the same"
        )
    if is_plan and seen > needed:
        return (
            f"the program ended after {steps} without compilation, of which {who} heard none to its end. End each with "
            "torchledger.step()"
        )
    if is_plan:
        return f"{reason}Run more steps, or end each with torchledger.step()"
    if seen >= least:
        return f"{reason}Run more steps, or profile with --warmup {seen - least}"
    return f"{reason}Run more steps: {least} at least, with --warmup 0"


def _meeting_of(capture: Capture) -> Meeting | None:
    """Where the ranks of this process's job meet; ``None`` where it is not one of several ranks."""
    rank, size = own_rank(), own_world_size()
    if rank is None or size is None or not rank < size or size < 2:
        return None
    return Meeting(job_folder_of(capture.path), rank, size)


def _watch_forks(recorder: StepRecorder) -> None:
    """A child of a fork inherits no session. These hooks cannot be taken out, and do nothing without the recorder."""
    reference = weakref.ref(recorder)

    def tell(what: str) -> None:
        living = reference()
        if living is not None:
            getattr(living, what)()

    os.register_at_fork(before=lambda: tell("before_fork"), after_in_child=lambda: tell("after_fork"))


_current: list[StepProfiler] = []


def attach(capture: Capture, settings: Mapping[str, Any]) -> StepProfiler:
    """Profile what a capture sees; ``settings`` are the keywords of ``StepProfiler``."""
    silence_kineto()
    numbers: dict[str, Any] = {name: int(value) for name, value in settings.items() if name != "counts_eager"}
    profiler = StepProfiler(capture, **numbers, counts_eager=bool(settings.get("counts_eager")))
    hear_steps(profiler)
    capture.watch(profiler)
    return profiler


def hear_steps(profiler: StepProfiler) -> None:
    """Tell ``profiler`` each ``torchledger.step()`` of the program, until it is done."""
    _current.append(profiler)


def silence_kineto() -> None:
    """Keep Kineto from telling stderr that it starts and stops; a level that the user has set stays."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # above every level of its own


def step() -> None:
    """Say that a training or inference step ends here. Never required; does nothing unless a profile is on."""
    for profiler in tuple(_current):
        profiler.step()


def profile(
    capture: Capture, step_fn: Callable[[], Any], *, warmup: int = DEFAULT_WARMUP, repeats: int = DEFAULT_REPEATS
) -> Breakdown:
    """Profile ``step_fn`` under a capture: warm up, time it plainly, then record ``repeats`` calls.

    Raises ``MeasureError`` if nothing was recorded, ``UsageError`` once the capture has ended.
    """
    if warmup < 0 or repeats < 1:
        raise ValueError(f"a profile takes warmup >= 0 and repeats >= 1, not warmup={warmup}, repeats={repeats}")
    capture.check_is_running()
    silence_kineto()
    profiler = StepProfiler(capture, warmup=warmup, repeats=repeats, after_us=0.0)
    capture.watch(profiler)
    try:
        for _ in range(warmup + DEFAULT_TIMED + repeats + _SPARE_STEPS):
            profiler.step("call")
            if profiler.is_done:
                break
            step_fn()
    except BaseException:
        profiler.abandon()
        raise
    return profiler.result()
