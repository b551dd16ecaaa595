"""Listens to Inductor while it writes a graph, and turns what it heard into the graph's part of the ledger."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Literal

from torchledger._torch import inductor
from torchledger._torch.dynamo import compile_id
from torchledger._torch.flops import formulas
from torchledger._torch.inductor_config import changed_settings
from torchledger._torch.stages import graph_text, ir_text
from torchledger.capturing import flops as flop_count
from torchledger.capturing import provenance
from torchledger.capturing.buffers import extern_buffers, fused_buffers
from torchledger.capturing.flop_changes import flop_changes
from torchledger.capturing.inline_lines import read_reduction, reduction_buffers
from torchledger.capturing.loops import Hint, LoopFacts
from torchledger.capturing.payload import Library, Payload, attach_payload
from torchledger.capturing.size_forms import SizeForms
from torchledger.capturing.wrapper_code import is_launching_line, launching_callee
from torchledger.nouns import (
    Buffer,
    Category,
    Compilation,
    Difference,
    FlopReference,
    Gap,
    Graph,
    Kernel,
    Launch,
    Quality,
    Stage,
    StageName,
)

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
_OWNER_RANK: dict[str, int] = {"extern": 0, "template": 0, "user_triton": 0, "multi_kernel": 1, "reduction": 1}


@dataclass
class _Definition:
    """The latest meaning of a kernel name: one name is defined anew for each launch of de-duplicated source."""

    snodes: list[Any]
    kernel_args: Any


@dataclass
class _Entry:
    """A launch as heard; details are filled in when its graph has been written."""

    kind: Literal["fused", "extern", "inline", "nop"]
    name: str
    call: str | None
    graph: Any
    snodes: list[Any]
    kernel_args: Any = None
    device: str | None = None
    line: str | None = None


@dataclass
class _Recording:
    """What was heard of one root graph."""

    entries: list[_Entry] = field(default_factory=list)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    definitions: dict[str, _Definition] = field(default_factory=dict)
    launches: dict[int, Launch] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    counted: list[tuple[Any, flop_count.NodeFlops]] = field(default_factory=list)
    not_lowered: Counter[str] = field(default_factory=Counter)
    """FLOPs by operator that the graph holds and no launch does."""


@dataclass(frozen=True)
class _Model:
    """What the model asked of one direction: its count, FLOPs by operator of what was traced and nothing reads, and
    what its checkpoints would not run again (``flops.past_last_saved``)."""

    reference: FlopReference
    dead_flops: Mapping[str, int]
    past_last_saved: frozenset[tuple[int, int]]


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
        self._backward_models: dict[Any, _Model] = {}
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
            log.debug("stage %s", name, exc_info=error)
            self._on_gap(Gap("run", f"stage {name}", f"not known: {type(error).__name__}: {error}"))

    def on_dead_code(self, graph: Any, calls: Sequence[Any]) -> None:
        self._thread.dead_flops = flop_count.count_dead(graph, calls)

    def on_model_graph(self, graph_module: Any) -> None:
        references = flop_count.split_reference(flop_count.count_graph(graph_module))
        dead: tuple[dict[str, int], dict[str, int]] = getattr(self._thread, "dead_flops", ({}, {}))
        self._thread.dead_flops = ({}, {})
        past = flop_count.past_last_saved(graph_module.graph)
        self._thread.model = tuple(map(_Model, references, dead, (frozenset(), past)))
        if not hasattr(self._thread, "stages"):
            self._thread.stages = {}
        self._keep_stage("joint", lambda: (self._thread.stages, graph_text(graph_module)))

    def on_codegen_start(self, scheduler: Any) -> None:
        graph = inductor.current_graph()
        if graph is inductor.root_graph(graph):
            setattr(graph, _RECORDING, _Recording())

    def on_kernel_defined(self, name: str, source: str, nodes: Any, kernel_args: Any, kernel: Any) -> None:
        recording = self._recording()
        if recording is None:
            return
        snodes = inductor.scheduler_nodes(nodes)
        recording.definitions[name] = _Definition(snodes, kernel_args)
        if name not in recording.kernels or not recording.kernels[name].key:
            backend: Literal["triton", "cpp"] = "triton" if _DECORATOR.search(source) else "cpp"
            body = recording.kernels.get(name)
            recording.kernels[name] = Kernel(
                key=_hash(source),
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
        recording.kernels[name] = Kernel(_hash(*keys), name, "multi_kernel", "triton", sub_kernels=keys)
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
            _Entry(
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
                recording.entries.append(_Entry("extern", entry_name, callee, graph, [node]))
                launched = True
        if not launched:
            recording.entries.append(_Entry("nop", name, None, graph, [node]))

    def on_text_line(self, line: str) -> None:
        if getattr(self._thread, "extern_node", None) is not None or not is_launching_line(line):
            return
        recording = self._recording()
        if recording is not None:
            callee = launching_callee(line)
            last = recording.entries[-1].snodes if recording.entries else []
            graph = inductor.current_graph()
            recording.entries.append(_Entry("inline", f"inline{callee}", callee, graph, list(last), line=line))

    def on_codegen_end(self, scheduler: Any) -> None:
        graph = inductor.current_graph()
        recording = self._recording()
        if recording is not None:
            self._describe(graph, recording)

    def on_compiled(self, compiled: Any, graph: Any) -> None:
        recording: _Recording | None = getattr(graph, _RECORDING, None)
        if recording is None:
            return
        attach_payload(compiled, self._payload(graph, recording))
        self._fresh.add(id(compiled))
        self._on_lowered(compiled, graph)

    def on_library(self, graph: Any, wrapper_source: str) -> None:
        recording: _Recording | None = getattr(graph, _RECORDING, None)
        library = Library(wrapper_source, graph_text(graph.module))
        try:
            if recording is not None:
                attach_payload(library, self._payload(graph, recording))
        except Exception as error:  # then its calls are in the ledger, as missing
            self._on_gap(Gap("launches", "library", f"recording failed: {type(error).__name__}: {error}"))
        self._on_graph(library, Arrival(is_fresh=True, cache_key=None))

    def _payload(self, graph: Any, recording: _Recording) -> Payload:
        """All that was heard of a graph that has been written."""
        direction = inductor.direction(graph)
        model = self._take_model(getattr(graph, "graph_id", None), direction == "backward")
        differences = list(recording.differences)
        launches = _without_later_values(tuple(recording.launches[index] for index in sorted(recording.launches)))
        if model is not None:
            differences += _differences(recording, launches, model, direction)
            differences += _dead_differences(model)
        return Payload(
            graph=Graph(
                name="",
                direction=direction,  # type: ignore[arg-type]
                model_key=self._model_key(getattr(graph, "graph_id", None)),
                wrapper_language="cpp" if getattr(graph, "cpp_wrapper", False) else "python",
                flop_references=(model.reference,) if model is not None else (),
                symbols=inductor.symbol_hints(graph),
                symbol_inputs=inductor.symbol_inputs(graph),
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

    def _recording(self) -> _Recording | None:
        graph = inductor.current_graph()
        return getattr(inductor.root_graph(graph), _RECORDING, None) if graph is not None else None

    def _take_model(self, graph_id: Any, is_backward: bool) -> _Model | None:
        """What the model asked of a graph; a forward keeps its backward's until that is there."""
        if is_backward:
            return self._backward_models.pop(graph_id, None)
        models: tuple[_Model, _Model] | None = getattr(self._thread, "model", None)
        if models is None:
            return None
        self._thread.model = None
        self._backward_models[graph_id] = models[1]
        return models[0]

    def _describe(self, graph: Any, recording: _Recording) -> None:
        """Fill in provenance, buffers and FLOPs of the entries of one graph while Inductor still knows them."""
        order = {node: index for index, node in enumerate(graph.graph.nodes)}
        candidates: dict[Any, list[tuple[int, int]]] = {}
        forms = SizeForms(graph)
        indices = [index for index, entry in enumerate(recording.entries) if entry.graph is graph]
        for index in indices:
            if index in recording.launches:
                continue
            entry = recording.entries[index]
            try:
                launch, origins = self._launch(entry, index, graph, order, recording, forms)
            except Exception as error:
                log.debug("describing %s failed", entry.name, exc_info=error)
                recording.gaps.append(
                    Gap("launches", entry.name, f"could not be described: {type(error).__name__}: {error}")
                )
                launch = Launch("", index, _key(entry, recording), entry.name, _entry_category(entry, recording), "")
                origins = []
            recording.launches[index] = launch
            rank = 3 if launch.category in ("nop", "inline") else _OWNER_RANK.get(launch.category, 2)
            exact = set(inductor.exact_origins(entry.snodes)) if entry.kind == "extern" else set()
            for origin in origins:
                candidates.setdefault(origin, []).append((rank if origin not in exact else -1, index))
        counted = flop_count.count_graph(graph, graph, with_subgraphs=False)
        recording.counted.extend((graph, node) for node in counted.nodes)
        owned, orphans = flop_count.assign_owners(counted, candidates)
        for index in indices:
            launch = _with_flops(recording.launches[index], recording.entries[index], owned.get(index, []))
            if forms.points:
                launch = replace(launch, flops_by_op_expr=flop_count.forms_by_op(owned.get(index, [])))
            recording.launches[index] = launch
        for orphan in orphans:
            recording.not_lowered[orphan.op] += orphan.flops
            recording.gaps.append(
                Gap("flops", orphan.node.name, f"no launch was lowered from this {orphan.op}", orphan.flops)
            )

    def _launch(
        self,
        entry: _Entry,
        index: int,
        graph: Any,
        order: dict[Any, int],
        recording: _Recording,
        forms: SizeForms,
    ) -> tuple[Launch, list[Any]]:
        snodes = entry.snodes
        origins = sorted(inductor.fx_origins(snodes), key=lambda node: order.get(node, len(order)))
        shown = _library_origins(entry, origins) if entry.kind == "extern" else origins
        calls = [(node, op) for node in shown if (op := provenance.aten_op(node)) is not None]
        is_backward_graph = inductor.direction(inductor.root_graph(graph)) == "backward"
        recomputed = [
            op for node, op in calls if is_backward_graph and node.meta.get("partitioner_tag") == "is_forward"
        ]
        category = _entry_category(entry, recording)
        buffers, facts = _buffers(entry, graph)
        vector_flops = facts.vector_flops if facts is not None else 0 if entry.kind == "nop" else None
        buffers, vector_form = forms.of(
            snodes, buffers, vector_flops, lambda size: _counts(*_buffers(entry, graph, size))
        )
        if entry.line is not None:
            buffers = _inline_buffers(entry.line, graph, recording)
            vector_flops = math.prod(buffers[0].shape) if buffers else None
        sources = provenance.sources(shown) or provenance.sources(origins)
        modules = provenance.modules(shown) or provenance.modules(origins)
        reason = facts.reason if facts is not None else None
        if not sources and not modules and category != "nop":
            # A copy into another layout comes from no line of the model but serves one: that of its reader.
            served = inductor.fx_origins(inductor.consumers(snodes))
            sources, modules = provenance.sources(served), provenance.modules(served)
            cause = next((f" for {op}" for node in served if (op := provenance.aten_op(node)) is not None), "")
            reason = _join(reason, f"no line of the model asks for this: the compiler made it{cause}")
        if entry.kind == "fused" and not snodes:
            reason = _join(reason, "the compiler gave no schedule for this kernel")
        device = entry.device or next((buffer.device for buffer in buffers), None) or _device(snodes) or ""
        launch = Launch(
            graph="",
            order=index,
            kernel=_key(entry, recording),
            kernel_name=entry.name,
            category=category,
            device=device,
            buffers=buffers,
            kwargs=inductor.extern_constants(snodes[0]) if entry.kind == "extern" and snodes else {},
            aten_ops=tuple(op for _, op in calls),
            recomputed_ops=tuple(recomputed),
            fx_nodes=tuple(node.name for node in shown),
            sources=sources,
            modules=modules,
            call=entry.call,
            vector_flops=vector_flops,
            vector_flops_expr=vector_form,
            loops=facts.loops if facts is not None else (),
            reason=reason,
            compiler_estimate_us=_estimate(graph, snodes) if entry.kind in ("fused", "extern") else None,
        )
        return launch, origins


