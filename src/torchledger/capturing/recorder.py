"""Listens to Inductor while it writes a graph, and turns what it heard into the graph's part of the ledger."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Literal

from torchledger._torch import inductor, symbol_sizes
from torchledger._torch.dynamo import compile_id
from torchledger._torch.inductor_config import changed_settings
from torchledger._torch.stages import graph_text, ir_text
from torchledger.capturing import flops as flop_count
from torchledger.capturing.descriptions import Definition, Entry, Recording, describe_entries, hashed
from torchledger.capturing.model_flops import Model, dead_differences, differences_of
from torchledger.capturing.payload import Library, Payload, attach_payload
from torchledger.capturing.wrapper_code import is_launching_line, launching_callee
from torchledger.nouns import (
    Category,
    Compilation,
    FlopReference,
    Gap,
    Graph,
    Kernel,
    Launch,
    Stage,
    StageName,
)
from torchledger.signals import let_through

log = logging.getLogger(__name__)

_RECORDING = "_torchledger_recording"
"""Where a ``GraphLowering`` keeps what was heard of it."""

_STAGES = "_torchledger_stages"
"""Where a ``GraphLowering`` keeps its IR as text."""

_DECORATOR = re.compile(r"@triton_heuristics\.(\w+)\(")
_TRITON_CATEGORY: dict[str, Category] = {
    "pointwise": "pointwise",
    "reduction": "reduction",
    "cooperative_reduction": "reduction",
    "persistent_reduction": "persistent_reduction",
    "split_scan": "split_scan",
    "template": "template",
    "foreach": "foreach",
    "user_autotune": "user_triton",
}
_OF_A_SUBMODULE = "._modules["
_MOST_GUARDS = 1_000
"""Of one compilation that are kept, its arguments before submodules: a transformer's block has 150."""

_KERNEL_PATH = re.compile(r"kernel path: (\S+)")


@dataclass(frozen=True)
class Traced:
    """What this process knows of a graph from a cache, in place of what the process that made it knew."""

    model_key: str
    reference: FlopReference | None


@dataclass(frozen=True)
class Arrival:
    """How a compiled graph came into this process: lowered here (``is_fresh``), or out of a cache.

    ``cache_key`` and ``lowered_again`` are those of ``Graph``; ``traced`` is there for a graph out of a cache that was
    traced here. ``wrapper_path`` is where its Python wrapper stands, ``kernel_paths`` are the source files of C++
    kernels by name.
    """

    is_fresh: bool
    cache_key: str | None
    lowered_again: Literal["same_code", "other_code"] | None = None
    traced: Traced | None = None
    wrapper_path: str | None = None
    kernel_paths: Mapping[str, str] = field(default_factory=dict)


