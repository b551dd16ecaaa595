"""Which arguments a kernel adds to: atomically, or plainly where a single thread runs it.

What such a kernel leaves is its sum only where an earlier launch cleared the memory, as the wrapper's does; alone, it
has to start from zeros.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torchledger.nouns import Launch

_SIGNS = (
    re.compile(r"\batomic_add(?:_vec)?(?:<[^()]*>)?\(\s*&?\s*((?:in_)?out_ptr\d+)\b"),
    re.compile(r"\b((?:in_)?out_ptr\d+)\[[^\n;]*\]\s*\+="),
    # (a + Vectorized::loadu(out_ptr0 + ...)).store(out_ptr0 + ...)
    re.compile(r"\bloadu\(\s*(out_ptr\d+)\b[^\n;]*\.store\(\s*\1\b"),
)


def accumulators(launch: Launch, sources: Iterable[str]) -> frozenset[str]:
    """Names of the buffers that a launch adds to."""
    pointers = {pointer for source in sources for pointer in accumulated_pointers(source)}
    return frozenset(buffer.name for buffer in launch.buffers if buffer.argument in pointers)


def accumulated_pointers(source: str) -> frozenset[str]:
    """Pointers of a kernel (Triton and C++ source alike) to which it adds.

    >>> sorted(accumulated_pointers("tl.atomic_add(out_ptr2 + (x0 + 768*tmp34), tmp39, None, sem='relaxed')"))
    ['out_ptr2']
    """
    return frozenset(pointer for sign in _SIGNS for pointer in sign.findall(source))
