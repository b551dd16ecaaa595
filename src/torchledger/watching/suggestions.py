"""What to say when a filter matches nothing."""

from __future__ import annotations

import difflib

from torchledger.nouns import Launch
from torchledger.watching.options import ValueOptions


def suggest_names(options: ValueOptions, launches: list[Launch]) -> str:
    """One sentence: which filter matched nothing, and names near to it."""
    known: dict[str, list[str]] = {
        "kernel": sorted({launch.kernel_name for launch in launches}),
        "category": sorted({str(launch.category) for launch in launches}),
        "module": sorted({module for launch in launches for module in launch.modules}),
        "source": sorted({f"{line.file}:{line.line}" for launch in launches for line in launch.sources}),
        "graph": sorted({launch.graph for launch in launches}),
    }
    parts = []
    for name, names in known.items():
        patterns = getattr(options, name)
        if not patterns:
            continue
        near = [close for pattern in patterns for close in difflib.get_close_matches(pattern, names, n=3, cutoff=0.3)]
        shown = ", ".join(dict.fromkeys(near)) or ", ".join(names[:5]) or "none is known"
        parts.append(f"{name} {', '.join(patterns)} (near it: {shown})")
    return f"no launch passed the filters: {'; '.join(parts)}"
