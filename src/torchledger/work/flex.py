"""What a launch of ``flex_attention`` says of its mask and scores (``Launch.kwargs``)."""

from __future__ import annotations

VISITED = "visited_blocks"
"""Share of a call's blocks of queries and keys of which any pair attends."""

MOST_VISITED = "most_visited_blocks"
"""The share that is visited at most, where which blocks are depends on tensors that the mask closes over."""

PARTIAL = "partial_blocks"
"""Share of the blocks of which some pairs attend and others do not: to these the kernel applies the mask."""

SIMPLE, HARD = "simple_score_operations", "hard_score_operations"
"""Operations of the program's own that are done with each score, and those of them that a multiprocessor has few units
for."""
