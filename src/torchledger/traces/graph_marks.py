"""The mark around a compiled graph's call in a trace: which graph, and at which sizes a dynamic one ran."""

from __future__ import annotations

import re
from collections.abc import Mapping

GRAPH_MARK = "torchledger::"
"""What stands in front of a graph's name in the marks of its calls."""

_MARK = re.compile(re.escape(GRAPH_MARK) + r"(?P<graph>\w+)(?:\?(?P<symbols>\w+=-?\d+(?:,\w+=-?\d+)*))?")


def graph_mark(graph: str, symbols: Mapping[str, int] | None = None) -> str:
    """The mark of one call.

    >>> graph_mark("forward_0", {"s77": 256, "s12": 8})
    'torchledger::forward_0?s77=256,s12=8'
    """
    sizes = ",".join(f"{symbol}={size}" for symbol, size in (symbols or {}).items())
    return f"{GRAPH_MARK}{graph}?{sizes}" if sizes else f"{GRAPH_MARK}{graph}"


def parse_graph_mark(text: str) -> tuple[str, dict[str, int]] | None:
    """The graph and the symbols of a mark; ``None`` for the name of anything else.

    >>> parse_graph_mark("torchledger::forward_0?s77=256,s12=8")
    ('forward_0', {'s77': 256, 's12': 8})
    """
    match = _MARK.fullmatch(text)
    if match is None:
        return None
    pairs = (part.split("=") for part in (match["symbols"] or "").split(",") if part)
    return match["graph"], {symbol: int(size) for symbol, size in pairs}
