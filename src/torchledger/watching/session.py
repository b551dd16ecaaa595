"""Watching values from start to end: beside a capture, whose launches the values belong to."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from torchledger.capturing.payload import Library
from torchledger.capturing.session import Capture
from torchledger.capturing.watcher import Watcher
from torchledger.claims import claim
from torchledger.errors import StoreError
from torchledger.nouns import (
    Gap,
    Launch,
    ValueCall,
    ValueComparison,
    ValueFinding,
    ValueStats,
    ValueTable,
    WatchedGraph,
)
from torchledger.nouns.value_stats import expand
from torchledger.printable import ended
from torchledger.signals import let_through
from torchledger.watching.findings import find_bad, first_created
from torchledger.watching.last_launch import LastLaunch
from torchledger.watching.lines import comparison_line, finding_line, nothing_found, stats_line
from torchledger.watching.options import ValueOptions, from_environment, load_predicate
from torchledger.watching.value_records import call_of, stats_of, table_of

log = logging.getLogger(__name__)

_IN_A_LIBRARY = (
    "compiled ahead of time: AOTInductor's library calls its kernels without Python. "
    "torch.compile(exported_program.module()) has the same launches, which are watched; a library that is compiled "
    "without torchledger, with AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER=2, prints its own"
)
_KEPT_FINDINGS = 1000
_WRITTEN_TOGETHER = 5000
_WRITTEN_EVERY_S = 0.5


class Watch(Watcher):
    """Looks at what the launches of compiled graphs read and write, until closed. Use ``torchledger.values``.

    ``stats``, ``findings`` and ``comparisons`` hold what was recorded in this process, also written to the ledger.
    """

    def __init__(self, capture: Capture, options: ValueOptions, emit: Callable[[str], None] | None = None) -> None:
        self.options = options
        self._stats: list[ValueStats | ValueCall] = []
        self._tables: dict[str, ValueTable] = {}
        self.findings: list[ValueFinding] = []
        self.comparisons: list[ValueComparison] = []
        self.n_findings_left_out = 0
        self._capture = capture
        self._prints = emit is not None
        self._emit = emit or (lambda line: None)
        self._unwritten: list[Any] = []
        self._kept_calls: Counter[int] = Counter()
        self._written_at = time.monotonic()
        self._predicate: Any = None
        self._choose(options)
        self._graphs: list[Any] = []
        self._waiting: dict[str, list[Any]] = {}
        self._lowered: dict[int, Any] = {}
        self._launches: dict[str, Launch] = {}
        self._patches: list[Any] = []
        self._lock = capture.lock
        self._folder: Any = None
        self._faults: Counter[str] = Counter()
        self._predicate_faults: list[str] = []
        self._last: LastLaunch | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._n_taken = 0
        self._n_to_compare = self._n_compared = 0

    def change(self, **options: Any) -> None:
        """Ask something else from the next call of a graph on: fields of ``ValueOptions``.

        Only what is already compiled under watch can be asked; ``against_eager`` has to be chosen at the start.
        Raises ``UsageError`` for options that mean nothing.
        """
        self._choose(dataclasses.replace(self.options, **options))

    def _choose(self, options: ValueOptions) -> None:
        self._predicate = load_predicate(options)
        self.options = options
        self.is_active = options.watches
        self.is_full = options.level in ("stats", "save")
        self.takes_tensors = self.is_full or options.find is not None
        self.most_elements = options.elements

    # --- the capture tells ----------------------------------------------------------------------------------------

    def on_ready(self) -> bool:
        if not self.options.watches:
            return True
        from torchledger._torch import values as inside
        from torchledger._torch.kernel_marks import hear_loads

        loading = hear_loads(self._on_load)
        self._patches.append(loading)
        inside.switch_off_cuda_graphs(loading, self._on_cuda_graphs)
        inside.switch_off_cpp_wrappers(loading, self._on_cpp_wrapper)
        inside.switch_off_builtin_printer(loading)
        if self.options.against_eager:
            inside.switch_off_caches(loading)
        return True

    def on_lowered(self, compiled: Any, graph: Any) -> None:
        if self.options.against_eager:
            from torchledger._torch.values import lowered_module

            self._lowered[id(compiled)] = lowered_module(graph)

    def on_graph(self, name: str, compiled: Any, launches: Sequence[Launch]) -> None:
        from torchledger._torch.values import called_of, wrapper_source

        with self._lock:
            self._launches.update({launch.launch_id: launch for launch in launches})
            waiting = self._waiting.get(wrapper_source(compiled) or "", [])
            module = self._lowered.pop(id(compiled), None)
            if not waiting:
                reason = _IN_A_LIBRARY if isinstance(compiled, Library) else "not loaded"
                if isinstance(compiled, Library):
                    self._capture.note_values("not watched")
                self._capture.add(WatchedGraph(name, sum(launch.is_call for launch in launches), 0, 0, 0, reason))
                return
            # A cache loads a wrapper again where an entry that it tried first does not serve.
            called = called_of(compiled)
            graph = next((each for each in waiting if each is called), waiting[0])
            waiting.remove(graph)
            graph.identify(name, launches)
            if self.options.level == "names":  # for programs that do not live to the end
                self._unwritten.append(WatchedGraph(name, graph.n_launches, len(graph.launches), 0, 0))
                self._flush()
            graph.module = module

    def on_close(self) -> bool:
        with self._lock:
            self.is_active = False
            for patches in reversed(self._patches):
                patches.undo()
            self._patches.clear()
            if self._last is not None:
                self._last.close()
            self._flush()
            for graph in self._graphs:
                lost = graph.n_watched_calls - self._kept_calls[id(graph)]
                if lost > 0:
                    self._faults[f"what was seen of calls of {graph.name or 'a graph'} was not kept"] += lost
                if graph.name is None and graph.n_watched_calls:
                    self._faults["calls of a graph were watched that is not in the ledger"] += graph.n_watched_calls
                elif graph.name is not None:
                    note = None if graph.sites else "no launch is seen in its wrapper"
                    counts = (graph.n_launches, len(graph.asked), len(graph.asked & graph.seen), graph.n_calls)
                    self._unwritten.append(WatchedGraph(graph.name, *counts, note))
            if (lost := self._n_to_compare - self._n_compared) > 0:
                self._faults["a launch was not compared with eager code"] += lost
            self._capture.note_values()
            self._tell_filters()
            self._tell_clean()
            if self.n_findings_left_out:
                self._capture.note(f"{self.n_findings_left_out:,} more findings were counted and not kept")
            if self._folder is not None and self._folder.n_left_out:
                self._capture.note(
                    f"{self._folder.n_left_out:,} launches were not saved: {ended(str(self._folder.reason))} The "
                    f"{self._folder.n_files:,} files in {self._folder.folder} are whole"
                )
                self._capture.note_values("not saved")
            self._flush()  # what cannot be written is one of the faults
            self._unwritten += [Gap("values", "watching", text, count) for text, count in self._faults.items()]
            self._flush()
        return True

    def _tell_filters(self) -> None:
        if not self.options.is_filtered or self._n_taken or not self._launches:
            return
        from torchledger.watching.suggestions import suggest_names

        self._capture.note(suggest_names(self.options, list(self._launches.values())))
        self._capture.note_values("nothing matched")

    def _tell_clean(self) -> None:
        calls = sum(graph.n_watched_calls for graph in self._graphs)
        if faults := self._predicate_faults:
            others = "" if self.findings else "; it was true of none of the others"
            self._capture.note(
                f"the predicate failed on {_tensors(len(faults))}, so nothing is known of them; first it {faults[0]}"
                f"{others}"
            )
            self._capture.note_values("predicate failed")
        elif self.options.find is not None and not self.findings and calls and not self._faults:
            self._capture.note(nothing_found(self.options.find, calls, is_filtered=self.options.is_filtered))

    def _on_cuda_graphs(self) -> None:
        self._capture.note("CUDA graphs were switched off, as nothing can look between the launches of a replay")

    def _on_cpp_wrapper(self) -> None:
        self._capture.note(
            "C++ wrappers were written in Python, as nothing can look between launches out of C++; their kernels are "
            "the same"
        )

    def _on_load(self, module: ModuleType, path: str) -> None:
        from torchledger.watching.graph_watch import GraphWatch
        from torchledger.watching.rewrite import rewrite_wrapper

        if not hasattr(module, "call"):
            return
        source = Path(path).read_text()
        watch = GraphWatch(self, module, source, rewrite_wrapper(source, path))
        watch.stand_in()
        with self._lock:
            self._graphs.append(watch)
            self._waiting.setdefault(source, []).append(watch)

    # --- a watched graph tells --------------------------------------------------------------------------------------

    @claim
    def takes_call(self, watch: Any, index: int) -> bool:
        return self.options.takes_call(index)

    @claim
    def takes_launch(self, launch: Launch | None) -> bool:
        if launch is None:
            return not self.options.is_filtered
        return not self.options.is_filtered or self.options.takes(launch)

    def make_reducer(self) -> Any:
        from torchledger.watching.reductions import Reducer

        return Reducer(is_full=self.is_full, predicate=self._predicate, on_fault=self._on_predicate_fault)

    def on_call_start(self, watch: Any, index: int, inputs: list[tuple[str, Any]]) -> Any:
        if not self.options.against_eager or watch.module is None:
            return None
        from torchledger.watching.replay import Replay

        return Replay(watch.module, inputs, watch.launches.values(), index)

    def on_launch(self, state: Any, event: Any, read: list[Any]) -> None:
        self._n_taken += 1
        if state is not None:
            self._n_to_compare += event.launch is not None
            state.keep((item.name, item.tensor) for item in read if item.role != "input")
        if self.options.level == "names":
            where = self._where(event)
            self._emit(f"before {where}")
            if self._last is None:
                self._last = LastLaunch(self._capture.path)
            self._last.begin(where)
        if self.options.level == "save":
            event.kept = _keyed("before", [(item.name, item.tensor.detach().clone()) for item in read])
            event.views = {
                key: [list(item.tensor.shape), list(item.tensor.stride()), item.tensor.storage_offset()]
                for key, item in zip(event.kept, read, strict=True)
            }

    def on_launched(self, state: Any, event: Any, written: list[Any]) -> None:
        if self.options.level == "names":
            self._emit(f"after  {self._where(event)}")
            if self._last is not None:
                self._last.end()
        if self.options.level == "save":
            kept = event.kept | _keyed("after", [(item.name, item.tensor) for item in written])
            event.kept = {}
            if self.options.files == "launch":
                event.path = self._save(event, kept)
            else:
                for key, tensor in kept.items():
                    if (path := self._save(event, {key: tensor}, key)) is not None:
                        event.paths[key] = path
        if state is not None and event.launch is not None:
            self._compare(state, event, written)

    def on_call(self, state: Any, record: Any) -> None:
        with self._lock:
            records: list[Any] = []
            if self.is_full:
                stats = list(stats_of(record))
                self._stats += stats
                records += stats
                if self.options.prints and self._prints:
                    for line in map(stats_line, stats):
                        self._emit(line)
            if self.options.find is not None:
                records += self._find(record)
            self._write_soon(record.graph, records)
            if self.options.against_eager and state is None:
                reason = "it began unseen" if record.graph.module is not None else "its FX graph is not known"
                self._faults[f"a call was not compared with eager code: {reason}"] += 1

    def plans_for(self) -> Hashable | None:
        """Statistics, NaN and Inf are found by reductions alone; for what needs the tensors there is no plan."""
        options = self.options
        is_alone = self._predicate is None and not options.against_eager and options.level in ("off", "stats")
        return options if is_alone and self.takes_tensors else None

    def on_planned_call(self, record: Any) -> None:
        planned = record.planned
        with self._lock:
            self._n_taken += len(planned.record.events)
            records: list[Any] = []
            if self.is_full:
                table = self._tables.get(planned.key)
                if table is None:
                    table = self._tables[planned.key] = table_of(planned)
                    records.append(table)
                call = call_of(record)
                self._stats.append(call)
                records.append(call)
                if self.options.prints and self._prints:
                    for line in map(stats_line, expand(table, call)):
                        self._emit(line)
            if self.options.find is not None and not record.is_clean:
                records += self._find(record.whole())
            self._write_soon(record.graph, records)

    def on_fault(self, where: str, error: Exception) -> None:
        log.debug("watching %s failed", where, exc_info=error)
        self._faults[f"watching {where} failed: {type(error).__name__}: {error}"] += 1

    def _on_predicate_fault(self, text: str) -> None:
        if not self._predicate_faults:
            self._emit(f"the predicate {text}")
        self._predicate_faults.append(text)

    def _find(self, record: Any) -> list[ValueFinding]:
        found = list(find_bad(record, self.options.find or ""))
        room = max(0, _KEPT_FINDINGS - len(self.findings))
        self.n_findings_left_out += max(0, len(found) - room)
        found = found[:room]
        is_first = not self.findings
        self.findings += found
        if is_first and found:
            first = first_created(found)
            if first is not None:
                self._emit(finding_line(first, self._launches.get(first.subject)))
        return found

    def _compare(self, state: Any, event: Any, written: list[Any]) -> None:
        comparisons = state.compare(event, [(item.name, item.tensor) for item in written], self.options.tolerance)
        self.comparisons += comparisons
        self._n_compared += 1
        if comparisons:
            self._unwritten += comparisons
            self._flush()
        for comparison in comparisons:
            if comparison.is_within is False:
                self._emit(comparison_line(comparison))

    def _save(self, event: Any, tensors: Mapping[str, Any], part: str = "") -> str | None:
        """One file of a launch; ``part`` names it among several, which lie in a folder of the launch."""
        from torchledger.watching.saving import TensorFolder

        if self._folder is None:
            folder = self.options.folder or f"{self._capture.path.with_suffix('')}.values"
            self._folder = TensorFolder(Path(folder), self.options.budget_bytes)
        place, metadata = f"sequence_{event.sequence:07d}", {"sequence": str(event.sequence)}
        if event.launch is not None:
            launch = event.launch
            place = f"{launch.graph}/{launch.order:04d}_{launch.kernel_name[:80]}_{event.sequence:07d}"
            metadata["views"] = json.dumps(event.views)
            metadata |= {"launch": launch.launch_id, "kernel": launch.kernel_name, "source": launch.source or ""}
        path: str | None = self._folder.save(f"{place}/{part}" if part else place, tensors, metadata)
        return path

    def _where(self, event: Any) -> str:
        launch = event.launch
        if launch is None:
            return f"line {event.site.line} {event.site.name}"
        return f"{launch.launch_id} {launch.kernel_name}" + (f" {launch.source}" if launch.source else "")

    def _write_soon(self, graph: Any, records: list[Any]) -> None:
        """Several calls share a transaction, as each waits for the disk; a killed program loses at most the last."""
        self._unwritten += records
        self._kept_calls[id(graph)] += 1
        if len(self._unwritten) >= _WRITTEN_TOGETHER or time.monotonic() - self._written_at > _WRITTEN_EVERY_S:
            self._flush()

    def _flush(self) -> None:
        """Write what waits to be written."""
        self._written_at = time.monotonic()
        records, self._unwritten = self._unwritten, []
        if not records:
            return
        try:
            self._capture.add(*records)
        except StoreError as error:
            self._faults[str(error)] += 1

    # --- as a context manager -----------------------------------------------------------------------------------------

    @property
    def stats(self) -> list[ValueStats]:
        """What was recorded of each tensor, in the order of the calls."""
        found: list[ValueStats] = []
        for item in self._stats:
            found += [item] if isinstance(item, ValueStats) else expand(self._tables[item.table], item)
        return found

    @property
    def first_bad(self) -> ValueFinding | None:
        """The finding that explains the others: the first launch that made bad values, or what came in from outside."""
        return first_created(self.findings)

    @property
    def path(self) -> Path:
        """The ledger."""
        return self._capture.path

    def launch(self, launch_id: str) -> Launch | None:
        """The ledger's entry of a launch."""
        return self._launches.get(launch_id)

    def close(self) -> None:
        """End watching and the capture below it; safe to call twice."""
        self._capture.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._capture.close(status="failed" if kind is not None else "finished")


