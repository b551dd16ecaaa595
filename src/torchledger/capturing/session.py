"""A capture from start to end: hooks in, records into the ledger, hooks out."""

from __future__ import annotations

import atexit
import dataclasses
import datetime
import logging
import os
import platform
import sys
import threading
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from torchledger import __version__
from torchledger._torch import version_warning
from torchledger._torch.dynamo import eager_counts
from torchledger._torch.lazy_import import COMPILER, after_import
from torchledger.capturing.graph_breaks import absent_graphs_note, graph_breaks_note
from torchledger.capturing.graph_records import as_traced_here, records_of_graph
from torchledger.capturing.payload import PAYLOAD_VERSION, Library, payload_of
from torchledger.capturing.ranks import child_path, own_rank, own_world_size
from torchledger.capturing.watcher import Watcher
from torchledger.capturing.wrapper_code import find_calls
from torchledger.device import describe as device
from torchledger.device.host import known_host
from torchledger.errors import StoreError, TorchledgerError, UsageError
from torchledger.nouns import Compilation, Device, Direction, Environment, Gap, Graph, Launch, Run
from torchledger.nouns.run import ValuesLack
from torchledger.signals import let_through, signals_deferred
from torchledger.store import LedgerWriter
from torchledger.work.graph_names import graph_name

if TYPE_CHECKING:
    from torchledger._torch.patching import Patches
    from torchledger.capturing.recorder import Arrival

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


