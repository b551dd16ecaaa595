"""Statistics of tensors, taken where the tensors are and fetched once.

``Reducer.add`` queues the reduction of one tensor on its device and returns a ticket; ``Reducer.fetch`` waits once per
device and turns tickets into ``Summary`` records. On the CPU there is nothing to wait for, so the work is done at once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchledger.signals import let_through

log = logging.getLogger(__name__)

INDICES_KEPT = 16
"""How many offending indices are kept per tensor on the CPU; a device keeps the first and the last."""

Predicate = Callable[[Any], Any]
"""From a tensor to a tensor of booleans (or one) that says which elements are bad."""


@dataclass(frozen=True)
class Summary:
    """What was found in one tensor. Statistics are over finite elements; ``None`` is not taken or does not exist."""

    numel: int
    n_nan: int | None = None
    n_inf: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    std: float | None = None
    n_zero: int | None = None
    n_subnormal: int | None = None
    n_flagged: int | None = None
    not_finite: tuple[tuple[int, ...], ...] = ()
    flagged: tuple[tuple[int, ...], ...] = ()
    note: str | None = None


class Reducer:
    """Queues reductions during one call of a graph.

    ``is_full`` asks for every statistic; without it only what finds NaN and Inf is taken where that is cheaper.
    ``predicate`` marks bad elements; where it raises, ``on_fault`` is told.
    """

    def __init__(
        self,
        *,
        is_full: bool = True,
        predicate: Predicate | None = None,
        on_fault: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._is_full = is_full
        self._predicate = predicate
        self._on_fault = on_fault
        self._done: dict[int, Summary] = {}
        self._batches: dict[torch.device, Any] = {}
        self._flags: list[tuple[int, torch.Tensor, tuple[int, ...]]] = []
        self._waiting: dict[int, Queued] = {}
        self._next = 0

    def add(self, tensor: torch.Tensor) -> int:
        """Queue a tensor; it may be freed or overwritten as soon as this returns."""
        ticket = self._next
        self._next += 1
        with torch.no_grad():
            tensor = tensor.detach()
            if is_reduced_on_device(tensor):
                if self._is_full or tensor.is_floating_point():
                    self._add_on_device(ticket, tensor)
                else:
                    self._done[ticket] = Summary(tensor.numel(), n_nan=0, n_inf=0)
            else:
                self._done[ticket] = summarize(tensor, is_full=self._is_full)
            if self._predicate is not None:
                self._flag(ticket, tensor)
        return ticket

    def queued(self) -> dict[int, Queued]:
        """What waits on a device, by ticket."""
        return dict(self._waiting)

    def fetch(self) -> dict[int, Summary]:
        """Wait for the devices, once each, and return every ticket's summary; the queue is empty afterwards."""
        rows = {device: batch.fetch() for device, batch in self._batches.items()}
        for ticket, item in self._waiting.items():
            self._done[ticket] = from_row(rows[item.device][item.row], item.shape, item.layout)
        self._add_flags()
        done, self._done = self._done, {}
        self._waiting.clear()
        self._batches.clear()
        return done

    def _add_on_device(self, ticket: int, tensor: torch.Tensor) -> None:
        from torchledger.watching.device_reductions import DeviceBatch

        batch = self._batches.get(tensor.device)
        if batch is None:
            batch = self._batches[tensor.device] = DeviceBatch(tensor.device, is_full=self._is_full)
        flat, layout = flatten(tensor)
        self._waiting[ticket] = Queued(tensor.device, batch.add(flat), tuple(tensor.shape), layout)

    def _flag(self, ticket: int, tensor: torch.Tensor) -> None:
        assert self._predicate is not None
        try:
            answer = self._predicate(tensor)
            flags = torch.as_tensor(answer, device=tensor.device) != 0
            flags = flags.reshape(-1)
            if flags.numel() == 0:
                return
            first = flags.to(torch.uint8).argmax()
            self._flags.append((ticket, torch.stack([torch.count_nonzero(flags), first]), tuple(tensor.shape)))
        except Exception as error:  # the predicate is the user's, and so is the program that must go on
            let_through(error)
            self._on_fault(
                f"failed on a {_short(tensor.dtype)} tensor of shape {tuple(tensor.shape)}: "
                f"{type(error).__name__}: {error}"
            )

    def _add_flags(self) -> None:
        by_device: dict[torch.device, list[tuple[int, torch.Tensor, tuple[int, ...]]]] = {}
        for item in self._flags:
            by_device.setdefault(item[1].device, []).append(item)
        for items in by_device.values():
            values = torch.stack([pair for _, pair, _ in items]).tolist()
            for (ticket, _, shape), (count, first) in zip(items, values, strict=True):
                summary = self._done[ticket]
                is_whole = count and math.prod(shape) <= first
                indices = () if not count or is_whole else (unravel(first, shape),)
                self._done[ticket] = Summary(**{**vars(summary), "n_flagged": count, "flagged": indices})
        self._flags.clear()


