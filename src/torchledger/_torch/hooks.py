"""Where torchledger listens to Inductor, and who hears it.

``install`` wraps a handful of methods; ``listener`` is told what happened after (or around) each. The
wrappers pass everything through. A fault in the listener is caught here, reported to ``listener.on_fault`` and never
reaches the user's compile.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, Protocol

from torch._inductor import codecache, compile_fx, output_code, scheduler
from torch._inductor.codegen import cpp, multi_kernel, simd, triton, wrapper
from torch._inductor.scheduler import BaseScheduling

from torchledger._torch.cache_keys import key_caches
from torchledger._torch.dead_code import listen_to_dead_code
from torchledger._torch.guards import listen_to_guards
from torchledger._torch.kernel_marks import note_wrappers
from torchledger._torch.patching import Patches
from torchledger._torch.stages import listen_to_stages
from torchledger.signals import let_through

log = logging.getLogger(__name__)

Guarded = Callable[..., Any]
"""Calls ``method(*args)`` for ``(where, method, *args)``, or tells of its fault and answers ``None``."""


class Listener(Protocol):
    """What can be heard. Arguments are Inductor's own objects."""

    def on_fault(self, where: str, error: Exception) -> None:
        """A listener's method failed; the compile goes on."""

    def on_recompiled(self, failed_guards: Sequence[str]) -> None:
        """A frame is compiled again, as these guards of its earlier compilations failed."""

    def on_guarded(self, code: CodeType, guards: Iterator[str]) -> None:
        """A frame has been compiled and got its guards."""

    def on_traced_graph(self, graph_module: Any) -> None:
        """Dynamo has traced a graph, which is about to go through Inductor's first passes."""

    def on_dead_code(self, graph: Any, calls: Sequence[Any]) -> None:
        """AOTAutograd has traced an FX graph and is about to take these calls out, as nothing reads them."""

    def on_ir(self, nodes: Sequence[Any], is_fused: bool) -> None:
        """The scheduler nodes of a graph (or subgraph) are there; then they have been fused."""

    def on_model_graph(self, graph_module: Any) -> None:
        """A joint or inference FX graph is about to go through Inductor's passes."""

    def on_codegen_start(self, scheduler: Any) -> None:
        """A graph (or subgraph) starts to be written."""

    def on_codegen_end(self, scheduler: Any) -> None:
        """A graph (or subgraph) has been written."""

    def on_kernel_defined(self, name: str, source: str, nodes: Any, kernel_args: Any, kernel: Any) -> None:
        """A fused kernel got its name (again, if its source was seen before)."""

    def on_kernel_body(self, name: str, body: str, metadata: str | None) -> None:
        """A kernel's final source was written into the wrapper."""

    def on_multi_kernel_defined(self, name: str, sub_kernels: list[str]) -> None:
        """A MultiKernel got its name."""

    def on_kernel_call(self, name: str, call_args: Any, device: Any) -> None:
        """A kernel call was written into the wrapper."""

    def on_extern(self, node: Any, new_lines: list[Any]) -> None:
        """An extern node was written; ``new_lines`` are the wrapper lines it added."""

    def extern_scope(self, node: Any) -> contextlib.AbstractContextManager[None]:
        """Entered while an extern node is written."""

    def on_text_line(self, line: str) -> None:
        """A raw line of text was written into the wrapper outside any extern node."""

    def on_plain_entry(self, key: str) -> None:
        """The graph of this key is in the cache of programs that nobody recorded."""

    def on_compiled(self, compiled: Any, graph: Any) -> None:
        """A ``CompiledFxGraph`` was built from a ``GraphLowering``."""

    def on_library(self, graph: Any, wrapper_source: str) -> None:
        """AOTInductor made a library of a ``GraphLowering``."""

    def on_loaded(self, compiled: Any, settings: Any) -> None:
        """A ``CompiledFxGraph`` is ready to run, fresh or from a cache; ``settings`` are those of this compilation."""


def install(listener: Listener, *, salt: Callable[[], str]) -> Patches:
    """Wrap Inductor's methods; ``Patches.undo`` takes everything back.

    Graphs that are compiled meanwhile are found again only by a process that listens with the same ``salt()``.
    """

    def told(where: str, error: Exception) -> None:
        try:
            listener.on_fault(where, error)
        except Exception as second:  # the user's compile must go on, whatever becomes of the record
            let_through(second)
            log.warning("torchledger lost what it knew of %s: %s; %s", where, error, second)

    patches = Patches(told)

    def guarded(where: str, method: Callable[..., Any], *args: Any) -> Any:
        try:
            return method(*args)
        except Exception as error:  # the user's compile must go on
            let_through(error)
            told(where, error)
            return None

    watch_backends = _hear_kernels(patches, listener, guarded)
    _hear_schedulers(patches, listener, guarded, watch_backends)
    _hear_wrappers(patches, listener, guarded)
    _hear_graphs(patches, listener, guarded)
    key_caches(patches, salt, listener.on_plain_entry)
    listen_to_guards(patches, listener.on_recompiled, listener.on_guarded)
    listen_to_stages(patches, listener.on_traced_graph, listener.on_ir)
    listen_to_dead_code(patches, listener.on_dead_code)
    note_wrappers(patches)
    return patches