class Recorder:
    """The listener that ``torchledger._torch.hooks.install`` is given.

    ``on_graph(compiled, arrival)`` is called whenever a compiled graph is ready, fresh or cached;
    ``on_gap`` when something could not be recorded outside any graph; ``on_lowered(compiled, graph)`` when one was
    made here; ``on_compilation`` when Dynamo has compiled a frame, graphs and guards. Stages of graphs are kept while
    ``keeps_stages()``.
    """

    def __init__(
        self,
        on_graph: Callable[[Any, Arrival], None],
        on_gap: Callable[[Gap], None],
        on_lowered: Callable[[Any, Any], None] = lambda compiled, graph: None,
        on_compilation: Callable[[Compilation], None] = lambda compilation: None,
        keeps_stages: Callable[[], bool] = lambda: False,
    ) -> None:
        self._on_graph = on_graph
        self._on_gap = on_gap
        self._on_lowered = on_lowered
        self._on_compilation = on_compilation
        self._keeps_stages = keeps_stages
        self._thread = threading.local()
        self._backward_models: dict[Any, Model] = {}
        self._key = uuid.uuid4().hex[:12]
        self._fresh: set[int] = set()
        self._plain_keys: set[str] = set()
        self._started = time.time()

    # --- what is heard -----------------------------------------------------------------------------------------

    def on_fault(self, where: str, error: Exception) -> None:
        log.debug("recording failed at %s", where, exc_info=error)
        gap = Gap("launches", where, f"recording failed: {type(error).__name__}: {error}")
        try:
            recording = self._recording()
        except Exception as second:  # which graph it was of is the next thing that cannot be told
            let_through(second)
            log.debug("no graph is known at %s", where, exc_info=second)
            recording = None
        if recording is not None:
            recording.gaps.append(gap)
        else:
            self._on_gap(gap)

    def on_recompiled(self, failed_guards: Sequence[str]) -> None:
        self._thread.failed_guards = (compile_id(), tuple(failed_guards))

    def on_guarded(self, code: CodeType, guards: Iterator[str]) -> None:
        compiled_as = compile_id()
        failed_as, failed = getattr(self._thread, "failed_guards", (None, ()))
        self._thread.failed_guards = (None, ())
        found: list[str] | None = None
        try:
            found = sorted(guards, key=lambda guard: _OF_A_SUBMODULE in guard)
        except Exception as error:  # no launch is missing for want of a guard
            let_through(error)
            log.debug("guards of %s", code, exc_info=error)
            self._on_gap(Gap("run", f"guards of {code.co_name}", f"not known: {type(error).__name__}: {error}"))
        self._on_compilation(
            Compilation(
                compile_id=compiled_as,
                function=code.co_name,
                file=code.co_filename,
                line=code.co_firstlineno,
                failed_guards=failed if failed_as == compiled_as else (),
                guards=tuple(found or ())[:_MOST_GUARDS],
                n_guards=None if found is None else len(found),
            )
        )

    def on_traced_graph(self, graph_module: Any) -> None:
        self._thread.stages = {}
        self._keep_stage("pre-grad", lambda: (self._thread.stages, graph_text(graph_module)))

    def on_ir(self, nodes: Sequence[Any], is_fused: bool) -> None:
        self._keep_stage("ir-after-fusion" if is_fused else "ir-before-fusion", lambda: (_ir_stages(), ir_text(nodes)))

    def _keep_stage(self, name: StageName, ask: Callable[[], tuple[dict[StageName, str], str]]) -> None:
        """Put the text that ``ask`` gives under its name where ``ask`` says, behind that of an outer graph."""
        if not self._keeps_stages():
            return
        try:
            stages, text = ask()
            stages[name] = f"{stages[name]}\n\n{text}" if name in stages else text
        except Exception as error:  # no launch is missing for want of a stage
            let_through(error)
            log.debug("stage %s", name, exc_info=error)
            self._on_gap(Gap("run", f"stage {name}", f"not known: {type(error).__name__}: {error}"))

    def on_dead_code(self, graph: Any, calls: Sequence[Any]) -> None:
        self._thread.dead_flops = flop_count.count_dead(graph, calls)

    def on_model_graph(self, graph_module: Any) -> None:
        references = flop_count.split_reference(flop_count.count_graph(graph_module))
        dead: tuple[dict[str, int], dict[str, int]] = getattr(self._thread, "dead_flops", ({}, {}))
        self._thread.dead_flops = ({}, {})
        past = flop_count.past_last_saved(graph_module.graph)
        self._thread.model = tuple(map(Model, references, dead, (frozenset(), past)))
        if not hasattr(self._thread, "stages"):
            self._thread.stages = {}
        self._keep_stage("joint", lambda: (self._thread.stages, graph_text(graph_module)))

    def on_codegen_start(self, scheduler: Any) -> None:
        graph = inductor.current_graph()
        if graph is inductor.root_graph(graph):
            setattr(graph, _RECORDING, Recording())

    def on_kernel_defined(self, name: str, source: str, nodes: Any, kernel_args: Any, kernel: Any) -> None:
        recording = self._recording()
        if recording is None:
            return
        snodes = inductor.scheduler_nodes(nodes)
        recording.definitions[name] = Definition(snodes, kernel_args)
        if name not in recording.kernels or not recording.kernels[name].key:
            backend: Literal["triton", "cpp"] = "triton" if _DECORATOR.search(source) else "cpp"
            body = recording.kernels.get(name)
            recording.kernels[name] = Kernel(
                key=hashed(source),
                name=name,
                category=_category(source, snodes, kernel),
                backend=backend,
                source=body.source if body else source,
                path=body.path if body else None,
            )

    def on_kernel_body(self, name: str, body: str, metadata: str | None) -> None:
        recording = self._recording()
        if recording is None:
            return
        path = _KERNEL_PATH.search(metadata or "")
        source = _inner_source(body)
        known = recording.kernels.get(name)
        recording.kernels[name] = Kernel(
            key=known.key if known else "",
            name=name,
            category=known.category if known else "user_triton",
            backend=known.backend if known else ("triton" if "async_compile.triton" in body else "cpp"),
            source=source,
            path=path[1] if path else None,
        )

    def on_multi_kernel_defined(self, name: str, sub_kernels: list[str]) -> None:
        recording = self._recording()
        if recording is None:
            return
        keys = tuple(recording.kernels[sub].key for sub in sub_kernels if sub in recording.kernels)
        recording.kernels[name] = Kernel(hashed(*keys), name, "multi_kernel", "triton", sub_kernels=keys)
        first = next((sub for sub in sub_kernels if sub in recording.definitions), None)
        if first is not None:
            recording.definitions[name] = recording.definitions[first]

    def on_kernel_call(self, name: str, call_args: Any, device: Any) -> None:
        recording = self._recording()
        if recording is None:
            return
        definition = recording.definitions.get(name)
        extern = getattr(self._thread, "extern_node", None)
        snodes = definition.snodes if definition else [extern] if extern is not None else []
        recording.entries.append(
            Entry(
                "fused",
                name,
                name,
                inductor.current_graph(),
                snodes,
                definition.kernel_args if definition else None,
                str(device) if device is not None else None,
            )
        )

    @contextlib.contextmanager
    def extern_scope(self, node: Any) -> Iterator[None]:
        self._thread.extern_node = node
        try:
            yield
        finally:
            self._thread.extern_node = None

    def on_extern(self, node: Any, new_lines: list[Any]) -> None:
        recording = self._recording()
        if recording is None:
            return
        graph = inductor.current_graph()
        name = inductor.extern_kernel_name(node) or type(getattr(node, "node", node)).__name__
        is_named = inductor.extern_kernel_name(node) is not None
        launched = False
        for line in new_lines:
            kind = inductor.line_kind(line)
            if kind == inductor.KERNEL_CALL_LINE:
                launched = True
            elif kind in inductor.EXTERN_LINES or (isinstance(line, str) and is_launching_line(line)):
                callee = launching_callee(line) if isinstance(line, str) else name
                entry_name = name if is_named else (callee or name)
                recording.entries.append(Entry("extern", entry_name, callee, graph, [node]))
                launched = True
        if not launched:
            recording.entries.append(Entry("nop", name, None, graph, [node]))

    def on_text_line(self, line: str) -> None:
        if getattr(self._thread, "extern_node", None) is not None or not is_launching_line(line):
            return
        recording = self._recording()
        if recording is not None:
            callee = launching_callee(line)
            last = recording.entries[-1].snodes if recording.entries else []
            graph = inductor.current_graph()
            recording.entries.append(Entry("inline", f"inline{callee}", callee, graph, list(last), line=line))

    def on_codegen_end(self, scheduler: Any) -> None:
        graph = inductor.current_graph()
        recording = self._recording()
        if recording is not None:
            describe_entries(graph, recording)

    def on_compiled(self, compiled: Any, graph: Any) -> None:
        recording: Recording | None = getattr(graph, _RECORDING, None)
        if recording is None:
            return
        attach_payload(compiled, self._payload(graph, recording))
        self._fresh.add(id(compiled))
        self._on_lowered(compiled, graph)

    def on_library(self, graph: Any, wrapper_source: str) -> None:
        recording: Recording | None = getattr(graph, _RECORDING, None)
        library = Library(wrapper_source, graph_text(graph.module))
        try:
            if recording is not None:
                attach_payload(library, self._payload(graph, recording))
        except Exception as error:  # then its calls are in the ledger, as missing
            let_through(error)
            self._on_gap(Gap("launches", "library", f"recording failed: {type(error).__name__}: {error}"))
        self._on_graph(library, Arrival(is_fresh=True, cache_key=None))

    def _payload(self, graph: Any, recording: Recording) -> Payload:
        """All that was heard of a graph that has been written."""
        direction = inductor.direction(graph)
        model = self._take_model(getattr(graph, "graph_id", None), direction == "backward")
        differences = list(recording.differences)
        launches = _without_later_values(tuple(recording.launches[index] for index in sorted(recording.launches)))
        if model is not None:
            differences += differences_of(recording, launches, model, direction)
            differences += dead_differences(model)
        return Payload(
            graph=Graph(
                name="",
                direction=direction,  # type: ignore[arg-type]
                model_key=self._model_key(getattr(graph, "graph_id", None)),
                wrapper_language="cpp" if getattr(graph, "cpp_wrapper", False) else "python",
                flop_references=(model.reference,) if model is not None else (),
                symbols=symbol_sizes.symbol_hints(graph),
                symbol_inputs=symbol_sizes.symbol_inputs(graph),
                devices=tuple(sorted({launch.device for launch in launches})),
                config=changed_settings(),
                is_ahead_of_time=inductor.is_ahead_of_time(graph),
            ),
            kernels=tuple(kernel for kernel in recording.kernels.values() if kernel.key),
            launches=launches,
            gaps=tuple(recording.gaps),
            differences=tuple(differences),
            stages=self._take_stages(graph, is_backward=direction == "backward"),
        )

    def _take_stages(self, graph: Any, *, is_backward: bool) -> tuple[Stage, ...]:
        """The stages of a graph that was lowered; those that it shares with its forward stay there."""
        traced: dict[StageName, str] = {}
        if not is_backward:
            traced, self._thread.stages = getattr(self._thread, "stages", {}), {}
        found: dict[StageName, str] = traced | getattr(graph, _STAGES, {})
        return tuple(Stage("", name, text) for name, text in found.items())

    def on_loaded(self, compiled: Any, settings: Any) -> None:
        is_fresh = id(compiled) in self._fresh
        self._fresh.discard(id(compiled))
        # With an entry of the AOTAutograd cache nothing was traced here, and the graph has no number of this process.
        is_traced = not is_fresh and "graph_id" in settings
        wrapper_path = inductor.wrapper_file(compiled)
        self._on_graph(
            compiled,
            Arrival(
                is_fresh,
                inductor.cache_key(compiled),
                self._lowered_again(compiled) if is_fresh else None,
                self._traced(settings) if is_traced else None,
                wrapper_path,
                inductor.cpp_kernel_files(wrapper_path),
            ),
        )

    def on_plain_entry(self, key: str) -> None:
        self._plain_keys.add(key)

    def _lowered_again(self, compiled: Any) -> Literal["same_code", "other_code"] | None:
        if inductor.cache_key(compiled) not in self._plain_keys:
            return None
        return "same_code" if inductor.code_is_older(compiled, self._started) else "other_code"

    def _traced(self, settings: Any) -> Traced:
        """What is known here of a graph from a cache whose model was traced in this process all the same.

        Without this a forward from the cache would leave its backward, compiled afresh, without number and reference.
        """
        graph_id = settings["graph_id"]
        model = self._take_model(graph_id, bool(settings.get("is_backward")))
        return Traced(self._model_key(graph_id), None if model is None else model.reference)

    def _model_key(self, graph_id: Any) -> str:
        return f"{self._key}:{graph_id}"

    # --- what is made of it -------------------------------------------------------------------------------------

    def _recording(self) -> Recording | None:
        graph = inductor.current_graph()
        return getattr(inductor.root_graph(graph), _RECORDING, None) if graph is not None else None

    def _take_model(self, graph_id: Any, is_backward: bool) -> Model | None:
        """What the model asked of a graph; a forward keeps its backward's until that is there."""
        if is_backward:
            return self._backward_models.pop(graph_id, None)
        models: tuple[Model, Model] | None = getattr(self._thread, "model", None)
        if models is None:
            return None
        self._thread.model = None
        self._backward_models[graph_id] = models[1]
        return models[0]


