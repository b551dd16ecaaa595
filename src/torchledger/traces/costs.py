"""Work of every device event of a trace, from what the trace itself holds.

The operator that launched a kernel gives shapes, the shapes give FLOPs and bytes; where an operator launched several
kernels its work is shared among them so that the sum stays the operator's. A kernel whose launch the trace does not
hold takes the work of its twins: launches of the same symbol, grid and block, in the same surroundings, whose operator
is known. What remains unknown carries a reason.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchledger.nouns import Cost, DeviceEvent, TimeCategory
from torchledger.traces.collective_messages import RECORDED_COLLECTIVE, Messages
from torchledger.traces.recorded_calls import LARGEST_COUNT, call_from_arguments, shapes_text
from torchledger.traces.trace import NONE, EventKind, Trace, TraceKernel
from torchledger.work.categories import LOOPS, category_of_operator
from torchledger.work.flops import matmul_flops
from torchledger.work.kernel_names import category_of_kernel, dtype_of_kernel, elementwise_work, is_helper_kernel
from torchledger.work.op_costs import NO_TENSOR_SHAPES, has_formula, op_cost
from torchledger.work.op_shapes import OpCall, Tensor

BEFORE_TRACE = "launched before the trace begins: neither launch nor operator was recorded"
NOT_RECORDED = "the trace holds no launch for it"
GRAPH_REPLAY = "replayed by a CUDA graph: the trace names no operator"
NO_OPERATOR = "launched outside any recorded operator"

_HELPER = "helper kernel of"
_PRODUCTS = ("gemm", "convolution", "attention")
_NOT_OPERATORS = re.compile(r"^(Torch-Compiled Region|TorchDynamo|Pregraph|AOTDispatcher|Optimizer\.|ProfilerStep)")
_TWIN_WINDOWS = (0, 1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class _OpFacts:
    """An operator call as costed: which row, its call and its work."""

    row: int
    call: OpCall
    cost: Cost
    is_triton: bool = False
    shapes: str | None = None


def device_events(trace: Trace) -> list[DeviceEvent]:
    """All kernels, copies and fills of a trace in order of their start, each with its category and work."""
    costing = _Costing(trace)
    kernels = list(trace.kernels())
    costed_op = [costing.operator_of(kernel) for kernel in kernels]
    costs = _shared_costs(kernels, costed_op)
    for index, kernel in enumerate(kernels):
        if costs[index] is None:
            costs[index] = costing.cost_without_operator(kernel, costed_op[index])
    ops = [None if kernel.op is None else _operator_name(trace, kernel.op) for kernel in kernels]
    _take_from_twins(kernels, costs, ops)
    return [
        _device_event(trace, kernel, facts, _checked(cost), op)
        for kernel, facts, cost, op in zip(kernels, costed_op, costs, ops, strict=True)
    ]


def _checked(cost: Cost | None) -> Cost:
    if cost is None:
        return Cost(reason=NOT_RECORDED)
    if any(value is not None and not 0 <= value < LARGEST_COUNT for value in (cost.flops, cost.bytes_moved)):
        return Cost(reason="the recorded sizes are beyond what a device can do")
    return cost


def triton_cost(name: str, arguments: Mapping[str, Any]) -> Cost:
    """Work of a Triton launch, from the shapes of its pointers and what Inductor wrote into the event.

    Each tensor is counted once; one that is larger than the kernel's iteration space (a table that is gathered from, a
    view of a larger buffer) counts at most one element per iteration.
    """
    flops = arguments.get("kernel_flop")
    gigabytes = arguments.get("kernel_num_gb")
    call = call_from_arguments(name, arguments)
    tensors = call.tensors if call is not None else ()
    known_flops: int | None = None
    basis = "pointer shapes, each touched once"
    if isinstance(flops, (int, float)) and 0 < flops < LARGEST_COUNT:
        known_flops = int(flops)
    elif category_of_kernel(name) == "template" and _PRODUCT_TEMPLATE.search(name):
        known_flops = _template_flops(tensors)
    elif category_of_kernel(name) in LOOPS:
        known_flops = 0
    bytes_moved: int | None = None
    if isinstance(gigabytes, (int, float)) and 0 < gigabytes < LARGEST_COUNT / 1e9:
        bytes_moved, basis = round(gigabytes * 1e9), "kernel_num_gb, which Inductor wrote"
    elif tensors:
        bytes_moved = _pointer_bytes(call, tensors)
    reason = None
    if known_flops is None:
        reason = f"{name} is a Triton kernel whose operations the trace does not hold"
    if bytes_moved is None:
        reason = (
            "the trace holds no shapes for this Triton launch" if not tensors else "a pointer's dtype is not known here"
        )
    return Cost(
        known_flops,
        bytes_moved,
        "unavailable" if known_flops is None else "exact" if known_flops == 0 else "estimated",
        "unavailable" if bytes_moved is None else "estimated",
        reason,
        basis if bytes_moved is not None else None,
    )


class _Costing:
    """Finds the operator of a kernel and its work; each distinct call is costed once."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._calls: dict[tuple[int, int, str | None], _OpFacts | None] = {}
        self._chosen: dict[tuple[int, str | None], _OpFacts | None] = {}
        runtime = trace.rows(EventKind.RUNTIME)
        self._messages = Messages(trace)
        self._first_launch_ns = int(trace.events.start_ns[runtime].min()) if len(runtime) else None

    def operator_of(self, kernel: TraceKernel) -> _OpFacts | None:
        """The operator that a kernel's work is counted by: the innermost that has shapes and a formula."""
        if kernel.op is None or kernel.kind != "kernel":
            return None
        dtype = dtype_of_kernel(kernel.name)
        key = (kernel.op, dtype)
        if key not in self._chosen:
            self._chosen[key] = self._choose(kernel.op, dtype)
        return self._chosen[key]

    def _choose(self, op: int, dtype: str | None) -> _OpFacts | None:
        trace = self._trace
        chain = [op, *trace.op_chain(op)]
        fallback: _OpFacts | None = None
        for row in chain:
            name = trace.name(row)
            if _NOT_OPERATORS.match(name):
                break
            if name == RECORDED_COLLECTIVE:
                continue
            facts = self._facts(row, dtype)
            if facts is None:
                continue
            if facts.is_triton or (has_formula(name) and facts.cost.is_known):
                return facts
            if fallback is None:
                fallback = facts
        return fallback

    def _facts(self, row: int, dtype: str | None) -> _OpFacts | None:
        trace = self._trace
        key = (int(trace.events.name[row]), int(trace.events.argument[row]), dtype)
        if key not in self._calls:
            name, arguments = trace.name(row), trace.arguments(row)
            is_triton = name.startswith("triton_") or arguments.get("kernel_backend") == "triton"
            call = call_from_arguments(name, arguments, list_dtype=dtype)
            facts = None
            if is_triton:
                call = call or OpCall(name, ())
                facts = _OpFacts(row, call, triton_cost(name, arguments), is_triton=True, shapes=shapes_text(call))
            elif call is not None and (call.tensors or call.has_unknown_list or any(call.constants)):
                facts = _OpFacts(row, call, op_cost(call), shapes=shapes_text(call))
            self._calls[key] = facts
        facts = self._calls[key]
        return None if facts is None else _OpFacts(row, facts.call, facts.cost, facts.is_triton, facts.shapes)

    def cost_without_operator(self, kernel: TraceKernel, facts: _OpFacts | None) -> Cost:
        """What the event itself tells, or why it tells nothing."""
        if kernel.kind != "kernel":
            size = kernel.bytes_copied
            if size is None or size < 0:
                return Cost(0, None, "exact", "unavailable", reason=f"the trace holds no size for this {kernel.kind}")
            touched = 2 * size if kernel.kind == "memcpy" and _ON_DEVICE.search(kernel.name) else size
            return Cost(0, touched, "exact", "exact", basis="bytes that the profiler recorded")
        if (cost := self._messages.cost(kernel)) is not None:
            return cost
        reason = self._reason(kernel, facts)
        if (work := elementwise_work(kernel.name, kernel.grid, kernel.block)) is not None:
            basis = f"elements that the grid covers ({work.elements}) times {work.tensors} tensors; {reason}"
            return Cost(0, work.bytes, "exact", "estimated", basis=basis)
        op = None if kernel.op is None else self._trace.name(kernel.op)
        if _computes_no_product(kernel.name, op):
            return Cost(0, None, "exact", "unavailable", reason=reason)
        return Cost(reason=reason)

    def _reason(self, kernel: TraceKernel, facts: _OpFacts | None) -> str:
        trace = self._trace
        if facts is not None and facts.cost.reason:
            return facts.cost.reason
        if kernel.graph_node_id or (kernel.launch is not None and "GraphLaunch" in trace.name(kernel.launch)):
            return GRAPH_REPLAY
        if kernel.op is not None:
            name = trace.name(kernel.op)
            has_shapes = "Input Dims" in trace.arguments(kernel.op)
            if _NOT_OPERATORS.match(name):
                return NO_OPERATOR
            return f"no tensor among the recorded inputs of {name}" if has_shapes else NO_TENSOR_SHAPES
        if kernel.launch is not None:
            return NO_OPERATOR
        if self._first_launch_ns is None:
            return "the trace holds no launches (recorded without host activity)"
        return BEFORE_TRACE if kernel.start_ns < self._first_launch_ns + _EARLY_NS else NOT_RECORDED


