"""What products of eight-bit integers take on a Hopper: by the tiles of their two kernels.

With columns of the right matrix contiguous (a weight that is transposed) the library uses its tensor cores; else, and
that is some eight times slower, a kernel that goes on by one number of the depth at a time. The time of either is that
of whole waves of its tiles. Constants are fitted to 1,336 drawn products on an H100
(``benchmarks/operators/int8_products_cuda.py``).

Half precision by weights of eight bits (``_weight_int8pack_mm``, which compiled code calls for quantized weights) has a
kernel of ATen's own, in which each thread goes along the depth for one number of the result: a block of 256 makes 16 by
16, its warps two rows each. So the time is that of the depth, by how many warps a multiprocessor has to run, and what
tensor cores could do says nothing of it. Constants are fitted to 329 drawn products on an H200
(``benchmarks/operators/packed_products_cuda.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

COMPUTE_CAPABILITY, _MULTIPROCESSORS = (9, 0), 132
"""Of the device that the constants are of."""


@dataclass(frozen=True)
class Int8Costs:
    """Microseconds of a call, of a wave of ``tile``s of the result for each number of the depth and by itself, and of
    a megabyte; errors of nine in ten drawn products are within ``spread``, a factor."""

    tile: tuple[int, int]
    call_us: float
    depth_us: float
    wave_us: float
    megabyte_us: float
    spread: float


CONTIGUOUS_COLUMNS = Int8Costs((64, 128), 3.57, 2.09e-3, 0.902, 0.101, 1.3)
CONTIGUOUS_ROWS = Int8Costs((128, 128), 4.37, 3.193e-2, 0.0, 0.214, 1.18)


@dataclass(frozen=True)
class PackedCosts:
    """Microseconds of a call, and of each number of the depth: of a wait for it and, for each warp of a multiprocessor,
    beside that wait or, where warps are many, alone; errors of nine in ten drawn products are within ``spread``."""

    call_us: float
    wait_us: float
    beside_us: float
    warp_us: float
    spread: float


PACKED_WEIGHTS = PackedCosts(14.96, 1.886e-2, 6.31e-3, 9.5e-3, 1.2)
_BLOCK_SIDE, _ROWS_OF_WARP = 16, 2


def packed_us(rows: int, depth: int, columns: int, costs: PackedCosts, *, multiprocessors: int | None) -> float:
    """Microseconds of a product (rows x depth) of half precision by weights (columns x depth) of eight bits.

    >>> round(packed_us(16, 4096, 4096, PACKED_WEIGHTS, multiprocessors=132))
    619
    """
    whole, rest = divmod(rows, _BLOCK_SIDE)
    of_column = whole * _BLOCK_SIDE // _ROWS_OF_WARP + -(-rest // _ROWS_OF_WARP)
    of_block = -(-min(rows, _BLOCK_SIDE) // _ROWS_OF_WARP)
    warps = max(-(-columns // _BLOCK_SIDE) * of_column / (multiprocessors or _MULTIPROCESSORS), of_block)
    return costs.call_us + depth * max(costs.wait_us + costs.beside_us * warps, costs.warp_us * warps)


def int8_us(rows: int, depth: int, columns: int, costs: Int8Costs, *, multiprocessors: int | None) -> float:
    """Microseconds of a product (rows x depth) by (depth x columns) into integers of four bytes.

    >>> round(int8_us(4096, 2048, 8192, CONTIGUOUS_COLUMNS, multiprocessors=132))
    186
    """
    tiles = -(-rows // costs.tile[0]) * -(-columns // costs.tile[1])
    waves = -(-tiles // (multiprocessors or _MULTIPROCESSORS))
    megabytes = (rows * depth + depth * columns + 4 * rows * columns) / 1e6
    return costs.call_us + waves * (depth * costs.depth_us + costs.wave_us) + megabytes * costs.megabyte_us
