"""The Triton kernels that reduce one tensor in one pass, and a launch of them that costs a few microseconds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

log = logging.getLogger(__name__)

MOST_PROGRAMS = 512
_BLOCK = 4096
_EXPONENT_BITS = {
    torch.float16: 0x7C00,
    torch.bfloat16: 0x7F80,
    torch.float32: 0x7F800000,
    torch.float64: 0x7FF0000000000000,
}

Launch = Callable[[int, int, int], None]
"""``launch(address, slab, start_row)``: reduces the tensor at a device address into rows of the slab at another."""


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
    IS_FULL: tl.constexpr,
):
    # Eight neighbours are folded inside a thread at once: few registers stay live, and loads are wide.
    LANES: tl.constexpr = BLOCK // 8
    IS_NARROW: tl.constexpr = IS_FLOAT and BITS <= 32
    program = tl.program_id(0).to(tl.int64)
    begin = program * blocks_each * BLOCK
    many = tl.minimum(tl.maximum(numel - begin, 0), blocks_each * BLOCK).to(tl.int32)
    here_ptr = values_ptr + begin
    n_nan = tl.zeros((LANES,), tl.int32)
    n_inf = tl.zeros((LANES,), tl.int32)
    first = tl.full((LANES,), 2147483647, tl.int32)
    last = tl.full((LANES,), -1, tl.int32)
    if IS_FULL:
        n_zero = tl.zeros((LANES,), tl.int32)
        n_subnormal = tl.zeros((LANES,), tl.int32)
        total = tl.zeros((LANES,), tl.float64)
        squares = tl.zeros((LANES,), tl.float64)
        if IS_NARROW:
            low = tl.full((LANES,), float("inf"), tl.float32)
            high = tl.full((LANES,), float("-inf"), tl.float32)
        else:
            low = tl.full((LANES,), float("inf"), tl.float64)
            high = tl.full((LANES,), float("-inf"), tl.float64)
    for step in range(blocks_each):
        place = step * BLOCK + tl.arange(0, LANES)[:, None] * 8 + tl.arange(0, 8)[None, :]
        inside = place < many
        raw = tl.load(here_ptr + place, mask=inside, other=0)
        if IS_FLOAT:
            # Told by their bits: arithmetic may flush subnormal numbers to zero.
            if BITS == 16:
                bits = raw.to(tl.int16, bitcast=True)
            elif BITS == 32:
                bits = raw.to(tl.int32, bitcast=True)
            else:
                bits = raw.to(tl.int64, bitcast=True)
            size = bits & ((1 << (BITS - 1)) - 1)
            is_bad = (size >= EXPONENT) & inside
            n_nan += tl.sum(((size > EXPONENT) & inside).to(tl.int32), axis=1)
            n_inf += tl.sum(((size == EXPONENT) & inside).to(tl.int32), axis=1)
            first = tl.minimum(first, tl.min(tl.where(is_bad, place, 2147483647), axis=1))
            last = tl.maximum(last, tl.max(tl.where(is_bad, place, -1), axis=1))
            if IS_FULL:
                is_good = inside & (size < EXPONENT)
                is_zero = (size == 0) & inside
                is_subnormal = (size < (EXPONENT & -EXPONENT)) & (size != 0) & inside
                n_subnormal += tl.sum(is_subnormal.to(tl.int32), axis=1)
        elif IS_FULL:
            is_good = inside
            is_zero = (raw == 0) & inside
        if IS_FULL:
            n_zero += tl.sum(is_zero.to(tl.int32), axis=1)
            if IS_NARROW:
                value = raw.to(tl.float32)
            else:
                value = raw.to(tl.float64)
            low = tl.minimum(low, tl.min(tl.where(is_good, value, float("inf")), axis=1))
            high = tl.maximum(high, tl.max(tl.where(is_good, value, float("-inf")), axis=1))
            finite = tl.where(is_good, value, 0.0).to(tl.float64)
            total += tl.sum(finite, axis=1)
            squares += tl.sum(finite * finite, axis=1)
    row = slab_ptr + (start_row + program) * COLUMNS
    is_clean = tl.max(last, axis=0) < 0
    tl.store(row + 0, tl.sum(n_nan, axis=0).to(tl.float64))
    tl.store(row + 1, tl.sum(n_inf, axis=0).to(tl.float64))
    tl.store(row + 8, tl.where(is_clean, 4611686018427387904, begin + tl.min(first, axis=0)).to(tl.float64))
    tl.store(row + 9, tl.where(is_clean, -1, begin + tl.max(last, axis=0)).to(tl.float64))
    tl.store(row + 10, many.to(tl.float64))
    if IS_FULL:
        tl.store(row + 2, tl.min(low, axis=0).to(tl.float64))
        tl.store(row + 3, tl.max(high, axis=0).to(tl.float64))
        tl.store(row + 4, tl.sum(total, axis=0))
        tl.store(row + 5, tl.sum(squares, axis=0))
        tl.store(row + 6, tl.sum(n_zero, axis=0).to(tl.float64))
        tl.store(row + 7, tl.sum(n_subnormal, axis=0).to(tl.float64))
    else:
        for column in tl.static_range(2, 8):
            tl.store(row + column, 0.0)


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
        self._is_quick = True
        if device.type == "cuda":
            self._most = min(MOST_PROGRAMS, 4 * torch.cuda.get_device_properties(device).multi_processor_count)

    def programs(self, numel: int) -> int:
        """How many rows of a slab a tensor of this size takes."""
        return max(1, min(self._most, -(-numel // self._block)))

    def launch(
        self, flat: torch.Tensor, slab: torch.Tensor, start_row: int, programs: int, *, is_full: bool = True
    ) -> Any:
        """Reduce ``flat`` into rows ``start_row`` and following of ``slab``; returns what Triton compiled for it."""
        if flat.dtype == torch.bool:
            flat = flat.view(torch.uint8)
        elif flat.is_floating_point() and flat.element_size() == 1:
            flat = flat.to(torch.float32)
        numbers, settings = self._arguments(flat, programs, slab.shape[1], is_full)
        return _row_kernel[(programs,)](flat, slab, start_row, *numbers, **settings, num_warps=8)

    def quick(self, compiled: Any, flat: torch.Tensor, programs: int, columns: int, *, is_full: bool) -> Launch | None:
        """A launch of what ``launch`` returned, for tensors of the size, dtype and alignment of ``flat``.

        What Triton looks up at every launch is looked up once here. ``None`` if this version of it knows no such way.
        """
        if not self._is_quick or (flat.is_floating_point() and flat.element_size() == 1):
            return None
        numbers, settings = self._arguments(flat, programs, columns, is_full)
        rest = (*numbers, *settings.values())
        try:
            runner = compiled[(programs, 1, 1)]
        except Exception as error:  # another version of Triton; its ordinary launch remains
            log.debug("no quick launch: %s", error)
            self._is_quick = False
            return None

        def launch(address: int, slab: int, start_row: int) -> None:
            runner(address, slab, start_row, *rest)

        return launch

    def try_quick(self, probes: Sequence[torch.Tensor], columns: int) -> None:
        """Use quick launches only if they do here what ordinary ones do."""
        try:
            for probe in probes:
                programs = self.programs(probe.numel())
                slabs = torch.zeros((2, programs, columns), dtype=torch.float64, device=self._device)
                compiled = self.launch(probe, slabs[0], 0, programs)
                launch = self.quick(compiled, probe, programs, columns, is_full=True)
                if launch is None:
                    return
                launch(probe.data_ptr(), slabs[1].data_ptr(), 0)
                if not torch.equal(slabs[0], slabs[1]):
                    raise ArithmeticError(f"a quick launch over {probe.dtype} gives other numbers")
        except Exception as error:  # another version of Triton; its ordinary launch remains
            log.warning("values are reduced by ordinary launches, which is slower: %s", error)
            self._is_quick = False

    def _arguments(
        self, flat: torch.Tensor, programs: int, columns: int, is_full: bool
    ) -> tuple[tuple[int, int], dict[str, Any]]:
        """The numbers and the compile-time settings of a launch, each in the kernel's order."""
        is_float = flat.is_floating_point()
        settings = {
            "EXPONENT": _EXPONENT_BITS.get(flat.dtype, 0),
            "BITS": 8 * flat.element_size(),
            "COLUMNS": columns,
            "BLOCK": self._block,
            "IS_FLOAT": is_float,
            "IS_FULL": is_full,
        }
        return (flat.numel(), -(-flat.numel() // (self._block * programs))), settings

    def fold(self, slab: torch.Tensor, starts: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """One row out of the ``counts[i]`` rows from ``starts[i]`` on, for each ``i``."""
        rows = torch.empty((len(starts), slab.shape[1]), dtype=torch.float64, device=slab.device)
        _fold_kernel[(len(starts),)](
            slab, starts, counts, rows, COLUMNS=slab.shape[1], WIDTH=16, BLOCK=MOST_PROGRAMS, num_warps=8
        )
        return rows