def _ir_stages() -> dict[StageName, str]:
    """Where the IR of the graph that is being lowered is kept, that of its subgraphs too."""
    found: dict[StageName, str] = vars(inductor.root_graph(inductor.current_graph())).setdefault(_STAGES, {})
    return found


def _without_later_values(launches: tuple[Launch, ...]) -> tuple[Launch, ...]:
    """Take the FX node from outputs that a later launch changes in place: it names the value after that change.

    What ``scatter_reduce`` is lowered to first fills its buffer and then calls the library on it; Inductor names both
    after the operator.
    """
    changed: set[tuple[str, str | None]] = set()
    found = []
    for launch in reversed(launches):
        buffers = tuple(
            replace(buffer, fx_node=None)
            if buffer.role == "output" and (buffer.name, buffer.fx_node) in changed
            else buffer
            for buffer in launch.buffers
        )
        changed.update((buffer.name, buffer.fx_node) for buffer in launch.buffers if buffer.role == "inout")
        found.append(replace(launch, buffers=buffers) if buffers != launch.buffers else launch)
    return tuple(reversed(found))


def _category(source: str, snodes: list[Any], kernel: Any) -> Category:
    if type(kernel).__name__ == "ComboKernel":
        return "foreach" if "foreach" in source[:20000] and "@triton_heuristics.foreach" in source else "combo"
    decorator = _DECORATOR.search(source)
    if decorator is not None:
        return _TRITON_CATEGORY.get(decorator[1], "pointwise")
    if any(inductor.is_template(snode) for snode in snodes):
        return "template"
    return "reduction" if any(inductor.is_reduction(snode) for snode in snodes) else "pointwise"


def _inner_source(body: str) -> str:
    """The kernel's source out of ``async_compile.triton('name', '''...''')``."""
    first, last = body.find("'''"), body.rfind("'''")
    return body[first + 3 : last].strip("\n") if 0 <= first < last else body
