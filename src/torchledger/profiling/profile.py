"""Profile the steps of a running program and give every kernel's time to its entry in the ledger.

A *step* is what repeats: from one call of the anchor graph (the first compiled graph that the program calls) to the
next, or from one ``torchledger.step()`` to the next where the program says so. After a warm-up in which nothing
compiles any more, a few steps are timed without the profiler, then a few under it; so the profile knows what it cost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torchledger.capturing.session import Capture, Watcher
from torchledger.device.describe import describe_devices
from torchledger.errors import MeasureError
from torchledger.nouns import (
    Breakdown,
    Gap,
    Launch,
)
from torchledger.profiling.attribution import (
    learn_sequence,
)
from torchledger.profiling.event_times import breakdown_of_calls
from torchledger.profiling.records import STEP_MARK, profile_records
from torchledger.profiling.steps import Steps
from torchledger.traces.chrome_export import annotate_trace, facts_by_row
from torchledger.traces.costs import device_events
from torchledger.traces.graph_marks import graph_mark
from torchledger.traces.trace import read_trace

log = logging.getLogger(__name__)

DEFAULT_WARMUP = 3
DEFAULT_TIMED = 2
DEFAULT_REPEATS = 3


class KernelVisibility(Watcher):
    """Has kernels compiled so that a profiler can see them, for as long as a capture runs."""

    def __init__(self) -> None:
        self._patches: Any = None

    def on_ready(self) -> None:
        from torchledger._torch.profiler import make_kernels_visible

        self._patches = make_kernels_visible()

    def on_close(self) -> None:
        if self._patches is not None:
            self._patches.undo()


class StepProfiler(Watcher):
    """Watches a capture, finds the program's steps and records some of them."""

    def __init__(
        self,
        capture: Capture,
        *,
        warmup: int = DEFAULT_WARMUP,
        repeats: int = DEFAULT_REPEATS,
        timed: int = DEFAULT_TIMED,
    ) -> None:
        self._capture = capture
        self._warmup, self._repeats, self._timed = warmup, repeats, timed
        self._names: dict[int, str] = {}
        self._keep: list[Any] = []
        self._launches: dict[str, list[Launch]] = {}
        self._anchor: str | None = None
        self._explicit = False
        self._state: Literal["warming", "timing", "settling", "recording", "by_events", "done"] = "warming"
        self._count = 0
        self._seen = 0
        self._moments: list[float] = []
        self._early: str | None = None
        self._call_timer: Any = None
        self._why_not: str | None = None
        self._plain: list[float] = []
        self._profiled: list[float] = []
        self._recording: Any = None
        self._step_mark: Any = None
        self._called: set[str] = set()
        self._learned: dict[str, list[tuple[str, int]]] = {}
        self._learning: list[tuple[str, Path]] = []
        self._patches: list[Any] = []
        self._is_graphed = False
        self._is_settled = True

    # --- watching the capture ----------------------------------------------------------------------------------

    def on_ready(self) -> None:
        from torchledger._torch.profiler import make_kernels_visible, watch_graph_calls

        self._patches = [make_kernels_visible(), watch_graph_calls(self._around_call)]

    def on_graph(self, name: str, compiled: Any, launches: Sequence[Launch]) -> None:
        from torchledger._torch.profiler import compiles_cuda_graphs

        # A backward that is compiled late may be compiled outside the setting its forward was compiled under.
        self._is_graphed = self._is_graphed or compiles_cuda_graphs()
        self._names[id(compiled)] = name
        self._keep.append(compiled)  # an id is only a name while its object lives
        self._launches[name] = list(launches)
        if self._state in ("warming", "timing"):
            self._restart()
        self._is_settled = False

    def on_close(self) -> None:
        for patches in self._patches:
            patches.undo()
        try:
            if self._state in ("settling", "recording") and not self._has_lost_recording():
                self._stop_early()
            self._finish()
        except Exception as error:  # the profile is lost, the program and its ledger are not
            log.debug("profile failed", exc_info=error)
            self._capture.add(Gap("device_time", "profile", f"{type(error).__name__}: {error}"))

    # --- the program's steps -----------------------------------------------------------------------------------

    def step(self) -> None:
        """The program says that a step ends here."""
        if not self._explicit:
            self._explicit = True
            self._restart()
        self._boundary()

    def _around_call(self, compiled: Any, proceed: Callable[[], Any]) -> Any:
        from torchledger._torch import profiler

        name = self._names.get(id(compiled))
        if name is None or self._state == "done":
            return proceed()
        is_first = name not in self._called
        self._called.add(name)
        if not self._explicit:
            # A backward may run on a thread of the autograd engine, where a profile cannot start.
            if self._anchor is None and not name.startswith("backward"):
                self._anchor = name
            if name == self._anchor:
                self._boundary()
        if is_first and self._recording is None and self._is_graphed and not profiler.is_profiling():
            return self._learn(name, proceed)
        if self._state == "by_events":
            return self._call_timer.call(name, proceed)
        if profiler.is_profiling():
            with profiler.mark(graph_mark(name)):
                return proceed()
        return proceed()

    def _learn(self, name: str, proceed: Callable[[], Any]) -> Any:
        """The first call of a graph runs un-graphed: record which kernels it launches, to know them in replays."""
        from torchledger._torch import profiler

        recording = profiler.Recording()
        try:
            recording.start()
        except Exception as error:  # the program's call must go on
            self._capture.add(Gap("device_time", name, f"its un-graphed call could not be recorded: {error}"))
            return proceed()
        try:
            with profiler.mark(graph_mark(name)):
                return proceed()
        finally:
            self._keep_first_call(name, recording)

    def _keep_first_call(self, name: str, recording: Any) -> None:
        """End the recording of a first call, and export it at once: the profiler's next one takes its memory over."""
        try:
            recording.stop()
            self._learning.append((name, recording.export()))
        except Exception as error:  # the program's call has its result
            self._capture.add(Gap("device_time", name, f"its un-graphed call could not be recorded: {error}"))

    def _restart(self) -> None:
        self._state, self._count, self._seen = "warming", 0, 0
        self._plain.clear()
        if not self._explicit:
            self._anchor = None

    def _boundary(self) -> None:
        """A step begins: go on from warming up to timing to recording to done."""
        from torchledger._torch import profiler

        if self._state == "done" or self._has_lost_recording():
            return
        self._count += 1
        self._seen += 1
        if self._state == "warming" and self._count > self._warmup:
            profiler.synchronize()
            self._state, self._count = "timing", 0
            self._moments = [time.perf_counter()]
        elif self._state == "timing":
            if self._count < self._timed:
                return
            profiler.synchronize()
            self._plain = [(time.perf_counter() - self._moments[0]) * 1e6 / self._timed]
            if profiler.is_profiling():
                self._fall_back("another profiler is running: it owns the device's clock")
                return
            self._recording = profiler.Recording()
            self._recording.start()
            self._state, self._count, self._is_settled = "settling", 0, True
        elif self._state == "settling" and not self._is_settled:
            self._is_settled = True  # something compiled in this step: wait for the next
        elif self._state == "settling":
            self._state, self._count = "recording", 0
            profiler.synchronize()
            self._moments = [time.perf_counter()]
            self._open_step(0)
        elif self._state == "recording":
            self._close_step()
            self._moments.append(time.perf_counter())
            if self._count >= self._repeats:
                self._stop()
            else:
                self._open_step(self._count)
        elif self._state == "by_events" and self._count >= self._repeats:
            self._state = "done"

    def _has_lost_recording(self) -> bool:
        """True once the program has started a profiler of its own in the middle of ours; that is then said."""
        if self._recording is None or not self._recording.is_lost:
            return False
        self._fall_back("the program started a profiler of its own meanwhile: it owns the device's clock")
        return True

    def _fall_back(self, reason: str) -> None:
        """Without the device's own records: on a GPU time the next steps' graphs by events, and say so."""
        from torchledger._torch import profiler

        self._recording, self._why_not, self._state = None, reason, "done"
        if profiler.has_cuda():
            self._state, self._count, self._call_timer = "by_events", 0, profiler.CallTimer()

    def _open_step(self, index: int) -> None:
        from torchledger._torch import profiler

        self._step_mark = profiler.mark(f"{STEP_MARK}#{index}")
        self._step_mark.__enter__()

    def _close_step(self) -> None:
        if self._step_mark is not None:
            self._step_mark.__exit__(None, None, None)
            self._step_mark = None

    def _stop(self) -> None:
        from torchledger._torch import profiler

        self._close_step()
        profiler.synchronize()
        if self._count:
            self._profiled = [(time.perf_counter() - self._moments[0]) * 1e6 / self._count]
        self._recording.stop()
        self._state = "done"
        if profiler.has_cuda() and not self._recording.saw_device():
            self._fall_back("the profiler recorded nothing of the device (is CUPTI there?)")

    def _stop_early(self) -> None:
        """The program ends in the middle of a step: keep the steps before it, or that one if there are none."""
        from torchledger._torch import profiler

        if self._count:
            self._profiled = [(self._moments[-1] - self._moments[0]) * 1e6 / self._count]
            self._early = f"the program ended after {self._count} of {self._repeats} steps to profile"
        elif self._state == "recording":
            self._early = "the program ended in the first step to profile: its time on the host is not known"
        else:
            self._early = "the program ended in the first step under the profiler, which is slower than later ones"
        self._close_step()
        profiler.synchronize()
        self._recording.stop()
        self._state = "done"

    # --- what is made of it -------------------------------------------------------------------------------------

    def result(self) -> Breakdown:
        """End the profile now, write it into the ledger and return its breakdown.

        Raises ``MeasureError`` if nothing was recorded, or the recording holds nothing of the ledger.
        """
        self._capture.unwatch(self)
        for patches in self._patches:
            patches.undo()
        if self._state in ("settling", "recording") and not self._has_lost_recording():
            self._stop_early()
        if self._recording is None and self._why_not is None:
            raise MeasureError("nothing was profiled: did the step call a compiled model?")
        records = self._records() if self._recording is not None else self._event_records()
        self._capture.add(*records)
        for record in records:
            if isinstance(record, Breakdown):
                return record
        raise MeasureError(f"nothing was profiled: {self._why_not}.")

    def _finish(self) -> None:
        launches = [launch for group in self._launches.values() for launch in group]
        if self._why_not is not None:
            self._capture.add(*self._event_records())
        elif self._recording is None and launches:
            self._capture.add(Gap("device_time", "profile", self._too_few_steps()))
        if self._recording is None:
            return
        self._capture.add(*self._records())

    def _event_records(self) -> list[Any]:
        """What there is without the device's records: why, and on a GPU the graphs' times by events."""
        spans = self._call_timer.spans() if self._call_timer is not None else ()
        if not spans:
            return [Gap("device_time", "profile", str(self._why_not))]
        launches = [launch for group in self._launches.values() for launch in group]
        steps = self._count if self._state == "done" else self._count + 1
        reason = f"{self._why_not}; graphs are timed as a whole, by CUDA events, and entries have no times"
        return [
            Gap("device_time", "profile", reason),
            breakdown_of_calls(spans, launches, n_steps=steps, plain_us=self._plain),
        ]

    def _too_few_steps(self) -> str:
        """Why nothing was profiled, and the options with which the steps there were would do."""
        least, needed = self._timed + 1, self._warmup + self._timed + 1
        graphs = len([name for name in self._launches if not name.startswith("backward")])
        if self._seen <= 1 and graphs > 2:
            return f"the program compiled to its end ({graphs} graphs), and the profile needs {needed} steps without"
        steps = f"{self._seen} step{'' if self._seen == 1 else 's'}"
        reason = f"the program ended after {steps} without compilation, and the profile needs {needed}. "
        if self._seen >= least:
            return f"{reason}Run more steps, or profile with --warmup {self._seen - least}"
        return f"{reason}Run more steps: {least} at least, with --warmup 0"

    def abandon(self) -> None:
        """End the profile and keep nothing of it: what it should have watched has failed."""
        self._capture.unwatch(self)
        for patches in self._patches:
            patches.undo()
        if self._state in ("settling", "recording") and not self._recording.is_lost:
            self._close_step()
            self._recording.stop()
        self._state = "done"

    def _records(self) -> list[Any]:
        for name, path in self._learning:
            self._learned.update(self._sequence_of_first_call(name, path))
        with _exported(self._recording) as path:
            records, events = profile_records(
                read_trace(path),
                [launch for group in self._launches.values() for launch in group],
                steps=Steps(tuple(self._plain), tuple(self._profiled)),
                learned=self._learned,
                devices=describe_devices(),
                n_steps=max(self._count, 1),
                trace_name=self._capture.path.with_suffix(".trace.json.gz").name,
            )
            if self._early is not None:
                records = [_with_note(record, self._early) for record in records]
            annotate_trace(path, self._capture.path.with_suffix(".trace.json.gz"), facts_by_row(events), force=True)
        return records

    def _sequence_of_first_call(self, name: str, path: Path) -> dict[str, list[tuple[str, int]]]:
        try:
            trace = read_trace(path)
        finally:
            path.unlink(missing_ok=True)
        events = device_events(trace)
        learned = learn_sequence(trace, events, self._launches[name])
        log.debug("%s: %d kernels in its first call, %d learned", name, len(events), len(learned.get(name, ())))
        return learned


