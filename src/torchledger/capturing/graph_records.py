"""A compiled graph as the records of one run: under its name there, with the calls of its finished wrapper."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from torchledger._torch.dynamo import compile_id
from torchledger.capturing.flop_changes import flop_changes
from torchledger.capturing.payload import Payload
from torchledger.capturing.wrapper_code import WrapperCall, find_calls, in_running_order
from torchledger.nouns import Difference, Gap, Launch
from torchledger.store.seal import sealed_graph, sealed_kernel

if TYPE_CHECKING:
    from torchledger.capturing.recorder import Arrival, Traced


def as_traced_here(payload: Payload, traced: Traced) -> Payload:
    """A payload out of a cache with the reference of this process, and what differs from the one that it came with.

    A graph with symbolic sizes serves all sizes, its entries hold those of the compilation that made them.
    """
    if traced.reference is None:
        return dataclasses.replace(payload, graph=dataclasses.replace(payload.graph, model_key=traced.model_key))
    asked: Counter[str] = Counter()
    for counted in payload.graph.flop_references or payload.launches:
        asked.update(counted.flops_by_op)
    sizes = ", ".join(f"{symbol}={size}" for symbol, size in sorted(payload.graph.symbols.items()))
    reason = f"the entries come from a cache and hold the sizes that they were compiled for ({sizes or 'not symbolic'})"
    differences = tuple(
        # A call of a step is counted at its own sizes.
        Difference("flops", op, reason, amount, is_eager_too=bool(payload.graph.symbols))
        for op, amount in flop_changes(asked, traced.reference.flops_by_op).items()
    )
    graph = dataclasses.replace(payload.graph, model_key=traced.model_key, flop_references=(traced.reference,))
    return dataclasses.replace(payload, graph=graph, differences=(*payload.differences, *differences))


def records_of_graph(
    payload: Payload,
    name: str,
    compiled: Any,
    source: str | None,
    arrival: Arrival,
    known_kernels: set[tuple[str, str]],
) -> list[Any]:
    """The payload under its name in this run, with what only the finished wrapper tells."""
    calls: list[WrapperCall] = []
    gaps = [dataclasses.replace(gap, where=f"{name}:{gap.where}") for gap in payload.gaps]
    if source:
        try:
            calls = find_calls(source, payload.graph.wrapper_language)
            if payload.graph.wrapper_language == "python":
                calls = in_running_order(source, calls)
        except ValueError as error:
            gaps.append(Gap("launches", name, str(error)))
    launches, unmatched = match_calls([dataclasses.replace(launch, graph=name) for launch in payload.launches], calls)
    gaps += [Gap("launches", f"{name}:{gap.where}", gap.reason, gap.amount) for gap in unmatched]
    fx_source = getattr(compiled, "inductor_post_grad_graph_str", None) or None
    graph = dataclasses.replace(
        payload.graph,
        name=name,
        wrapper_path=arrival.wrapper_path,
        compile_id=compile_id(),
        cache_key=arrival.cache_key,
        cache_hit=not arrival.is_fresh,
        lowered_again=arrival.lowered_again,
        wrapper_source=source,
        fx_source=fx_source,
        wrapper_calls=tuple(call.name for call in calls),
        is_dynamic=bool(payload.graph.symbols),
        cudagraph_skip_reason=getattr(compiled, "disabled_cudagraphs_reason", None),
    )
    kernels = [
        kernel if kernel.path else dataclasses.replace(kernel, path=arrival.kernel_paths.get(kernel.name))
        for kernel in payload.kernels
        if (kernel.key, kernel.name) not in known_kernels
    ]
    known_kernels.update((kernel.key, kernel.name) for kernel in kernels)
    differences = [dataclasses.replace(item, where=f"{name}:{item.where}") for item in payload.differences]
    return [sealed_graph(graph, launches), *map(sealed_kernel, kernels), *launches, *gaps, *differences]


def match_calls(launches: list[Launch], calls: list[WrapperCall]) -> tuple[list[Launch], list[Gap]]:
    """Find the call site of each launch in the finished wrapper, by name and order; what has no partner is a gap.

    Library calls whose text differs from their entry's name are paired in order once the named ones are out.
    """
    by_name: dict[str, deque[WrapperCall]] = {}
    for call in calls:
        by_name.setdefault(_base(call.name), deque()).append(call)
    matched: dict[int, WrapperCall] = {}
    waiting: list[int] = []
    for index, launch in enumerate(launches):
        if launch.category == "nop":
            continue
        sites = by_name.get(_base(launch.call or launch.kernel_name))
        if sites:
            matched[index] = sites.popleft()
        else:
            waiting.append(index)
    spare = sorted((call for sites in by_name.values() for call in sites), key=lambda call: call.line)
    libraries = deque(call for call in spare if not _is_generated(call.name))
    gaps = []
    for index in waiting:
        launch = launches[index]
        if launch.category in ("extern", "inline") and libraries:
            matched[index] = libraries.popleft()
        else:
            gaps.append(Gap("launches", launch.kernel_name, "this entry has no call in the generated code", 1))
    rest = [*libraries, *(call for call in spare if _is_generated(call.name))]
    gaps += [Gap("launches", f"line {call.line}", f"the call of {call.name} has no entry", 1) for call in rest]
    found = [
        dataclasses.replace(launch, wrapper_line=matched[index].line, call=matched[index].name)
        if index in matched
        else launch
        for index, launch in enumerate(launches)
    ]
    return found, gaps


def _base(name: str) -> str:
    return name.removesuffix(".run").removeprefix("call_")


def _is_generated(name: str) -> bool:
    return name.startswith(("triton_", "cpp_", "multi_kernel", "call_triton"))