class Capture:
    """Records every graph that Inductor compiles (or loads from a cache) into one ledger, until closed.

    Python programs use ``torchledger.capture(path)``, which adds the questions of later rooms. The hooks go in when
    Inductor is imported by whoever imports it first; a process that never compiles pays nothing. A child process
    (``is_child``, or forked from here) writes a ledger of its own beside ``path``, once it compiles something and so
    knows its rank. ``devices`` are those that the program is recorded for, where they are not this machine's.
    ``symbol_inputs`` holds ``Graph.symbol_inputs`` of each dynamic graph recorded so far. What is compiled while
    ``keeps_stages`` is recorded with its stages (``Stage``).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        force: bool = False,
        argv: tuple[str, ...] | None = None,
        is_child: bool = False,
        run_id: str | None = None,
        devices: tuple[Device, ...] | None = None,
    ) -> None:
        self._given_devices = devices
        self.keeps_stages = False
        self._without_guards: dict[str, str] = {}
        self.path = self._parent_path = Path(path)
        self._argv = argv if argv is not None else tuple(sys.argv)
        self._force = force
        self._lock = threading.RLock()
        self._names: set[str] = set()
        self._numbers: dict[str | None, int] = {}
        self._next_number = 0
        self._kernels: set[tuple[str, str]] = set()
        self._is_ready = self._has_ended = False
        self._losses: list[Gap] = []
        self._n_heard = self._n_written = 0
        self._fault: Exception | None = None
        self._writer: LedgerWriter | None = None
        self._flops: Counter[str] = Counter()
        self._graphs: list[tuple[str, weakref.ref[Any], list[Launch]]] = []
        self.symbol_inputs: dict[str, Mapping[str, str]] = {}
        self._owner = os.getpid()
        self._has_own_path = not is_child
        self._watchers: list[Watcher] = []
        self._parent: str | None = None
        self._eager_before = self._try("eager code", eager_counts, None)
        self.run = Run(
            run_id=run_id or uuid.uuid4().hex,
            started_utc=_now(),
            argv=self._argv,
            environment=self._try("environment", device.describe_environment, _plain_environment()),
            rank=self._try("rank", own_rank, None),
            world_size=self._try("world size", own_world_size, None),
        )
        self._is_child = is_child
        self._is_prepared = run_id is not None
        if not is_child:
            try:
                self._open()
            except StoreError:
                raise
            except Exception as error:  # a fault of ours: tried again with the first graph
                let_through(error)
                log.warning("the ledger could not be begun: %s: %s", type(error).__name__, error)
                self._losses.append(Gap("run", "start", f"recording failed: {type(error).__name__}: {error}"))
        self._cancel = after_import(COMPILER, self._install)

    # --- the life of a capture ----------------------------------------------------------------------------------

    def watch(self, watcher: Watcher) -> None:
        """Tell ``watcher`` what happens from now on, and which graphs are there already."""
        self._watchers.append(watcher)
        if self._is_ready:
            self._tell(watcher, "on_ready")
        for name, reference, launches in self._graphs:
            compiled = reference()
            if compiled is not None:
                self._tell(watcher, "on_graph", name, compiled, launches)

    def _tell(self, watcher: Watcher, what: str, *arguments: Any) -> None:
        try:
            if getattr(watcher, what)(*arguments) is not True and what in ("on_ready", "on_close"):
                raise TorchledgerError("it does not say that all is done")
        except Exception as error:  # the user's program must go on
            let_through(error)
            log.debug("%s of %s failed", what, watcher, exc_info=error)
            reason = f"{what} failed: {type(error).__name__}: {error}"
            self._on_gap(Gap(type(watcher).__name__.lower(), "watcher", reason))

    @property
    def lock(self) -> threading.RLock:
        """Held while a graph is recorded and watchers are told of it; a watcher that adds records on other threads and
        guards itself takes this one, as with two of them each thread could wait for the other's."""
        return self._lock

    @property
    def graph_names(self) -> tuple[str, ...]:
        """The graphs that were recorded so far and still live."""
        return tuple(name for name, reference, _ in self._graphs if reference() is not None)

    def note(self, text: str) -> None:
        """Keep a sentence with the run, once. Raises ``TypeError`` for what is none."""
        if not isinstance(text, str):
            raise TypeError(f"a note of a run is text, not {text!r}")
        if text not in self.run.notes:
            self.run = dataclasses.replace(self.run, notes=(*self.run.notes, text))

    def note_values(self, *lack: ValuesLack) -> None:
        """Keep with the run that values were watched, and what is missing of them."""
        lacks = dict.fromkeys((*(self.run.values_lack or ()), *lack))
        self.run = dataclasses.replace(self.run, values_lack=tuple(lacks))

    def flops_by_op(self) -> dict[str, int]:
        """Tensor FLOPs of all launches recorded so far, by operator."""
        with self._lock:
            return dict(self._flops)

    def unwatch(self, watcher: Watcher) -> None:
        """Stop telling ``watcher``."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def add(self, *records: Any) -> None:
        """Write further records into the ledger."""
        with self._lock:
            self._open().add(*records)

    def check_is_running(self) -> None:
        """Raise ``UsageError`` if this capture has ended: to open its ledger again would begin, or replace, it."""
        if self._has_ended and os.getpid() == self._owner:
            raise UsageError(f"the capture of {self.path} has ended: ask it inside its with block.")

    def own_path(self) -> Path:
        """This process's ledger, which is opened: only then does a rank, or another child, know its name."""
        with self._lock:
            self._open()
            return self.path

    def lose(self, gap: Gap) -> None:
        """Keep what was lost until the run ends; a process that writes no ledger writes no gap either."""
        self._losses.append(gap)

    def close(self, *, status: str = "finished", exit_code: int | None = None) -> None:
        """Take the hooks out and mark the run as ended; safe to call twice."""
        with self._lock, signals_deferred(at_end=True):
            self._try("waiting for torch", self._cancel, None)
            while self._watchers:
                self._tell(self._watchers.pop(), "on_close")
            if self._is_ready:
                self._is_ready = False
                self._try("hooks", lambda: _HOOKS.leave(self), None)
            if self._writer is not None and os.getpid() == self._owner:
                try:
                    self._finish(status, exit_code)
                except Exception as error:  # the user's program ends as it would have
                    let_through(error)
                    self._losses.append(Gap("run", "end", f"could not be told: {type(error).__name__}: {error}"))
                    self._end_at_least(status, exit_code)
                self._try("closing", self._writer.close, None)
                self._has_ended = True
            elif self._n_written < self._n_heard and os.getpid() == self._owner:
                sys.stderr.write(f"torchledger: {self._lost()}\n")
            self._writer = None

    def _finish(self, status: str, exit_code: int | None) -> None:
        before, breaks = self._eager_before, None
        if before is not None:
            has_graphs = self._n_heard > 0
            breaks = self._try(
                "graph breaks", lambda: graph_breaks_note(before, eager_counts(), has_graphs=has_graphs), None
            )
            if breaks is None and not self._n_heard:
                breaks = self._try("graphs", lambda: absent_graphs_note(before), None)
            if breaks is not None:
                self.note(breaks)
        self.run = dataclasses.replace(self._described(), left_eager=breaks)
        if self._without_guards:
            names = ", ".join([*self._without_guards.values()][:3])
            self._losses.append(Gap("run", "guards", f"not heard of {len(self._without_guards)} graphs: {names}"))
        if self._n_written < self._n_heard:
            lost = self._lost()
            self._losses.append(Gap("launches", "ledger", lost))
            self.note(lost)
            sys.stderr.write(f"torchledger: {lost}\n")
        self._end(status, exit_code)

    def _lost(self) -> str:
        reason = str(self._fault or "recording them failed; the gaps of the ledger say where that is known")
        return f"{self._n_heard - self._n_written} of {self._n_heard} graphs are lost: {reason}"

    def _end_at_least(self, status: str, exit_code: int | None) -> None:
        try:
            self._end(status, exit_code)
        except Exception as error:  # the user's program ends as it would have
            let_through(error)
            sys.stderr.write(f"torchledger: the ledger is not complete: {error}\n")

    def _end(self, status: str, exit_code: int | None) -> None:
        """Write what is to be said last."""
        assert self._writer is not None
        self.run = dataclasses.replace(
            self.run,
            status=status,  # type: ignore[arg-type]
            exit_code=exit_code,
            finished_utc=_now(),
        )
        self._writer.add(self.run, replace=True)
        self._writer.add(*self._losses)

    def _described(self) -> Run:
        """The run with its machine, as far as that can be described."""
        devices = self._given_devices or self._try("devices", device.describe_devices, self.run.devices)
        return dataclasses.replace(
            self.run,
            devices=devices,
            host=self._try("host", lambda: known_host(devices[-1].name) if devices else None, self.run.host),
            environment=self._try("environment", device.describe_environment, self.run.environment),
        )

    def _try(self, what: str, ask: Callable[[], Answer], otherwise: Answer) -> Answer:
        """What ``ask`` says; where it fails, ``otherwise`` and a gap. A run that cannot be described is recorded."""
        try:
            return ask()
        except Exception as error:  # the user's program must go on
            let_through(error)
            log.debug("%s cannot be described", what, exc_info=error)
            self._losses.append(Gap("run", what, f"could not be described: {type(error).__name__}: {error}"))
            return otherwise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(status="failed" if kind is not None else "finished")

    # --- writing ------------------------------------------------------------------------------------------------

    def _open(self) -> LedgerWriter:
        """The writer of this process; a forked child gets a ledger of its own."""
        if os.getpid() != self._owner:
            self._owner = os.getpid()
            self._writer = None
            self._parent = self.run.run_id
            self._is_child = True
            self._has_ended = self._has_own_path = False
            self._names.clear()
            self._numbers.clear()
            self._next_number = 0
            self._kernels.clear()
            self._without_guards.clear()
            self._is_prepared = False
            self.run = dataclasses.replace(
                self.run,
                run_id=uuid.uuid4().hex,
                parent_run_id=self._parent,
                rank=self._try("rank", own_rank, None),
                world_size=self._try("world size", own_world_size, None),
            )
            atexit.register(self.close)
        if self._writer is None:
            self.check_is_running()
            if not self._has_own_path:
                self.path, self._force = child_path(self._parent_path), True
                self._has_own_path = True
            writer = LedgerWriter(self.path, force=self._force, append=self._is_prepared)
            self.run = dataclasses.replace(
                self.run,
                rank=self._try("rank", own_rank, None),
                world_size=self._try("world size", own_world_size, None),
            )
            try:
                writer.add(self.run)
            except BaseException:
                self._force = True  # what is there now is ours
                writer.close()
                raise
            self._writer = writer
        return self._writer

    def _install(self) -> None:
        """Put the hooks in, now that Inductor is there. A failure here is a note in the ledger, no more."""
        try:
            import torch

            warning = version_warning(str(torch.__version__))
            if warning is not None:
                log.warning("%s", warning)
                self.run = dataclasses.replace(self.run, notes=(*self.run.notes, warning))
            _HOOKS.join(self)
            self._is_ready = True
            for watcher in self._watchers:
                self._tell(watcher, "on_ready")
        except Exception as error:  # a capture that cannot start must not stop the user's program
            let_through(error)
            log.warning("nothing will be captured: %s: %s", type(error).__name__, error)
            self._on_gap(Gap("launches", "hooks", f"could not be installed: {type(error).__name__}: {error}"))

    def _on_gap(self, gap: Gap) -> None:
        with self._lock:
            try:
                self._open().add(gap)
            except Exception as error:  # told again when the run ends
                let_through(error)
                log.debug("%s could not be written", gap, exc_info=error)
                self._losses.append(gap)

    def _on_lowered(self, compiled: Any, graph: Any) -> None:
        for watcher in tuple(self._watchers):
            self._tell(watcher, "on_lowered", compiled, graph)

    def _on_compilation(self, compilation: Compilation) -> None:
        with self._lock:
            self._without_guards.pop(compilation.compile_id or "", None)
            if self._writer is None or os.getpid() != self._owner:
                return  # nothing that Inductor compiled: a child without graphs writes no ledger
            try:
                self._writer.add(compilation)
            except Exception as error:  # told when the run ends
                let_through(error)
                where = f"guards of {compilation.function}"
                self._losses.append(Gap("run", where, f"recording failed: {type(error).__name__}: {error}"))

    def _hear(self, compiled: Any, arrival: Arrival) -> None:
        self._n_heard += 1  # apart from recording it, so that a graph cannot be lost without being counted
        self._on_graph(compiled, arrival)

    def _on_graph(self, compiled: Any, arrival: Arrival) -> None:
        with self._lock, signals_deferred():
            try:
                self._record(compiled, arrival)
            except StoreError as error:
                self._fault = error

    def _record(self, compiled: Any, arrival: Arrival) -> None:
        payload = payload_of(compiled)
        source = getattr(compiled, "source_code", None)
        if payload is None:
            self._unrecorded(compiled, source)
            return
        if arrival.traced is not None:
            payload = as_traced_here(payload, arrival.traced)
        name = self._name(payload.graph.direction, payload.graph.model_key)
        records = records_of_graph(payload, name, compiled, source, arrival, self._kernels)
        if self.keeps_stages:
            records += [dataclasses.replace(stage, graph=name) for stage in payload.stages]
        self._open().add(*records)
        self._n_written += 1
        compiled_as = records[0].compile_id
        if compiled_as is not None and payload.graph.direction != "backward":  # whose guards are its forward's
            self._without_guards[compiled_as] = name
        if not self.run.devices:
            self._describe_machine()
        launches = [record for record in records if isinstance(record, Launch)]
        for launch in launches:
            self._flops.update(launch.flops_by_op)
        self._graphs.append((name, weakref.ref(compiled), launches))
        if payload.graph.symbol_inputs:
            self.symbol_inputs[name] = payload.graph.symbol_inputs
        for watcher in self._watchers:
            self._tell(watcher, "on_graph", name, compiled, launches)

    def _describe_machine(self) -> None:
        """With the first graph torch and its devices are there; a run that is killed later has said where it ran."""
        self.run = self._described()
        self._open().add(self.run, replace=True)

    def _unrecorded(self, compiled: Any, source: str | None) -> None:
        """A graph that was compiled where nobody listened: its wrapper still tells how many launches are missing."""
        name = self._name("inference", None)
        is_library = isinstance(compiled, Library)
        language: Literal["python", "cpp"] = "cpp" if is_library else "python"
        calls = find_calls(source, language) if source else []
        reason = "compiled without torchledger (in another process, or by an older version's cache)"
        self._open().add(
            Graph(
                name,
                "inference",
                wrapper_source=source,
                wrapper_language=language,
                wrapper_calls=tuple(call.name for call in calls),
                is_ahead_of_time=is_library,
            ),
            Gap("launches", name, reason, len(calls)),
        )
        self._n_written += 1

    def _name(self, direction: Direction, model_key: str | None) -> str:
        """``forward_0``; a backward takes the number of its forward, where that is known and free."""
        number = self._numbers.get(model_key) if direction == "backward" else None
        if number is None or graph_name(direction, number) in self._names:
            number = self._next_number
        self._next_number = max(self._next_number, number + 1)
        if model_key is not None and direction != "backward":
            self._numbers[model_key] = number
        name = graph_name(direction, number)
        self._names.add(name)
        return name


