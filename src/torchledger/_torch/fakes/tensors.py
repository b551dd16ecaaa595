"""Tensors without values: what a program computes on a device that is not there.

Tensors on the device have shapes, strides and dtypes, and no memory. Small tensors of the host stay real, so that
loaders, masks and counters of a program work as ever; large ones (a model that is built on the host) are fake too. A
value that the program asks of a fake tensor is given a stand-in, which is noted with the line that asked.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import types
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
import torch.utils._foreach_utils
from torch._guards import TracingContext
from torch._higher_order_ops.utils import registered_hop_fake_fns
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    disable_fake_tensor_cache,
)
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode
from torch.utils._pytree import tree_map_only

from torchledger._torch.alignments import read_lengths_first
from torchledger._torch.composites import (
    go_as_with_values,
    is_composite,
    is_fused_with_collective,
    taken_apart,
    unfused,
)
from torchledger._torch.errors import wants_device
from torchledger._torch.fakes.flow import Flow
from torchledger._torch.fakes.gradients import asks_for_zeros
from torchledger._torch.fakes.groups import by_groups, goes_by_groups
from torchledger._torch.fakes.host_operands import moves_itself, with_operands_moved
from torchledger._torch.fakes.layouts import has_layout_of_its_own, laid_out
from torchledger._torch.fakes.lazy import keep_lazy
from torchledger._torch.fakes.limits import at_limit, follow_limits
from torchledger._torch.fakes.loops import FakeLoops
from torchledger._torch.fakes.operators import (
    COALESCED,
    KEPT_OF_CHOICES,
    ONLY_THERE,
    SIZED,
    NoShapeError,
    note_choices,
    real_layouts,
    shapes_by_example,
    spread_over_choices,
    work_of_coalesced,
)
from torchledger._torch.fakes.places import follow_places
from torchledger._torch.fakes.ranges import KEPT_OF_RANGES, note_ranges, taken_by
from torchledger._torch.fakes.scalars import let_sequences_be_read
from torchledger._torch.fakes.shares import (
    ARE_SHARES,
    KEPT_OF_SHARES,
    count_shares,
    forget_floats,
    origin_of,
    shares_of,
)
from torchledger._torch.fakes.sparse import MASKED, MERGES, SPARSE, is_sparse, leaves_out_padding, with_padding
from torchledger._torch.fakes.subclasses import are_of_program, as_plain, take_subclasses, unpacks_itself
from torchledger._torch.fakes.triton import NAMESPACE as TRITON_KERNELS
from torchledger._torch.fakes.zeros import see_views_of_zeros
from torchledger._torch.handling import Handling
from torchledger._torch.library_operators import body_without_rule
from torchledger._torch.patching import Patches
from torchledger._torch.tensors import is_higher_order, tensors_in
from torchledger._torch.user_lines import (
    asking_frame,
    generated_line,
    is_called_from,
    is_checked,
    is_data_of_program,
    user_line,
)
from torchledger.errors import PlanError
from torchledger.followers import Follower
from torchledger.nouns import StandIn
from torchledger.printable import ended
from torchledger.program_checks import truth_that_passes

REAL_BYTES = 1 << 20
"""Tensors that are made on the host stay real up to this size."""

DATA_BYTES = 1 << 28
"""The same of data that the program makes itself, which it may read number by number: some hundred times as quickly."""

_ALL_DATA_BYTES = 1 << 30
"""Of all such data together; what comes then is without values."""

READ_BYTES = 1 << 28
"""What an operator on real tensors may read in all: a batch is put together, a model's weights are not computed."""

KEPT = (*KEPT_OF_SHARES, *KEPT_OF_CHOICES, *KEPT_OF_RANGES)
"""The attributes of a tensor without values that hold what is known of these."""

_OF_GROUPS = frozenset({"c10d", "_c10d_functional", "symm_mem", "_dtensor"})

_DEVICE = torch.ops.prim.device.default

_OF_STORAGES = frozenset({torch.ops.aten._new_zeros_with_same_feature_meta.default})
"""Operators whose results have larger storages than their sizes ask for, which torch's cache of results forgets:
forward derivatives of a view are as large as what it is a view of."""

_SKIPPED_STEP = "torch/amp/grad_scaler.py"
"""A gradient scaler asks whether gradients were infinite, and skips the step if they were."""


_CHANGES = 1e-3
"""By how much numbers that a line reads differ from 1.0 at most: a thousand in a row differ by more than 1e-9, at which
``torch.optim.LBFGS`` ends."""

_NUMBERS = "1.0 and a little more, less each time"


@dataclass(frozen=True)
class Asked:
    """What an operator of a compiled graph is given that decides how large its result is, or what number it reads;
    ``number`` is what the graph calls that number. Nothing is known of what has no ``tensors``."""

    operator: str
    tensors: tuple[Any, ...]
    number: str | None = None


