"""Parameters of lazy modules (``nn.LazyLinear``) on a device that is not there: until they are given a shape they stay
on the host, where they have no elements, and know where they will lie.

A fake tensor in place of one would be of another class, by which the module knows what it has yet to make.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, UninitializedTensorMixin

from torchledger._torch.patching import Patches

_DTYPES = {
    getattr(torch.Tensor, name): dtype
    for name, dtype in (
        ("half", torch.float16),
        ("bfloat16", torch.bfloat16),
        ("float", torch.float32),
        ("double", torch.float64),
    )
}
_DEVICES = {torch.Tensor.cuda: "cuda", torch.Tensor.cpu: "cpu"}


def keep_lazy(patches: Patches) -> None:
    """Until ``patches`` are undone lazy parameters and buffers of a device become fake when they get their shape."""
    heard = UninitializedTensorMixin.__torch_function__.__func__
    materialize = UninitializedTensorMixin.materialize

    def hear(cls: Any, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if args and isinstance(args[0], UninitializedTensorMixin):
            if func == torch.Tensor.device.__get__ and (place := _place_of(args[0])) is not None:
                return place
            device, dtype = _asked(func, args, kwargs or {})
            if (device or _place_of(args[0]) or _HOST).type == "cuda":
                vars(args[0]).update(_will_lie=device or _place_of(args[0]), _will_be=dtype or _dtype_of(args[0]))
                if device is not None or dtype is not None:
                    return args[0]
            elif device is not None:
                vars(args[0]).pop("_will_lie", None)
        return heard(cls, func, types, args, kwargs)

    def make(lazy: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        place = _place_of(lazy) if device is None else torch.device(device)
        if place is None or place.type != "cuda":
            materialize(lazy, shape, device, dtype or _dtype_of(lazy))
            return
        made = torch.empty(shape, device=place, dtype=dtype or _dtype_of(lazy) or lazy.data.dtype)
        is_parameter = isinstance(lazy, UninitializedParameter)
        torch.utils.swap_tensors(
            lazy, torch.nn.Parameter(made, requires_grad=lazy.requires_grad) if is_parameter else made
        )

    for kind in (UninitializedParameter, UninitializedBuffer):

        def new(cls: Any, *args: Any, original: Any = kind.__new__, **kwargs: Any) -> Any:
            given = dict(zip(("requires_grad", "device", "dtype", "persistent"), args, strict=False)) | kwargs
            place = torch.get_default_device() if given.get("device") is None else torch.device(given["device"])
            if place.type != "cuda":
                return original(cls, **given)
            lazy = original(cls, **given | {"device": "cpu"})
            vars(lazy)["_will_lie"] = place
            return lazy

        patches.set(kind, "__new__", staticmethod(new))
    patches.set(UninitializedTensorMixin, "__torch_function__", classmethod(hear))
    patches.set(UninitializedTensorMixin, "materialize", make)


_HOST = torch.device("cpu")


def _place_of(lazy: Any) -> Any:
    """The device that a lazy tensor will lie on; ``None`` where that is the host."""
    return vars(lazy).get("_will_lie")


def _dtype_of(lazy: Any) -> Any:
    return vars(lazy).get("_will_be")


def _asked(func: Any, args: Sequence[Any], kwargs: Any) -> tuple[Any, Any]:
    """The device and the dtype that a lazy tensor is moved and cast to, ``None`` for what is left as it is."""
    if func == torch.Tensor.to:
        device, dtype, *_ = torch._C._nn._parse_to(*args[1:], **kwargs)
        return device, dtype
    if func in _DEVICES:
        asked = kwargs.get("device", args[1] if len(args) > 1 else None)
        if asked is None:
            return torch.device(_DEVICES[func]), None
        return torch.device("cuda", asked) if isinstance(asked, int) else torch.device(asked), None
    return None, _DTYPES.get(func)
