"""Optimizers: when they step, what they update, and a step on plain lists of tensors."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torchledger._torch.fused_updates import around_updates
from torchledger._torch.living import living
from torchledger._torch.patching import Patches
from torchledger._torch.tensors import memory_key
from torchledger.claims import claim
from torchledger.frame_variables import local_of
from torchledger.nouns import OptimizerFacts
from torchledger.signals import let_through

_UPDATED_ON: dict[int, tuple[weakref.ref[Any], int]] = {}
"""Of each optimizer that was heard, the thread of its last step."""


class OptimizerWatch:
    """Hears each step of every optimizer, after it was made, until ``undo``.

    What ``stepped`` raises goes to ``on_fault``, and not to the program. Once ``only_count`` was called, ``counted``
    has the steps of each thread since; a class whose step calls that of its base counts twice there. While it
    ``is_muted`` nobody hears a step and none is counted.

    A step that is compiled is a call of a graph, and no signal of its own: Dynamo traces this hook with it, as nothing.
    Of a fused optimizer's it compiles no graph and calls the update as it is: ``hear_fused`` hears those as well.
    """

    def __init__(self, stepped: Callable[[Any], None], on_fault: Callable[[Exception], None]) -> None:
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.counted: defaultdict[Hashable, int] = defaultdict(int)
        self._only_counts = self.is_muted = False
        self._stepped, self._on_fault = stepped, on_fault
        self._fused: Patches | None = None

        def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
            if torch.compiler.is_compiling() or self.is_muted:
                return
            if self._only_counts:  # and calls nothing else: a plain step costs what it costs without us
                self.counted[threading.get_ident()] += 1
                return
            try:
                _UPDATED_ON[id(optimizer)] = weakref.ref(optimizer), threading.get_ident()
                if not _is_inside_own_step(optimizer, sys._getframe(1)):
                    stepped(optimizer)
            except Exception as error:  # the user's program must go on
                let_through(error)
                on_fault(error)

        self._handle = register_optimizer_step_post_hook(hook)

    def hear_fused(self) -> None:
        """Hear the fused updates that compiled steps make, once Dynamo has made them functions that it does not look
        into, as which they stay; before that it does nothing."""
        if self._fused is None:
            patches = Patches(lambda _, error: self._on_fault(error))
            if around_updates(patches, self._updated):
                self._fused = patches

    def _updated(self, optimizer: Any) -> None:
        if self.is_muted:
            return
        if self._only_counts:
            self.counted[threading.get_ident()] += 1
            return
        _UPDATED_ON[id(optimizer)] = weakref.ref(optimizer), threading.get_ident()
        self._stepped(optimizer)

    def only_count(self) -> None:
        """From here on steps are ``counted``, by thread, and nobody hears them. The hook stays in its place, so that no
        compiled step is compiled anew without it."""
        self._only_counts = True

    def undo(self) -> None:
        """Take the hooks out."""
        self._handle.remove()
        if self._fused is not None:
            self._fused.undo()


@dataclass(frozen=True)
class _Hook:
    """What takes a hook out again."""

    undo: Callable[[], None]


def hear_begins(begins: Callable[[], None]) -> _Hook:
    """Has ``begins`` called before each step of every optimizer that is not compiled, until ``undo``."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            begins()

    return _Hook(register_optimizer_step_pre_hook(hook).remove)


@claim
def _is_inside_own_step(optimizer: Any, hooked: FrameType) -> bool:
    """True where the step of a class calls that of its base, which has hooks of its own: the outer one is the step."""
    code, frame = hooked.f_code, hooked.f_back
    while frame is not None:
        if frame.f_code is code and local_of(frame, "self") is optimizer:
            return True
        frame = frame.f_back
    return False


def parameters_of_other_threads() -> frozenset[int]:
    """By ``id``, the parameters that were last updated on another thread, which may be in a backward now.

    Gradients are put in their place by autograd, without Python's lock: a thread that reads one then reads what is
    being written.
    """
    here = threading.get_ident()
    others = [reference() for reference, thread in tuple(_UPDATED_ON.values()) if thread != here]
    groups = (group for optimizer in others if optimizer is not None for group in optimizer.param_groups)
    return frozenset(id(parameter) for group in groups for parameter in group["params"])


def facts_of_optimizer(optimizer: Any) -> OptimizerFacts:
    """What an optimizer updates: the parameters that have gradients now, counted."""
    updated = [
        parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.grad is not None
    ]
    dtypes = dict.fromkeys(str(parameter.dtype).removeprefix("torch.") for parameter in updated)
    elements = sum(parameter.numel() for parameter in updated)
    return OptimizerFacts(type(optimizer).__name__, len(updated), elements, tuple(dtypes))


def holds_optimizer(parameters: Collection[int] | None) -> bool:
    """True if an optimizer lives that updates one of these parameters, given by ``id``; ``None``: any parameters.

    Looks through all objects of the program (tens of milliseconds for a million): ask rarely.
    """
    from torch.optim.optimizer import Optimizer

    for each in living(Optimizer):
        if parameters is None:
            return True
        groups = getattr(each, "param_groups", ())
        if any(id(parameter) in parameters for group in groups for parameter in group["params"]):
            return True
    return False


def holds_shards(tensors: Collection[Any]) -> bool:
    """True if one of these tensors is the local part of a sharded parameter that an optimizer which lives updates.

    Looks through all objects of the program, as ``holds_optimizer`` does.
    """
    from torch.optim.optimizer import Optimizer

    asked = {key for each in tensors if (key := _memory_of(each)) is not None}
    groups = (group for each in (living(Optimizer) if asked else ()) for group in getattr(each, "param_groups", ()))
    locals_ = (getattr(one, "_local_tensor", None) for group in groups for one in group["params"])
    return any(each is not None and _memory_of(each) in asked for each in locals_)


def _memory_of(tensor: Any) -> int | None:
    """What tells the memory of a tensor from others; ``None`` where it has none of its own."""
    try:
        return memory_key(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):
        return None


def has_other_optimizer(known: Collection[int], mode: Any) -> bool:
    """True if an optimizer lives that updates something without values of this mode of fake tensors and is none of
    these, given by ``id``: others are not of the program that runs without its device now."""
    from torch.optim.optimizer import Optimizer

    return any(id(each) not in known and _updates_fakes(each, mode) for each in living(Optimizer))


def _updates_fakes(optimizer: Any, mode: Any) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    first = (group["params"][0] for group in getattr(optimizer, "param_groups", ()) if group["params"])
    parts = (getattr(each, "_local_tensor", each) for each in first)
    return any(isinstance(each, FakeTensor) and each.fake_mode is mode for each in parts)


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