@contextmanager
def _lent(tensors: Sequence[Any], to: Sequence[Any]) -> Iterator[None]:
    """Let tensors without values hold meanwhile what is known of others."""
    lent = [
        (each, name, value)
        for known, each in zip(tensors, to, strict=True)
        if isinstance(each, FakeTensor) and each is not known
        for name in KEPT
        if not hasattr(each, name) and (value := getattr(known, name, None)) is not None
    ]
    for each, name, value in lent:
        setattr(each, name, value)
    try:
        yield
    finally:
        for each, name, _ in lent:
            delattr(each, name)


class _OfThread(threading.local):
    """What a mode is about on one thread."""

    def __init__(self) -> None:
        self.enter_stack: list[Any] = []
        self.in_kernel_invocation = False
        self.n_operators = 0
        self.is_inside = False
        self.is_followed = False
        self.is_unheard = False
        self.asked: deque[Asked] = deque()
        self.sizes: dict[str, int] = {}


class _OnThreads(TorchDispatchMode):
    """A mode that several threads enter and leave in any order, in which torch keeps flags of the whole process.

    The flags are of modes that are none of the infrastructure's, and this is one of those.
    """

    def __enter__(self) -> Any:
        _push_mode(self)
        return self

    def __exit__(self, *error: Any) -> None:
        _pop_mode(self._mode_key)