def _ir_stages() -> dict[StageName, str]:
    """Where the IR of the graph that is being lowered is kept, that of its subgraphs too."""
    found: dict[StageName, str] = vars(inductor.root_graph(inductor.current_graph())).setdefault(_STAGES, {})
    return found


def _estimate(graph: Any, snodes: list[Any]) -> float | None:
    try:
        return inductor.estimated_us(graph, snodes)
    except Exception as error:  # the compiler's opinion is no part of the books
        log.debug("no estimate of %s", snodes, exc_info=error)
        return None


def _buffers(entry: _Entry, graph: Any, size: Hint | None = None) -> tuple[tuple[Buffer, ...], LoopFacts | None]:
    if entry.kind == "fused" and entry.kernel_args is not None:
        return fused_buffers(graph, entry.snodes, entry.kernel_args, size)
    if entry.snodes and entry.kind != "inline":
        return extern_buffers(graph, entry.snodes[0], is_launch=entry.kind != "nop", size=size), None
    return (), None


def _inline_buffers(line: str, graph: Any, recording: _Recording) -> tuple[Buffer, ...]:
    """What an eager line that adds up the latest launch's partial results reads and writes."""
    reduction = read_reduction(line)
    if reduction is None:
        return ()
    for index in sorted(recording.launches, reverse=True):
        for buffer in recording.launches[index].buffers:
            if (buffer.name, buffer.role) == (reduction.source, "workspace"):
                output = inductor.buffer_facts(graph, reduction.target)
                dtype = None if output is None else output.dtype
                return reduction_buffers(reduction, buffer, dtype, inductor.symbol_hints(graph))
    return ()