@dataclass(frozen=True)
class Layout:
    """How positions in a flattened tensor lead back to indices: the extents and strides of the dims that were kept."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def index(self, position: int) -> tuple[int, ...]:
        """The index of the element that stands at ``position``."""
        index = [0] * len(self.shape)
        for dim in sorted(range(len(self.shape)), key=lambda dim: -self.strides[dim]):
            if self.strides[dim] and self.shape[dim] > 1:
                index[dim], position = divmod(position, self.strides[dim])
        return tuple(index)

    @property
    def is_contiguous(self) -> bool:
        """True if elements stand in the order of the dims."""
        expected = _contiguous_strides(self.shape)
        return all(
            extent <= 1 or stride == wanted
            for extent, stride, wanted in zip(self.shape, self.strides, expected, strict=True)
        )


@dataclass(frozen=True)
class Queued:
    """A tensor whose reduction waits on a device, in a row of that device's batch."""

    device: torch.device
    row: int
    shape: tuple[int, ...]
    layout: Layout


def is_reduced_on_device(tensor: torch.Tensor) -> bool:
    """True where a tensor is reduced on its device and waited for later, False where it is at once."""
    return tensor.device.type == "cuda" and tensor.numel() > 0 and not tensor.is_complex()


def flatten(tensor: torch.Tensor) -> tuple[torch.Tensor, Layout]:
    """A one-dimensional view of the distinct elements of a tensor where that is possible, else a copy.

    Broadcast dims (stride 0) are taken once. Elements stand in the order of memory, which reads it best.
    """
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    shape = tuple(tensor.shape)
    strides = tuple(tensor.stride())
    expected = 1
    for dim in sorted((dim for dim in range(len(shape)) if shape[dim] > 1), key=lambda dim: strides[dim]):
        if strides[dim] != expected:
            # One column of a matrix can be viewed flat, but its elements do not stand next to each other.
            return tensor.reshape(-1).contiguous(), Layout(shape, _contiguous_strides(shape))
        expected *= shape[dim]
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset()), Layout(shape, strides)


