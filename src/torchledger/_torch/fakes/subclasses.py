"""Tensors without values that a program takes for tensors of a class of its own: pictures, boxes, volumes."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import WeakIdKeyDictionary

from torchledger._torch.patching import Patches
from torchledger._torch.tensors import tensors_in


class _Own:
    """An attribute that is a tensor's own, whatever a program copies into its ``__dict__`` from another."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, tensor: Any, owner: type) -> Any:
        return self if tensor is None else _OWN[tensor][self._name]

    def __set__(self, tensor: Any, value: Any) -> None:
        _OWN[tensor][self._name] = value


_OWN: Any = WeakIdKeyDictionary()
"""A tensor of a program's class to what it is as a fake one."""


class OfProgram:
    """What stands between a class of a program and fake tensors, which hear of no function before it is called."""

    __torch_function__ = inspect.getattr_static(torch.Tensor, "__torch_function__")


_OWN_NAMES = tuple(
    name
    for name in ("fake_device", "_fake_device", "fake_mode", "constant", "real_tensor")
    if not isinstance(inspect.getattr_static(FakeTensor, name, None), property)  # the first is one since torch 2.12
)
for _name in _OWN_NAMES:
    setattr(OfProgram, _name, _Own(_name))


def take_subclasses(patches: Patches) -> None:
    """Until ``patches`` are undone let ``as_subclass`` and ``_make_subclass`` take fake tensors, and classes be called.

    Each class is given one of its own that is fake, too: C++ lets no tensor be of two Python objects.
    """
    made: dict[type, type] = {}
    as_subclass, make_subclass = torch.Tensor.as_subclass, torch.Tensor._make_subclass
    new: Any = torch.Tensor.__new__

    def fake_of(cls: type) -> type:
        if issubclass(cls, FakeTensor):
            return cls
        if cls not in made:
            attributes = {"__module__": cls.__module__, "__torch_dispatch__": FakeTensor.__torch_dispatch__}
            made[cls] = fake = type(cls)(cls.__name__, (cls, OfProgram, FakeTensor), attributes)
            # Afterwards, as torch takes it from a class that is made with a way to dispatch.
            fake.__torch_function__ = inspect.getattr_static(cls, "__torch_function__")
        return made[cls]

    def taken(tensor: Any, cls: Any) -> Any:
        if not isinstance(tensor, FakeTensor):
            return as_subclass(tensor, cls)
        with torch._C.DisableTorchFunctionSubclass():
            result = torch.ops.aten.alias(tensor)
        if cls is not torch.Tensor:
            _become(result, fake_of(cls))
        return result

    def made_of(cls: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(data, FakeTensor):
            return make_subclass(cls, data, *args, **kwargs)
        needs_gradient = args[0] if args else kwargs.get("require_grad", False)
        with torch._C.DisableTorchFunctionSubclass():
            return taken(data.detach(), cls).requires_grad_(bool(needs_gradient))

    def called(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is torch.Tensor or unpacks_itself(cls):
            return new(cls, *args, **kwargs)
        return taken(new(torch.Tensor, *args, **kwargs), cls)

    patches.hide(torch.Tensor, "__new__", staticmethod(called))
    patches.set(torch.Tensor, "as_subclass", taken)
    patches.set(torch.Tensor, "_make_subclass", staticmethod(made_of))


def are_of_program(types: Sequence[type]) -> bool:
    """Whether an operator is given tensors of a program's own class."""
    return any(issubclass(each, OfProgram) for each in types)


def unpacks_itself(cls: type) -> bool:
    """Whether tensors of a class hear of operators: those that are made of others, and fake ones."""
    if issubclass(cls, OfProgram):
        return False
    return cls is not torch.Tensor and cls.__torch_dispatch__ != torch.Tensor.__torch_dispatch__


@contextlib.contextmanager
def as_plain(*given: Any) -> Iterator[None]:
    """While it is entered those of the tensors given that are of a program's class are tensors and nothing else, as
    they are below C++: what computes a shape calls none of their methods."""
    classes = [(each, type(each)) for each in tensors_in(given) if not unpacks_itself(type(each))]
    for tensor, cls in classes:
        if issubclass(cls, OfProgram):
            vars(tensor).update(_OWN[tensor])
            tensor.__class__ = FakeTensor
        else:
            tensor.__class__ = torch.Tensor
    try:
        yield
    finally:
        for tensor, cls in classes:
            _become(tensor, cls)


def _become(tensor: Any, cls: type) -> None:
    if issubclass(cls, OfProgram):
        attributes = vars(tensor)
        _OWN[tensor] = {name: attributes[name] for name in _OWN_NAMES if name in attributes}
    tensor.__class__ = cls