def _counts(buffers: tuple[Buffer, ...], facts: LoopFacts | None) -> tuple[tuple[Buffer, ...], int | None]:
    return buffers, None if facts is None else facts.vector_flops


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


def _library_origins(entry: _Entry, origins: list[Any]) -> list[Any]:
    """What a library call computes, without what its operands were computed from."""
    exact = inductor.exact_origins(entry.snodes)
    if exact:
        return exact
    packet = str(flop_count.packet_of(entry.name))
    named = [node for node in origins if provenance.aten_op(node) == packet]
    # Under another name (scatter_add as scatter_reduce_) it is the latest: the others made what it reads.
    called = [node for node in origins if provenance.aten_op(node) is not None]
    return named or called[-1:] or origins


def _with_flops(launch: Launch, entry: _Entry, owned: Sequence[flop_count.NodeFlops]) -> Launch:
    if owned:
        by_op = flop_count.GraphFlops(list(owned)).by_op()
        quality: Quality = "upper_bound" if flop_count.is_overcounted(by_op, launch) else "exact"
        return replace(launch, flops=sum(by_op.values()), flops_by_op=by_op, flops_quality=quality)
    if entry.kind == "extern":
        packet = flop_count.packet_of(entry.name)
        found = flop_count.extern_flops(packet, launch) if packet is not None else None
        if found:
            return replace(launch, flops=found[1], flops_by_op={found[0]: found[1]})
        is_known = packet in formulas()
        if packet is None or is_known or str(packet).split(".")[0] in flop_count.TORCH_NAMESPACES:
            return replace(launch, flops=0)
        reason = _join(launch.reason, f"no FLOP formula for {packet}")
        return replace(launch, flops=None, flops_quality="unavailable", reason=reason)
    if launch.category == "user_triton":
        reason = "the FLOPs of a user's Triton kernel are not known to the compiler"
        return replace(launch, flops=None, flops_quality="unavailable", reason=_join(launch.reason, reason))
    return replace(launch, flops=0)


