"""The second and later calls of a graph: the same launches on the same shapes, watched without finding out again.

The first call with given input shapes finds out which tensors are looked at, and when; that is its ``Plan``. A later
call only queues those reductions, at a few microseconds each, and keeps their results as rows of numbers. Full records
are made of them where somebody asks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from torchledger.nouns.value_stats import VALUE_NUMBERS
from torchledger.watching.device_reductions import COLUMNS, row_kernel, row_ranges
from torchledger.watching.reductions import Queued, Summary, flatten, from_row

_ALIGNED = 15

Place = tuple[Any, ...]
"""Where a call has a tensor: ``("argument", 2)``, ``("keyword", "out")``, ``("result",)``, ``("receiver",)`` ...; one
more item is the place in a list."""


@dataclasses.dataclass(frozen=True)
class Look:
    """One tensor that was looked at: at which site (``None``: the graph's inputs or outputs), when, and where it was.

    ``is_fixed`` is True if its values tell nothing: it is empty, or of integers where only NaN and Inf are looked for.
    """

    site: int | None
    moment: str
    place: Place
    ticket: int
    is_fixed: bool


class _Reduction:
    """The queued reduction of one ticket: its rows in the slab, and a quick launch once one is known."""

    __slots__ = ("get", "launch", "layout", "numel", "place", "programs", "shape", "start_row", "ticket")

    def __init__(self, look: Look, queued: Queued, start_row: int, programs: int) -> None:
        self.ticket, self.place = look.ticket, look.place
        self.get = _getter(look.place)
        self.start_row, self.programs = start_row, programs
        self.layout, self.shape = queued.layout, queued.shape
        self.numel = math.prod(queued.shape)
        self.launch: Any = None


class Plan:
    """What is looked at in every call of a graph with the same input shapes."""

    def __init__(
        self, looks: Sequence[Look], queued: Mapping[int, Queued], done: Mapping[int, Summary], *, kernel: Any
    ) -> None:
        self.done = {ticket: done[ticket] for ticket in done if ticket not in queued}
        self.kernel = kernel
        self.device = next(iter(queued.values())).device
        self.n_rows = 0
        self.reductions: list[_Reduction] = []
        self.before: dict[int, list[_Reduction]] = {}
        self.after: dict[int, list[_Reduction]] = {}
        self.inputs: list[_Reduction] = []
        self.outputs: list[_Reduction] = []
        for look in looks:
            item = queued.get(look.ticket)
            if item is None:
                continue
            programs = kernel.programs(math.prod(item.layout.shape))
            reduction = _Reduction(look, item, self.n_rows, programs)
            self.n_rows += programs
            self.reductions.append(reduction)
            if look.site is None:
                (self.inputs if look.moment == "input" else self.outputs).append(reduction)
            else:
                (self.before if look.moment == "before" else self.after).setdefault(look.site, []).append(reduction)
        self.ranges = row_ranges([(item.start_row, item.programs) for item in self.reductions], self.device)
        self.batches: list[tuple[list[_Reduction], Any]] | None = None
        self.alone: list[_Reduction] = []
        self.numels = np.array([float(item.numel) for item in self.reductions])

    @classmethod
    def make(cls, looks: Sequence[Look], queued: Mapping[int, Queued], done: Mapping[int, Summary]) -> Plan | None:
        """The plan of a call that was watched from start to end, or ``None`` if such calls have to be watched anew:
        where tensors are not on one CUDA device, or there is no kernel for it."""
        devices = {item.device for item in queued.values()}
        if len(devices) != 1 or not all(look.is_fixed or look.ticket in queued for look in looks):
            return None
        kernel = row_kernel(next(iter(devices)))
        return cls(looks, queued, done, kernel=kernel) if kernel is not None else None


class PlannedCall:
    """One call that follows a plan; ``stream`` is the raw stream that its launches go to."""

    def __init__(self, plan: Plan, *, is_full: bool, stream: int) -> None:
        self._plan = plan
        self._is_full = is_full
        self._stream = stream
        self._slab = torch.zeros((plan.n_rows, len(COLUMNS)), dtype=torch.float64, device=plan.device)
        self._address = self._slab.data_ptr()

    def look(self, reduction: _Reduction, tensor: torch.Tensor) -> None:
        """Queue the reduction of a tensor; the device that it is on has to be the current one.

        Raises ``ValueError`` if the tensor is not the one that was planned for.
        """
        launch = reduction.launch
        if launch is not None and tensor.numel() == reduction.numel:
            address = tensor.data_ptr()
            if not address & _ALIGNED:
                launch(address, self._address, reduction.start_row, self._stream)
                return
        self._look_slowly(reduction, tensor)

    def look_at_all(self, values: Sequence[Any]) -> None:
        """Queue the reductions of a graph's inputs, one launch for those of a dtype."""
        plan = self._plan
        if plan.batches is None:
            plan.batches, plan.alone = _batches(plan, values, is_full=self._is_full)
        for reductions, launch in plan.batches:
            addresses = [values[reduction.place[1]].data_ptr() for reduction in reductions]
            if any(address & _ALIGNED for address in addresses):
                for reduction in reductions:
                    self._look_slowly(reduction, values[reduction.place[1]])
            else:
                launch(addresses, self._slab)
        for reduction in plan.alone:
            self.look(reduction, values[reduction.place[1]])

    def _look_slowly(self, reduction: _Reduction, tensor: torch.Tensor) -> None:
        plan = self._plan
        flat, layout = flatten(tensor.detach())
        if tuple(tensor.shape) != reduction.shape or layout != reduction.layout:
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} stands where {reduction.shape} was planned for")
        compiled = plan.kernel.launch(flat, self._slab, reduction.start_row, reduction.programs, is_full=self._is_full)
        if reduction.launch is None and _is_dense(flat, tensor):
            reduction.launch = plan.kernel.quick(
                compiled, flat, reduction.programs, len(COLUMNS), is_full=self._is_full
            )

    def fetch(self) -> np.ndarray[Any, Any]:
        """Wait for the device; a row of ``device_reductions.COLUMNS`` for each of the plan's tickets."""
        plan = self._plan
        with torch.cuda.device(plan.device):
            rows = plan.kernel.fold(self._slab, plan.ranges[0], plan.ranges[1])
        found: np.ndarray[Any, Any] = rows.cpu().numpy()
        return found


