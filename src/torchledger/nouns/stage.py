"""What a graph looked like on its way to kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StageName = Literal["pre-grad", "joint", "post-grad", "ir-before-fusion", "ir-after-fusion"]
"""In order: what Dynamo traced; forward and backward as one graph of ATen calls (of inference, its graph), before
Inductor's passes; what Inductor lowered, after its passes; its IR before and after scheduler nodes were fused."""


@dataclass(frozen=True)
class Stage:
    """One stage of a graph as text. ``post-grad`` stands in ``Graph.fx_source``; ``pre-grad`` and ``joint`` of a
    backward are those of its forward, and only kept there."""

    graph: str
    stage: StageName
    text: str
