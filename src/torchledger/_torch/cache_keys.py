"""Keys of Inductor's caches for graphs that carry their part of a ledger.

A graph from the cache of a program that nobody recorded has no entries, so recordings have keys of their own: one for
all of them, whatever watches, as nothing that watches changes the code that is generated. Kernels, and what was found
by trying configurations, have caches of their own that go by source: those are shared with programs that run plain.

Inductor finds a graph again by what it computes, not by where it was written: a model that moved to another file, line
or module hits the entry of the old place, and would be given the old place's provenance. So the key also holds the
graph's source lines and module paths.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch._aot_autograd import autograd_cache
from torch._inductor import codecache

from torchledger._torch.patching import Patches
from torchledger.signals import let_through

log = logging.getLogger(__name__)

_SUFFIX = 12
"""Letters that a recording puts behind a key."""


def key_caches(patches: Patches, salt: Callable[[], str], on_plain_entry: Callable[[str], None]) -> None:
    """Give graphs keys of recordings in the FX graph cache and the AOTAutograd cache; ``salt()`` is part of each.

    ``on_plain_entry`` is told the key of each graph that a program which nobody recorded has put into the cache.
    """

    def keyed(original: Callable[..., Any], graph_module: Any, *args: Any, **kwargs: Any) -> Any:
        key, debug_lines = original(graph_module, *args, **kwargs)
        digest = hashlib.sha256(salt().encode())
        try:
            _add_places(digest, getattr(graph_module, "gm", graph_module))
        except Exception as error:  # the user's compile must go on
            let_through(error)
            log.debug("no places in the key of a cache: %s", error)
        return key + digest.hexdigest()[:_SUFFIX], debug_lines

    def keyed_graph(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = keyed(original, *args, **kwargs)
        try:
            if os.path.isdir(codecache.FxGraphCache._get_tmp_dir_for_key(found[0][:-_SUFFIX])):
                on_plain_entry(found[0])
        except Exception as error:  # the user's compile must go on
            let_through(error)
            log.debug("plain entry of %s: not known", found[0], exc_info=error)
        return found

    patches.around(codecache, "compiled_fx_graph_hash", keyed_graph)
    if hasattr(autograd_cache, "autograd_cache_key"):
        patches.around(autograd_cache, "autograd_cache_key", keyed)


def _add_places(digest: Any, graph_module: Any) -> None:
    """Let a digest change with any source line or module path of a graph or its subgraphs."""
    for module in graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                digest.update(str(node.meta.get("stack_trace")).encode("utf-8", "backslashreplace"))
                for stack in (node.meta.get("nn_module_stack"), node.meta.get("fwd_nn_module_stack")):
                    paths = [str(entry[0]) for entry in stack.values()] if stack else []
                    digest.update("/".join(paths).encode("utf-8", "backslashreplace"))
