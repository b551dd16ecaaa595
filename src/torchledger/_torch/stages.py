"""What a graph looks like on its way through Inductor, as text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch._inductor import compile_fx, debug

from torchledger._torch.patching import Patches


def listen_to_stages(
    patches: Patches,
    on_graph: Callable[[Any], None],
    on_ir: Callable[[Sequence[Any], bool], None],
) -> None:
    """Tell of each graph that Dynamo traced before Inductor changes it, and of scheduler nodes before and after fusion.

    What the listener raises reaches ``Patches``, which reports it.
    """
    inside = threading.local()

    def pre_grad_passes(original: Callable[..., Any], graph_module: Any, *args: Any, **kwargs: Any) -> Any:
        outer, inside.passes = getattr(inside, "passes", False), True
        try:
            if not outer:  # it calls itself for subgraphs, which the outermost one holds
                on_graph(graph_module)
            return original(graph_module, *args, **kwargs)
        finally:
            inside.passes = outer

    def before_fusion(original: Callable[..., Any], nodes: Any) -> Any:
        on_ir(nodes, False)
        return original(nodes)

    def after_fusion(original: Callable[..., Any], nodes: Any) -> Any:
        on_ir(nodes, True)
        return original(nodes)

    patches.around(compile_fx, "_recursive_pre_grad_passes", pre_grad_passes)
    patches.around(debug, "log_ir_pre_fusion", before_fusion)
    patches.around(debug, "log_ir_post_fusion", after_fusion)


def graph_text(graph_module: Any) -> str:
    """An FX graph, subgraphs too, as readable code with the shapes and devices of its values."""
    return str(graph_module.print_readable(print_output=False, include_stride=True, include_device=True))


def ir_text(nodes: Sequence[Any]) -> str:
    """Scheduler nodes in their order: what each reads and writes, and its loop body."""
    return "\n\n".join(node.debug_str().strip("\n") for node in nodes) + "\n"
