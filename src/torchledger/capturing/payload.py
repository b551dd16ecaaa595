"""What a compiled graph carries with it into Inductor's caches: its part of the ledger, as plain bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torchledger
from torchledger.nouns import Difference, Gap, Graph, Kernel, Launch, Stage
from torchledger.store.codec import decode, encode

PAYLOAD_VERSION = f"{torchledger.__version__}/14"
"""Part of the caches' keys: raise the number whenever what is recorded changes within a release."""


@dataclass(frozen=True)
class Payload:
    """One compiled graph as recorded at compile time. Names that depend on the run are filled in on loading."""

    graph: Graph
    kernels: tuple[Kernel, ...] = ()
    launches: tuple[Launch, ...] = ()
    gaps: tuple[Gap, ...] = ()
    differences: tuple[Difference, ...] = ()
    stages: tuple[Stage, ...] = ()


@dataclass(eq=False)
class Library:
    """What AOTInductor made of a graph, in place of a ``CompiledFxGraph``: it runs without Python, in any process."""

    source_code: str
    inductor_post_grad_graph_str: str


_ATTRIBUTE = "_torchledger"
"""Where a ``CompiledFxGraph`` carries its packed payload: Inductor stores its attributes with it."""


def attach_payload(compiled: Any, payload: Payload) -> None:
    """Let a compiled graph carry its part of the ledger, from here on into every cache."""
    setattr(compiled, _ATTRIBUTE, pack(payload))


def payload_of(compiled: Any) -> Payload | None:
    """What ``attach_payload`` gave to a compiled graph, here or where its cache was filled; ``None`` if nobody did."""
    packed = getattr(compiled, _ATTRIBUTE, None)
    return unpack(packed) if isinstance(packed, bytes) else None


def pack(payload: Payload) -> bytes:
    """The payload as bytes that any process can read back; holds no code."""
    return PAYLOAD_VERSION.encode() + b"\n" + encode(payload)


def unpack(packed: bytes) -> Payload | None:
    """The payload that ``pack`` wrote, or ``None`` if another version did."""
    version, _, body = packed.partition(b"\n")
    return decode(Payload, body) if version == PAYLOAD_VERSION.encode() else None