_ON_DEVICE = re.compile(r"DtoD|DeviceToDevice|Device -> Device")
_NO_PRODUCTS = LOOPS | {"normalization", "memory", "collective"}


def _computes_no_product(name: str, op: str | None) -> bool:
    """True for kernels that have no tensor FLOPs whatever their shapes: what they do is known by name."""
    if op is not None and has_formula(op) and "rnn" not in op:
        category = category_of_operator(op)
        return category not in _PRODUCTS and category_of_kernel(name) not in _PRODUCTS
    return category_of_kernel(name) in _NO_PRODUCTS and not name.startswith("triton_")


_EARLY_NS = 1_000_000_000


def _shared_costs(kernels: Sequence[TraceKernel], facts: Sequence[_OpFacts | None]) -> list[Cost | None]:
    """Per kernel its share of its operator's work; ``None`` where the operator tells nothing."""
    costs: list[Cost | None] = [None] * len(kernels)
    groups: dict[int, list[int]] = defaultdict(list)
    for index, fact in enumerate(facts):
        if fact is not None and (fact.cost.flops is not None or fact.cost.bytes_moved is not None):
            groups[fact.row].append(index)
    for members in groups.values():
        fact = facts[members[0]]
        assert fact is not None
        if len(members) == 1:
            costs[members[0]] = fact.cost
        else:
            _share(members, kernels, fact, costs)
    return costs