def _differences(
    recording: _Recording, launches: tuple[Launch, ...], model: _Model, direction: str
) -> list[Difference]:
    """Name the FLOPs that compilation added to, or took from, what the model asked for."""
    ledger: Counter[str] = Counter()
    for launch in launches:
        ledger.update(launch.flops_by_op)
    found: list[Difference] = []
    for graph, node in recording.counted:
        padding = flop_count.padding_flops(node.node, graph)
        if padding:
            ledger[node.op] -= padding
            found.append(Difference("flops", node.node.name, f"{node.op} padded for alignment (pad_mm)", padding))
        if direction == "backward" and _is_recomputed(node.node):
            amount = node.flops - padding
            ledger[node.op] -= amount
            meta = node.node.meta
            is_asked = meta.get("recompute") is not None or _restores_random_state(node.node)
            reason = f"{node.op} recomputed in the backward" + (", as a checkpoint asks" if is_asked else "")
            if is_asked and (meta.get("ac_graph_id"), meta.get("seq_nr")) in model.past_last_saved:
                is_asked, reason = False, f"{node.op} recomputed in the backward, where an eager checkpoint has stopped"
            found.append(Difference("flops", node.node.name, reason, amount, is_eager_too=is_asked))
    ledger.update(recording.not_lowered)
    changes = flop_changes(ledger, model.reference.flops_by_op)
    new = ", ".join(op for op, change in changes.items() if change > 0)
    old = ", ".join(op for op, change in changes.items() if change < 0)
    for op, change in changes.items():
        if change > 0:
            reason = f"put in by graph passes in place of {old}" if old else "put in by graph passes"
        else:
            reason = f"rewritten as {new}" if new else "taken out by graph passes: dead, duplicate or constant"
        found.append(Difference("flops", op, reason, change))
    return found


