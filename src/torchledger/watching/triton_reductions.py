"""The Triton kernels that reduce one tensor in one pass, and a launch of them that costs a few microseconds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from torchledger.signals import let_through

log = logging.getLogger(__name__)

MOST_PROGRAMS = 512
_BLOCK = 2048
_TRITON_DTYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.int8: tl.int8,
    torch.uint8: tl.uint8,
    torch.bool: tl.uint8,
    torch.int16: tl.int16,
    torch.int32: tl.int32,
    torch.int64: tl.int64,
}
_EXPONENT_BITS = {
    torch.float16: 0x7C00,
    torch.bfloat16: 0x7F80,
    torch.float32: 0x7F800000,
    torch.float64: 0x7FF0000000000000,
}

BatchLaunch = Callable[[Sequence[int], torch.Tensor, int], None]
"""``launch(addresses, slab, stream)``: reduces the tensors at device addresses into the slab, on a raw stream, which is
the current one."""

Launch = Callable[[int, int, int, int], None]
"""``launch(address, slab, start_row, stream)``: reduces the tensor at a device address into rows of the slab at
another, on a raw stream."""


@triton.jit  # type: ignore[untyped-decorator]
def _magnitude_bits(raw, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Floats as the integers that their bits are, without sign: ordered as magnitudes are, NaN above Inf above all."""
    if BITS == 16:
        bits = raw.to(tl.int16, bitcast=True)
    elif BITS == 32:
        bits = raw.to(tl.int32, bitcast=True)
    else:
        bits = raw.to(tl.int64, bitcast=True)
    return bits & ((1 << (BITS - 1)) - 1)


@triton.jit  # type: ignore[untyped-decorator]
def _store_bad(  # type: ignore[no-untyped-def]
    here_ptr, row, begin, many, EXPONENT: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, HAS_BAD: tl.constexpr
):
    """Count and place NaN and Inf; without ``HAS_BAD`` there are none."""
    if HAS_BAD:
        LANES: tl.constexpr = BLOCK // 8
        n_nan = tl.zeros((LANES,), tl.int32)
        n_inf = tl.zeros((LANES,), tl.int32)
        first = tl.full((LANES,), 2147483647, tl.int32)
        last = tl.full((LANES,), -1, tl.int32)
        for step in range(tl.cdiv(many, BLOCK)):
            place = step * BLOCK + tl.arange(0, LANES)[:, None] * 8 + tl.arange(0, 8)[None, :]
            size = _magnitude_bits(tl.load(here_ptr + place, mask=place < many, other=0), BITS)
            is_bad = size >= EXPONENT
            n_nan += tl.sum((size > EXPONENT).to(tl.int32), axis=1)
            n_inf += tl.sum((size == EXPONENT).to(tl.int32), axis=1)
            first = tl.minimum(first, tl.min(tl.where(is_bad, place, 2147483647), axis=1))
            last = tl.maximum(last, tl.max(tl.where(is_bad, place, -1), axis=1))
        tl.store(row + 0, tl.sum(n_nan, axis=0).to(tl.float64))
        tl.store(row + 1, tl.sum(n_inf, axis=0).to(tl.float64))
        tl.store(row + 8, (begin + tl.min(first, axis=0)).to(tl.float64))
        tl.store(row + 9, (begin + tl.max(last, axis=0)).to(tl.float64))
    else:
        tl.store(row + 0, 0.0)
        tl.store(row + 1, 0.0)
        tl.store(row + 8, 4611686018427387904.0)
        tl.store(row + 9, -1.0)


@triton.jit  # type: ignore[untyped-decorator]
def _add_block(  # type: ignore[no-untyped-def]
    raw,
    inside,
    biggest,
    n_zero,
    n_subnormal,
    total,
    squares,
    low,
    high,
    EXPONENT: tl.constexpr,
    TINY: tl.constexpr,
    BITS: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    IS_FULL: tl.constexpr,
):
    """Add one block of elements to what is known so far."""
    if IS_FLOAT:
        # Told by their bits: arithmetic may flush subnormal numbers to zero. What lies outside was read as zero.
        size = _magnitude_bits(raw, BITS)
        biggest = tl.maximum(biggest, tl.max(size, axis=1))
        if IS_FULL:
            is_good = inside & (size < EXPONENT)
            is_zero = inside & (size == 0)
            is_subnormal = (size < TINY) & (size != 0)
            n_subnormal += tl.sum(is_subnormal.to(tl.int32), axis=1)
            value = raw.to(tl.float32) if BITS <= 32 else raw.to(tl.float64)
    else:
        is_good = inside
        is_zero = inside & (raw == 0)
        value = raw.to(tl.float64)
    if IS_FULL:
        n_zero += tl.sum(is_zero.to(tl.int32), axis=1)
        low = tl.minimum(low, tl.min(tl.where(is_good, value, float("inf")), axis=1))
        high = tl.maximum(high, tl.max(tl.where(is_good, value, float("-inf")), axis=1))
        finite = tl.where(is_good, value, 0.0).to(tl.float64)
        total += tl.sum(finite, axis=1)
        squares += tl.sum(finite * finite, axis=1)
    return biggest, n_zero, n_subnormal, total, squares, low, high