class _Hooks:
    """One set of hooks for all captures of a process: those that nest each get every graph of their time."""

    def __init__(self) -> None:
        self._captures: list[Capture] = []
        self._patches: Patches | None = None
        self._lock = threading.RLock()

    def join(self, capture: Capture) -> None:
        """Tell ``capture`` what is compiled from now on; the first puts the hooks in."""
        with self._lock:
            if self._patches is None:
                from torchledger._torch.hooks import install
                from torchledger.capturing.recorder import Recorder

                recorder = Recorder(
                    lambda *heard: self._tell(lambda each: each._hear(*heard)),
                    lambda gap: self._tell(lambda each: each._on_gap(gap)),
                    lambda *heard: self._tell(lambda each: each._on_lowered(*heard)),
                    lambda compilation: self._tell(lambda each: each._on_compilation(compilation)),
                    self._keeps_stages,
                )
                self._patches = install(recorder, salt=self._salt)
            self._captures.append(capture)

    def leave(self, capture: Capture) -> None:
        """Tell ``capture`` nothing any more; the last takes the hooks out."""
        with self._lock:
            if capture in self._captures:
                self._captures.remove(capture)
            if not self._captures and self._patches is not None:
                self._patches.undo()
                self._patches = None

    def _keeps_stages(self) -> bool:
        return any(capture.keeps_stages for capture in tuple(self._captures))

    def _salt(self) -> str:
        """A graph of a recording without stages has none in the cache, and is no answer to one that asks for them."""
        return f"{PAYLOAD_VERSION}/stages" if self._keeps_stages() else PAYLOAD_VERSION

    def _tell(self, tell: Callable[[Capture], None]) -> None:
        for capture in tuple(self._captures):
            try:
                tell(capture)
            except Exception as error:  # what one capture cannot do with it keeps nothing from the others
                let_through(error)
                log.debug("%s could not record", capture, exc_info=error)
                capture._on_gap(Gap("launches", "graph", f"recording failed: {type(error).__name__}: {error}"))


_HOOKS = _Hooks()


def _plain_environment() -> Environment:
    return Environment(python=platform.python_version(), platform=sys.platform, torchledger=__version__)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
