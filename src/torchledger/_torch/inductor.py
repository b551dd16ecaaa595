"""What torchledger asks of Inductor's objects, in words that do not change with the version.

Every function takes objects of ``torch._inductor`` as ``Any`` and returns plain values (or those objects again).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._dynamo.utils import counters
from torch._inductor import codecache, config, ir
from torch._inductor.utils import get_gpu_dram_gbps
from torch._inductor.virtualized import V

from torchledger.signals import let_through

EXTERN_LINES = frozenset(
    {
        "ExternKernelOutLine",
        "ExternKernelAllocLine",
        "ExternKernelMultiOutLine",
        "IndexPutFallbackLine",
        "ScatterFallbackLine",
    }
)
"""Wrapper lines that call a library (2.9 writes some of these as text instead)."""

KERNEL_CALL_LINE = "KernelCallLine"


def current_graph() -> Any:
    """The ``GraphLowering`` that is being compiled in this thread, or ``None``."""
    graph = V.graph
    return graph if hasattr(graph, "graph") else None


def root_graph(graph: Any) -> Any:
    """The outermost ``GraphLowering``: a subgraph's (cond, while_loop) kernels run in its wrapper."""
    while getattr(graph, "parent", None) is not None:
        graph = graph.parent
    return graph


def buffer_numel(graph: Any, name: str) -> sympy.Expr:
    """The number of elements of a buffer, input or constant, still symbolic; 1 where it is not known."""
    facts = buffer_facts(graph, name)
    return sympy.Integer(1) if facts is None else sympy.Mul(*facts.size)


@dataclass(frozen=True)
class TensorFacts:
    """A tensor as the compiler sees it; sizes still symbolic."""

    name: str
    dtype: str
    device: str
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any


def tensor_facts(node: Any) -> TensorFacts | None:
    """Facts of an IR node that stands for one tensor; ``None`` for scalars, lists and multi-output nodes."""
    layout = layout_of(node)
    if layout is None or not hasattr(layout, "size") or not hasattr(layout, "stride"):
        return None
    dtype, device = getattr(layout, "dtype", None), getattr(layout, "device", None)
    if dtype is None or device is None:
        return None
    name = _name(node)
    return TensorFacts(
        name=name if name is not None else "constant",
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        size=tuple(layout.size),
        stride=tuple(layout.stride),
        offset=getattr(layout, "offset", 0),
    )


def layout_of(node: Any) -> Any:
    # Views (ReinterpretView) carry the layout that a library call really sees; boxes only pass on.
    while isinstance(node, (ir.MutableBox,)):
        node = node.data
    if isinstance(node, ir.BaseView) and not isinstance(node, ir.ReinterpretView):
        return None
    layout = getattr(node, "layout", None)
    if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        return layout.real_layout()
    if layout is None and isinstance(node, ir.IRNode):
        try:
            layout = node.get_layout()
        except NotImplementedError:
            return None
    return layout


def _name(node: Any) -> str | None:
    try:
        return str(node.get_name())
    except (AttributeError, NotImplementedError):
        return None


def buffer_facts(graph: Any, name: str) -> TensorFacts | None:
    """Facts of a buffer, input or constant by its name in the wrapper."""
    if name in graph.constants:
        tensor = graph.constants[name]
        return TensorFacts(
            name,
            str(tensor.dtype).removeprefix("torch."),
            str(tensor.device),
            tuple(tensor.shape),
            tuple(tensor.stride()),
            0,
        )
    buffer = graph.try_get_buffer(name)
    facts = tensor_facts(buffer) if buffer is not None else None
    return None if facts is None else TensorFacts(name, *_rest(facts))


def fx_value_name(graph: Any, name: str) -> str | None:
    """The FX node whose value a buffer holds: inputs and constants bear its name, a buffer may keep it as origin."""
    if name in graph.graph_inputs or name in graph.constants:
        return name
    origin = getattr(graph.try_get_buffer(name), "origin_node", None)
    return None if origin is None else str(origin.name)


def _rest(facts: TensorFacts) -> tuple[Any, ...]:
    return facts.dtype, facts.device, facts.size, facts.stride, facts.offset


@dataclass(frozen=True)
class ArgumentBuffer:
    """A buffer that a fused kernel gets as argument; ``aliases`` are the names that share its memory in the kernel."""

    name: str
    role: str
    argument: str
    aliases: tuple[str, ...] = ()


def argument_buffers(kernel_args: Any) -> list[ArgumentBuffer]:
    """The buffers in a fused kernel's ``KernelArgs``, in-place pairs once."""
    found: list[ArgumentBuffer] = []
    seen: set[str] = set()
    for inplaced in kernel_args.inplace_buffers.values():
        if not hasattr(inplaced, "inner_name") or inplaced.inner_name in seen:
            continue
        seen.add(inplaced.inner_name)
        names = tuple(inplaced.other_names)
        found.append(ArgumentBuffer(names[-1], "inout", inplaced.inner_name, names))
    inplaced_names = {name for buffer in found for name in buffer.aliases}
    for name, inner in kernel_args.input_buffers.items():
        if name not in inplaced_names and isinstance(inner, str):
            found.append(ArgumentBuffer(name, "input", inner, (name,)))
    for name, inner in kernel_args.output_buffers.items():
        if name not in inplaced_names and isinstance(inner, str):
            found.append(ArgumentBuffer(name, "output", inner, (name,)))
    return found


