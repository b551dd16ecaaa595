"""What a compiled block computes in vain where a checkpoint around it runs it again in the backward.

Eager code under ``torch.utils.checkpoint`` stops as soon as the last tensor that the backward needs has been saved
again; a compiled graph runs to its end. A product saves what it is given before it runs, so that eager code leaves out
one behind which nothing is saved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchledger.nouns import Graph, Launch

_CALL = re.compile(r'^ +(\w+)(?:: "[^"]*")? = torch\.ops\.(\w+\.\w+)')

_SAVES_ITS_INPUTS = frozenset(
    f"aten.{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "convolution", "_grouped_mm", "mv", "addmv")
)

_SAVES_NOTHING = frozenset(
    (
        *("prims.convert_element_type", "prims.view_of"),
        *(
            f"aten.{name}"
            for name in (
                *("view", "reshape", "_unsafe_view", "permute", "transpose", "t", "expand", "squeeze", "unsqueeze"),
                *("select", "slice", "split", "split_with_sizes", "unbind", "cat", "stack", "clone", "alias", "detach"),
                *("add", "sub", "neg", "sum", "mean", "constant_pad_nd", "as_strided", "empty", "full", "copy_"),
            )
        ),
    )
)
"""Operators whose gradients need none of their tensors (``derivatives.yaml`` of torch)."""


def flops_after_last_saved(graph: Graph, launches: Sequence[Launch]) -> int | None:
    """FLOPs of a forward graph that eager code leaves out where it computes the block again; ``None`` if unknown.

    ``launches`` are the graph's, at the sizes of the call.
    """
    if graph.fx_source is None:
        return None
    called = [found for line in graph.fx_source.splitlines() if (found := _CALL.match(line))]
    last = next((found for found in reversed(called) if found[2] not in _SAVES_NOTHING), None)
    if last is None or last[2] not in _SAVES_ITS_INPUTS:
        return 0
    return next((launch.flops for launch in launches if last[1] in launch.fx_nodes), None)