def _share(members: Sequence[int], kernels: Sequence[TraceKernel], fact: _OpFacts, costs: list[Cost | None]) -> None:
    name = fact.call.name
    is_product = bool(fact.cost.flops)
    main = list(members)
    if is_product:
        main = [index for index in members if not is_helper_kernel(kernels[index].name)]
        main = [index for index in main if category_of_kernel(kernels[index].name) in (*_PRODUCTS, "template")] or main
        main = main or [max(members, key=lambda index: kernels[index].duration_ns)]
        for index in members:
            if index not in main:
                reason = f"{_HELPER} {name}: the operator's work is counted on its main kernel"
                costs[index] = Cost(0, None, "exact", "unavailable", reason=reason)
        if len(main) == 1:
            costs[main[0]] = fact.cost
            return
    weights = _weights(main, kernels)
    basis = f"share of {name}, which launched {len(members)} kernels"
    flops = _split(fact.cost.flops, weights)
    bytes_moved = _split(fact.cost.bytes_moved, weights)
    for position, index in enumerate(main):
        own_flops, own_bytes = flops[position], bytes_moved[position]
        costs[index] = Cost(
            own_flops,
            own_bytes,
            "unavailable" if own_flops is None else "estimated" if own_flops else fact.cost.flops_quality,
            "unavailable" if own_bytes is None else "estimated",
            fact.cost.reason,
            basis,
        )


