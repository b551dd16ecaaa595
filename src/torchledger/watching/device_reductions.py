"""Statistics on a CUDA device: one pass over each tensor, one wait for all of them.

The quick way is a Triton kernel that writes partial results of each program into a slab; all slabs are added up and
copied to the host at the end. It is checked against plain torch operators on its first use, and where it is absent,
fails or disagrees, the plain operators are used for the rest of the process.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from typing import Any

import torch

from torchledger.signals import let_through

log = logging.getLogger(__name__)

COLUMNS = (
    "n_nan", "n_inf", "minimum", "maximum", "total", "squares", "n_zero", "n_subnormal", "first", "last", "numel"
)  # fmt: skip
"""Of a row: counts, extremes and sums over finite elements, and the positions of the first and last that is not."""

_NOT_FOUND = float(2**62)
_SLAB_ROWS = 1 << 15


class DeviceBatch:
    """Reductions of one call on one device; without ``is_full`` only NaN and Inf are counted and placed."""

    def __init__(self, device: torch.device, kernel: Any = None, *, is_full: bool = True) -> None:
        self._device = device
        self._is_full = is_full
        self._kernel = kernel if kernel is not None else _checked_kernel(device)
        self._slabs: list[torch.Tensor] = []
        self._plain: list[torch.Tensor] = []
        self._rows: list[tuple[int, int] | int] = []
        self._used = 0

    def add(self, flat: torch.Tensor) -> int:
        """Queue the reduction of a one-dimensional dense tensor; returns its row."""
        if self._kernel is None:
            self._rows.append(len(self._plain))
            self._plain.append(plain_row(flat))
            return len(self._rows) - 1
        programs = self._kernel.programs(flat.numel())
        if not self._slabs or self._used + programs > _SLAB_ROWS:
            self._slabs.append(torch.empty((_SLAB_ROWS, len(COLUMNS)), dtype=torch.float64, device=self._device))
            self._used = 0
        slab = self._slabs[-1]
        with torch.cuda.device(self._device):
            self._kernel.launch(flat, slab, self._used, programs, is_full=self._is_full)
        self._rows.append((((len(self._slabs) - 1) * _SLAB_ROWS) + self._used, programs))
        self._used += programs
        return len(self._rows) - 1

    def fetch(self) -> list[list[float]]:
        """Every row, in the order added; waits for the device once."""
        if not self._rows:
            return []
        if self._kernel is None:
            return [list(map(float, row)) for row in torch.stack(self._plain).tolist()]
        slab = self._slabs[0] if len(self._slabs) == 1 else torch.cat(self._slabs)
        ranges = row_ranges([row for row in self._rows if isinstance(row, tuple)], self._device)
        with torch.cuda.device(self._device):
            rows: list[list[float]] = self._kernel.fold(slab, ranges[0], ranges[1]).tolist()
        return rows


def row_ranges(rows: Sequence[tuple[int, int]], device: torch.device) -> torch.Tensor:
    """Where each tensor's partial results stand in a slab: first rows, then their numbers, as ``fold`` takes them."""
    return torch.tensor(rows).t().contiguous().to(device, non_blocking=True)


def row_kernel(device: torch.device) -> Any:
    """The kernel that reduces tensors on a device, or ``None`` where plain operators have to do."""
    return _checked_kernel(device)


def plain_row(flat: torch.Tensor) -> torch.Tensor:
    """One row by plain operators, on the tensor's device and without waiting for it."""
    is_float = flat.is_floating_point()
    tiny = torch.finfo(flat.dtype).tiny if is_float else 0.0
    if flat.is_floating_point() and flat.element_size() == 1:  # 8-bit floats know no arithmetic
        flat = flat.to(torch.float32)
    wide = flat.to(torch.float64)
    is_nan, is_inf = wide.isnan(), wide.isinf()
    is_bad = is_nan | is_inf
    zeros = torch.zeros_like(wide)
    finite = torch.where(is_bad, zeros, wide)
    places = torch.arange(flat.numel(), device=flat.device, dtype=torch.float64)
    return torch.stack(
        [
            is_nan.sum(dtype=torch.float64),
            is_inf.sum(dtype=torch.float64),
            torch.where(is_bad, math.inf, wide).amin(),
            torch.where(is_bad, -math.inf, wide).amax(),
            finite.sum(),
            finite.square().sum(),
            (wide == 0).sum(dtype=torch.float64),
            ((wide != 0) & (wide.abs() < tiny)).sum(dtype=torch.float64),
            torch.where(is_bad, places, _NOT_FOUND).amin(),
            torch.where(is_bad, places, -1.0).amax(),
            torch.full((), float(flat.numel()), dtype=torch.float64, device=flat.device),
        ]
    )


@functools.cache
def _checked_kernel(device: torch.device) -> Any:
    """The Triton kernel, if it says on this device what plain operators say; else ``None``."""
    try:
        from torchledger.watching.triton_reductions import RowKernel

        kernel = RowKernel(device)
        probes = _probes(device)
        batch = DeviceBatch(device, kernel)
        for probe in probes:
            batch.add(probe)
        for probe, found in zip(probes, batch.fetch(), strict=True):
            _compare(probe, found, COLUMNS)
        narrow = DeviceBatch(device, kernel, is_full=False)
        floats = [probe for probe in probes if probe.is_floating_point()]
        for probe in floats:
            narrow.add(probe)
        for probe, found in zip(floats, narrow.fetch(), strict=True):
            _compare(probe, found, ("n_nan", "n_inf", "first", "last", "numel"))
        kernel.try_out(probes, len(COLUMNS))
        return kernel
    except Exception as error:  # whatever is wrong with a compiler, plain operators remain
        let_through(error)
        log.warning("values are reduced by plain operators, which is slower: %s: %s", type(error).__name__, error)
        return None


def _compare(probe: torch.Tensor, found: Sequence[float], names: Sequence[str]) -> None:
    row = dict(zip(COLUMNS, found, strict=True))
    for name, expected in zip(COLUMNS, plain_row(probe).tolist(), strict=True):
        if name in names and not math.isclose(row[name], expected, rel_tol=1e-9, abs_tol=1e-9):
            raise ArithmeticError(f"{name} of {probe.dtype} is {row[name]} instead of {expected}")


def _probes(device: torch.device) -> list[torch.Tensor]:
    values = torch.linspace(-3.0, 5.0, 70_001, dtype=torch.float64)
    values[7], values[40_000], values[60_001], values[9], values[10] = math.nan, math.inf, -math.inf, 0.0, 1e-40
    floats = [values.to(dtype).to(device) for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)]
    whole = (torch.arange(5_000) % 300 - 20).to(device)
    return [*floats, whole, whole.to(torch.int32), (whole > 3).to(torch.uint8), floats[0][:3].clone()]
