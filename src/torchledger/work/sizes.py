"""A dynamic graph's launches at the sizes of one of its calls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from torchledger.nouns import Buffer, Launch, LoopNest
from torchledger.nouns.launch import Quality
from torchledger.work.flex import TOLD_BY, with_told_blocks
from torchledger.work.size_expressions import size_at

_NOT_AT_THESE_SIZES = "the sizes of this call are not known"


def sizes_at(launches: Sequence[Launch], symbols: Mapping[str, int]) -> tuple[Launch, ...]:
    """The launches of one graph with FLOPs, bytes, shapes and strides at ``symbols`` (``Graph.symbols`` by name).

    What the capture kept an expression for stays as exact as it was recorded; what it did not is scaled with the
    elements of the buffers and is ``"estimated"``; where a shape needs a symbol that is not given, it is ``None`` and
    ``"unavailable"``. Extents and strides of loops that are products of adjacent sizes of its buffers are those of the
    buffers as they are then; other ones, grids and offsets stay those that the graph was compiled at. With the sizes
    that it was compiled at, the launches come back as they were recorded.
    """
    return tuple(_launch_at(launch, symbols) for launch in launches)


def _launch_at(launch: Launch, symbols: Mapping[str, int]) -> Launch:
    if TOLD_BY in launch.kwargs:
        launch = replace(launch, kwargs=with_told_blocks(launch.kwargs, symbols))
    if launch.flops_by_op_expr is None and all(_is_fixed(buffer) for buffer in launch.buffers):
        return launch
    buffers = tuple(_buffer_at(buffer, symbols) for buffer in launch.buffers)
    growth = _growth(launch.buffers, buffers)
    by_op, quality = _flops_at(launch, symbols, growth)
    vector_flops = launch.vector_flops
    if vector_flops or launch.vector_flops_expr is not None:
        exact = size_at(launch.vector_flops_expr, symbols)
        vector_flops = exact if exact is not None else _scaled(vector_flops, growth)
    return replace(
        launch,
        buffers=buffers,
        flops=launch.flops if not launch.flops else None if by_op is None else sum(by_op.values()),
        flops_by_op=by_op or {},
        flops_quality=quality,
        vector_flops=vector_flops,
        loops=launch.loops if growth in (1, None) else _loops_at(launch.loops, launch.buffers, buffers),
        reason=launch.reason if by_op is not None else launch.reason or _NOT_AT_THESE_SIZES,
    )


def _loops_at(loops: Sequence[LoopNest], before: Sequence[Buffer], after: Sequence[Buffer]) -> tuple[LoopNest, ...]:
    """Loops whose extents and strides follow those of the buffers they go over."""
    at: dict[int, int] = {}
    for old, new in zip(before, after, strict=True):
        for known, now in zip(_runs(old.shape), _runs(new.shape), strict=True):
            at.setdefault(known, now)
        for known, now in zip(old.stride, new.stride, strict=True):
            at.setdefault(known, now)
    for fixed in (0, 1):
        at[fixed] = fixed

    def moved(sizes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(at.get(size, size) for size in sizes)

    return tuple(
        replace(
            nest,
            extents=moved(nest.extents),
            reduction_extents=moved(nest.reduction_extents),
            accesses=tuple(
                replace(access, strides=tuple(None if step is None else at.get(step, step) for step in access.strides))
                for access in nest.accesses
            ),
        )
        for nest in loops
    )


def _runs(shape: tuple[int, ...]) -> list[int]:
    """The products of adjacent sizes, the longest first: what loops are merged to."""
    places = range(len(shape))
    ends = sorted(((start, end + 1) for start in places for end in places[start:]), key=lambda span: span[0] - span[1])
    return [math.prod(shape[start:end]) for start, end in ends]


def _flops_at(
    launch: Launch, symbols: Mapping[str, int], growth: Fraction | None
) -> tuple[dict[str, int] | None, Quality]:
    expressions = launch.flops_by_op_expr or {}
    exact = {op: size_at(expressions.get(op), symbols) for op in launch.flops_by_op}
    if None not in exact.values():
        return {op: flops for op, flops in exact.items() if flops is not None}, launch.flops_quality
    if growth is None:
        return None, "unavailable"
    if growth == 1:
        return dict(launch.flops_by_op), launch.flops_quality
    return {op: round(flops * growth) for op, flops in launch.flops_by_op.items()}, "estimated"


def _is_fixed(buffer: Buffer) -> bool:
    return buffer.shape_expr is None and buffer.bytes_read_expr is None and buffer.bytes_written_expr is None


def _buffer_at(buffer: Buffer, symbols: Mapping[str, int]) -> Buffer:
    shape = _all_at(buffer.shape_expr, buffer.shape, symbols)
    stride = _all_at(buffer.stride_expr, buffer.stride, symbols)
    if shape is None or stride is None:
        unknown: Quality = "unavailable"
        return replace(buffer, bytes_read=None, bytes_written=None, bytes_quality=unknown)
    growth = Fraction(math.prod(shape), max(math.prod(buffer.shape), 1))
    read, read_is_exact = _bytes_at(buffer.bytes_read, buffer.bytes_read_expr, symbols, growth)
    written, written_is_exact = _bytes_at(buffer.bytes_written, buffer.bytes_written_expr, symbols, growth)
    is_exact = read_is_exact and written_is_exact
    if buffer.bytes_quality == "unavailable" and read is not None and written is not None:
        return replace(
            buffer, shape=shape, stride=stride, bytes_read=read, bytes_written=written, bytes_quality="estimated"
        )
    return replace(
        buffer,
        shape=shape,
        stride=stride,
        bytes_read=read,
        bytes_written=written,
        bytes_quality=buffer.bytes_quality if is_exact or buffer.bytes_quality == "unavailable" else "estimated",
    )


def _bytes_at(
    recorded: int | None, expression: str | None, symbols: Mapping[str, int], growth: Fraction
) -> tuple[int | None, bool]:
    exact = size_at(expression, symbols)
    if exact is not None:
        return exact, True
    return _scaled(recorded, growth), not recorded or growth == 1


def _all_at(
    expressions: tuple[str, ...] | None, recorded: tuple[int, ...], symbols: Mapping[str, int]
) -> tuple[int, ...] | None:
    if expressions is None:
        return recorded
    values = [size_at(expression, symbols) for expression in expressions]
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else None


def _growth(before: Sequence[Buffer], after: Sequence[Buffer]) -> Fraction | None:
    """How many times the elements that the launch touches are; ``None`` where a shape is not known."""
    if any(new.bytes_quality == "unavailable" != old.bytes_quality for old, new in zip(before, after, strict=True)):
        return None
    elements = [sum(math.prod(buffer.shape) for buffer in buffers) for buffers in (before, after)]
    return Fraction(elements[1], max(elements[0], 1))


def _scaled(count: int | None, growth: Fraction | None) -> int | None:
    return None if count is None or growth is None else round(count * growth)
