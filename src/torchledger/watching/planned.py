"""The second and later calls of a graph: the same launches on the same shapes, watched without finding out again.

The first call with given input shapes finds out which tensors are looked at, and when; that is its ``Plan``. A later
call only queues those reductions and keeps their results as rows of numbers. Full records are made of them where
somebody asks.

A launch of a reduction costs the host more than many a launch that is watched. So tensors wait, held in memory, and are
reduced together in one launch: at the latest before a launch that writes to one of them, and before more than
``HELD_BYTES`` are kept from being freed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from torchledger.nouns.value_stats import VALUE_NUMBERS
from torchledger.watching.device_reductions import COLUMNS, row_kernel, row_ranges
from torchledger.watching.reductions import Queued, Summary, flatten, from_row

_ALIGNED = 15

HELD_BYTES = 256 * 1024 * 1024
_MOST_HELD = 256

Place = tuple[Any, ...]
"""Where a call has a tensor: ``("argument", 2)``, ``("keyword", "out")``, ``("result",)``, ``("receiver",)`` ...; one
more item is the place in a list."""


@dataclasses.dataclass(frozen=True)
class Look:
    """One tensor that was looked at: at which site (``None``: the graph's inputs or outputs), when, and where it was.

    ``storage`` tells its memory apart from that of the call's other tensors (``Plan.make``'s ``written``), and
    ``n_bytes`` is the size of that memory. ``is_fixed`` is True if its values tell nothing: it is empty, or of integers
    where only NaN and Inf are looked for.
    """

    site: int | None
    moment: str
    place: Place
    ticket: int
    storage: int
    n_bytes: int
    is_fixed: bool


class _Reduction:
    """The queued reduction of one ticket: its rows in the slab, and a quick launch once one is known.

    ``is_held`` is True if its tensor waits for others, ``is_last`` if they are then reduced.
    """

    __slots__ = (
        "get", "is_held", "is_last", "launch", "layout", "n_bytes", "numel", "place", "programs", "shape", "start_row",
        "storage", "ticket",
    )  # fmt: skip

    def __init__(self, look: Look, queued: Queued, start_row: int, programs: int) -> None:
        self.ticket, self.place, self.storage, self.n_bytes = look.ticket, look.place, look.storage, look.n_bytes
        self.is_held = self.is_last = False
        self.get = _getter(look.place)
        self.start_row, self.programs = start_row, programs
        self.layout, self.shape = queued.layout, queued.shape
        self.numel = math.prod(queued.shape)
        self.launch: Any = None


class _Group:
    """Reductions that are launched together, and how, once their tensors have been seen."""

    __slots__ = ("alone", "batches", "reductions")

    def __init__(self, reductions: list[_Reduction]) -> None:
        self.reductions = reductions
        self.batches: list[tuple[list[int], Any]] | None = None
        self.alone: list[int] = []


class Plan:
    """What is looked at in every call of a graph with the same input shapes.

    ``before`` and ``after`` are the reductions at each site; before the launch of a site in ``flushes``, what is held
    is reduced. The k-th time that happens, it is ``groups[k]``.
    """

    def __init__(
        self,
        looks: Sequence[Look],
        queued: Mapping[int, Queued],
        done: Mapping[int, Summary],
        written: Mapping[int, Collection[int]],
        *,
        kernel: Any,
    ) -> None:
        self.done = {ticket: done[ticket] for ticket in done if ticket not in queued}
        self.kernel = kernel
        self.device = next(iter(queued.values())).device
        self.n_rows = 0
        self.reductions: list[_Reduction] = []
        self.before: dict[int, list[_Reduction]] = {}
        self.after: dict[int, list[_Reduction]] = {}
        inputs: list[_Reduction] = []
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
                (inputs if look.moment == "input" else self.outputs).append(reduction)
            else:
                (self.before if look.moment == "before" else self.after).setdefault(look.site, []).append(reduction)
        self.inputs = _Group(inputs)
        self.groups: list[_Group] = []
        self.flushes: set[int] = set()
        self._hold(written)
        self.ranges = row_ranges([(item.start_row, item.programs) for item in self.reductions], self.device)
        self.numels = np.array([float(item.numel) for item in self.reductions])

    def _hold(self, written: Mapping[int, Collection[int]]) -> None:
        """Decide which tensors wait for others, and until when."""
        held: list[_Reduction] = []

        def close(site: int | None) -> None:
            nonlocal held
            if len(held) > 1:
                self.groups.append(_Group(held))
                for reduction in held:
                    reduction.is_held = True
                if site is not None:
                    self.flushes.add(site)
                else:
                    held[-1].is_last = True
            held = []

        def add(reductions: Sequence[_Reduction]) -> None:
            for reduction in reductions:
                if sum(item.n_bytes for item in held) + reduction.n_bytes > HELD_BYTES or len(held) == _MOST_HELD:
                    close(None)
                if reduction.n_bytes <= HELD_BYTES:
                    held.append(reduction)

        for site, storages in written.items():
            add(self.before.get(site, ()))
            if any(reduction.storage in storages for reduction in held):
                close(site)
            add(self.after.get(site, ()))
        close(None)

    @classmethod
    def make(
        cls,
        looks: Sequence[Look],
        queued: Mapping[int, Queued],
        done: Mapping[int, Summary],
        written: Mapping[int, Collection[int]],
    ) -> Plan | None:
        """The plan of a call that was watched from start to end, or ``None`` if such calls have to be watched anew:
        where tensors are not on one CUDA device, or there is no kernel for it.

        ``written`` says which storages each site writes to, sites in the order in which they ran; nothing is held at
        sites that are not in it.
        """
        devices = {item.device for item in queued.values()}
        if len(devices) != 1 or not all(look.is_fixed or look.ticket in queued for look in looks):
            return None
        kernel = row_kernel(next(iter(devices)))
        return cls(looks, queued, done, written, kernel=kernel) if kernel is not None else None


class PlannedCall:
    """One call that follows a plan; ``stream`` is the raw stream that its launches go to."""

    def __init__(self, plan: Plan, *, is_full: bool, stream: int) -> None:
        self._plan = plan
        self._is_full = is_full
        self._stream = stream
        self._slab = torch.zeros((plan.n_rows, len(COLUMNS)), dtype=torch.float64, device=plan.device)
        self._address = self._slab.data_ptr()
        self._held: list[torch.Tensor] = []
        self._n_flushed = 0

    def look(self, reduction: _Reduction, tensor: torch.Tensor) -> None:
        """Queue the reduction of a tensor, now or with others; the device that it is on has to be the current one.

        Raises ``ValueError`` if the tensor is not the one that was planned for.
        """
        if reduction.is_held:
            self._held.append(tensor)
            if reduction.is_last:
                self.flush()
        else:
            self._look_now(reduction, tensor)

    def _look_now(self, reduction: _Reduction, tensor: torch.Tensor) -> None:
        launch = reduction.launch
        if launch is not None and tensor.numel() == reduction.numel:
            address = tensor.data_ptr()
            if not address & _ALIGNED:
                launch(address, self._address, reduction.start_row, self._stream)
                return
        self._look_slowly(reduction, tensor)

    def flush(self) -> None:
        """Queue the reductions of the tensors that are held."""
        held, self._held = self._held, []
        group = self._plan.groups[self._n_flushed]
        self._n_flushed += 1
        self._look_at_group(group, held)

    def look_at_inputs(self, values: Sequence[Any]) -> None:
        """Queue the reductions of a graph's inputs, one launch for those of a dtype."""
        group = self._plan.inputs
        self._look_at_group(group, [values[reduction.place[1]] for reduction in group.reductions])

    def _look_at_group(self, group: _Group, tensors: Sequence[torch.Tensor]) -> None:
        if len(tensors) < len(group.reductions):  # the call ends early
            for reduction, tensor in zip(group.reductions, tensors, strict=False):
                self._look_now(reduction, tensor)
            return
        if group.batches is None:
            self._prepare(group, tensors)
        for places, launch in group.batches or ():
            addresses = [tensors[place].data_ptr() for place in places]
            if any(address & _ALIGNED for address in addresses) or any(
                tensors[place].numel() != group.reductions[place].numel for place in places
            ):
                for place in places:
                    self._look_slowly(group.reductions[place], tensors[place])
            else:
                launch(addresses, self._slab, self._stream)
        for place in group.alone:
            self._look_now(group.reductions[place], tensors[place])

    def _prepare(self, group: _Group, tensors: Sequence[torch.Tensor]) -> None:
        """Find the launches for a group, one a dtype; what none can be found for is launched alone."""
        plan = self._plan
        by_dtype: dict[torch.dtype, list[int]] = {}
        for place, (reduction, tensor) in enumerate(zip(group.reductions, tensors, strict=True)):
            if _is_dense(_checked(reduction, tensor), tensor):
                by_dtype.setdefault(tensor.dtype, []).append(place)
            else:
                group.alone.append(place)
        group.batches = []
        for dtype, places in by_dtype.items():
            items = [(r.numel, r.start_row, r.programs) for r in (group.reductions[place] for place in places)]
            launch = plan.kernel.batch(dtype, items, len(COLUMNS), is_full=self._is_full)
            if launch is None:
                group.alone += places
            else:
                group.batches.append((places, launch))

    def _look_slowly(self, reduction: _Reduction, tensor: torch.Tensor) -> None:
        plan = self._plan
        flat = _checked(reduction, tensor)
        compiled = plan.kernel.launch(flat, self._slab, reduction.start_row, reduction.programs, is_full=self._is_full)
        if reduction.launch is None and _is_dense(flat, tensor):
            reduction.launch = plan.kernel.quick(
                compiled, flat, reduction.programs, len(COLUMNS), is_full=self._is_full
            )

    def fetch(self) -> np.ndarray[Any, Any]:
        """Reduce what is still held and wait for the device; a row of ``device_reductions.COLUMNS`` for each of the
        plan's tickets."""
        plan = self._plan
        with torch.cuda.device(plan.device):
            if self._held:
                self.flush()
            rows = plan.kernel.fold(self._slab, plan.ranges[0], plan.ranges[1])
        found: np.ndarray[Any, Any] = rows.cpu().numpy()
        return found


def _checked(reduction: _Reduction, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor flattened; raises ``ValueError`` if it is not the one that was planned for."""
    flat, layout = flatten(tensor.detach())
    is_same = tuple(tensor.shape) == reduction.shape and layout == reduction.layout
    # A launch may take an input as a view of another shape: one reduction tells about both.
    planned = reduction.layout
    is_same_memory = (
        tensor.is_contiguous()
        and planned.is_contiguous
        and tensor.numel() == math.prod(planned.shape) == reduction.numel
    )
    if not is_same and not is_same_memory:
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} stands where {reduction.shape} was planned for")
    return flat


def _is_dense(flat: torch.Tensor, tensor: torch.Tensor) -> bool:
    """True if the address of a tensor leads to all that is to be reduced of it."""
    return flat.data_ptr() == tensor.data_ptr() and flat.numel() == tensor.numel() and not tensor.data_ptr() & _ALIGNED


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
