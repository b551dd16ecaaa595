"""What a compiled graph carries with it into Inductor's caches: its part of the ledger, as plain bytes."""

from __future__ import annotations

from dataclasses import dataclass

import torchledger
from torchledger.nouns import Difference, Gap, Graph, Kernel, Launch
from torchledger.store.codec import decode, encode

PAYLOAD_VERSION = f"{torchledger.__version__}/6"
"""Part of the cache key: raise the number whenever what is recorded changes within a release."""


@dataclass(frozen=True)
class Payload:
    """One compiled graph as recorded at compile time. Names that depend on the run are filled in on loading."""

    graph: Graph
    kernels: tuple[Kernel, ...] = ()
    launches: tuple[Launch, ...] = ()
    gaps: tuple[Gap, ...] = ()
    differences: tuple[Difference, ...] = ()


def pack(payload: Payload) -> bytes:
    """The payload as bytes that any process can read back; holds no code."""
    return PAYLOAD_VERSION.encode() + b"\n" + encode(payload)


def unpack(packed: bytes) -> Payload | None:
    """The payload that ``pack`` wrote, or ``None`` if another version did."""
    version, _, body = packed.partition(b"\n")
    return decode(Payload, body) if version == PAYLOAD_VERSION.encode() else None
