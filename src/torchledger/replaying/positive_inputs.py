"""Which floating-point arguments of a kernel must be positive for it to do what it does inside a model.

A kernel takes the root of a variance or the logarithm of a sum. On made-up normal values half of them are not a number,
which is another path through the root and the division, and a slower one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torchledger.nouns import Launch

_ASSIGNMENT = re.compile(r"\b(tmp\d+\w*)\s*=\s*(.*)")
_SOURCES = re.compile(r"\b(tmp\d+\w*|in_ptr\d+|in_out_ptr\d+)\b")
_NEEDS = re.compile(r"\b(?:sqrt_rn|rsqrt|sqrt|log|log2|log10)\(\s*(tmp\d+\w*)\s*\)|\b(tmp\d+\w*)\.(?:r?sqrt|log)\(")


def positive_inputs(launch: Launch, sources: Iterable[str]) -> frozenset[str]:
    """Names of the buffers that a launch takes the root or the logarithm of, but for constants added or multiplied."""
    pointers = {pointer for source in sources for pointer in positive_pointers(source)}
    return frozenset(buffer.name for buffer in launch.buffers if buffer.argument in pointers)


def positive_pointers(source: str) -> frozenset[str]:
    """Pointers of a kernel (Triton and C++ source alike) of which alone a root or a logarithm is taken.

    >>> sorted(positive_pointers('tmp0 = tl.load(in_ptr1 + x0)\\ntmp1 = tmp0 + 1e-05\\ntmp2 = libdevice.rsqrt(tmp1)'))
    ['in_ptr1']
    """
    origins: dict[str, set[str]] = {}
    found: set[str] = set()
    for line in source.splitlines():
        for needed in _NEEDS.finditer(line):
            pointers = origins.get(needed[1] or needed[2], set())
            if len(pointers) == 1:
                found |= pointers
        assignment = _ASSIGNMENT.search(line)
        if assignment is not None:
            origins[assignment[1]] = {
                pointer
                for name in _SOURCES.findall(assignment[2])
                for pointer in (origins.get(name, set()) if name.startswith("tmp") else {name})
            }
    return frozenset(found)