def _with_note(record: Any, note: str) -> Any:
    return replace(record, notes=(*record.notes, note)) if isinstance(record, Breakdown) else record


@contextmanager
def _exported(recording: Any) -> Iterator[Path]:
    """The recording as a trace file that is removed afterwards."""
    path: Path = recording.export()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


_current: list[StepProfiler] = []


def attach(capture: Capture, settings: Mapping[str, Any]) -> StepProfiler:
    """Profile what a capture sees; ``settings`` are the keywords of ``StepProfiler``."""
    profiler = StepProfiler(capture, **{name: int(value) for name, value in settings.items()})
    _current.append(profiler)
    capture.watch(profiler)
    return profiler


def step() -> None:
    """Say that a training or inference step ends here. Never required; does nothing unless a profile is on."""
    for profiler in _current:
        profiler.step()


def profile(
    capture: Capture, step_fn: Callable[[], Any], *, warmup: int = DEFAULT_WARMUP, repeats: int = DEFAULT_REPEATS
) -> Breakdown:
    """Profile ``step_fn`` under a capture: warm up, time it plainly, then record ``repeats`` calls.

    Raises ``MeasureError`` if nothing compiled ran.
    """
    profiler = StepProfiler(capture, warmup=warmup, repeats=repeats)
    capture.watch(profiler)
    try:
        for _ in range(warmup + DEFAULT_TIMED + repeats + 2):
            profiler.step()
            step_fn()
        profiler.step()
    except BaseException:
        profiler.abandon()
        raise
    return profiler.result()
