"""Which results of the backward that autograd's engine is calling nobody asks for."""

from __future__ import annotations

import torch

_COMPILED = "CompiledFunctionBackward"


def unasked_results() -> tuple[int, ...]:
    """Places of results of a compiled backward that autograd drops: ``autograd.grad`` asks for some inputs' alone.

    Called while the engine calls that backward; of any other moment there is nothing to say.
    """
    if torch._C._current_graph_task_id() == -1:
        return ()
    node = torch._C._current_autograd_node()
    if node is None or not node.name().startswith(_COMPILED):
        return ()
    following = [each for each, _ in node.next_functions]
    return tuple(place for place, each in enumerate(following) if each is not None and not _is_asked_for(each))


def _is_asked_for(node: torch.autograd.graph.Node) -> bool:
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # torch's answer for a leaf whose gradient ``autograd.grad`` is to return
        return True
