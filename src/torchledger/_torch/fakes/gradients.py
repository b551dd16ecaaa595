"""Gradients of tensors without values, as autograd computes those of plain tensors.

Autograd and its formulas write to a new tensor, or go a longer way, where they see a subclass or a mode. A plan is made
of both, and of a program that has neither.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from torchledger._torch.tensors import tensors_in

_ATEN = torch.ops.aten

_ACCUMULATES = "torch::autograd::AccumulateGrad"
_OF_PRODUCTS = frozenset({"CumprodBackward0", "ProdBackward0", "ProdBackward1"})

_SELECTS = {_ATEN.scatter.src: _ATEN.scatter_.src}
_ADDS = {_ATEN.scatter_add.default: _ATEN.scatter_add_.default}
_SCORES = {_ATEN.sub.Tensor: _ATEN.sub_.Tensor, _ATEN.mul.Tensor: _ATEN.mul_.Tensor}
_MASKS = {
    _ATEN.logical_and.default: _ATEN.logical_and_.default,
    _ATEN.logical_or.default: _ATEN.logical_or_.default,
}
_FORMULAS: Mapping[str, Mapping[Any, Any]] = {
    "GatherBackward0": _ADDS,
    "CummaxBackward0": _ADDS,
    "CumminBackward0": _ADDS,
    **dict.fromkeys(
        (
            *("MaxBackward0", "MinBackward0", "MedianBackward1", "NanmedianBackward1", "ModeBackward0"),
            *("KthvalueBackward0", "SortBackward0", "SortBackward1", "TopkBackward0"),
        ),
        _SELECTS,
    ),
    "IndexSelectBackward0": {_ATEN.index_add.default: _ATEN.index_add_.default},
    "IndexBackward0": {_ATEN.index_put.default: _ATEN._index_put_impl_.default},
    "MaskedSelectBackward0": {_ATEN.masked_scatter.default: _ATEN.masked_scatter_.default},
    "TakeBackward0": {_ATEN.put.default: _ATEN.put_.default},
    "TraceBackward0": {_ATEN.index_fill.int_Tensor: _ATEN.index_fill_.int_Tensor},
    "BinaryCrossEntropyBackward0": _SCORES,
    "BinaryCrossEntropyWithLogitsBackward0": _SCORES,
    **dict.fromkeys(
        (
            *("ClampBackward0", "ClampBackward1"),
            *("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"),
        ),
        _MASKS,
    ),
}
"""Formulas by their nodes, and what they write in place: each to a tensor that it has made itself."""

_HOLDERS, _STORAGE_HOLDERS, _REFERENCES = 4, 2, 3
"""How often a gradient that the engine alone holds is held while an operator is dispatched to a mode (torch 2.11 and
2.13): by the engine, arguments in C++ and in Python and its Python object; the storage by it and a Python object."""


def asks_for_zeros() -> bool:
    """Whether the gradient of a product asks which factors are zero: a plan's products have none."""
    node = torch._C._current_autograd_node()
    return node is not None and node.name() in _OF_PRODUCTS


def as_written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """The operator, with its arguments, that autograd runs of plain tensors where it runs ``func`` of these.

    That is one in place for what a formula of its own has made itself, and for a sum of gradients that is nobody
    else's (``torch/csrc/autograd/input_buffer.cpp``); and a sparse gradient that is nobody else's is taken as it is
    (``accumulate_grad.h``). What is to be differentiated again is left as it is.
    """
    node = torch._C._current_autograd_node()
    if node is None or kwargs or torch.is_grad_enabled() or not args or type(args[0]) is not FakeTensor:
        return func, args
    is_made_here = getattr(args[0], "_made_in", None) == _number(node)
    if func is _ATEN.add.Tensor and (_gives_twice(node) or not is_made_here) and _is_owned_sum(args):
        return _ATEN.add_.Tensor, args
    if func is _ATEN.clone.default and node.name() == _ACCUMULATES and _is_taken_whole(args):
        return _ATEN.detach.default, args
    written = _FORMULAS.get(node.name(), {}).get(func, func) if is_made_here else func
    return written, (*args, True) if written is _ATEN._index_put_impl_.default else args


def note_made(result: Any, node: Any) -> None:
    """Keep with what an operator has made that a node of autograd's asked for it."""
    for tensor in tensors_in(result):
        if type(tensor) is FakeTensor:
            tensor._made_in = _number(node)


def _number(node: Any) -> int:
    return int(node._sequence_nr())


def _gives_twice(node: Any) -> bool:
    """Whether a node has two gradients for one value, as that of ``x * x``: else a sum of what it makes is its own."""
    return len(set(node.next_functions)) < len(node.next_functions)


def _is_owned_sum(args: tuple[Any, ...]) -> bool:
    """Whether the engine alone holds the first of two like tensors: no name of Python's is among its references."""
    return (
        sys.getrefcount(args[0]) == _REFERENCES
        and args[0]._use_count() == _HOLDERS
        and isinstance(args[1], FakeTensor)
        and (args[0].shape, args[0].dtype) == (args[1].shape, args[1].dtype)
        and torch._C._storage_Use_Count(args[0].untyped_storage()._cdata) == _STORAGE_HOLDERS
        and _is_dense(args[0])
    )


def _is_taken_whole(args: tuple[Any, ...]) -> bool:
    """Whether a parameter's first gradient is sparse, its parts lie in order, and the engine alone holds it: C++ sees
    names of Python's among the references of these parts, and would copy them."""
    if args[0].layout is not torch.sparse_coo or not args[0]._values().is_contiguous():
        return False
    # Not by a name here: a call of a Python function may hold what it is given once more, or not.
    return sys.getrefcount(args[0]) == _REFERENCES and args[0]._use_count() == _HOLDERS


def _is_dense(tensor: Any) -> bool:
    """Whether a tensor's elements lie beside each other, in any order of its dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
