"""FLOPs and bytes of the kernels that operators are made of."""

from __future__ import annotations

from torchledger.operators.declaration import Number, Work
from torchledger.work.flops import attention_backward_flops, attention_flops, matmul_flops


def gemm(batch: Number, m: Number, n: Number, k: Number, item_size: int, *, extra_read: Number = 0) -> Work:
    """A (batched) matrix product [m, k] x [k, n]: 2 m n k FLOPs, both operands read and the product written once."""
    return Work(
        "gemm",
        bytes_read=batch * (m * k + k * n) * item_size + extra_read,
        bytes_written=batch * m * n * item_size,
        flops=matmul_flops(m, k, n, batch),
        gemm=(batch, m, n, k),
    )


def pointwise(
    read: Number, written: Number, item_size: int, *, vector_flops: Number = 0, other_bytes: Number = 0
) -> Work:
    """A kernel that reads and writes so many elements, plus ``other_bytes`` read of another dtype."""
    return Work("pointwise", read * item_size + other_bytes, written * item_size, vector_flops=vector_flops)


def expected_distinct(draws: Number, values: Number) -> Number:
    """How many of ``values`` appear on average in so many uniform draws: V (1 - (1 - 1/V)^n), as an integer."""
    import numpy

    distinct = values * -numpy.expm1(draws * numpy.log1p(-1.0 / numpy.maximum(values, 2)))
    rounded = numpy.rint(distinct).astype(numpy.int64)
    return rounded if rounded.ndim else int(rounded)


def attention(
    heads: Number,
    heads_kv: Number,
    length: Number,
    length_kv: Number,
    d: Number,
    pairs: Number,
    direction: str,
    item_size: int,
) -> Work:
    """Fused attention over ``heads`` (batch included): 2 products of 2 d FLOPs per visible pair forward, 5 backward."""
    query, key = heads * length * d * item_size, heads_kv * length_kv * d * item_size
    statistics = heads * length * 4
    if direction == "forward":
        return Work(
            "attention",
            bytes_read=query + 2 * key,
            bytes_written=query + statistics,
            flops=attention_flops(heads, pairs, d, d),
            vector_flops=4 * heads * pairs,
        )
    return Work(
        "attention",
        bytes_read=3 * query + 2 * key + statistics,
        bytes_written=query + 2 * key,
        flops=attention_backward_flops(heads, pairs, d, d),
        vector_flops=6 * heads * pairs,
    )


def norm_work(
    rows: Number, dim: Number, direction: str, item_size: int, *, statistics: int, vectors: int
) -> tuple[Work, ...]:
    """A norm over rows: forward reads x once; backward has one kernel for x and one for the weight's gradients."""
    numel, small = rows * dim, rows * statistics * 4
    vector = vectors * dim * item_size
    if direction == "forward":
        return (Work("reduction", numel * item_size + vector, numel * item_size + small, vector_flops=5 * numel),)
    of_x = Work("reduction", 2 * numel * item_size + small + dim * item_size, numel * item_size, vector_flops=8 * numel)
    of_weight = Work("reduction", 2 * numel * item_size + small, vector, vector_flops=3 * numel)
    return (of_x, of_weight)


def softmax_work(numel: Number, direction: str, item_size: int) -> Work:
    """Softmax of so many elements: forward reads x, backward the output and its gradient."""
    reads = 1 if direction == "forward" else 2
    return Work("reduction", reads * numel * item_size, numel * item_size, vector_flops=5 * numel)


def adamw_work(numel: Number, item_size: int) -> Work:
    """Reads parameter, gradient and two moments, writes parameter and moments."""
    return Work("optimizer", 4 * numel * item_size, 3 * numel * item_size, vector_flops=12 * numel)