@dataclass(frozen=True)
class Workspace:
    """Scratch memory that a fused kernel gets as argument; ``count`` elements, still symbolic."""

    name: str
    argument: str
    count: Any
    dtype: str
    device: str


def workspace_arguments(kernel_args: Any) -> list[Workspace]:
    """The scratch memory in a fused kernel's ``KernelArgs``: partial sums, semaphores."""
    return [
        Workspace(
            str(workspace.outer_name),
            str(workspace.inner_name),
            workspace.count,
            str(workspace.dtype).removeprefix("torch."),
            str(workspace.device),
        )
        for workspace in getattr(kernel_args, "workspace_args", ())
    ]


def scheduler_nodes(nodes: Any) -> list[Any]:
    """All leaf scheduler nodes of a schedule, group or node, in order, without the markers between them."""
    found: list[Any] = []
    pending = list(nodes) if isinstance(nodes, (list, tuple)) else [nodes]
    while pending:
        node = pending.pop(0)
        if not hasattr(node, "get_nodes"):
            continue
        inner = list(node.get_nodes())
        if len(inner) == 1 and inner[0] is node:
            found.append(node)
        else:
            pending = inner + pending
    return found


def fx_origins(snodes: Iterable[Any]) -> list[Any]:
    """The FX nodes that scheduler nodes were lowered from, the exact origin of each first."""
    origins: dict[Any, None] = {}
    for snode in snodes:
        node = getattr(snode, "node", None)
        if getattr(node, "origin_node", None) is not None:
            origins[node.origin_node] = None
        for origin in getattr(node, "origins", None) or ():
            origins[origin] = None
    return list(origins)


def exact_origins(snodes: Iterable[Any]) -> list[Any]:
    """The FX nodes that a library call stands for.

    Inductor's origins of a call include what its operands were made from; the exact origin is kept beside them, except
    for calls with several outputs, whose readers hold it.
    """
    found: dict[Any, None] = {}
    for snode in snodes:
        node = getattr(snode, "node", None)
        exact = getattr(node, "origin_node", None)
        if exact is not None:
            found[exact] = None
    return list(found)


def consumers(snodes: Iterable[Any]) -> list[Any]:
    """The scheduler nodes that read what these write."""
    found: dict[Any, None] = {}
    for snode in snodes:
        for output in snode.get_outputs():
            for user in getattr(output, "users", ()):
                if getattr(user.node, "node", None) is not None:
                    found[user.node] = None
    return list(found)


def extern_kernel_name(snode: Any) -> str | None:
    """The library entry point of an extern node (``extern_kernels.addmm``, ``torch.ops.aten.sort.default``)."""
    node = getattr(snode, "node", None)
    for attribute in ("python_kernel_name", "get_kernel_name"):
        value = getattr(node, attribute, None)
        try:
            value = value() if callable(value) else value
        except (AttributeError, AssertionError, NotImplementedError):
            continue
        if value:
            return str(value)
    overload = getattr(node, "op_overload", None)
    return f"torch.ops.{overload}" if overload is not None else None


def extern_inputs(snode: Any) -> Iterator[Any]:
    """The tensor arguments of an extern node, lists flattened, with the views that the library sees."""
    node = snode.node
    pending = [*getattr(node, "inputs", ()), *(getattr(node, "kwargs", None) or {}).values()]
    while pending:
        value = pending.pop(0)
        if isinstance(value, (list, tuple)):
            pending = [*value, *pending]
        elif isinstance(value, (ir.IRNode,)):
            yield value


def extern_outputs(snode: Any) -> Iterator[Any]:
    """The output buffers of an extern node: itself, or what its multi-output readers pick out of it."""
    node = snode.node
    if tensor_facts(node) is not None and not isinstance(getattr(node, "layout", None), ir.NoneLayout):
        yield node
    else:
        for output in getattr(node, "outputs", ()) or ():
            if isinstance(output, ir.MultiOutput) and tensor_facts(output) is not None:
                yield output


def mutated_names(snode: Any) -> set[str]:
    """Names of the buffers that an extern node writes in place."""
    node = snode.node
    try:
        return {str(name) for name in node.get_mutation_names()}
    except (AttributeError, NotImplementedError):
        return set()


def extern_constants(snode: Any) -> dict[str, str]:
    """The non-tensor arguments of an extern node under the names of its operator's schema, as text.

    A call whose operator is not known has ``arg0``, ``arg1``, ... for those that stand without a name.
    """
    node = snode.node
    named = {str(name): value for name, value in (getattr(node, "kwargs", None) or {}).items()}
    for name, value in _positional_constants(node, named):
        named.setdefault(name, value)
    return {name: str(value) for name, value in named.items() if not _holds_tensors(value)}


