"""Layouts of what a few operators make on a device, where torch's rules for tensors without values have another.

Those rules are written as arithmetic, whose results lie as its factors do; the kernels write into a tensor that ATen
allocates for them. Which copies follow depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchledger._torch.tensors import tensors_in

_ATEN = torch.ops.aten


def _contiguous(grad: Any, given: Any, *others: Any, **options: Any) -> Any:
    """``zeros_like(input, LEGACY_CONTIGUOUS_MEMORY_FORMAT)`` in ``aten/src/ATen/native/Loss.cpp``."""
    return torch.empty(given.shape, dtype=given.dtype, device=given.device)


def _scores_gradient(grad: Any, scores: Any, dim: int, input_dtype: torch.dtype) -> Any:
    """A structured kernel's output of no strides (``aten/src/ATen/native/SoftMax.cpp``)."""
    return torch.empty(grad.shape, dtype=input_dtype, device=grad.device)


def _like_input(grad: Any, given: Any, *others: Any, **options: Any) -> Any:
    """``empty_like(input)`` in ``aten/src/ATen/native/cuda/Loss.cu``."""
    return torch.empty_like(given)


def _cross_entropy(given: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    return torch.empty_like(given) if reduction == 0 else given.new_empty(())


def _as_of_two(*args: Any, **options: Any) -> Any:
    """What ``TensorIterator`` makes of two tensors, of which the first decides."""
    first, second = tensors_in((args, options))
    return torch.add(first, second)


def _in_format(func: Any) -> Callable[..., Any]:
    """Images of the format that they are given in (``suggest_memory_format`` of ``native/UpSample*.cpp``); torch's
    arithmetic leaves it on this device where there are few channels, as the kernels choose another way then, but not
    another layout."""

    def made(*args: Any, **options: Any) -> Any:
        with _disable_current_modes():
            laid = func(*(_without_device(each) for each in args), **options)
        return torch.empty_strided(laid.shape, laid.stride(), dtype=laid.dtype, device=args[0].device)

    return made


def _without_device(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


_RESIZED = ("upsample_nearest", "_upsample_nearest_exact")

_LAYOUTS: Mapping[Any, Callable[..., Any]] = {
    **{
        func: _in_format(func)
        for func in (
            *(getattr(_ATEN, f"{name}{dims}d").default for name in _RESIZED for dims in (1, 2, 3)),
            _ATEN.upsample_linear1d.default,
            _ATEN.upsample_bilinear2d.default,
            _ATEN.upsample_bicubic2d.default,
            _ATEN.upsample_trilinear3d.default,
        )
    },
    _ATEN.mse_loss_backward.default: _contiguous,
    _ATEN.smooth_l1_loss_backward.default: _contiguous,
    _ATEN.huber_loss_backward.default: _contiguous,
    _ATEN.glu_backward.default: _contiguous,
    _ATEN._log_softmax_backward_data.default: _scores_gradient,
    _ATEN.binary_cross_entropy.default: _cross_entropy,
    _ATEN.binary_cross_entropy_backward.default: _like_input,
    **dict.fromkeys(
        (
            _ATEN.elu_backward.default,
            _ATEN.hardswish_backward.default,
            _ATEN.hardsigmoid_backward.default,
            _ATEN.hardtanh_backward.default,
            _ATEN.softplus_backward.default,
        ),
        _as_of_two,
    ),
}


def has_layout_of_its_own(func: Any) -> bool:
    """Whether what an eager operator makes lies otherwise than torch's rule for it says."""
    return func in _LAYOUTS


def laid_out(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What such an operator makes on a device."""
    return _LAYOUTS[func](*args, **kwargs)
