"""What AOTAutograd has traced and leaves out, as nothing reads it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch._functorch._aot_autograd import graph_compile

from torchledger._torch.patching import Patches


def listen_to_dead_code(patches: Patches, on_dead_code: Callable[[Any, Sequence[Any]], None]) -> None:
    """Tell of each graph that AOTAutograd traces, and of its calls that nothing reads, before they are taken out.

    What the listener raises reaches ``Patches``, which reports it.
    """
    tracing = threading.local()

    def trace(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        outer, tracing.is_on = getattr(tracing, "is_on", False), True
        try:
            return original(*args, **kwargs)
        finally:
            tracing.is_on = outer

    def eliminate(original: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any) -> Any:
        # Who says what is impure (while tracing: everything) leaves the dead calls to the sweep that follows.
        if getattr(tracing, "is_on", False) and not args and not kwargs:
            on_dead_code(graph, _dead_calls(graph))
        return original(graph, *args, **kwargs)

    for name in ("aot_dispatch_autograd_graph", "aot_dispatch_base_graph"):
        patches.around(graph_compile, name, trace)
    patches.around(fx.Graph, "eliminate_dead_code", eliminate)


def _dead_calls(graph: Any) -> list[Any]:
    dead: dict[Any, None] = {}
    for node in reversed(graph.nodes):
        if node.op in ("placeholder", "output") or node.is_impure():
            continue
        if all(user in dead for user in node.users):
            dead[node] = None
    return [node for node in reversed(dead) if node.op == "call_function"]
