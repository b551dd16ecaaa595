"""What kernels and collectives cost each other beside each other: measured factors by kind of kernel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from torchledger.planning.timeline import ALONE, Sharing

SHIPPED = Path(__file__).parent / "sharing.json"
"""By device; made by ``benchmarks/fit_sharing.py``."""

PRODUCT, OTHER = "product", "other"

_PRODUCTS = ("extern", "template", "mm", "addmm", "bmm", "baddbmm", "linear", "sdpa", "convolution")


def sharing_of(family: str) -> str:
    """What a kernel is to a collective beside it: products are short of multiprocessors, others of bandwidth.

    ``family`` is a launch's category or an operator's name.

    >>> sharing_of("aten::mm"), sharing_of("pointwise")
    ('product', 'other')
    """
    name = family.rpartition("::")[2]
    return PRODUCT if name.startswith(_PRODUCTS) or "attention" in name else OTHER


def find_sharing(device: str) -> Sharing:
    """The measured factors of a device; those of the device that was measured where it was not, and it says so."""
    known = _shipped()
    if not known:
        return ALONE
    name, factors = next(((name, each) for name, each in known.items() if name in device), next(iter(known.items())))
    return Sharing(
        {kind: each["kernel"] for kind, each in factors.items()},
        {kind: each["collective"] for kind, each in factors.items()},
        {kind: each["delay_us"] for kind, each in factors.items()},
        None if name in device else f"kernels beside collectives are slowed as measured on {name}",
    )


@cache
def _shipped() -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    return dict(json.loads(SHIPPED.read_text())) if SHIPPED.exists() else {}
