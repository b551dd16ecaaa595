"""How large the values of an index buffer may be, so that a kernel run on made-up inputs stays within its memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from torchledger.nouns import Buffer, Launch
from torchledger.replaying.sizes import symbol_value

_ASSIGNMENT = re.compile(r"\b(tmp\d+\w*)\s*=\s*(.*)")
_SOURCES = re.compile(r"\b(tmp\d+\w*|in_ptr\d+|in_out_ptr\d+|out_ptr\d+)\b")
_CHECK = re.compile(r"index out of bounds: 0 <= (?P<index>\w[\w+*() -]*?)\s*<\s*(?P<bound>\w+)")


def index_bounds(launch: Launch, sources: Sequence[str], symbols: Mapping[str, int]) -> dict[str, int]:
    """Name of each integer argument to the smallest bound that its values must stay below.

    Inductor writes a bounds check beside every address that depends on data; the checked value is followed back to the
    pointer it was loaded from. Where a kernel has none, and for library calls, the smallest extent that it could index
    is taken.
    """
    if launch.category in ("extern", "inline"):
        return _library_bounds(launch)
    by_pointer: dict[str, int] = {}
    for source in sources:
        for pointer, bound in checked_pointers(source, symbols).items():
            by_pointer[pointer] = min(bound, by_pointer.get(pointer, bound))
    bounds = {buffer.name: by_pointer[buffer.argument] for buffer in launch.buffers if buffer.argument in by_pointer}
    indirect = {access.buffer for nest in launch.loops for access in nest.accesses if access.is_indirect}
    if indirect:
        least = _least_extent(buffer for buffer in launch.buffers if buffer.name in indirect)
        for buffer in launch.buffers:
            if _is_integer(buffer) and buffer.role in ("input", "inout") and least is not None:
                bounds.setdefault(buffer.name, least)
    return bounds


def checked_pointers(source: str, symbols: Mapping[str, int]) -> dict[str, int]:
    """Pointer of a kernel to the bound of the checks that its values go through (Triton and C++ source alike).

    >>> checked_pointers('tmp0 = tl.load(in_ptr0)\\nassert_(tmp0 < 9, "index out of bounds: 0 <= tmp0 < 9")', {})
    {'in_ptr0': 9}
    """
    origins: dict[str, set[str]] = {}
    bounds: dict[str, int] = {}
    unfinished: str | None = None  # a C++ value that a lambda of several lines makes
    for line in source.splitlines():
        check = _CHECK.search(line)
        if check is not None:
            text = check["bound"].rstrip("L")
            bound = int(text) if text.isdigit() else symbol_value(symbols, text)
            for name in _SOURCES.findall(check["index"]):
                for pointer in origins.get(name, ()):
                    if bound is not None:
                        bounds[pointer] = min(bound, bounds.get(pointer, bound))
            continue
        assignment = _ASSIGNMENT.search(line)
        if assignment is not None:
            found: set[str] = set()
            for name in _SOURCES.findall(assignment[2]):
                found |= origins.get(name, set()) if name.startswith("tmp") else {name}
            origins[assignment[1]] = found
            unfinished = assignment[1] if not assignment[2] else None
        elif unfinished is not None:
            for name in _SOURCES.findall(line):
                origins[unfinished] |= origins.get(name, set()) if name.startswith("tmp") else {name}
            unfinished = None if line.strip() == ";" else unfinished
    return bounds


def _library_bounds(launch: Launch) -> dict[str, int]:
    integers = [buffer for buffer in launch.buffers if _is_integer(buffer) and buffer.role != "output"]
    others = [buffer for buffer in launch.buffers if not _is_integer(buffer) and buffer.role != "output"]
    name = launch.call or launch.kernel_name
    if not integers:
        return {}
    bound: int | None = _least_extent(others)
    if "max_pool" in name and others:
        bound = math.prod(others[-1].shape[-2:])
    elif "embedding_dense_backward" in name:
        sizes = [int(value) for value in launch.kwargs.values() if value.isdigit() and int(value) > 1]
        bound = sizes[0] if sizes else bound
    elif ("index" in name or "embedding" in name) and len(integers) == 1 and others and others[0].shape:
        bound = others[0].shape[0]
    return {} if bound is None else {buffer.name: bound for buffer in integers}


def _least_extent(buffers: Iterable[Buffer]) -> int | None:
    """The smallest extent above one: safe whichever dimension is indexed."""
    extents = [extent for buffer in buffers for extent in buffer.shape if extent > 1]
    return min(extents, default=None)


def _is_integer(buffer: Buffer) -> bool:
    return buffer.dtype.startswith(("int", "uint"))