def _dead_differences(model: _Model) -> list[Difference]:
    """What an eager step does and a compiled one does not, as its result is thrown away: gradients that a user's
    ``autograd.Function`` computes unasked, values that a module returns to nobody."""
    reason = "nothing reads it: eager code computes it, the compiler leaves it out"
    return [Difference("step_flops", op, f"{op}: {reason}", -flops) for op, flops in model.dead_flops.items()]


def _is_recomputed(fx_node: Any) -> bool:
    """A node of a backward graph that belongs to the forward (with its random state restored, under checkpointing)."""
    return fx_node.meta.get("partitioner_tag") == "is_forward" or _restores_random_state(fx_node)


def _restores_random_state(fx_node: Any) -> bool:
    return getattr(fx_node.target, "__name__", "") in provenance.RESTORES_RANDOM_STATE


def _entry_category(entry: _Entry, recording: _Recording) -> Category:
    if entry.kind == "fused":
        kernel = recording.kernels.get(entry.name)
        return kernel.category if kernel is not None else "user_triton"
    return entry.kind


def _key(entry: _Entry, recording: _Recording) -> str:
    kernel = recording.kernels.get(entry.name) if entry.kind == "fused" else None
    if kernel is None or not kernel.key:
        backend: Literal["triton", "aten", "python"] = (
            "triton" if kernel is not None else "python" if entry.kind == "inline" else "aten"
        )
        source = kernel.source if kernel is not None else None
        kernel = Kernel(
            _hash(source or entry.name),
            entry.name,
            _entry_category(entry, recording),
            backend,
            source,
            kernel.path if kernel is not None else None,
        )
        recording.kernels[entry.name] = kernel
    return kernel.key


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


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _device(snodes: list[Any]) -> str | None:
    for snode in snodes:
        device = getattr(snode, "get_device", lambda: None)()
        if device is not None:
            return str(device)
    return None


def _join(first: str | None, second: str) -> str:
    return f"{first}; {second}" if first else second
