"""The Triton kernel that reduces one tensor in one pass."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

MOST_PROGRAMS = 512
_BLOCK = 1024
_EXPONENT_BITS = {
    torch.float16: 0x7C00,
    torch.bfloat16: 0x7F80,
    torch.float32: 0x7F800000,
    torch.float64: 0x7FF0000000000000,
}


@triton.jit(do_not_specialize=["start_row", "numel", "blocks_each"])  # type: ignore[untyped-decorator]
def _row_kernel(  # type: ignore[no-untyped-def]
    values_ptr,
    slab_ptr,
    start_row,
    numel,
    blocks_each,
    EXPONENT: tl.constexpr,
    BITS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_FLOAT: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    n_nan = tl.zeros((BLOCK,), tl.int32)
    n_inf = tl.zeros((BLOCK,), tl.int32)
    n_zero = tl.zeros((BLOCK,), tl.int32)
    n_subnormal = tl.zeros((BLOCK,), tl.int32)
    low = tl.full((BLOCK,), float("inf"), tl.float64)
    high = tl.full((BLOCK,), float("-inf"), tl.float64)
    total = tl.zeros((BLOCK,), tl.float64)
    squares = tl.zeros((BLOCK,), tl.float64)
    first = tl.full((BLOCK,), 4611686018427387904, tl.int64)
    last = tl.full((BLOCK,), -1, tl.int64)
    begin = program * blocks_each * BLOCK
    for step in range(blocks_each):
        place = begin + step * BLOCK + tl.arange(0, BLOCK)
        inside = place < numel
        raw = tl.load(values_ptr + place, mask=inside, other=0)
        value = raw.to(tl.float64)
        if IS_FLOAT:
            size = tl.abs(value)
            is_nan = (value != value) & inside
            is_inf = (size == float("inf")) & inside
            is_bad = is_nan | is_inf
            n_nan += is_nan.to(tl.int32)
            n_inf += is_inf.to(tl.int32)
            # Told by their bits: arithmetic may flush subnormal numbers to zero.
            if BITS == 16:
                bits = raw.to(tl.int16, bitcast=True)
            elif BITS == 32:
                bits = raw.to(tl.int32, bitcast=True)
            else:
                bits = raw.to(tl.int64, bitcast=True)
            is_zero = ((bits & ((1 << (BITS - 1)) - 1)) == 0) & inside
            n_subnormal += (((bits & EXPONENT) == 0) & inside & ~is_zero).to(tl.int32)
            first = tl.minimum(first, tl.where(is_bad, place, 4611686018427387904))
            last = tl.maximum(last, tl.where(is_bad, place, -1))
            is_good = inside & (size < float("inf"))
        else:
            is_good = inside
            is_zero = (value == 0) & inside
        n_zero += is_zero.to(tl.int32)
        finite = tl.where(is_good, value, 0.0)
        total += finite
        squares += finite * finite
        low = tl.where(is_good & (value < low), value, low)
        high = tl.where(is_good & (value > high), value, high)
    row = slab_ptr + (start_row + program) * COLUMNS
    tl.store(row + 0, tl.sum(n_nan, axis=0).to(tl.float64))
    tl.store(row + 1, tl.sum(n_inf, axis=0).to(tl.float64))
    tl.store(row + 2, tl.min(low, axis=0))
    tl.store(row + 3, tl.max(high, axis=0))
    tl.store(row + 4, tl.sum(total, axis=0))
    tl.store(row + 5, tl.sum(squares, axis=0))
    tl.store(row + 6, tl.sum(n_zero, axis=0).to(tl.float64))
    tl.store(row + 7, tl.sum(n_subnormal, axis=0).to(tl.float64))
    tl.store(row + 8, tl.min(first, axis=0).to(tl.float64))
    tl.store(row + 9, tl.max(last, axis=0).to(tl.float64))
    tl.store(row + 10, tl.maximum(tl.minimum(numel - begin, blocks_each * BLOCK), 0).to(tl.float64))


@triton.jit  # type: ignore[untyped-decorator]
def _fold_kernel(  # type: ignore[no-untyped-def]
    slab_ptr,
    starts_ptr,
    counts_ptr,
    rows_ptr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    start = tl.load(starts_ptr + row)
    count = tl.load(counts_ptr + row)
    step = tl.arange(0, BLOCK)
    column = tl.arange(0, WIDTH)
    place = (start + step[:, None]) * COLUMNS + column[None, :]
    inside = (step[:, None] < count) & (column[None, :] < COLUMNS)
    part = tl.load(slab_ptr + place, mask=inside, other=0.0)
    total = tl.sum(part, axis=0)
    low = tl.min(tl.where(inside, part, float("inf")), axis=0)
    high = tl.max(tl.where(inside, part, float("-inf")), axis=0)
    folded = tl.where((column == 2) | (column == 8), low, tl.where((column == 3) | (column == 9), high, total))
    tl.store(rows_ptr + row * COLUMNS + column, folded, mask=column < COLUMNS)


class RowKernel:
    """Launches the kernel with as many programs as keep the device busy."""

    def __init__(self, device: torch.device, block: int = _BLOCK) -> None:
        self._block = block
        self._device = device
        self._most = 1
        if device.type == "cuda":
            self._most = min(MOST_PROGRAMS, 4 * torch.cuda.get_device_properties(device).multi_processor_count)

    def programs(self, numel: int) -> int:
        """How many rows of a slab a tensor of this size takes."""
        return max(1, min(self._most, -(-numel // self._block)))

    def launch(self, flat: torch.Tensor, slab: torch.Tensor, start_row: int, programs: int) -> None:
        """Reduce ``flat`` into rows ``start_row`` and following of ``slab``."""
        if flat.dtype == torch.bool:
            flat = flat.view(torch.uint8)
        elif flat.is_floating_point() and flat.element_size() == 1:
            flat = flat.to(torch.float32)
        blocks_each = -(-flat.numel() // (self._block * programs))
        is_float = flat.is_floating_point()
        arguments: tuple[Any, ...] = (flat, slab, start_row, flat.numel(), blocks_each)
        _row_kernel[(programs,)](
            *arguments,
            EXPONENT=_EXPONENT_BITS.get(flat.dtype, 0),
            BITS=8 * flat.element_size(),
            COLUMNS=slab.shape[1],
            BLOCK=self._block,
            IS_FLOAT=is_float,
            num_warps=8,
        )

    def fold(self, slab: torch.Tensor, starts: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """One row out of the ``counts[i]`` rows from ``starts[i]`` on, for each ``i``."""
        rows = torch.empty((len(starts), slab.shape[1]), dtype=torch.float64, device=slab.device)
        _fold_kernel[(len(starts),)](
            slab, starts, counts, rows, COLUMNS=slab.shape[1], WIDTH=16, BLOCK=MOST_PROGRAMS, num_warps=8
        )
        return rows