def unravel(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of the ``position``-th element in the order of dims.

    >>> unravel(5, (2, 3))
    (1, 2)
    """
    return Layout(shape, _contiguous_strides(shape)).index(position)


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def summarize(tensor: torch.Tensor, *, is_full: bool = True) -> Summary:
    """The summary of one tensor, now: of empty, complex, bool, integer, 8-bit float and 0-d tensors too."""
    numel = tensor.numel()
    if numel == 0:
        return Summary(0, n_nan=0, n_inf=0, n_zero=0, n_subnormal=0, note="empty")
    if tensor.layout != torch.strided:
        return Summary(numel, note=f"a {tensor.layout} tensor: not looked into")
    if tensor.is_complex():
        parts = torch.view_as_real(tensor.resolve_conj())
        return _summarize_floats(tensor.abs(), parts.isnan().any(-1), parts.isinf().any(-1), "of magnitudes")
    if not tensor.is_floating_point():
        return _summarize_integers(tensor)
    flat, layout = flatten(tensor)
    tiny = torch.finfo(tensor.dtype).tiny
    if flat.element_size() == 1:  # 8-bit floats know no arithmetic
        flat = flat.to(torch.float32)
    if flat.device.type == "cpu" and not _is_finite(flat):
        is_nan, is_inf = flat.isnan(), flat.isinf()
        summary = _summarize_floats(flat, is_nan, is_inf, None, tiny)
        positions = torch.nonzero(is_nan | is_inf).reshape(-1)
        places = sorted(layout.index(position) for position in positions[: INDICES_KEPT * 64].tolist())
        return _scaled(Summary(**{**vars(summary), "not_finite": tuple(places[:INDICES_KEPT])}), tensor, flat)
    if not is_full and flat.device.type == "cpu":
        return Summary(numel, n_nan=0, n_inf=0)
    if flat.device.type == "cpu":
        low, high = torch.aminmax(flat)
        wide = flat.to(torch.float64)
        variance, mean = torch.var_mean(wide, correction=0)
        n_zero = flat.numel() - int(torch.count_nonzero(flat))
        summary = Summary(
            flat.numel(), 0, 0, float(low), float(high), float(mean), _finite(math.sqrt(float(variance))), n_zero,
            int((flat.abs() < tiny).sum()) - n_zero,
        )  # fmt: skip
        return _scaled(summary, tensor, flat)
    return _scaled(_summarize_floats(flat, flat.isnan(), flat.isinf(), None, tiny), tensor, flat)


def _is_finite(flat: torch.Tensor) -> bool:
    low, high = torch.aminmax(flat)  # NaN wins in both
    return math.isfinite(float(low)) and math.isfinite(float(high))


def _summarize_floats(
    values: torch.Tensor, is_nan: torch.Tensor, is_inf: torch.Tensor, note: str | None, tiny: float = 0.0
) -> Summary:
    finite = values[~(is_nan | is_inf)].to(torch.float64)
    n_zero = int((finite == 0).sum())
    counts: dict[str, Any] = {
        "numel": values.numel(),
        "n_nan": int(is_nan.sum()),
        "n_inf": int(is_inf.sum()),
        "n_zero": n_zero,
        "n_subnormal": int((finite.abs() < tiny).sum()) - n_zero if tiny else None,
        "note": note,
    }
    if not finite.numel():
        return Summary(**counts)
    low, high = torch.aminmax(finite)
    variance, mean = torch.var_mean(finite, correction=0)
    return Summary(
        minimum=float(low),
        maximum=float(high),
        mean=float(mean),
        std=_finite(math.sqrt(float(variance))),
        **counts,
    )


def _summarize_integers(tensor: torch.Tensor) -> Summary:
    flat, _ = flatten(tensor)
    if flat.dtype == torch.bool:
        flat = flat.to(torch.uint8)
    elif flat.dtype in (torch.uint16, torch.uint32, torch.uint64):  # few operators take these
        flat = flat.to(torch.int64)
    low, high = torch.aminmax(flat)
    variance, mean = torch.var_mean(flat.to(torch.float64), correction=0)
    n_zero = flat.numel() - int(torch.count_nonzero(flat))
    summary = Summary(
        flat.numel(), 0, 0, float(low), float(high), float(mean), _finite(math.sqrt(float(variance))), n_zero, 0
    )
    return _scaled(summary, tensor, flat)


def _scaled(summary: Summary, tensor: torch.Tensor, flat: torch.Tensor) -> Summary:
    """Counts of the whole tensor where broadcast elements were looked at once."""
    factor = tensor.numel() // max(flat.numel(), 1)
    if factor == 1:
        return summary
    counts = {
        name: value * factor
        for name in ("numel", "n_nan", "n_inf", "n_zero", "n_subnormal")
        if (value := getattr(summary, name)) is not None
    }
    return Summary(**{**vars(summary), **counts})


def from_row(row: Sequence[float], shape: tuple[int, ...], layout: Layout) -> Summary:
    """A row of ``device_reductions`` as a summary."""
    n_nan, n_inf, low, high, total, squares, n_zero, n_subnormal, first, last, looked_at = row
    n_finite = looked_at - n_nan - n_inf
    factor = math.prod(shape) // max(int(looked_at), 1)
    mean = total / n_finite if n_finite else None
    std = None
    if mean is not None and math.isfinite(squares):
        std = math.sqrt(max(squares / n_finite - mean * mean, 0.0))
    places: tuple[tuple[int, ...], ...] = ()
    if n_nan or n_inf:
        places = tuple(dict.fromkeys((layout.index(int(first)), layout.index(int(last)))))
    return Summary(
        numel=math.prod(shape),
        n_nan=int(n_nan) * factor,
        n_inf=int(n_inf) * factor,
        minimum=low if n_finite else None,
        maximum=high if n_finite else None,
        mean=_finite(mean),
        std=std,
        n_zero=int(n_zero) * factor,
        n_subnormal=int(n_subnormal) * factor,
        not_finite=places,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