def _is_dense(flat: torch.Tensor, tensor: torch.Tensor) -> bool:
    """True if the address of a tensor leads to all that is to be reduced of it."""
    return flat.data_ptr() == tensor.data_ptr() and flat.numel() == tensor.numel() and not tensor.data_ptr() & _ALIGNED


def _batches(
    plan: Plan, values: Sequence[Any], *, is_full: bool
) -> tuple[list[tuple[list[_Reduction], Any]], list[_Reduction]]:
    """The inputs of a plan by dtype, with the launch for each dtype; and those that are launched alone."""
    groups: dict[torch.dtype, list[_Reduction]] = {}
    alone = []
    for reduction in plan.inputs:
        tensor = values[reduction.place[1]]
        if _is_dense(flatten(tensor.detach())[0], tensor):
            groups.setdefault(tensor.dtype, []).append(reduction)
        else:
            alone.append(reduction)
    batches = []
    for dtype, group in groups.items():
        items = [(reduction.numel, reduction.start_row, reduction.programs) for reduction in group]
        launch = plan.kernel.batch(dtype, items, len(COLUMNS), is_full=is_full)
        if launch is None:
            alone += group
        else:
            batches.append((group, launch))
    return batches, alone


def _getter(place: Place) -> Callable[[Any, Sequence[Any], Mapping[str, Any], Any], Any]:
    """From a call (its function, arguments, keywords, result) to the tensor at a place of it."""
    kind, *path = place
    if kind == "receiver":
        return lambda function, arguments, keywords, result: function.__self__
    if kind == "result" and not path:
        return lambda function, arguments, keywords, result: result
    first, *rest = path
    if rest:
        outer, (last,) = _getter((kind, first)), rest
        return lambda function, arguments, keywords, result: outer(function, arguments, keywords, result)[last]
    if kind == "argument":
        return lambda function, arguments, keywords, result: arguments[first]
    if kind == "keyword":
        return lambda function, arguments, keywords, result: keywords[first]
    return lambda function, arguments, keywords, result: result[first]


def summaries_of(plan: Plan, rows: np.ndarray[Any, Any]) -> dict[int, Summary]:
    """The rows of a call as summaries, by ticket; a tensor that the call did not reach has none."""
    found = dict(plan.done)
    for reduction, row in zip(plan.reductions, rows.tolist(), strict=True):
        if row[-1]:
            found[reduction.ticket] = from_row(row, reduction.shape, reduction.layout)
    return found


def has_bad(rows: np.ndarray[Any, Any]) -> bool:
    """True if any tensor of a call holds NaN or Inf."""
    return bool(rows[:, :2].any())


def numbers_of(plan: Plan, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The statistics of a call, a row of ``VALUE_NUMBERS`` for each of the plan's tickets; NaN where there is none."""
    n_nan, n_inf, low, high, total, squares, n_zero, n_subnormal, _, _, looked_at = rows.T
    factor = plan.numels // np.maximum(looked_at, 1)
    n_finite = looked_at - n_nan - n_inf
    with np.errstate(all="ignore"):
        mean = total / n_finite
        std = np.sqrt(np.maximum(squares / n_finite - mean * mean, 0.0))
    found = np.stack([n_nan * factor, n_inf * factor, low, high, mean, std, n_zero * factor, n_subnormal * factor], 1)
    found[n_finite == 0, 2:6] = np.nan
    found[looked_at == 0] = np.nan
    found[~np.isfinite(found)] = np.nan
    assert found.shape[1] == len(VALUE_NUMBERS)
    return found
