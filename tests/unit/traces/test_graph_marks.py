"""The marks around calls of compiled graphs: what is written is what is read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchledger.traces.graph_marks import graph_mark, parse_graph_mark

_NAMES = st.from_regex(r"[a-z]\w{0,8}", fullmatch=True)


@given(_NAMES, st.dictionaries(_NAMES, st.integers(-(2**40), 2**40), max_size=4))
def test_a_mark_read_back_is_the_graph_and_the_symbols(graph: str, symbols: dict[str, int]) -> None:
    assert parse_graph_mark(graph_mark(graph, symbols)) == (graph, symbols)


def test_other_names_in_a_trace_are_no_marks() -> None:
    for text in ("forward_0", "torchledger::", "torchledger::forward_0?", "torchledger::forward_0?s0=x", "## Call"):
        assert parse_graph_mark(text) is None
