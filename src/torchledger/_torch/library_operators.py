"""Operators of a program's own (``torch.library``, or a C++ library) under a mode that wants to see inside.

A mode is off while it answers for an operator, and what that is made of runs below it, unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._library.custom_ops import _maybe_get_opdef
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from torchledger._torch.tensors import is_nested, tensors_in

_TORCHS_OWN = frozenset(
    (
        *("aten", "prim", "prims", "prims_ref", "profiler", "inductor", "rngprims", "streams", "debugprims"),
        *("mkldnn", "mkl", "quantized", "sparse", "c10d", "c10d_functional", "_c10d_functional", "symm_mem"),
        *("fsdp", "_dtensor"),
    )
)
"""Namespaces whose operators do their work themselves, or are no tensor FLOPs."""

_ANY_BACKEND = "CompositeExplicitAutograd"
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key


def is_own_operator(func: Any) -> bool:
    """True for an operator that torch does not bring."""
    return isinstance(func, OpOverload) and func.namespace not in _TORCHS_OWN


def body_without_rule(func: Any) -> Callable[..., Any] | None:
    """What a ``torch.library.custom_op`` runs on a GPU, where the program has said nothing of what it makes
    (``register_fake``), which a compiler alone needs; ``None`` for all other operators."""
    defined = _maybe_get_opdef(func) if is_own_operator(func) else None
    if defined is None or defined._abstract_fn is not None:
        return None
    bodies = defined._backend_fns
    return bodies.get("cuda") or bodies.get(None)


def seen_inside(func: Any, mode: TorchDispatchMode, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of an operator of the program's own, of which those inside come to ``mode``, which is off meanwhile.

    ``NotImplemented`` for one that has no kernel for plain tensors of one device: it is to be called as it is.
    """
    devices = set()
    for tensor in tensors_in((args, kwargs)):
        if tensor.layout != torch.strided or is_nested(tensor):
            return NotImplemented
        devices.add(tensor.device.type)
    if not devices or len(devices - {"cpu"}) > 1:
        return NotImplemented
    backend = torch._C._dispatch_key_for_device((devices - {"cpu"} or devices).pop())
    if not _has_kernel(func.name(), backend) and not _has_kernel(func.name(), _ANY_BACKEND):
        return NotImplemented
    keys = torch._C.DispatchKeySet(torch._C._dispatch_key_parse(backend))  # which lie right below a mode's
    with mode:
        return func.redispatch(keys, *args, **kwargs)
