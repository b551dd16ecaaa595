"""Tensors of the host among what an operator of the device is given.

Most operators refuse them, or read one number. A few move them to the device themselves, each by a copy for which the
host waits; torch's rules for tensors without values say nothing of these copies, and some refuse what the device takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_ATEN = torch.ops.aten

MASKS = (torch.bool, torch.uint8)


def moves_itself(func: Any) -> bool:
    """Whether an operator moves tensors of the host to the device where it is given both."""
    return func in _MOVES


def with_operands_moved(func: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments of an operator for which ``moves_itself`` holds, those of the host as it moves them."""
    return tuple(_MOVES[func](*args))


def goes_one_by_one(func: Any, args: Sequence[Any]) -> bool:
    """Whether an operator copies tensors of a list one by one, as some of them go from one place to another
    (``ForeachBinaryOpList.cu``)."""
    return func is _ATEN._foreach_copy_.default and len({each.device for given in args[:2] for each in given}) > 1


def one_by_one(into: Sequence[Any], given: Sequence[Any], non_blocking: bool = False) -> None:
    """The copies of such an operator."""
    for each, other in zip(into, given, strict=True):
        each.copy_(other, non_blocking)


def _indexed(rows: Any, indices: Sequence[Any], *others: Any) -> tuple[Any, ...]:
    return rows, _places(rows, indices), *others


def _put(rows: Any, indices: Sequence[Any], values: Any, *others: Any) -> tuple[Any, ...]:
    """One number of the host is moved, too, unless it is filled in where one mask of the device says
    (``canDispatchToMaskedFill`` in ``TensorAdvancedIndexing.cpp``)."""
    if not values.dim() and not (not any(others[:1]) and _is_one_mask(rows, indices)):
        values = _moved(values, rows.device)
    return rows, _places(rows, indices), values, *others


def _is_one_mask(rows: Any, indices: Sequence[Any]) -> bool:
    given = [each for each in indices if each is not None]
    return len(given) == 1 and given[0].dtype in MASKS and given[0].device == rows.device


def _places(rows: Any, indices: Sequence[Any]) -> Sequence[Any]:
    """Indices as ``make_info`` in ``TensorAdvancedIndexing.cpp`` makes them: masks become places where they lie, all
    are spread to one shape, and each that lies elsewhere is copied to the device. Masks of bytes are read as truths,
    which alone torch's rule knows (``meta_index_Tensor``)."""
    if any(each is not None and each.dtype is torch.uint8 for each in indices):
        indices = [
            each.view(torch.bool) if each is not None and each.dtype is torch.uint8 else each for each in indices
        ]
    if not _is_there(rows) or not any(each is not None and not _is_there(each) for each in indices):
        return indices
    places: list[Any] = []
    for each in indices:
        if each is None or each.dtype not in MASKS:
            places.append(each)
        else:
            places.extend(each.nonzero().unbind(1))
    shape = torch.broadcast_shapes(*(each.shape for each in places if each is not None))
    spread = [each if each is None or each.shape == shape else each.expand(shape) for each in places]
    return [None if each is None else _moved(each, rows.device) for each in spread]


def _chosen(mask: Any, rows: Any, others: Any) -> tuple[Any, ...]:
    """Single numbers of the host are moved, where other operators on elements read them."""
    device = next((each.device for each in (mask, rows, others) if _is_there(each)), None)
    if device is None:
        return mask, rows, others
    return tuple(each if each.dim() else _moved(each, device) for each in (mask, rows, others))


def _drawn(rows: Any, chances: Any, *others: Any) -> tuple[Any, ...]:
    return rows, _moved(chances, rows.device), *others


def _moved(tensor: Any, device: torch.device) -> Any:
    return tensor if _is_there(tensor) or device.type != "cuda" else tensor.to(device)


def _is_there(tensor: Any) -> bool:
    return bool(tensor.device.type == "cuda")


_MOVES: Mapping[Any, Callable[..., tuple[Any, ...]]] = {
    **dict.fromkeys((_ATEN.index.Tensor, _ATEN._unsafe_index.Tensor), _indexed),
    **dict.fromkeys(
        (
            *(_ATEN.index_put.default, _ATEN.index_put_.default, _ATEN._index_put_impl_.default),
            _ATEN._unsafe_index_put.default,
        ),
        _put,
    ),
    _ATEN.where.self: _chosen,
    _ATEN.bernoulli_.Tensor: _drawn,
}
