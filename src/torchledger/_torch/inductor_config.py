"""Inductor's settings where they are not torch's defaults, as they hold while a graph is compiled."""

from __future__ import annotations

import logging
from typing import Any

from torch._inductor import config

log = logging.getLogger(__name__)

_PLAIN = (bool, int, float, str, type(None))
_OF_CACHES = ("fx_graph_cache", "fx_graph_remote_cache", "force_disable_caches", "worker_start_method")
"""Where compiled code is kept, which changes none of it."""


def changed_settings() -> dict[str, str]:
    """Name (``"triton.cudagraphs"``) to value of each setting that a program, an option of ``torch.compile`` or a mode
    has changed. Defaults that torch takes from environment variables are no changes; the variables are recorded.
    """
    found = {}
    entries: dict[str, Any] = getattr(config, "_config", {})
    values = config.get_config_copy()
    for name, entry in entries.items():
        default = getattr(entry, "default", None)
        value = values.get(name, default)
        if name.startswith(_OF_CACHES) or value is default or not _is_plain(value):
            continue
        if value != default:
            found[name] = str(value)
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)