def _positional_constants(node: Any, named: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    constants = tuple(getattr(node, "constant_args", ()) or ())
    schema = getattr(getattr(node, "op_overload", None), "_schema", None)
    parameters = list(schema.arguments) if schema is not None else []
    unflatten = getattr(node, "unflatten_args", None)
    if unflatten is not None:
        arguments, keywords = unflatten(node.inputs, constants)
        yield from zip((parameter.name for parameter in parameters), arguments, strict=False)
        yield from keywords.items()
        return
    free = [each.name for each in parameters if "Tensor" not in str(each.type) and each.name not in named]
    if len(free) != len(constants):  # those of the wrapper's call: tensors first
        free = [each.name for each in parameters[len(node.inputs) :]]
    for index, value in enumerate(constants):
        yield (free[index] if index < len(free) else f"arg{index}"), value


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_tensors, value))
    return isinstance(value, (ir.IRNode, torch.Tensor))


def is_reduction(snode: Any) -> bool:
    """True for a loop that reduces."""
    return bool(getattr(snode, "is_reduction", lambda: False)())


def is_template(snode: Any) -> bool:
    """True for a template (GEMM, convolution or flex-attention kernel written by Inductor)."""
    return bool(getattr(snode, "is_template", lambda: False)())


def estimated_us(graph: Any, snodes: Iterable[Any]) -> float | None:
    """What Inductor thinks that the kernel of these scheduler nodes takes, in microseconds; ``None``: it does not say.

    It says so for GPUs alone (the longer of bytes over bandwidth and FLOPs over peak), and of whole kernels.
    """
    leaves = {snode.get_name(): snode for snode in snodes}
    if not leaves or not all(map(_is_on_gpu, leaves.values())) or not _knows_bandwidth():
        return None
    if getattr(config, "runtime_estimations_mms_benchmark", False):  # then it would run products to learn their time
        return None
    of_name = graph.scheduler.name_to_fused_node
    kernels = {id(kernel): kernel for kernel in map(of_name.get, leaves) if kernel is not None}
    if {leaf.get_name() for leaf in scheduler_nodes(list(kernels.values()))} != set(leaves):
        return None
    counted = counters["inductor"]["flop_count"]
    try:
        return sum(float(kernel.get_estimated_runtime()) for kernel in kernels.values()) * 1e3 or None
    finally:
        counters["inductor"]["flop_count"] = counted  # to which asking adds


def _is_on_gpu(snode: Any) -> bool:
    device = snode.get_device()
    return device is not None and device.type not in ("cpu", "meta")


@functools.cache
def _knows_bandwidth() -> bool:
    """False where a program for a GPU is compiled without one."""
    try:
        return bool(get_gpu_dram_gbps() > 0)
    except Exception as error:  # whatever the driver that is not there raises
        let_through(error)
        return False


def is_ahead_of_time(graph: Any) -> bool:
    """True for a graph that AOTInductor compiles into a library, to be run by another program."""
    return bool(getattr(graph, "aot_mode", False))


def cache_key(compiled: Any) -> str | None:
    """The key of a compiled graph in the FX graph cache; that of its code where it has none there."""
    return getattr(compiled, "_fx_graph_cache_key", None) or getattr(compiled, "cache_key", None)


def wrapper_file(compiled: Any) -> str | None:
    """Where the generated Python wrapper of a graph stands; ``None`` for a C++ wrapper, and for one that is gone."""
    path = str(codecache.get_path(compiled.cache_key, "py")[2]) if getattr(compiled, "cache_key", None) else None
    return path if path is not None and os.path.exists(path) else None


def cpp_kernel_files(wrapper_path: str | None) -> dict[str, str]:
    """The source files of the C++ kernels that a loaded Python wrapper calls, by the kernels' names in it."""
    modules = reversed(codecache.PyCodeCache.modules)
    wrapper = next((module for module in modules if getattr(module, "__file__", None) == wrapper_path), None)
    found = {}
    for name, value in vars(wrapper).items() if wrapper is not None else ():
        function = getattr(value, "kernel", value)  # marked while a profile records
        library = getattr(getattr(function, "__self__", None), "__file__", None)
        if name.startswith("cpp_") and library and os.path.exists(source := os.path.splitext(library)[0] + ".cpp"):
            found[name] = source
    return found


def code_is_older(compiled: Any, moment: float) -> bool:
    """True if the generated wrapper of a graph stood in the cache before ``moment``, in seconds since the epoch.

    It holds the source of each kernel, so then every kernel's binary, and what was tried for it, is from before too.
    """
    try:
        return os.path.getmtime(codecache.get_path(compiled.cache_key, "py")[2]) < moment
    except OSError:
        return False


def direction(graph: Any) -> str:
    """``forward``, ``backward`` or ``inference``."""
    if getattr(graph, "is_backward", False):
        return "backward"
    if getattr(graph, "is_inference", False):
        return "inference"
    return "forward"


def wrapper_lines(graph: Any) -> list[Any]:
    """The lines of the wrapper that is being written."""
    lines: list[Any] = getattr(graph.wrapper_code, "lines", [])
    return lines


def line_kind(line: Any) -> str:
    """The class name of a wrapper line (``str`` for raw text)."""
    return type(line).__name__
