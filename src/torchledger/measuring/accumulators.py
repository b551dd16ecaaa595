"""Which arguments a kernel adds to atomically.

What such a kernel leaves is its sum only where an earlier launch cleared the memory, as the wrapper's does; alone, it
has to start from zeros.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torchledger.nouns import Launch

_ATOMIC_ADD = re.compile(r"\batomic_add(?:_vec)?(?:<[^()]*>)?\(\s*&?\s*((?:in_)?out_ptr\d+)\b")


def accumulators(launch: Launch, sources: Iterable[str]) -> frozenset[str]:
    """Names of the buffers that a launch adds to atomically."""
    pointers = {pointer for source in sources for pointer in accumulated_pointers(source)}
    return frozenset(buffer.name for buffer in launch.buffers if buffer.argument in pointers)


def accumulated_pointers(source: str) -> frozenset[str]:
    """Pointers of a kernel (Triton and C++ source alike) to which it adds atomically.

    >>> sorted(accumulated_pointers("tl.atomic_add(out_ptr2 + (x0 + 768*tmp34), tmp39, None, sem='relaxed')"))
    ['out_ptr2']
    """
    return frozenset(_ATOMIC_ADD.findall(source))
