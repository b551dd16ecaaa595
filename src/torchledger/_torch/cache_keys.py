"""Keys of Inductor's caches that know where the model's lines are.

Inductor finds a graph again by what it computes, not by where it was written: a model that moved to another file, line
or module hits the entry of the old place, and would be given the old place's provenance. While we listen, a graph's key
also holds its source lines and module paths, so that such a hit is a miss; kernels themselves still come from their own
cache.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch._aot_autograd import autograd_cache
from torch._inductor import codecache

from torchledger._torch.patching import Patches

log = logging.getLogger(__name__)


def place_keys(patches: Patches) -> None:
    """Add places to the keys of the FX graph cache and of the AOTAutograd cache."""
    for module, name in ((codecache, "compiled_fx_graph_hash"), (autograd_cache, "autograd_cache_key")):
        if hasattr(module, name):
            patches.around(module, name, _placed_key)


def _placed_key(original: Callable[..., Any], graph_module: Any, *args: Any, **kwargs: Any) -> Any:
    key, debug_lines = original(graph_module, *args, **kwargs)
    try:
        return key + _places_digest(getattr(graph_module, "gm", graph_module)), debug_lines
    except Exception as error:  # the user's compile must go on
        log.debug("no places in the key of a cache: %s", error)
        return key, debug_lines


def _places_digest(graph_module: Any) -> str:
    """Twelve letters that change with any source line or module path of a graph or its subgraphs."""
    digest = hashlib.sha256()
    for module in graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                digest.update(str(node.meta.get("stack_trace")).encode("utf-8", "backslashreplace"))
                for stack in (node.meta.get("nn_module_stack"), node.meta.get("fwd_nn_module_stack")):
                    paths = [str(entry[0]) for entry in stack.values()] if stack else []
                    digest.update("/".join(paths).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:12]
