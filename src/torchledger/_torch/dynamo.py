"""What Dynamo left to run eagerly, from its own counters."""

from __future__ import annotations

import sys
from collections import Counter

FRAMES = "frames"
COMPILED = "compiled frames"


def eager_counts() -> Counter[str]:
    """How often each reason broke a graph so far, and under ``FRAMES`` and ``COMPILED`` how many
    frames Dynamo was given and compiled. Empty as long as nobody has imported Dynamo.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", {})
    found: Counter[str] = Counter()
    for kind in ("graph_break", "unimplemented"):
        for reason, count in dict(counters.get(kind, {})).items():
            found[_in_one_line(str(reason))] += count
    frames = counters.get("frames", {})
    found[FRAMES] = frames.get("total", 0)
    found[COMPILED] = frames.get("ok", 0)
    return found


def _in_one_line(reason: str) -> str:
    """The first line and its explanation; hints and links are left out."""
    lines = reason.strip().splitlines() or ["no reason given"]
    explanation = next((line.split(":", 1)[1] for line in lines[1:] if line.strip().startswith("Explanation:")), "")
    return f"{lines[0].rstrip('.')}: {explanation.strip().rstrip('.')}" if explanation.strip() else lines[0]