@triton.jit  # type: ignore[untyped-decorator]
def _reduce_part(  # type: ignore[no-untyped-def]
    here_ptr,
    row,
    begin,
    many,
    EXPONENT: tl.constexpr,
    TINY: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    IS_FULL: tl.constexpr,
):
    """Reduce ``many`` elements, the first of which is the tensor's element ``begin``, into one row."""
    # Eight neighbours are folded inside a thread at once: few registers stay live, and loads are wide.
    LANES: tl.constexpr = BLOCK // 8
    IS_NARROW: tl.constexpr = IS_FLOAT and BITS <= 32
    biggest = tl.zeros((LANES,), tl.int32 if BITS <= 32 else tl.int64)
    n_zero = tl.zeros((LANES,), tl.int32)
    n_subnormal = tl.zeros((LANES,), tl.int32)
    total = tl.zeros((LANES,), tl.float64)
    squares = tl.zeros((LANES,), tl.float64)
    low = tl.full((LANES,), float("inf"), tl.float32 if IS_NARROW else tl.float64)
    high = tl.full((LANES,), float("-inf"), tl.float32 if IS_NARROW else tl.float64)
    lane = tl.arange(0, LANES)[:, None] * 8 + tl.arange(0, 8)[None, :]
    # Without a mask, as a mask that may end anywhere makes one load of each element.
    for step in range(many // BLOCK):
        biggest, n_zero, n_subnormal, total, squares, low, high = _add_block(
            tl.load(here_ptr + step * BLOCK + lane), lane >= 0, biggest, n_zero, n_subnormal, total, squares, low, high,
            EXPONENT, TINY, BITS, IS_FLOAT, IS_FULL,
        )  # fmt: skip
    rest = many % BLOCK
    if rest > 0:
        inside = lane < rest
        biggest, n_zero, n_subnormal, total, squares, low, high = _add_block(
            tl.load(here_ptr + (many - rest) + lane, mask=inside, other=0), inside, biggest, n_zero, n_subnormal,
            total, squares, low, high, EXPONENT, TINY, BITS, IS_FLOAT, IS_FULL,
        )  # fmt: skip
    if IS_FLOAT:
        if tl.max(biggest, axis=0) >= EXPONENT:
            _store_bad(here_ptr, row, begin, many, EXPONENT, BITS, BLOCK, True)
        else:
            _store_bad(here_ptr, row, begin, many, EXPONENT, BITS, BLOCK, False)
    else:
        _store_bad(here_ptr, row, begin, many, EXPONENT, BITS, BLOCK, False)
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


@triton.jit(do_not_specialize=["start_row", "numel", "blocks_each"])  # type: ignore[untyped-decorator]
def _row_kernel(  # type: ignore[no-untyped-def]
    values_ptr,
    slab_ptr,
    start_row,
    numel,
    blocks_each,
    EXPONENT: tl.constexpr,
    TINY: tl.constexpr,
    BITS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    IS_FULL: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    begin = program * blocks_each * BLOCK
    many = tl.minimum(tl.maximum(numel - begin, 0), blocks_each * BLOCK).to(tl.int32)
    row = slab_ptr + (start_row + program) * COLUMNS
    _reduce_part(values_ptr + begin, row, begin, many, EXPONENT, TINY, BITS, BLOCK, IS_FLOAT, IS_FULL)


@triton.jit  # type: ignore[untyped-decorator]
def _many_kernel(  # type: ignore[no-untyped-def]
    addresses_ptr,
    parts_ptr,
    slab_ptr,
    DTYPE: tl.constexpr,
    EXPONENT: tl.constexpr,
    TINY: tl.constexpr,
    BITS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    IS_FULL: tl.constexpr,
):
    """The same for many tensors of one dtype; a row of ``parts_ptr`` is (tensor, begin, many, row in the slab)."""
    part_ptr = parts_ptr + tl.program_id(0) * 4
    tensor = tl.load(part_ptr)
    begin = tl.load(part_ptr + 1)
    many = tl.load(part_ptr + 2).to(tl.int32)
    row = slab_ptr + tl.load(part_ptr + 3) * COLUMNS
    values_ptr = tl.load(addresses_ptr + tensor).to(tl.pointer_type(DTYPE))
    values_ptr = tl.multiple_of(values_ptr, 16)
    begin = tl.multiple_of(begin, BLOCK)
    _reduce_part(values_ptr + begin, row, begin, many, EXPONENT, TINY, BITS, BLOCK, IS_FLOAT, IS_FULL)


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
        self._is_quick = self._has_batches = True
        if device.type == "cuda":
            self._most = min(MOST_PROGRAMS, 4 * torch.cuda.get_device_properties(device).multi_processor_count)

    def programs(self, numel: int) -> int:
        """How many rows of a slab a tensor of this size takes."""
        return max(1, min(self._most, -(-numel // self._block)))

    def launch(
        self, flat: torch.Tensor, slab: torch.Tensor, start_row: int, programs: int, *, is_full: bool = True
    ) -> Any:
        """Reduce ``flat`` into rows ``start_row`` and following of ``slab``; returns what Triton compiled for it."""
        tiny = _tiny_bits(flat.dtype)
        if flat.dtype == torch.bool:
            flat = flat.view(torch.uint8)
        elif flat.is_floating_point() and flat.element_size() == 1:
            flat = flat.to(torch.float32)
        numbers, settings = self._arguments(flat, programs, slab.shape[1], is_full)
        settings["TINY"] = tiny
        return _row_kernel[(programs,)](flat, slab, start_row, *numbers, **settings, num_warps=8)

    def quick(self, compiled: Any, flat: torch.Tensor, programs: int, columns: int, *, is_full: bool) -> Launch | None:
        """A launch of what ``launch`` returned, for tensors of the size, dtype and alignment of ``flat``.

        What Triton looks up at every launch is looked up once here. ``None`` if this version of it knows no such way.
        """
        if not self._is_quick or (flat.is_floating_point() and flat.element_size() == 1):
            return None
        numbers, settings = self._arguments(flat, programs, columns, is_full)
        rest = (*numbers, *settings.values())
        run = self.runner(compiled)
        if run is None:
            return None

        def launch(address: int, slab: int, start_row: int, stream: int) -> None:
            run(programs, stream, address, slab, start_row, *rest)

        return launch

    def runner(self, compiled: Any) -> Callable[..., None] | None:
        """``run(programs, stream, *arguments)`` of a compiled kernel, or ``None`` if this version of Triton has no such
        way; ordinary launches remain."""
        if not self._is_quick:
            return None
        try:
            run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
        except Exception as error:
            let_through(error)
            log.debug("no quick launch: %s", error)
            self._is_quick = False
            return None
        return lambda programs, stream, *arguments: run(
            programs, 1, 1, stream, function, metadata, None, None, None, *arguments
        )

    def batch(
        self, dtype: torch.dtype, items: Sequence[tuple[int, int, int]], columns: int, *, is_full: bool
    ) -> BatchLaunch | None:
        """One launch for many tensors of a dtype, each given as (elements, first row, programs).

        Their addresses have to be multiples of 16. ``None`` for a dtype that has to be converted first.
        """
        if dtype not in _TRITON_DTYPES or not self._has_batches:
            return None
        parts = []
        for tensor, (numel, start_row, programs) in enumerate(items):
            each = -(-numel // (self._block * programs)) * self._block
            for program in range(programs):
                begin = program * each
                parts.append((tensor, begin, max(0, min(numel - begin, each)), start_row + program))
        table = torch.tensor(parts, dtype=torch.int64).to(self._device, non_blocking=True)
        settings = self._settings(dtype, columns, is_full)

        return _Batch(self, dtype, table, settings)

    def try_out(self, probes: Sequence[torch.Tensor], columns: int) -> None:
        """Use quick launches and batches only if they do here what ordinary launches do."""
        for method in (self._try_quick, self._try_batch):
            try:
                for probe in probes:
                    method(probe, columns)
            except Exception as error:  # another version of Triton; its ordinary launch remains
                let_through(error)
                log.warning("values are reduced by ordinary launches, which is slower: %s", error)
                self._is_quick = self._is_quick and method != self._try_quick
                self._has_batches = self._has_batches and method != self._try_batch

    def _try_quick(self, probe: torch.Tensor, columns: int) -> None:
        programs = self.programs(probe.numel())
        slabs = torch.zeros((2, programs, columns), dtype=torch.float64, device=self._device)
        compiled = self.launch(probe, slabs[0], 0, programs)
        launch = self.quick(compiled, probe, programs, columns, is_full=True)
        if launch is not None:
            launch(probe.data_ptr(), slabs[1].data_ptr(), 0, torch.cuda.current_stream(self._device).cuda_stream)
            _expect_equal(slabs, f"a quick launch over {probe.dtype}")

    def _try_batch(self, probe: torch.Tensor, columns: int) -> None:
        programs = self.programs(probe.numel())
        slabs = torch.zeros((2, programs, columns), dtype=torch.float64, device=self._device)
        self.launch(probe, slabs[0], 0, programs)
        batch = self.batch(probe.dtype, [(probe.numel(), 0, programs)], columns, is_full=True)
        if batch is None:
            return
        for _ in range(2):  # the second time is the quick one
            slabs[1].zero_()
            batch([probe.data_ptr()], slabs[1], torch.cuda.current_stream(self._device).cuda_stream)
            _expect_equal(slabs, f"a batch over {probe.dtype}")

    def _arguments(
        self, flat: torch.Tensor, programs: int, columns: int, is_full: bool
    ) -> tuple[tuple[int, int], dict[str, Any]]:
        """The numbers and the compile-time settings of a launch, each in the kernel's order."""
        each = -(-flat.numel() // (self._block * programs))
        return (flat.numel(), each), self._settings(flat.dtype, columns, is_full)

    def _settings(self, dtype: torch.dtype, columns: int, is_full: bool) -> dict[str, Any]:
        return {
            "EXPONENT": _EXPONENT_BITS.get(dtype, 0),
            "TINY": _tiny_bits(dtype),
            "BITS": 8 * dtype.itemsize,
            "COLUMNS": columns,
            "BLOCK": self._block,
            "IS_FLOAT": dtype.is_floating_point,
            "IS_FULL": is_full,
        }

    def fold(self, slab: torch.Tensor, starts: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """One row out of the ``counts[i]`` rows from ``starts[i]`` on, for each ``i``."""
        rows = torch.empty((len(starts), slab.shape[1]), dtype=torch.float64, device=slab.device)
        _fold_kernel[(len(starts),)](
            slab, starts, counts, rows, COLUMNS=slab.shape[1], WIDTH=16, BLOCK=MOST_PROGRAMS, num_warps=8
        )
        return rows


def _tiny_bits(dtype: torch.dtype) -> int:
    """The bits of a dtype's least normal magnitude; of 8-bit floats, which are widened, those of a float32."""
    if not dtype.is_floating_point:
        return 0
    if dtype.itemsize == 1:
        return int(torch.tensor(torch.finfo(dtype).tiny, dtype=torch.float32).view(torch.int32))
    exponent = _EXPONENT_BITS[dtype]
    return exponent & -exponent


class _Batch:
    """One launch for many tensors of a dtype; what it asks for once is kept for the next call."""

    def __init__(self, kernel: RowKernel, dtype: torch.dtype, table: torch.Tensor, settings: dict[str, Any]) -> None:
        self._kernel = kernel
        self._table = table
        self._settings = {"DTYPE": _TRITON_DTYPES[dtype], **settings}
        self._addresses: Sequence[int] = ()
        self._where = table
        self._run: Callable[..., None] | None = None

    def __call__(self, addresses: Sequence[int], slab: torch.Tensor, stream: int) -> None:
        if addresses != self._addresses:
            # A step that is repeated mostly finds its memory where the step before had it.
            self._addresses = addresses
            self._where = torch.tensor(addresses, dtype=torch.int64).to(self._table.device, non_blocking=True)
        where, table, programs = self._where, self._table, len(self._table)
        if self._run is None:
            compiled = _many_kernel[(programs,)](where, table, slab, **self._settings, num_warps=8)
            self._run = self._kernel.runner(compiled)
        else:
            self._run(programs, stream, where.data_ptr(), table.data_ptr(), slab.data_ptr(), *self._settings.values())


def _expect_equal(slabs: torch.Tensor, what: str) -> None:
    if not torch.equal(slabs[0], slabs[1]):
        raise ArithmeticError(f"{what} gives other numbers than an ordinary one")