def values(
    path: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    print_to: Callable[[str], None] | None = None,
    **options: Any,
) -> Watch:
    """Watch the values in what is compiled inside the ``with`` block, and record them into a ledger at ``path``.

    ``options`` are those of ``ValueOptions``; what is not given is taken from the variables of Inductor's own printer
    (``AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER``, ``AOT_INDUCTOR_FILTERED_KERNELS_TO_PRINT``). ``print_to`` gets
    each line as it is known. Without ``path`` the ledger is a temporary file.

    Raises ``UsageError`` for options that mean nothing, ``StoreError`` if the ledger cannot be written.

    >>> with torchledger.values(find="nan", level="off") as watch:  # doctest: +SKIP
    ...     torch.compile(model)(x).sum().backward()
    >>> watch.first_bad  # doctest: +SKIP
    """
    chosen = ValueOptions(**{**from_environment(), **options})
    temporary = tempfile.TemporaryDirectory(prefix="torchledger-") if path is None else None
    target = Path(temporary.name) / "values.ledger" if temporary is not None else Path(path or "")
    capture = Capture(target, force=force)
    try:
        watch = Watch(capture, chosen, print_to)
    except BaseException:
        capture.close(status="failed")
        raise
    watch._temporary = temporary
    capture.watch(watch)
    return watch


