"""What collectives in a trace were given, by their kernels, operators or ranges, and the bandwidths they had."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from torchledger.nouns import Cost, Quality
from torchledger.traces.recorded_calls import LARGEST_COUNT, call_from_arguments
from torchledger.traces.trace import EventKind, Trace, TraceKernel
from torchledger.work.collectives import Message, collective_kind
from torchledger.work.element_sizes import element_size
from torchledger.work.kernel_names import category_of_kernel
from torchledger.work.op_shapes import dtype_name

_LONGEST_COUNT = 16


def collective_cost(arguments: Mapping[str, Any]) -> Cost | None:
    """Bytes of a collective from the counts that the profiler writes into its kernel; ``None`` without them."""
    counts = _message_counts(arguments)
    if counts is None:
        return None
    return Cost(0, sum(counts), "exact", "exact", basis="message sizes that the profiler recorded")


def collective_message(arguments: Mapping[str, Any]) -> Message | None:
    """A collective's message by nccl-tests' count, from what the profiler writes into its kernel or operator."""
    counts, kind = _message_counts(arguments), collective_kind(str(arguments.get("Collective name", "")))
    ranks = arguments.get("Group size")
    if counts is None or kind is None:
        return None
    return Message(kind, max(counts), ranks if type(ranks) is int and ranks > 0 else None)


def _message_counts(arguments: Mapping[str, Any]) -> tuple[int, int] | None:
    """Bytes that a rank sends and receives."""
    sent, received = _count(arguments.get("In msg nelems")), _count(arguments.get("Out msg nelems"))
    size = element_size(_collective_dtype(str(arguments.get("dtype", ""))))
    if sent is None or received is None or size is None:
        return None
    return sent * size, received * size


def _count(value: Any) -> int | None:
    """A number of elements, which some writers put down as text."""
    if isinstance(value, str) and value.isdecimal() and len(value) < _LONGEST_COUNT:
        return int(value)
    return value if type(value) is int and 0 <= value < LARGEST_COUNT else None


class Messages:
    """What collectives were given, where their kernels do not hold it: beside the kernel, on the host.

    ``record_param_comms`` is the profiler's own operator around the launch; before 2024 it holds no counts, and the
    range inside it (``nccl:all_reduce``) holds the shape of the message.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        events = trace.events
        self._ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row in trace.rows(EventKind.ANNOTATION).tolist():
            if trace.name(row).startswith("nccl:"):
                self._ranges[int(events.lane[row])].append((int(events.start_ns[row]), row))
        for found in self._ranges.values():
            found.sort()

    def cost(self, kernel: TraceKernel) -> Cost | None:
        """Bytes of a collective's kernel; ``None`` where nothing around it says what it was given."""
        if (cost := collective_cost(kernel.arguments)) is not None:
            return cost
        op = self._recorded(kernel)
        if op is None or (cost := collective_cost(self._trace.arguments(op))) is not None:
            return cost
        message = self._message_of_range(op)
        if message is None or message.kind not in ("all_reduce", "all_to_all", "broadcast"):
            return None
        quality: Quality = "estimated" if message.kind == "all_to_all" else "exact"
        basis = "the message that the profiler recorded, read and written"
        return Cost(0, 2 * message.nbytes, "exact", quality, basis=basis)

    def message(self, kernel: TraceKernel) -> Message | None:
        """What a collective's kernel was given; ``None`` where that is not known."""
        op = self._recorded(kernel)
        found = collective_message(kernel.arguments)
        if found is None and op is not None:
            found = collective_message(self._trace.arguments(op)) or self._message_of_range(op)
        return found

    def _recorded(self, kernel: TraceKernel) -> int | None:
        rows = () if kernel.op is None else (kernel.op, *self._trace.op_chain(kernel.op))
        return next((row for row in rows if self._trace.name(row) == RECORDED_COLLECTIVE), None)

    def _message_of_range(self, op: int) -> Message | None:
        events = self._trace.events
        ranges = self._ranges.get(int(events.lane[op]), [])
        place = bisect.bisect_left(ranges, (int(events.start_ns[op]), -1))
        if place == len(ranges) or ranges[place][0] > int(events.end_ns[op]):
            return None
        name, arguments = self._trace.name(ranges[place][1]), self._trace.arguments(ranges[place][1])
        kind, call = collective_kind(name), call_from_arguments(name, arguments)
        sizes = [tensor.bytes for tensor in call.tensors] if call is not None else []
        known = [size for size in sizes if size is not None]
        # A gather's message is what it gathers, which the range does not hold.
        if kind in (None, "all_gather", "gather", "scatter") or not known or len(known) < len(sizes):
            return None
        return Message(kind, sum(known))


def collective_notes(trace: Trace) -> tuple[str, ...]:
    """A sentence for each kind of collective and size of group in a trace: messages, and the bandwidths they had."""
    messages = Messages(trace)
    found: dict[tuple[str, int | None], list[tuple[int, int]]] = defaultdict(list)
    for kernel in trace.kernels():
        if kernel.kind == "kernel" and category_of_kernel(kernel.name) == "collective":
            message = messages.message(kernel)
            if message is not None:
                found[message.kind, message.ranks].append((message.nbytes, kernel.duration_ns))
    return tuple(_collective_note(kind, ranks, calls) for (kind, ranks), calls in found.items())


def _collective_note(kind: str, ranks: int | None, calls: Sequence[tuple[int, int]]) -> str:
    whole = Message(kind, sum(nbytes for nbytes, _ in calls), ranks)
    duration_us = sum(duration_ns for _, duration_ns in calls) / 1e3
    algorithm, bus = whole.algorithm_gb_per_s(duration_us), whole.bus_gb_per_s(duration_us)
    group = "a group whose size the trace does not hold" if ranks is None else f"{ranks} ranks"
    speed = "" if algorithm is None else f": {algorithm:.1f} GB/s (algorithm bandwidth)"
    speed += "" if bus is None else f", {bus:.1f} GB/s (bus bandwidth)"
    times = f"{len(calls)} call{'' if len(calls) == 1 else 's'}"
    return (
        f"{kind} in {group}: {times}, {whole.nbytes / 1e6:.1f} MB in {duration_us / 1e3:.2f} ms{speed}; "
        "time that a rank waits for others counts"
    )


RECORDED_COLLECTIVE = "record_param_comms"
"""The profiler's own operator inside each collective of c10d: it computes nothing and says what was asked for."""


def _collective_dtype(text: str) -> str:
    names = {"BFloat16": "bfloat16", "Half": "float16", "Float": "float32", "Double": "float64", "Long": "int64"}
    names |= {"Int": "int32", "Byte": "uint8", "Char": "int8", "Bool": "bool", "Float8_e4m3fn": "float8_e4m3fn"}
    return names.get(text, dtype_name(text))
