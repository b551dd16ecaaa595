"""What a launch of ``flex_attention`` says of its mask and scores (``Launch.kwargs``)."""

from __future__ import annotations

from collections.abc import Mapping

VISITED = "visited_blocks"
"""Share of a call's blocks of queries and keys of which any pair attends."""

MOST_VISITED = "most_visited_blocks"
"""The share that is visited at most, where which blocks are depends on tensors that the mask closes over."""

PARTIAL = "partial_blocks"
"""Share of the blocks of which some pairs attend and others do not: to these the kernel applies the mask."""

SIMPLE, HARD = "simple_score_operations", "hard_score_operations"
"""Operations of the program's own that are done with each score, and those of them that a multiprocessor has few units
for."""

TOLD_BY = "blocks_told_by"
"""Where the shares depend on tensors: what a graph's calls that know these call them (``told_blocks``)."""

_MILLION = 1_000_000


def told_blocks(name: str, visited: float, partial: float) -> dict[str, int]:
    """Shares of blocks as a call of a graph tells them, beside its sizes: in millionths.

    >>> told_blocks("flex_attention", 0.25, 0.125)
    {'flex_attention_visited': 250000, 'flex_attention_partial': 125000}
    """
    return {f"{name}_visited": round(_MILLION * visited), f"{name}_partial": round(_MILLION * partial)}


def with_told_blocks(kwargs: Mapping[str, str], told: Mapping[str, int]) -> Mapping[str, str]:
    """What a launch says of its mask, with the shares that a call of its graph tells.

    >>> with_told_blocks({TOLD_BY: "flex_attention"}, told_blocks("flex_attention", 0.25, 0.125))[VISITED]
    '0.25'
    """
    name = kwargs.get(TOLD_BY)
    visited, partial = told.get(f"{name}_visited"), told.get(f"{name}_partial")
    if name is None or visited is None or partial is None:
        return kwargs
    return {**kwargs, VISITED: f"{visited / _MILLION:.6g}", PARTIAL: f"{partial / _MILLION:.6g}"}