def attach(capture: Capture, settings: Mapping[str, Any]) -> bool:
    """Watch values in a process that ``torchledger values`` started; ``False`` if the options cannot be followed."""
    options = ValueOptions.from_plain(settings)
    try:
        with _beside_the_script():
            watch = Watch(capture, options, _print_line)
    except Exception as error:  # a predicate that cannot be loaded must not keep the script from running
        let_through(error)
        capture.note(str(error))
        capture.note_values("predicate failed")
        _print_line(str(error))
        return False
    capture.watch(watch)
    return True


@contextlib.contextmanager
def _beside_the_script() -> Iterator[None]:
    """A predicate may lie beside the script, whose folder Python puts on ``sys.path`` only after this has run."""
    script = Path(sys.orig_argv[1]) if len(sys.orig_argv) > 1 else Path()
    folder = str(script.resolve().parent if script.is_file() else Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count:,} tensors"


def _keyed(moment: str, tensors: list[tuple[str, Any]]) -> dict[str, Any]:
    """``<moment>.<name>`` to tensor; further views of one buffer get a number."""
    found: dict[str, Any] = {}
    for name, tensor in tensors:
        key, number = f"{moment}.{name}", 2
        while key in found:
            key, number = f"{moment}.{name}#{number}", number + 1
        found[key] = tensor
    return found


def _print_line(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
