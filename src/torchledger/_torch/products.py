"""Matrix products that torch offers under a private or moving name."""

from __future__ import annotations

from typing import Any


def scaled_product(x: Any, weight: Any) -> Any:
    """x W^T of float8 tensors, [m, k] and [n, k], with one unit scale each; bfloat16 out. Needs compute capability
    8.9."""
    import torch

    one = _unit_scale(x.device)
    return torch._scaled_mm(x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


_SCALES: dict[Any, Any] = {}


def _unit_scale(device: Any) -> Any:
    import torch

    if device not in _SCALES:
        _SCALES[device] = torch.ones((), dtype=torch.float32, device=device)
    return _SCALES[device]
