"""What a reducer makes of a rank's gradients: buckets, as the backward ends with them."""

from __future__ import annotations

from collections.abc import Sequence

from torchledger.nouns import Layout
from torchledger.planning.transformer import Transformer

FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
"""So many bytes of parameters close a bucket, the first one and each of the others: what torch's
``DistributedDataParallel`` does unless it is told (``bucket_cap_mb``, ``dist._DEFAULT_FIRST_BUCKET_BYTES``)."""


def weights_of_block(model: Transformer, layout: Layout) -> tuple[float, ...]:
    """Parameters of each weight of a block on one rank, in the order in which the backward ends with them."""
    hidden, up = model.hidden, 2 if model.gated else 1
    heads = hidden + 2 * model.kv * model.head
    return tuple(
        hidden * width / layout.tp for width in (model.ffn, up * model.ffn, hidden, heads)
    )  # down, up, out, queries with keys and values


def full_buckets(parts: Sequence[Sequence[float]], element_bytes: int) -> list[list[float]]:
    """Parameters of the buckets that are full at the end of each part of a backward; the last part closes the rest.

    A weight is never cut: one that is larger than a bucket is one of its own, with what waited before it.

    >>> mebi = 2.0**20
    >>> [[n / mebi for n in part] for part in full_buckets([[2 * mebi], [5 * mebi, 6 * mebi], [20 * mebi, mebi]], 4)]
    [[2.0], [11.0], [20.0, 1.0]]
    """
    found: list[list[float]] = []
    open_bucket, limit = 0.0, FIRST_BUCKET_BYTES
    for weights in parts:
        closed = []
        for weight in weights:
            open_bucket += weight
            if open_bucket * element_bytes >= limit:
                closed.append(open_bucket)
                open_bucket, limit = 0.0, BUCKET_BYTES
        found.append(closed)
    if open_bucket and found:
        found[-1].append(open_bucket)
    return found