class FakeTensors(FakeTensorMode, _OnThreads):
    """Has tensors made without values on each thread that enters it; ``stand_ins`` tells what was made up.

    ``devices`` is how many of a node there are, on which tensors may be put.
    After ``end`` threads other than the first one to enter it go no further than their next operator; the first calls
    ``on_over`` before each.
    Each of ``on_collective`` is given each operator on process groups, with its arguments, before it is called, and
    ``n_operators`` counts those that the calling thread has called, without what is traced while something compiles;
    each of ``flows`` is told of these, with what they make, and ``handling`` of what the plan takes for them.
    """

    supports_higher_order_operators = True

    def __init__(self, devices: int = 1) -> None:
        self._of_thread = _OfThread()
        self._devices = devices
        super().__init__(allow_non_fake_inputs=True)
        self._stand_ins: Counter[tuple[str, str, str]] = Counter()
        self._asked: dict[tuple[str, str, str], None] = {}
        self._numbers: Counter[str] = Counter()
        self._decisions: dict[str, dict[int, tuple[str | None, Iterator[bool]]]] = {}
        self._loops = FakeLoops(self._decisions)
        self._owner = os.getpid()
        self._thread: int | None = None
        self._lock = threading.RLock()
        self._patches = Patches()
        self.is_over = False
        self.handling = Handling()
        self.flows: list[Follower] = []
        self._data_bytes = 0
        self.on_over: Callable[[], None] | None = None
        self.on_collective: tuple[Callable[[Any, Sequence[Any], Mapping[str, Any]], None], ...] = ()

    @property
    def enter_stack(self) -> list[Any]:
        """How the calling thread entered it."""
        return self._of_thread.enter_stack

    @enter_stack.setter
    def enter_stack(self, stack: list[Any]) -> None:
        self._of_thread.enter_stack = stack

    @property
    def in_kernel_invocation(self) -> bool:
        """True while the calling thread is in an operator, where a tensor's device is ``meta``."""
        return self._of_thread.in_kernel_invocation

    @in_kernel_invocation.setter
    def in_kernel_invocation(self, is_in: bool) -> None:
        self._of_thread.in_kernel_invocation = is_in

    @property
    def stand_ins(self) -> tuple[StandIn, ...]:
        """What was asked of fake tensors, by line, the most frequent first."""
        counted = Counter(self._stand_ins)
        for line, asked, value in self._stand_ins:
            if value == _NUMBERS:
                counted[line, asked, value] += counted.pop((line, asked, "1.0"), 0)
        return tuple(StandIn(*asked, count) for asked, count in counted.most_common())

    @property
    def last_asked(self) -> tuple[StandIn, ...]:
        """What was asked of fake tensors, what was asked last before all others."""
        return tuple(StandIn(*asked, self._stand_ins[asked]) for asked in reversed(self._asked))

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeTensors:
        """Itself: a copy of a fake tensor is of the same mode."""
        return self

    def end(self) -> None:
        """The program is over."""
        with self._lock:
            self.is_over = True

    @property
    def n_operators(self) -> int:
        """How many operators the calling thread has called."""
        return self._of_thread.n_operators

    def count_operators(self, number: int) -> None:
        """The calling thread is taken to have called so many: those of a graph, say, are its launches."""
        self._of_thread.n_operators = number

    def note(self, asked: str, value: bool | int | float | str, source: str | None = None) -> None:
        """Note that the program asked for something, at the line ``source`` if it is known, and was given ``value``."""
        if self._of_thread.is_unheard:
            return
        with self._lock:
            key = source or self.line(), asked, str(value)
            self._stand_ins[key] += 1
            self._asked.pop(key, None)
            self._asked[key] = None

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """What the calling thread computes meanwhile is none of the program's."""
        here, before = self._of_thread, self._of_thread.n_operators
        was = here.is_unheard, here.is_followed
        here.is_unheard = here.is_followed = True
        try:
            yield
        finally:
            here.is_unheard, here.is_followed = was
            here.n_operators = before

    @contextmanager
    def asked_by_graph(self, asked: deque[Asked]) -> Iterator[None]:
        """A compiled graph is called on the calling thread, whose operators are ``asked`` for values in turn."""
        here = self._of_thread
        before, here.asked = here.asked, asked
        try:
            yield
        finally:
            here.asked = before

    @contextmanager
    def sizes_in_graph(self) -> Iterator[Mapping[str, int]]:
        """What ``tell_sizes`` is told on the calling thread, of the compiled graph that is called meanwhile."""
        here = self._of_thread
        before, here.sizes = here.sizes, {}
        try:
            yield here.sizes
        finally:
            here.sizes = before

    def tell_sizes(self, sizes: Mapping[str, int]) -> None:
        """Sizes that the graph at hand makes become these, by their symbols."""
        self._of_thread.sizes.update(sizes)

    def _answered_in_graph(self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Compute what a graph asks of tensors that its kernels filled, by what is known of them; ``NotImplemented``
        where it is none of what it asks."""
        given = list(tensors_in((args, kwargs)))
        for place, each in enumerate(self._of_thread.asked):
            is_it = not each.tensors or [one.shape for one in given] == [one.shape for one in each.tensors]
            if each.operator == str(func) and is_it:
                del self._of_thread.asked[place]
                with _lent(each.tensors, given if each.tensors else ()), self.asked_by_graph(deque()):
                    result = self.__torch_dispatch__(func, types, args, kwargs)
                if each.number is not None and isinstance(result, int):
                    self.tell_sizes({each.number: int(result)})
                return result
        return NotImplemented

    def decide(self, file: str, lines: Mapping[int, tuple[str | None, Sequence[bool]]]) -> None:
        """A file is a generated wrapper: ``lines`` of it that ask for a truth value are told these in turn, over and
        over, and are named by the user's line."""
        self._decisions[file] = {line: (source, cycle(told)) for line, (source, told) in lines.items()}

    def is_generated(self, file: str) -> bool:
        """Whether a file is a generated wrapper, of which ``decide`` told."""
        return file in self._decisions

    def line(self) -> str:
        """The program's line that asks."""
        return user_line(self._decisions)

    def made(self, tensor: FakeTensor) -> bool:
        """Whether a tensor is one of its own, and has no value that it knows."""
        return tensor.fake_mode is self and tensor.constant is None

    # --- operators ----------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute what lies on the host and is small, and make up the rest."""
        if func is _DEVICE and type(args[0]) is FakeTensor and not self.is_over:
            return self._device_of(args[0])
        kwargs = dict(kwargs or {})
        if os.getpid() != self._owner:  # a loader's process, which has only the host
            return self._on_loader(func, types, args, kwargs)
        if self.flows and not self._of_thread.is_followed and TracingContext.try_get() is None:
            return self._followed(func, types, args, kwargs)
        if are_of_program(types):
            with as_plain(args, kwargs):
                return self.__torch_dispatch__(func, (FakeTensor,), args, kwargs)
        # A profiler of the program's that is cut off between its marks ends the process at its exit.
        if self._of_thread.asked and not self._of_thread.is_inside:
            result = self._answered_in_graph(func, types, args, kwargs)
            if result is not NotImplemented:
                return result
        if self.is_over and getattr(func, "namespace", None) != "profiler":
            if threading.get_ident() != self._thread:
                threading.Event().wait()  # for ever: C++ that must not throw may have asked
            if self.on_over is not None:
                self.on_over()
        # Some rules are kept by the exact type of a mode, others are looked up by the mode itself.
        if is_higher_order(func) and func not in registered_hop_fake_fns:
            return func.python_key_table[FakeTensorMode](self, *args, **kwargs)
        if kwargs.get("pin_memory"):
            return pinned(self.__torch_dispatch__(func, types, args, kwargs | {"pin_memory": False}))
        if func is torch.ops.aten.is_pinned.default:
            return True  # only C++ asks here, and insists
        self._check_device(kwargs.get("device"))
        here = self._of_thread
        if not here.is_inside and TracingContext.try_get() is None:
            here.n_operators += 1
        if self.on_collective and getattr(func, "namespace", None) in _OF_GROUPS and not here.is_inside:
            for asked in self.on_collective:
                asked(func, args, kwargs)
        if not here.is_inside and self._stays_real(func, args, kwargs):
            return self.handling.computed(func, args, kwargs)
        # What is made of other tensors (distributed ones) is asked of these, by rules of its class.
        is_made_of_others = any(cls is not FakeTensor and unpacks_itself(cls) for cls in types)
        if func in _VALUES and not is_made_of_others:
            return self._stand_in(args[0])
        if func in _COMPARES_VALUES:
            return self._equal()
        if getattr(func, "namespace", None) == TRITON_KERNELS:
            forget_floats((args, kwargs))
            return None
        if isinstance(func, torch._ops.OpOverload) and func.name() in SIZED:
            return self._sized(func, args, kwargs)
        if leaves_out_padding(func, args):
            self.note(f"how many elements {func._schema.name} leaves", f"{args[1].numel():,}, all of them")
            args = with_padding(args)
        if func in MASKED or (func in SPARSE and is_sparse(args)):
            with self:
                result = (MASKED.get(func) or SPARSE[func])(*args, **kwargs)
            if func in MERGES:
                left, given = result._nnz(), args[0]._nnz()
                said = "all of them" if left == given else f"of {given:,}: others are copies of the same numbers"
                self.note(f"how many elements {func._schema.name} leaves", f"{left:,}, {said}")
            if result is not NotImplemented:
                follow_places(func, args, result)
                return result
        if func in ONLY_THERE and not is_made_of_others:
            with self:
                result = ONLY_THERE[func](*args, **kwargs)
            count_shares(func, args, kwargs, result)
            return result
        has_layout = has_layout_of_its_own(func) and not is_made_of_others
        if has_layout and not here.is_inside and TracingContext.try_get() is None:
            with self:
                return laid_out(func, args, kwargs)
        if not here.is_inside and isinstance(func, torch._ops.OpOverload) and is_fused_with_collective(func.name()):
            self.note(f"products and a collective that would overlap ({func._opname})", "one after the other")
            with self:
                return unfused(func, args, kwargs)
        if not here.is_inside and goes_by_groups(func, args):
            with self:
                return by_groups(*args, **kwargs)
        if not here.is_inside and isinstance(func, torch._ops.OpOverload) and is_composite(func.name()):
            with self:  # arrives whole in inference mode and from distributed tensors, also a copy to the device
                result = taken_apart(func, args, kwargs)
            if result is not NotImplemented:
                return result
        if TracingContext.try_get() is None and (body := body_without_rule(func)) is not None:
            with self:
                return body(*args, **kwargs)
        if moves_itself(func) and not kwargs and not here.is_inside and TracingContext.try_get() is None:
            with self:
                args = with_operands_moved(func, args)
        # What an operator is made of comes here again, and belongs to a fake one.
        was_inside, here.is_inside = here.is_inside, True
        try:
            with self._lock, disable_fake_tensor_cache(self) if func in _OF_STORAGES else nullcontext():
                result = super().__torch_dispatch__(func, types, args, kwargs)
                if result is NotImplemented:
                    with as_plain(args, kwargs):
                        result = super().__torch_dispatch__(func, types, args, kwargs)
        except UnsupportedOperatorException:
            if func.name() in COALESCED:
                return work_of_coalesced(func, args, kwargs)
            return self._by_example(func, args, kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException) as error:
            raise NoShapeError(
                f"{func.name()} at {self.line()} depends on values, and there are none without the device. Plan the "
                "script without it, or with a fixed size in its place."
            ) from error
        except (AssertionError, RuntimeError) as error:
            if not _is_said_anew(error):
                raise
            if real_layouts(args, kwargs):
                return self._by_example(func, args, kwargs)
            raise NoShapeError(
                f"{func.name()} at {self.line()} cannot be run without its device: torch's own rule for what it makes "
                f"fails ({type(error).__name__}: {str(error).partition(chr(10))[0]}). Plan the script without it."
            ) from error
        finally:
            here.is_inside = was_inside
        if isinstance(result, FakeTensor) and result.dtype is torch.bool and _is_true(func, args):
            result._stand_in = True
        if args and isinstance(result, (FakeTensor, tuple, list)) and isinstance(func, torch._ops.OpOverload):
            note_choices(func, args, result)
            note_ranges(func, args, result)
            count_shares(func, args, kwargs, result)
            follow_limits(func, args, result)
            follow_places(func, args, result)
        elif result is None and args and isinstance(func, torch._ops.OpOverload):
            count_shares(func, args, kwargs, result)
        return result

    def follow(self, known: Iterable[Any] = ()) -> Flow:
        """Follow what the program computes from now on, by ``known`` parameters and those that it reads as such."""
        flow = Flow(known, self.flows.remove)
        self.flows.append(flow)
        return flow

    def _followed(self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Compute, and tell of it those that follow what is computed."""
        here = self._of_thread
        here.is_followed = True
        try:
            result = self.__torch_dispatch__(func, types, args, kwargs)
            for flow in self.flows:
                flow.called(func, args, kwargs, result)
        finally:
            here.is_followed = False
        return result

    def _device_of(self, tensor: FakeTensor) -> torch.device:
        """Where a fake tensor is: torch's C++ asks this more often than it calls operators."""
        if not self._of_thread.is_inside and TracingContext.try_get() is None:
            self._of_thread.n_operators += 1
        return torch.device("meta") if tensor.fake_mode.in_kernel_invocation else tensor.fake_device

    def _on_loader(self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What a loader's process computes of a data set without values: real ones, which it can send to its parent."""
        if not any(isinstance(each, FakeTensor) for each in tensors_in((args, kwargs))):
            return func(*args, **kwargs)
        if func in _VALUES:
            return _value_of(args[0].dtype)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        return tree_map_only(FakeTensor, _real_ones, result)

    def _check_device(self, device: torch.device | str | int | None) -> None:
        """Raises ``PlanError`` for a device that is not there, where CUDA would call its ordinal invalid."""
        index = device.index if isinstance(device, torch.device) else None
        if index is not None and index >= self._devices:
            known = "1 device" if self._devices == 1 else f"{self._devices} devices"
            raise PlanError(
                f"the program puts a tensor on {device} at {self.line()}, and the plan has {known} on a node, of "
                "which each process is given one. Put all of a process on one device; ranks are planned with "
                f"--world {index + 1}."
            )

    def _stays_real(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type != "cpu":
            return False
        if not isinstance(func, torch._ops.OpOverload):
            return False
        read = 0
        n_tensors = 0
        for tensor in tensors_in((args, kwargs)):
            if isinstance(tensor, FakeTensor) or unpacks_itself(type(tensor)) or tensor.device.type != "cpu":
                return False
            if tensor.layout is torch.strided:
                read += tensor.numel() * tensor.element_size()
            n_tensors += 1
        if n_tensors:
            return read <= READ_BYTES and not (device is None and _goes_to_device(args))
        if device is None and _default_device() != "cpu":
            return False
        made = _made_bytes(func, args, kwargs)
        return made <= REAL_BYTES or (made <= DATA_BYTES and self._stays_as_data(made))

    def _stays_as_data(self, nbytes: int) -> bool:
        if self._data_bytes + nbytes > _ALL_DATA_BYTES or not is_data_of_program():
            return False
        with self._lock:
            self._data_bytes += nbytes
        return True

    def _stand_in(self, tensor: Any) -> bool | int | float:
        value: bool | int | float
        if isinstance(tensor, FakeTensor) and tensor.constant is not None:
            with torch.utils._python_dispatch._disable_current_modes():
                value = tensor.constant.item()
            return value
        if asks_for_zeros():
            self.note("whether a product has a factor of zero", False)
            return False if tensor.dtype is torch.bool else 0
        if (known := shares_of(tensor)) is not None:
            with torch.utils._python_dispatch._disable_current_modes():
                value = known.item()
            if (origin := origin_of(known)) is not None:
                self.note("the value of a tensor that counts", f"{value}, {origin}")
            return value
        if tensor.dtype is torch.bool:
            if (asked := generated_line(self._decisions)) is not None and asked[1] in self._decisions[asked[0]]:
                source, told = self._decisions[asked[0]][asked[1]]
                value = next(told)
                self.note("which way a compiled graph goes", value, source)
                return value
            if is_checked():
                return True
            if (passes := self._passing()) is not None:
                self.note("whether a check of the program's holds", "as it passes")
                return passes
            value = getattr(tensor, "_stand_in", False)
            if (ends := at_limit(tensor)) is not None and self._loops.may_end():
                value = not ends
            elif not value and (truth := self._loops.truth()) is not None:
                value = truth
        elif tensor.dtype.is_floating_point:
            value = 0.0 if is_called_from(_SKIPPED_STEP) else self._number_of(tensor)
        elif tensor.dtype.is_complex:
            return complex(1.0)  # type: ignore[return-value]
        else:
            number = self._loops.number()
            value = 1 if number is None else round(number)
        if not is_called_from(_SKIPPED_STEP):
            said = _NUMBERS if isinstance(value, float) and 1.0 < value < 1.0 + _CHANGES else value
            self.note(f"the value of a tensor of {str(tensor.dtype).removeprefix('torch.')}", said)
        return value

    def _number_of(self, tensor: Any) -> float:
        """What a tensor was said to be before, if nothing was written to it since: a program that compares a loss with
        itself looks for NaN."""
        if tensor.is_inference():  # counts no writes
            return self._next_number()
        told = getattr(tensor, "_told", None)
        if told is None or told[0] != tensor._version:
            told = tensor._told = tensor._version, self._next_number()
        return float(told[1])

    def _next_number(self) -> float:
        """1.0 for the first number that a line reads, and from then on a little more, less and less so.

        A solver that ends when its loss does not change any more would end at once if all were the same. None is below
        1.0, which as a whole number would be none, and each tolerance is met at some time. A loop that ends by what is
        read is ended.
        """
        if (number := self._loops.number()) is not None:
            return number
        line = self.line()
        with self._lock:
            self._numbers[line] += 1
            n_read = self._numbers[line]
        return 1.0 if n_read == 1 else 1.0 + _CHANGES / n_read

    def _sized(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Operators whose result's size depends on values."""
        name = func.name()
        with self:
            result = SIZED[name](*args, **kwargs)
        count_shares(func, args, kwargs, result)
        decides = args[1 if name == "aten::masked_select" else 0]
        if name in _SIZED_BY_VALUES and (known := shares_of(decides)) is not None and origin_of(known) is None:
            return result  # as the program's own values say
        if name == "aten::bincount" and kwargs.get("minlength", args[2] if len(args) > 2 else 0):
            return result  # as many as the program said
        if name == "aten::repeat_interleave.Tensor" and kwargs.get("output_size") is not None:
            return result  # likewise
        first = next(tensors_in(result))
        size = first.shape[0] if first.dim() else 1
        taken = next((found for each in tensors_in(args) if (found := taken_by(each)) is not None), None)
        said = size if taken is None else f"{size:,}, {taken[1]}"
        self.note(f"the size of the result of {name.partition('.')[0]}", said)
        return result

    def _equal(self) -> bool:
        if torch._C._current_graph_task_id() != -1:
            return True  # a formula of autograd checks what it was given, such as that of complex singular vectors
        are_equal = bool(self._passing())
        self.note("whether two tensors are equal", are_equal)
        return are_equal

    def _passing(self) -> bool | None:
        """The truth with which a check of the program's passes; ``None`` where none asks."""
        frame = asking_frame(self._decisions)
        return None if frame is None else truth_that_passes(frame)

    def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> Any:
        """Raises ``NoShapeError``: a jagged tensor is asked for the size that its rows do not share."""
        raise NoShapeError(
            f"the program makes a nested tensor of jagged layout at {self.line()}, and a plan does not follow sizes "
            "that are in values. Plan the script with all rows in one plain tensor (what values() gives), or with "
            "padded ones and a mask; what torch.compile makes of them inside one graph is planned."
        )

    def can_run_unsafe_fallback(self, func: Any) -> bool:
        """Kernels of the device are not there to be asked."""
        return False

    def _by_example(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What an operator without a meta function makes. Raises ``NoShapeError`` where that cannot be known."""
        name = func.name()
        try:
            with self:
                result = shapes_by_example(func, args, kwargs)
        except NoShapeError as error:
            raise NoShapeError(
                f"{name} at {self.line()} cannot be run without its device: torch has no meta function that says what "
                f"it makes, and {ended(str(error))} Give it one (torch.library.register_fake), or plan the script "
                "without it."
            ) from error
        if result is not None and result is not (args or (None,))[0] and kwargs.get("out") is None:
            self.note(f"what {name} makes", "of the sizes that it has for zeros on the CPU")
        return result

    # --- what a program does with tensors -----------------------------------------------------------------------

    def __enter__(self) -> Any:
        result = super().__enter__()
        if self._thread is None:
            self._thread = threading.get_ident()
            self._patch()
        return result

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if not self.enter_stack and threading.get_ident() == self._thread:
            self._thread = None
            self._patches.undo()

    def _patch(self) -> None:
        """What C++ would read of memory, and modules that move to the device."""
        patches, mode = self._patches, self
        fake_tensor.log.addFilter(_is_not_said_anew)
        patches.on_undo(lambda: fake_tensor.log.removeFilter(_is_not_said_anew))

        def values_there(tensor: Any) -> Any:
            """Values that are known, or stand for several that choose; ``None`` where all are taken for 1.0."""
            if (known := shares_of(tensor)) is not None:
                if (origin := origin_of(known)) is not None:
                    mode.note("the values of a tensor", "equal shares" if origin == ARE_SHARES else origin)
                return known
            if (chosen := spread_over_choices(tensor)) is not None:
                mode.note("the values of a tensor", chosen[1])
                return chosen[0]
            mode.note("the values of a tensor", 1.0)
            return None

        def array(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not _is_fake(tensor):
                return _ORIGINALS["numpy"](tensor, *args, **kwargs)
            import numpy

            if (known := values_there(tensor)) is not None:
                return _ORIGINALS["numpy"](known)
            dtype = _ORIGINALS["numpy"](_real_empty(tensor.dtype)).dtype
            return numpy.ones(tuple(tensor.shape), dtype=dtype)

        def as_array(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not _is_fake(tensor):
                return _ORIGINALS["__array__"](tensor, *args, **kwargs)
            made, dtype = array(tensor), args[0] if args else kwargs.get("dtype")
            return made if dtype is None else made.astype(dtype)

        def tolist(tensor: Any) -> Any:
            if not _is_fake(tensor):
                return _ORIGINALS["tolist"](tensor)
            if tensor.device.type == "cuda":
                with torch.no_grad():
                    tensor.to("cpu")  # as it does there: the host waits for what it copies
            if (known := values_there(tensor)) is not None:
                return _ORIGINALS["tolist"](known)
            return _filled(tuple(tensor.shape), _value_of(tensor.dtype))

        def formatted(tensor: Any, spec: str) -> str:
            if not _is_fake(tensor) or tensor.dim():
                return str(_ORIGINALS["__format__"](tensor, spec))
            return format(tensor.item(), spec)

        patches.set(torch.Tensor, "numpy", array)
        for owner in (torch.Tensor, FakeTensor):
            patches.set(owner, "tolist", tolist)
        patches.set(torch.Tensor, "__format__", formatted)
        patches.set(torch.Tensor, "__array__", as_array)
        let_sequences_be_read(patches, mode.is_our_fake)
        pointer = torch.Tensor.data_ptr
        places = _Places()

        def place(storage: torch.UntypedStorage) -> int:
            return places.of(storage._cdata, int(storage.nbytes()))

        def address(tensor: Any) -> int:
            """Aligned, and of each storage where no other is: programs look for tensors that share theirs."""
            if not mode.is_our_fake(tensor):
                return int(pointer(tensor))
            return place(tensor.untyped_storage()) + int(tensor.storage_offset() * tensor.element_size())

        patches.set(FakeTensor, "data_ptr", address)
        storage_pointer = torch.UntypedStorage.data_ptr

        def storage_address(storage: torch.UntypedStorage) -> int:
            """Not 0 while it holds anything: FSDP asks so whether a parameter is gathered."""
            if storage.device.type != "meta":
                return int(storage_pointer(storage))
            return place(storage) if int(storage.nbytes()) else 0

        patches.hide(torch.UntypedStorage, "data_ptr", storage_address)
        data: Any = torch.Tensor.data

        def set_data(tensor: Any, value: Any) -> None:
            data.__set__(tensor, value)
            if isinstance(value, FakeTensor):
                tensor.fake_device = value.fake_device  # what it is given may lie elsewhere: FSDP moves parameters so

        patches.hide(FakeTensor, "data", property(data.__get__, set_data))
        patches.set(torch.Tensor, "pin_memory", lambda tensor, *args, **kwargs: pinned(tensor))
        patches.set(torch.Tensor, "is_pinned", lambda tensor, *args, **kwargs: False)
        patches.set(FakeTensor, "record_stream", lambda tensor, stream: None)
        patches.set(FakeTensor, "share_memory_", lambda tensor: tensor)
        # Optimizers and clipping join what is of these types into one launch.
        for known in (torch.utils._foreach_utils, sys.modules[torch.optim.Optimizer.__module__]):
            patches.set(known, "_foreach_supported_types", [*known._foreach_supported_types, FakeTensor])
        swap = torch.utils.swap_tensors

        def swapped(t1: Any, t2: Any) -> None:
            mode.fake_tensor_converter.meta_converter.tensor_memo.clear()  # it would be of the tensor before
            if _is_given_data(t1, t2):
                t1.data = t2.data
                return
            try:
                swap(t1, t2)
            except RuntimeError:
                # What an autograd graph holds cannot be swapped: a device's own tensor is given the new data there.
                t1.data = t2.data

        patches.set(torch.utils, "swap_tensors", swapped)
        # A module's fake parameters are swapped where others get new data, which no weak reference forbids.
        patches.set(torch.utils, "weakref", types.SimpleNamespace(getweakrefs=lambda tensor: []))
        original_new = torch.nn.Parameter.__new__

        def parameter(cls: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
            if data is not None and type(data) is torch.Tensor and _is_current(mode):
                data = mode.from_tensor(data.detach())
            return original_new(cls, data, *args, **kwargs)

        patches.set(torch.nn.Parameter, "__new__", staticmethod(parameter))
        new_fake = FakeTensor.__new__

        def fake(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if args and isinstance(args[0], torch.Tensor) and "requires_grad" in kwargs:
                # A parameter is asked to be made anew by its own class, and of its own attributes (accelerate).
                return torch.nn.Parameter(args[0], requires_grad=bool(kwargs["requires_grad"]))
            return new_fake(cls, *args, **kwargs)

        patches.set(FakeTensor, "__new__", staticmethod(fake))
        self._leave_untraced(patches)
        read_lengths_first(patches)
        take_subclasses(patches)
        keep_lazy(patches)
        see_views_of_zeros(patches)
        go_as_with_values(patches)

    def _leave_untraced(self, patches: Patches) -> None:
        """``torch.jit.trace`` reads sizes and values of what it records: a module that is traced runs as it is."""

        def traced(func: Any, *args: Any, **kwargs: Any) -> Any:
            self.note("what torch.jit.trace records", "the module as it is, operator by operator")
            return func

        patches.set(torch.jit, "trace", traced)
        for name in ("freeze", "optimize_for_inference"):
            given = getattr(torch.jit, name)

            def scripted(module: Any, *args: Any, given: Any = given, **kwargs: Any) -> Any:
                return given(module, *args, **kwargs) if isinstance(module, torch.jit.ScriptModule) else module

            patches.set(torch.jit, name, scripted)


def _is_given_data(parameter: Any, moved: Any) -> bool:
    """Whether a module that moves or casts a parameter gives it new data on a device, and swaps it only as it is fake:
    what the program has hung on it (``param.is_expert = True``, hooks) stays there.

    A program that asks for swaps, or swaps itself, gets them; of a parameter on ``meta`` torch makes a new one.
    """
    if torch.__future__.get_swap_module_params_on_conversion():
        return False
    if type(parameter) is not FakeTensor or type(moved) is not FakeTensor:
        return False
    if sys._getframe(2).f_code is not torch.nn.Module._apply.__code__:
        return False
    return parameter.device.type != "meta" and moved.device.type != "meta"


class _Places:
    """Where storages would lie in the device's memory."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], int] = {}
        self._free = _PAGE_BYTES

    def of(self, storage: int, size: int) -> int:
        """The first byte of a storage; one of the same size that takes its place in this process has its address."""
        key = storage, size
        if key not in self._places:
            self._places[key] = self._free
            self._free += (size // _PAGE_BYTES + 1) * _PAGE_BYTES
        return self._places[key]


_PAGE_BYTES = 1 << 21


def pinned(tensor: Any) -> Any:
    """The tensor, known from here on for one that the program has pinned."""
    tensor._is_pinned_there = True
    return tensor


def is_pinned_there(tensor: Any) -> bool:
    """Whether the program has pinned a tensor of the host, or one of which it is a view."""
    return any(getattr(each, "_is_pinned_there", False) for each in (tensor, getattr(tensor, "_base", None)))


_ORIGINALS = {name: getattr(torch.Tensor, name) for name in ("numpy", "tolist", "__format__", "__array__")}
_SIZED_BY_VALUES = frozenset(
    f"aten::{name}"
    for name in (
        *("nonzero", "masked_select", "repeat_interleave.Tensor"),
        *("_unique", "_unique2", "unique_dim", "unique_consecutive"),
    )
)
"""Operators whose result is as long as known values say."""

_VALUES = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default}
_COMPARES_VALUES = {torch.ops.aten.equal.default, torch.ops.aten.allclose.default}


def _is_true(func: Any, args: Sequence[Any]) -> bool:
    """Whether a truth value is taken for true: what ``isfinite`` is made of, and what follows of it or of its contrary.

    All others are taken for false.
    """
    name = func._schema.name.removeprefix("aten::")
    first, second = (*args, None, None)[:2]
    if name == "ne":
        return isinstance(second, float) and math.isinf(second)
    if name == "eq":
        return first is second
    if name == "gt" and isinstance(second, float) and second == _CURVATURE:
        return is_called_from(_LBFGS)
    if name in ("bitwise_not", "logical_not"):
        return isinstance(first, torch.Tensor) and first.dtype is torch.bool and not getattr(first, "_stand_in", False)
    if name in _PASSES_TRUTH_ON:
        return all(getattr(each, "_stand_in", True) for each in (first, second) if isinstance(each, FakeTensor)) and (
            getattr(first, "_stand_in", False)
        )
    return False


_LBFGS, _CURVATURE = "torch/optim/lbfgs.py", 1e-10
"""Where the loss curves by more than this along a step, which it nearly always does, LBFGS keeps the step for those to
come, and works with all that it has kept."""

_PASSES_TRUTH_ON = frozenset({"mul", "bitwise_and", "logical_and", "all", "any", "_to_copy", "view", "stack", "detach"})


def _is_said_anew(error: BaseException) -> bool:
    """Whether an error of torch's own rule for an operator is said in words of ours, with the program's line."""
    return isinstance(error, AssertionError) or wants_device(error)


def _is_not_said_anew(record: logging.LogRecord) -> bool:
    """Keeps torch from writing the whole stack of such an error before."""
    error = record.exc_info[1] if record.exc_info else None
    return error is None or not _is_said_anew(error)


def _is_current(mode: FakeTensors) -> bool:
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is mode and os.getpid() == mode._owner


def _is_fake(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor)


def _real_empty(dtype: torch.dtype) -> Any:
    with torch.utils._python_dispatch._disable_current_modes():
        return torch.empty((0,), dtype=torch.float32 if dtype is torch.bfloat16 else dtype)


def _real_ones(tensor: FakeTensor) -> torch.Tensor:
    """A tensor of ones in place of one without values; one that is as large as a data set stays as it is."""
    if tensor.numel() * tensor.element_size() > REAL_BYTES:
        return tensor
    with torch.utils._python_dispatch._disable_current_modes():
        return torch.ones(tuple(tensor.shape), dtype=tensor.dtype)


def _value_of(dtype: torch.dtype) -> bool | int | float:
    return False if dtype is torch.bool else 1.0 if dtype.is_floating_point else 1


def _filled(shape: tuple[int, ...], value: Any) -> Any:
    return value if not shape else [_filled(shape[1:], value) for _ in range(shape[0])]


def _goes_to_device(args: Sequence[Any]) -> bool:
    return any(isinstance(value, torch.device) and value.type != "cpu" for value in args)


def _default_device() -> str:
    return torch.get_default_device().type


def _made_bytes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Bytes of what a factory makes, by the sizes that it is given; other calls without tensors make little."""
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    given, most = (*args, *kwargs.values()), 0
    has_sizes = any(isinstance(value, (list, tuple)) for value in given)
    for value in given:
        if isinstance(value, (list, tuple)) and all(isinstance(each, int) for each in value):
            numel = 1
            for each in value:
                numel *= each
            most = max(most, numel)
        elif isinstance(value, int) and not isinstance(value, bool) and not has_sizes:  # else a bound, or what to fill
            most = max(most, value)
    return most * dtype.itemsize
