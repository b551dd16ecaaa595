"""Stretches of time that are joined hold the moments that they held apart, each once."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from torchledger.traces.spans import merge_spans

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


@given(spans)
def test_joined_spans_hold_each_moment_of_the_others_once(some: list[tuple[int, int]]) -> None:
    held = [moment for start, end in merge_spans(some) for moment in range(start, end)]
    assert held == sorted({moment for start, end in some for moment in range(start, end)})


@given(spans)
def test_joined_spans_are_in_order_and_apart(some: list[tuple[int, int]]) -> None:
    merged = merge_spans(some)
    assert all(start < end for start, end in merged)
    assert all(left[1] < right[0] for left, right in pairwise(merged))
    assert merge_spans(merged) == merged
