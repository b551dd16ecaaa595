"""How many of numbers that nobody computed lie in a range, such as the words of each cluster of an adaptive softmax.

Whole numbers that a program draws between bounds are taken for spread evenly over them, those that it moves from the
host for spread as they are there. Of others the first range with two bounds that is asked takes all, and one beside it
none: ranges that follow one another never take more together than there are, nor less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

_SPREAD, _RANGE = KEPT_OF_RANGES = "_spread", "_range"
"""The attributes of a fake tensor that ``note_ranges`` keeps with it."""

_SAMPLE, _SCATTER = 4096, 2_654_435_761
"""So many numbers of the host are looked at, so far from one another."""

_MOST_COPIED = 1 << 20
"""Of numbers that do not lie one behind the other so many are looked at at most: they are copied for it."""


class _Spread(Protocol):
    """How whole numbers are spread."""

    @property
    def said(self) -> str:
        """The same in words, behind a count."""
        ...

    def count(self, total: int, low: float, high: float) -> int:
        """How many of ``total`` are at least ``low`` and less than ``high``."""
        ...


@dataclass(frozen=True)
class _Even:
    """Each of the numbers from ``low`` to below ``high`` as often."""

    low: int
    high: int

    @property
    def said(self) -> str:
        return f"of numbers spread evenly from {self.low:,} to {self.high - 1:,}"

    def count(self, total: int, low: float, high: float) -> int:
        return self._below(total, high) - self._below(total, low)

    def _below(self, total: int, bound: float) -> int:
        if bound >= self.high:
            return total
        return total * max(0, math.ceil(bound) - self.low) // (self.high - self.low) if bound > self.low else 0


@dataclass(frozen=True)
class _AsThere:
    """As a sample of them is on the host, in order."""

    sample: torch.Tensor
    said: str = "as its numbers are spread on the host"

    def count(self, total: int, low: float, high: float) -> int:
        return self._below(total, high) - self._below(total, low)

    def _below(self, total: int, bound: float) -> int:
        if math.isinf(bound):
            return total if bound > 0 else 0
        with _disable_current_modes():
            before = int(torch.searchsorted(self.sample, math.ceil(bound)))
        return total * before // self.sample.numel()


class _Unknown:
    """All in the first range that is asked."""

    said = "all in the first of its ranges"

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def count(self, total: int, low: float, high: float) -> int:
        if math.isinf(low) or math.isinf(high):
            return total
        first = self._first = self._first or (low, high)
        return total if low < first[1] and first[0] < high else 0


@dataclass(frozen=True)
class _Range:
    """Where a mask is true: ``low`` and up, below ``high``."""

    spread: _Spread
    low: float = -math.inf
    high: float = math.inf

    def within(self, other: _Range) -> _Range:
        """What is in both."""
        return replace(self, low=max(self.low, other.low), high=min(self.high, other.high))


def taken_by(mask: Any) -> tuple[int, str] | None:
    """How many elements a mask over whole numbers takes, and what that is taken from; ``None`` of any other mask."""
    held = getattr(mask, _RANGE, None)
    if held is None or type(total := mask.numel()) is not int:
        return None
    return held.spread.count(total, held.low, max(held.low, held.high)), held.spread.said


def note_ranges(func: Any, args: Sequence[Any], result: Any) -> None:
    """Keep with a fake tensor how its whole numbers are spread, and with a mask of them which range it takes."""
    name = func._schema.name
    source = args[0]
    if func._schema.is_mutable and isinstance(source, FakeTensor):
        _forget(source)
    if not isinstance(result, torch.Tensor):
        return
    if (drawn := _drawn(func, name, args)) is not None:
        setattr(result, _SPREAD, drawn)
    elif name in _COPIES and (there := _spread_there(args[_COPIES[name]])) is not None:
        setattr(result, _SPREAD, there)
    elif name in _BOUNDS and _is_whole(source) and type(args[1]) in (int, float) and isinstance(source, FakeTensor):
        low, high = _BOUNDS[name](args[1])
        setattr(result, _RANGE, _Range(_spread_of(source), low, high))
    elif name in _BOTH and len(args) > 1:
        first, second = (getattr(each, _RANGE, None) for each in args[:2])
        if first is not None and second is not None and first.spread is second.spread:
            setattr(result, _RANGE, first.within(second))
    elif name in _KEEPS:
        for attribute in KEPT_OF_RANGES:
            if hasattr(source, attribute):
                setattr(result, attribute, getattr(source, attribute))


def _forget(tensor: FakeTensor) -> None:
    for attribute in KEPT_OF_RANGES:
        if hasattr(tensor, attribute):
            delattr(tensor, attribute)


def _drawn(func: Any, name: str, args: Sequence[Any]) -> _Spread | None:
    """How numbers are spread that an operator draws."""
    if name not in _DRAWS:
        return None
    given = dict(zip((each.name for each in func._schema.arguments), args, strict=False))
    low, high = (given.get(each, 0) for each in _DRAWS[name])
    return _Even(low, high) if type(low) is type(high) is int and low < high else None


def _spread_there(source: Any) -> _Spread | None:
    """How numbers of the host are spread, or those of the device that are copied."""
    if isinstance(source, FakeTensor):
        return getattr(source, _SPREAD, None)
    if type(source) is not torch.Tensor or not _is_whole(source) or source.device.type != "cpu" or not source.numel():
        return None
    if not source.is_contiguous() and source.numel() > _MOST_COPIED:
        return None
    with _disable_current_modes():
        flat = source.detach().reshape(-1)
        if flat.numel() > _SAMPLE:
            # Not evenly apart, which may be one column, nor at random, whose state is the program's.
            flat = flat[torch.arange(_SAMPLE) * _SCATTER % flat.numel()]
        return _AsThere(flat.to(torch.int64).sort().values)


def _spread_of(tensor: Any) -> _Spread:
    held: _Spread | None = getattr(tensor, _SPREAD, None)
    if held is None:
        held = _Unknown()
        setattr(tensor, _SPREAD, held)
    return held


def _is_whole(tensor: Any) -> bool:
    is_strided = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
    return is_strided and not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)


_DRAWS = {
    "aten::randint": ("low", "high"),
    "aten::randint_like": ("low", "high"),
    "aten::random_": ("from", "to"),
    "aten::randperm": ("low", "n"),
}
"""Operators that draw whole numbers, and the names of their bounds; the first one is 0 where there is none."""

_COPIES = {"aten::_to_copy": 0, "aten::copy_": 1}
"""Operators that copy, and which of their arguments."""

_BOUNDS = {
    "aten::ge": lambda bound: (bound, math.inf),
    "aten::gt": lambda bound: (math.floor(bound) + 1, math.inf),
    "aten::lt": lambda bound: (-math.inf, bound),
    "aten::le": lambda bound: (-math.inf, math.floor(bound) + 1),
}
_BOTH = ("aten::bitwise_and", "aten::logical_and", "aten::mul")
_KEEPS = frozenset(
    f"aten::{name}"
    for name in (
        "view", "_unsafe_view", "reshape", "transpose", "permute", "t", "unsqueeze", "squeeze", "select", "slice",
        "clone", "detach", "alias", "expand", "contiguous", "lift_fresh",
    )
)  # fmt: skip