def _hear_kernels(patches: Patches, listener: Listener, guarded: Guarded) -> Callable[[], None]:
    """Each definition of a kernel, by the backends that are there; what is returned looks for further ones."""

    def define_fused_kernel(
        original: Callable[..., Any], self: Any, source: Any, nodes: Any, *args: Any, **kw: Any
    ) -> Any:
        name = original(self, source, nodes, *args, **kw)

        def defined() -> None:
            kernel = args[0] if args else kw.get("kernel", kw.get("kernel_args"))
            kernel_args = getattr(kernel, "args", kernel)
            if kernel_args is None and hasattr(self, "kernel_group"):
                kernel_args = self.kernel_group.args
            listener.on_kernel_defined(name, str(source), nodes, kernel_args, kernel)

        guarded("kernel definition", defined)
        return name

    def define_multi_kernel(original: Callable[..., Any], self: Any, kernels: Any, *args: Any, **kwargs: Any) -> Any:
        name = original(self, kernels, *args, **kwargs)
        guarded(
            "multi kernel",
            lambda: listener.on_multi_kernel_defined(name, [str(kernel.kernel_name) for kernel in kernels]),
        )
        return name

    def watch_backends() -> None:
        for scheduling in _subclasses(BaseScheduling):
            patches.around(scheduling, "define_kernel", define_fused_kernel)

    for scheduling in (cpp.CppScheduling, triton.TritonScheduling, simd.SIMDScheduling):
        patches.around(scheduling, "define_kernel", define_fused_kernel)
    patches.around(multi_kernel.MultiKernelState, "define_kernel", define_multi_kernel)
    return watch_backends


def _hear_schedulers(
    patches: Patches, listener: Listener, guarded: Guarded, watch_backends: Callable[[], None]
) -> None:
    """The beginning and end of each graph's code, and its extern nodes."""

    def codegen(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        guarded("backends", watch_backends)  # they are loaded as devices turn up
        guarded("codegen start", listener.on_codegen_start, self)
        result = original(self, *args, **kwargs)
        guarded("codegen end", listener.on_codegen_end, self)
        return result

    def codegen_extern_call(original: Callable[..., Any], self: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
        before = guarded("extern call", _lines_so_far)
        with contextlib.ExitStack() as stack:
            scope = guarded("extern scope", listener.extern_scope, node)
            if scope is not None:
                guarded("extern scope", lambda: scope.__enter__())
                stack.callback(guarded, "extern scope", lambda: scope.__exit__(None, None, None))
            result = original(self, node, *args, **kwargs)
        if before is not None:
            guarded("extern call", lambda: listener.on_extern(node, _lines_of(before[0])[before[1] :]))
        return result

    patches.around(scheduler.Scheduler, "codegen", codegen)
    patches.around(scheduler.Scheduler, "codegen_extern_call", codegen_extern_call)


def _hear_wrappers(patches: Patches, listener: Listener, guarded: Guarded) -> None:
    """What is written into the wrapper of a graph."""

    def define_kernel(original: Callable[..., Any], self: Any, name: str, body: str, *args: Any, **kwargs: Any) -> Any:
        metadata = args[0] if args else kwargs.get("metadata")
        guarded("kernel source", listener.on_kernel_body, name, body, metadata)
        return original(self, name, body, *args, **kwargs)

    def generate_kernel_call(
        original: Callable[..., Any], self: Any, name: str, call_args: Any, *a: Any, **kw: Any
    ) -> Any:
        guarded("kernel call", listener.on_kernel_call, name, call_args, kw.get("device"))
        return original(self, name, call_args, *a, **kw)

    def writeline(original: Callable[..., Any], self: Any, line: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(line, str):
            guarded("wrapper line", listener.on_text_line, line)
        return original(self, line, *args, **kwargs)

    for name, around in (
        ("define_kernel", define_kernel),
        ("generate_kernel_call", generate_kernel_call),
        ("writeline", writeline),
    ):
        patches.around(wrapper.PythonWrapperCodegen, name, around)


def _hear_graphs(patches: Patches, listener: Listener, guarded: Guarded) -> None:
    """A graph before Inductor's passes, and once it is compiled or loaded."""
    inside = threading.local()

    def build(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        graph = kwargs.get("graph", args[1] if len(args) > 1 else None)
        guarded("compiled graph", listener.on_compiled, self, graph)
        return result

    def post_compile(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)

        def loaded() -> None:
            # A graph from a cache holds the settings (its number among them) of the process that made it.
            listener.on_loaded(self, kwargs.get("graph_kwargs", args[2] if len(args) > 2 else None) or self.fx_kwargs)

        guarded("loaded graph", loaded)
        return result

    def build_library(original: Callable[..., Any], kind: Any, graph: Any, source: str, *args: Any, **kw: Any) -> Any:
        result = original(kind, graph, source, *args, **kw)
        guarded("library", listener.on_library, graph, source)
        return result

    def joint_passes(original: Callable[..., Any], graph_module: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(inside, "joint_passes", False):  # it calls itself for subgraphs, which the outermost one holds
            guarded("model graph", listener.on_model_graph, graph_module)
        outer, inside.joint_passes = getattr(inside, "joint_passes", False), True
        try:
            return original(graph_module, *args, **kwargs)
        finally:
            inside.joint_passes = outer

    patches.around(output_code.CompiledFxGraph, "__init__", build)
    patches.around(output_code.CompiledFxGraph, "post_compile", post_compile)
    patches.around(codecache.AotCodeCompiler, "compile", build_library)
    patches.around(compile_fx, "_recursive_joint_graph_passes", joint_passes)


def _subclasses(base: type) -> Iterator[type]:
    for subclass in base.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _lines_so_far() -> tuple[Any, int] | None:
    """The graph that is being written, and how many lines its wrapper has."""
    from torchledger._torch.inductor import current_graph

    graph = current_graph()
    return None if graph is None else (graph, len(_lines_of(graph)))


def _lines_of(graph: Any) -> list[Any]:
    from torchledger._torch.inductor import wrapper_lines

    return wrapper_lines(graph)
