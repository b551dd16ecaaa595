"""What kernels and collectives cost each other beside each other: measured factors by kind of kernel."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from torchledger.nouns import Launch, StepCall
from torchledger.planning.timeline import ALONE, Rounds, Sharing
from torchledger.work.categories import category_of_operator, category_of_work

SHIPPED = Path(__file__).parent / "sharing.json"
"""By device; made by ``benchmarks/models/fit_sharing.py``."""

PRODUCT, ATTENTION, OTHER = "product", "attention", "other"


def sharing_of(piece: Launch | StepCall) -> str:
    """What a kernel is to a collective beside it: products and attention are short of multiprocessors, others of
    bandwidth. A template whose operator is not known is a product."""
    if isinstance(piece, StepCall):
        category = category_of_operator(piece.name)
    else:
        category = category_of_work(piece) or ("gemm" if piece.category == "template" else None)
    if category == "attention":
        return ATTENTION
    return PRODUCT if category in ("gemm", "convolution") else OTHER


def rounds_beside(tiles: int, multiprocessors: int, taken: int) -> Rounds:
    """The rounds of a product whose output is cut into so many tiles, beside a collective that holds ``taken`` of the
    device's multiprocessors.

    A library starts one block on each multiprocessor, which goes on to further tiles until there are none left. Blocks
    that find no place begin when the others are done, each with a tile of its own: one round more. With 132
    multiprocessors and 24 taken this is within 3 % of what 70 drawn products measured (``data/h200``).

    >>> rounds_beside(128, 132, 24), rounds_beside(512, 132, 24), rounds_beside(64, 132, 24)
    (Rounds(alone=1, beside=2), Rounds(alone=4, beside=6), Rounds(alone=1, beside=1))
    """
    alone = max(1, math.ceil(tiles / multiprocessors))
    free = multiprocessors - taken
    if tiles <= free or not taken:
        return Rounds(alone, alone)
    others = max(0, tiles - multiprocessors)
    return Rounds(alone, math.ceil((free + others) / free) + 1)


def find_sharing(device: str) -> Sharing:
    """The measured factors of a device; those of the device that was measured where it was not, and it says so."""
    known = _shipped()
    if not known:
        return ALONE
    name, found = next(((name, each) for name, each in known.items() if name in device), next(iter(known.items())))
    factors: Mapping[str, Mapping[str, float]] = found["kinds"]
    return Sharing(
        {kind: each["kernel"] for kind, each in factors.items()},
        {kind: each["collective"] for kind, each in factors.items()},
        {kind: each["delay_us"] for kind, each in factors.items()},
        None if name in device else f"kernels beside collectives are slowed as measured on {name}",
        found["multiprocessors"],
    )


@cache
def _shipped() -> Mapping[str, Mapping[str, Any]]:
    return dict(json.loads(SHIPPED.read_text())) if SHIPPED.exists() else {}