def _weights(members: Sequence[int], kernels: Sequence[TraceKernel]) -> list[int]:
    """Gradients of input and weight do equal work; other kernels are weighted by their time."""
    directions = [re.search(r"dgrad|wgrad|bwd_data|bwd_weight|BwdData|BwdWeight|Wrw", kernels[i].name) for i in members]
    kinds = ["data" if d and d.group() in ("dgrad", "bwd_data", "BwdData") else "weight" for d in directions]
    if all(directions) and len(set(kinds)) == 2 and len(members) == 2:
        return [1, 1]
    return [max(kernels[index].duration_ns, 1) for index in members]


def _split(total: int | None, weights: Sequence[int]) -> list[int | None]:
    """``total`` in proportion to weights, so that the parts add up to it."""
    if total is None:
        return [None] * len(weights)
    whole = sum(weights)
    edges = [total * sum(weights[:index]) // whole for index in range(len(weights) + 1)]
    return [edges[index + 1] - edges[index] for index in range(len(weights))]


def _take_from_twins(kernels: Sequence[TraceKernel], costs: list[Cost | None], ops: list[str | None]) -> None:
    """Give kernels without operator the work, and the operator, of launches that look the same in all respects."""
    wanted = [
        index
        for index, kernel in enumerate(kernels)
        if kernel.kind == "kernel" and kernel.op is None and _is_doubtful(costs[index])
    ]
    if not wanted or len(wanted) == len(kernels):
        return
    numbers: dict[Any, int] = {}
    lanes: dict[Any, list[int]] = defaultdict(list)
    for index, kernel in enumerate(kernels):
        lanes[kernel.device, kernel.stream].append(index)
    for lane in lanes.values():
        signature = [
            numbers.setdefault((kernels[i].name, kernels[i].grid, kernels[i].block, kernels[i].kind), len(numbers))
            for i in lane
        ]
        _match_lane(lane, signature, kernels, costs, ops)


def _match_lane(
    lane: Sequence[int],
    signature: Sequence[int],
    kernels: Sequence[TraceKernel],
    costs: list[Cost | None],
    ops: list[str | None],
) -> None:
    places = [place for place, index in enumerate(lane) if kernels[index].kind == "kernel"]
    known = [place for place in places if kernels[lane[place]].op is not None]
    open_places = [place for place in places if kernels[lane[place]].op is None and _is_doubtful(costs[lane[place]])]
    for window in _TWIN_WINDOWS:
        for before, after in ((window, window), (window, 0), (0, window)) if window else ((0, 0),):
            if not open_places:
                return
            found = _works_in_window(signature, known, open_places, lane, costs, ops, before, after)
            agreed = {p: twins for p, twins in found.items() if len({(c.flops, c.bytes_moved) for c, _ in twins}) == 1}
            for place, twins in agreed.items():
                index = lane[place]
                costs[index] = _of_twin(next(iter(twins))[0], costs[index])
                names = {name for _, name in twins}
                ops[index] = names.pop() if len(names) == 1 else None
            open_places = [place for place in open_places if place not in agreed]


def _works_in_window(
    signature: Sequence[int],
    known: Sequence[int],
    open_places: Sequence[int],
    lane: Sequence[int],
    costs: Sequence[Cost | None],
    ops: Sequence[str | None],
    before: int,
    after: int,
) -> dict[int, set[tuple[Cost, str | None]]]:
    """For each open place the works and operators of known places with the same launches around them.

    A known place at the end of the trace counts where the part of its surroundings that exists is the same.
    """
    last = len(signature) - 1
    whole: dict[tuple[int, ...], set[tuple[Cost, str | None]]] = defaultdict(set)
    at_the_edge = []
    for place in known:
        cost = costs[lane[place]]
        if cost is None:
            continue
        twin = (cost, ops[lane[place]])
        if before <= place <= last - after:
            whole[tuple(signature[place - before : place + after + 1])].add(twin)
        else:
            at_the_edge.append((place, twin))
    found = {}
    for place in open_places:
        if not before <= place <= last - after:
            continue
        works = set(whole.get(tuple(signature[place - before : place + after + 1]), ()))
        for edge, twin in at_the_edge:
            low, high = min(before, edge), min(after, last - edge)
            if signature[place - low : place + high + 1] == signature[edge - low : edge + high + 1]:
                works.add(twin)
        if works:
            found[place] = works
    return found


def _of_twin(twin: Cost, own: Cost | None) -> Cost:
    missing = own.reason or own.basis if own is not None else NOT_RECORDED
    if not twin.is_known and own is not None and not (twin.reason or "").startswith(_HELPER):
        return own
    return Cost(
        twin.flops,
        twin.bytes_moved,
        "unavailable" if twin.flops is None else twin.flops_quality if twin.flops == 0 else "estimated",
        "unavailable" if twin.bytes_moved is None else "estimated",
        twin.reason,
        f"launches of the same kernel, grid and block in the same surroundings; {missing}",
    )


def _is_doubtful(cost: Cost | None) -> bool:
    return cost is None or not cost.is_known or cost.bytes_quality == "estimated"


def _operator_name(trace: Trace, row: int) -> str | None:
    name = trace.name(row)
    return None if _NOT_OPERATORS.match(name) else name


def _device_event(trace: Trace, kernel: TraceKernel, facts: _OpFacts | None, cost: Cost, op: str | None) -> DeviceEvent:
    launch = kernel.launch
    return DeviceEvent(
        name=kernel.name,
        kind=kernel.kind,
        category=_category(kernel, op, facts),
        start_ns=kernel.start_ns,
        duration_ns=kernel.duration_ns,
        device=kernel.device,
        stream=kernel.stream,
        op=op,
        op_is_inferred=op is not None and kernel.op is None,
        cost=cost,
        shapes=facts.shapes if facts is not None else None,
        grid=kernel.grid,
        block=kernel.block,
        n_regs=kernel.n_regs,
        shared_bytes=kernel.shared_bytes,
        launch_start_ns=None if launch is None else int(trace.events.start_ns[launch]),
        launch_duration_ns=None if launch is None else int(trace.events.duration_ns[launch]),
        is_graph_replay=launch is not None and "GraphLaunch" in trace.name(launch),
        row=kernel.row,
    )


def _category(kernel: TraceKernel, op: str | None, facts: _OpFacts | None) -> TimeCategory:
    if kernel.kind != "kernel":
        return "memory"
    by_name = category_of_kernel(kernel.name)
    if kernel.name.startswith("triton_") or by_name == "collective":
        return by_name
    if facts is not None and facts.is_triton:
        return "user_triton"
    for name in (op, facts.call.name if facts is not None else None):
        if name is not None and (category := category_of_operator(name)) is not None:
            return category
    return by_name


_PRODUCT_TEMPLATE = re.compile(r"_(addmm|baddbmm|bmm|mm)(_|$)")


def _pointer_bytes(call: OpCall | None, tensors: Sequence[Tensor]) -> int | None:
    extents = [] if call is None else [int(text) for text in call.constants if re.fullmatch(r"[1-9]\d*", text)]
    iterations = math.prod(extents) if extents else None
    total = 0
    for tensor in tensors:
        size, item = tensor.bytes, tensor.element_size
        if size is None or item is None:
            return None
        total += size if iterations is None else min(size, iterations * item)
    return total


def _template_flops(tensors: Sequence[Tensor]) -> int | None:
    """FLOPs of a matrix product template, if exactly one pair of operands gives the last pointer's shape."""
    if len(tensors) < 3:
        return None
    result = tensors[-1].shape
    found = set()
    for left in tensors[:-1]:
        for right in tensors[:-1]:
            if left is right or len(left.shape) != len(result) or len(right.shape) != len(result) or len(result) < 2:
                continue
            if left.shape[-1] == right.shape[-2] and (*left.shape[:-1], right.shape[-1]) == result:
                found.add(int(matmul_flops(math.prod(result[:-1]), left.shape[-1], result[-1])))
    return found.pop() if len(found) == 1 else None


def launches_before_call(trace: Trace) -> tuple[int, float]:
    """How many device events start before the call that launches them does, and by how many microseconds at most."""
    rows = trace.device_rows
    launch = trace.launch_of[rows]
    rows, launch = rows[launch != NONE], launch[launch != NONE]
    lead = trace.events.start_ns[launch] - trace.events.start_ns[rows]
    early = lead > 1000
    return int(early.sum()), float(np.max(lead[early]) / 1e3) if early.any() else 0.0
