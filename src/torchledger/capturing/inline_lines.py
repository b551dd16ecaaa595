"""What an eager line of a wrapper touches that adds up a kernel's partial results.

``buf8 = workspace_0[0:64].view(8, 8).sum(dim=0)`` is what Inductor writes after a mix-order reduction.

Such a line belongs to no node of the compiler's schedule; its sizes stand in its own text, which is read, never run.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchledger.nouns import Buffer
from torchledger.work.element_sizes import element_size
from torchledger.work.size_expressions import size_at

_REDUCTIONS = ("sum", "amax", "amin", "prod")


@dataclass(frozen=True)
class Reduction:
    """``target = source[start : ...].view(sizes).sum(dim=0)``; sizes are integer expressions."""

    target: str
    source: str
    start: str
    sizes: tuple[str, ...]


def read_reduction(line: str) -> Reduction | None:
    """The reduction over the first axis of a slice that a line of wrapper text makes; ``None`` for any other line.

    >>> read_reduction("buf8 = workspace_0[0:64].view(8, 8).sum(dim=0)").sizes
    ('8', '8')
    """
    try:
        (statement,) = ast.parse(line.strip()).body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return None
    node: ast.expr = statement.value
    methods: list[ast.Call] = []
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        methods.insert(0, node)
        node = node.func.value
    names = [call.func.attr for call in methods if isinstance(call.func, ast.Attribute)]
    if len(names) < 2 or names[0] != "view" or names[1] not in _REDUCTIONS:
        return None
    axes = {ast.unparse(keyword) for keyword in methods[1].keywords}
    if axes != {"dim=0"} or not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
        return None
    start = node.slice.lower if isinstance(node.slice, ast.Slice) else None
    return Reduction(
        statement.targets[0].id,
        node.value.id,
        "0" if start is None else ast.unparse(start),
        tuple(ast.unparse(size) for size in methods[0].args),
    )


def reduction_buffers(
    reduction: Reduction, source: Buffer, output_dtype: str | None, symbols: Mapping[str, int]
) -> tuple[Buffer, ...]:
    """What the line reads and writes, each element once; ``symbols`` are the sizes that the graph is compiled at.

    ``source`` is the buffer that it reads from as an earlier launch has it, ``output_dtype`` the result's (``None``:
    the source's). Nothing where a size is not known.
    """
    sizes = [size_at(text, symbols) for text in reduction.sizes]
    shape = tuple(size for size in sizes if size is not None)
    dtype = output_dtype or source.dtype
    read_size, written_size = element_size(source.dtype), element_size(dtype)
    if len(shape) != len(sizes) or not shape or read_size is None or written_size is None:
        return ()
    kept = reduction.sizes[1:]
    read = _buffer(replace(source, offset=size_at(reduction.start, symbols) or 0), "input", reduction.sizes, shape)
    written = _buffer(replace(source, name=reduction.target, dtype=dtype), "output", kept, shape[1:])
    is_dynamic = read.shape_expr is not None
    return (
        replace(
            read,
            bytes_read=math.prod(shape) * read_size,
            bytes_written=0,
            bytes_read_expr=_product(read_size, reduction.sizes) if is_dynamic else None,
            bytes_written_expr="0" if is_dynamic else None,
        ),
        replace(
            written,
            bytes_read=0,
            bytes_written=math.prod(shape[1:]) * written_size,
            bytes_read_expr="0" if is_dynamic else None,
            bytes_written_expr=_product(written_size, kept) if is_dynamic else None,
        ),
    )


def _buffer(like: Buffer, role: str, sizes: tuple[str, ...], shape: tuple[int, ...]) -> Buffer:
    is_symbolic = not all(size.isdigit() for size in sizes)
    steps = ["1"] if shape else []
    for size in reversed(sizes[1:]):
        steps.insert(0, size if steps[0] == "1" else f"({size})*({steps[0]})")
    return Buffer(
        name=like.name,
        role="input" if role == "input" else "output",
        dtype=like.dtype,
        shape=shape,
        stride=tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape))),
        device=like.device,
        offset=like.offset,
        shape_expr=sizes if is_symbolic else None,
        stride_expr=tuple(steps) if is_symbolic else None,
    )


def _product(itemsize: int, sizes: tuple[str, ...]) -> str:
    return "*".join([str(itemsize), *(f"({size})" for size in sizes)])
