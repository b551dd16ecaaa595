"""Optimizer steps on plain lists of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def fused_adamw_step(tensors: Mapping[str, Any]) -> Any:
    """One fused AdamW update in place; ``tensors`` holds ``parameter_i``, ``gradient_i``, ``mean_i``, ``square_i`` and
    ``step``. The private call is what ``torch.optim.AdamW(fused=True)`` makes for each group, without its increment of
    the step counters."""
    import torch

    roles: dict[str, list[Any]] = {"parameter": [], "gradient": [], "mean": [], "square": []}
    for name, tensor in tensors.items():
        role = name.rpartition("_")[0]
        if role in roles:
            roles[role].append(tensor)
    parameters = roles["parameter"]
    return torch._fused_adamw_(
        parameters,
        roles["gradient"],
        roles["mean"],
        roles["square"],
        [],
        [tensors["step"]] * len(parameters),
        lr=1e-4,
        beta1=0.9,
        beta2=0.95,
        weight_decay=0.1,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
        grad_scale=None,
        found_inf=None,
    )
