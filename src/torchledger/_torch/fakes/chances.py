"""How much of a mask is true that nobody computed, where random numbers or a number that marks the rest tell.

Of words that are chosen by chance 15 % are chosen, also once they are joined with what is known or not known of a
sentence, drawn by ``bernoulli``, or told by labels that are -100 elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from torchledger._torch.fakes.shares import value_of

SHARE, CHANCE, MARKED = "_share", "_chance", "_marked"
"""Attributes of a fake tensor: how much of a mask is true; the chance that all of its numbers are (those that are
overwritten by zero aside); a number that marks a part of it, and how much."""


def share_of(mask: Any) -> float | None:
    """How much of a mask is true; ``None`` where nothing tells."""
    if (share := getattr(mask, SHARE, None)) is not None:
        return float(share)
    known = value_of(mask)
    if known is None or known.dtype is not torch.bool or not known.numel():
        return None
    with _disable_current_modes():
        return int(torch.count_nonzero(known)) / int(known.numel())


def note_chances(func: Any, args: Sequence[Any], result: Any) -> bool:
    """Keep with the result of an operator what it is by chance; whether there was something to keep."""
    name = func._schema.name
    target = args[0] if func._schema.is_mutable and args else result
    if func._schema.is_mutable and isinstance(target, FakeTensor):
        name = name.removesuffix("_")
        kept = getattr(target, CHANCE, None) if _is_filled_by_zero(name, args) else None
        for attribute in (CHANCE, MARKED):
            if hasattr(target, attribute):
                delattr(target, attribute)
        if kept is not None:
            setattr(target, CHANCE, kept)
    note = _NOTES.get(name)
    found = note(args) if note is not None and isinstance(target, FakeTensor) else None
    if found is None:
        return False
    setattr(target, *found)
    return True


_Found = tuple[str, Any] | None


def _is_filled_by_zero(name: str, args: Sequence[Any]) -> bool:
    return name == "aten::masked_fill" and _number(args[2]) == 0


def _number(value: Any) -> float | None:
    """A number, or what is known of a tensor of one."""
    if isinstance(value, (bool, int, float)):
        return value
    known = value_of(value) if isinstance(value, torch.Tensor) and value.numel() == 1 else None
    if known is None:
        return None
    with _disable_current_modes():
        return float(known.item())


def _filled(args: Sequence[Any]) -> _Found:
    """A tensor of one number, which may be a chance."""
    value = _number(args[-1])
    return (CHANCE, value) if value is not None and 0 <= value <= 1 and isinstance(args[-1], float) else None


def _drawn(args: Sequence[Any]) -> _Found:
    chance = args[1] if len(args) > 1 and isinstance(args[1], float) else getattr(args[0], CHANCE, None)
    return None if chance is None else (SHARE, min(max(float(chance), 0.0), 1.0))


def _both(args: Sequence[Any]) -> _Found:
    """Of two that have nothing to do with each other, where chance tells of one at least."""
    if not any(hasattr(each, SHARE) for each in args[:2]):
        return None
    first, second = (share_of(each) for each in args[:2])
    return SHARE, (1.0 if first is None else first) * (1.0 if second is None else second)


def _either(args: Sequence[Any]) -> _Found:
    """Of two that do not overlap, where chance tells of both."""
    if not all(hasattr(each, SHARE) for each in args[:2]):
        return None
    return SHARE, min(1.0, getattr(args[0], SHARE) + getattr(args[1], SHARE))


def _none(args: Sequence[Any]) -> _Found:
    share = getattr(args[0], SHARE, None)
    return None if share is None else (SHARE, 1.0 - share)


def _chosen(args: Sequence[Any]) -> _Found:
    """``where``: a number marks what the mask takes, or what it leaves."""
    share = share_of(args[0])
    if share is None or len(args) < 3:
        return None
    for value, marked in ((args[2], 1.0 - share), (args[1], share)):
        if (number := _number(value)) is not None:
            return MARKED, (number, marked)
    return None


def _overwritten(args: Sequence[Any]) -> _Found:
    share, number = share_of(args[1]), _number(args[2])
    return None if share is None or number is None else (MARKED, (number, share))


def _put(args: Sequence[Any]) -> _Found:
    places = args[1]
    is_mask = len(places) == 1 and isinstance(places[0], torch.Tensor) and places[0].dtype is torch.bool
    return _overwritten((args[0], places[0], args[2])) if is_mask else None


def _is(args: Sequence[Any]) -> _Found:
    number, marked = getattr(args[0], MARKED, (None, 0.0))
    return (SHARE, marked) if number is not None and _number(args[1]) == number else None


def _is_not(args: Sequence[Any]) -> _Found:
    found = _is(args)
    return None if found is None else (SHARE, 1.0 - found[1])


_NOTES: Mapping[str, Callable[[Sequence[Any]], _Found]] = {
    **dict.fromkeys(("aten::full", "aten::full_like", "aten::new_full", "aten::fill"), _filled),
    "aten::bernoulli": _drawn,
    **dict.fromkeys(("aten::bitwise_and", "aten::logical_and", "aten::__and__"), _both),
    **dict.fromkeys(("aten::bitwise_or", "aten::logical_or", "aten::__or__"), _either),
    **dict.fromkeys(("aten::bitwise_not", "aten::logical_not"), _none),
    "aten::where": _chosen,
    "aten::masked_fill": _overwritten,
    "aten::index_put": _put,
    "aten::eq": _is,
    "aten::ne": _is_not,
}
