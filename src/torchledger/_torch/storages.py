"""Which storages appear and are freed while a step runs, in order, and what they belong to.

A storage is known from the first operator, allocation of a generated wrapper or argument that shows it. Its end is told
by a weak reference to its Python object, which lives as long as the storage does, whoever holds it. The allocator is
asked nothing.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torchledger._torch.devices import has_cuda
from torchledger._torch.fakes.tensors import FakeTensors
from torchledger._torch.kernel_marks import replace_in_wrappers, wrapper_files
from torchledger._torch.living import living_of
from torchledger._torch.optimizers import parameters_of_other_threads
from torchledger._torch.patching import Patches
from torchledger._torch.tensors import is_nested, tensors_in
from torchledger._torch.unasked import unasked_results
from torchledger.claims import claim
from torchledger.signals import let_through

Owner = Literal["parameter", "buffer", "gradient", "optimizer_state", "bucket"]
"""What of a model or optimizer a storage belongs to; buckets are those of DistributedDataParallel's reducer."""

_DEEPEST = 12
"""Frames between a wrapper's line and what it calls or frees."""

_MOST_USES = 8

_BUCKETS = "buckets of DistributedDataParallel's reducer"

_NOWHERE = "meta"
"""Where the storage of a fake tensor says that it lies; the tensor knows where it would."""

_LARGEST_STATE = 64
"""Values of one parameter's optimizer state that are looked at."""


@dataclass(frozen=True)
class StorageLife:
    """One storage: its size in bytes and device, and when it appeared and was freed.

    ``born`` and ``freed`` are places in the order of all such events (``born`` is ``None`` for what was there before,
    ``freed`` for what is still there). ``born_in`` and ``freed_in`` are the places of the last entries that had begun
    by then (-1 before all of them), lines are those of the generated wrapper where it was in a graph's call.
    ``owner`` and ``name`` say what of a model it is (``"parameter"``, ``"layers.0.weight"``). ``of_allocator`` is
    false for memory that torch did not allocate. ``is_unseen`` says that nobody saw it made: it was an argument
    first. ``uses`` are the first entries that were given it, and the last; ``is_exchanged`` says that a collective was.
    """

    nbytes: int
    device: str
    born: int | None = None
    born_in: int | None = None
    born_line: int | None = None
    freed: int | None = None
    freed_in: int | None = None
    freed_line: int | None = None
    owner: Owner | None = None
    name: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    requires_grad: bool = False
    of_allocator: bool = True
    is_unseen: bool = False
    uses: tuple[int, ...] = ()
    is_exchanged: bool = False


@dataclass(frozen=True)
class AllocatorCount:
    """What the CUDA caching allocator counted in the step, in bytes: peaks of what was allocated (whole blocks), of
    what was asked for, and of what was reserved; and what was allocated when the step began."""

    allocated_peak: int
    requested_peak: int
    reserved_peak: int
    allocated_before: int


@dataclass(frozen=True)
class HeardMemory:
    """The storages of one step. ``entries`` are what ran, in order: the place of an eager call among those heard, or
    the name of a compiled graph. ``allocator`` is there on CUDA. ``number_bytes`` is what Python's
    numbers took as tensors that no operator showed. ``unasked`` holds, for places of ``entries`` that call a backward's
    graph, the places of its results that nobody asked for. ``convolution_tf32`` says whether cuDNN might round float32
    for the tensor cores."""

    lives: tuple[StorageLife, ...]
    entries: tuple[int | str, ...]
    allocator: AllocatorCount | None = None
    number_bytes: int = 0
    faults: tuple[str, ...] = ()
    unasked: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    convolution_tf32: bool = True


@dataclass
class _Known:
    life: StorageLife
    reference: Any = None
    size: int = 0
    uses: list[int] = field(default_factory=list)

    def use(self, place: int) -> None:
        """Note an entry that was given it: the first few, and the last."""
        if place < 0 or (self.uses and self.uses[-1] == place):
            return
        if len(self.uses) >= _MOST_USES:
            self.uses.pop()
        self.uses.append(place)


@dataclass
class _Names:
    """What storages belong to, by the address of the storage."""

    owners: dict[int, tuple[Owner, str]] = field(default_factory=dict)
    parameters: list[tuple[str, weakref.ref[Any]]] = field(default_factory=list)


class StorageWatch:
    """Notes storages between ``start`` and ``stop``, of all threads that show them.

    Fake tensors are a compiler's and have none, but for those of ``fake``, whose storages only lack their memory.
    ``on_noted`` is told when a storage's end has been noted, with what the thread's clock showed before (seconds).
    """

    def __init__(
        self, fake: FakeTensors | None = None, on_noted: Callable[[float], None] = lambda since_s: None
    ) -> None:
        self._fake = fake
        self._on_noted = on_noted
        self._lives: list[_Known] = []
        self._of: dict[int, _Known] = {}
        self._entries: list[int | str] = []
        self._events = itertools.count()
        self._graph: int | None = None
        self._names = _Names()
        self._patches = Patches()
        self._lock = threading.RLock()
        self._is_on = False
        self._before: int | None = None
        self._faults: list[str] = []
        self._files: frozenset[str] = frozenset()
        self._number_bytes = 0
        self._unasked: dict[int, tuple[int, ...]] = {}
        self._buckets: list[_Known] = []

    def start(self) -> None:
        """Begin with what is alive now."""
        self._files = wrapper_files()
        not_ours = parameters_of_other_threads()
        modules, optimizers, tensors = living_of(torch.nn.Module, torch.optim.Optimizer, torch.Tensor)
        self._names = _names(modules, optimizers, not_ours)
        if self._fake is None:  # of a device that is not there the buckets are tensors that are seen
            self._buckets = [_Known(life, size=life.nbytes) for life in _reducer_buckets(modules)]
            self._lives += self._buckets
        for tensor in tensors:
            self._see(tensor, is_before=True)
            gradient = None if id(tensor) in not_ours else _gradient(tensor)
            if gradient is not None:
                self._see(gradient, is_before=True)
        self._patches.on_undo(replace_in_wrappers(_is_allocation, self._heard_allocation).undo)
        # A state of random numbers, as each checkpoint keeps one, is made below all operators.
        self._patches.around(torch, "get_rng_state", self._heard_allocation)
        self._patches.on_undo(lambda: delattr(torch.UntypedStorage, "resize_"))
        torch.UntypedStorage.resize_ = functools.partialmethod(_resize, self._resized)  # type: ignore[assignment]
        if has_cuda():
            torch.cuda.synchronize()
            self._before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        self._is_on = True

    def stop(self) -> HeardMemory:
        """End, and say what there was."""
        if not self._is_on:
            self._faults.append("what was there before the step: it was not looked for")
        self._is_on = False
        self._patches.undo()
        allocator = None
        if self._before is not None:
            torch.cuda.synchronize()
            stats = torch.cuda.memory_stats()
            allocator = AllocatorCount(
                allocated_peak=stats.get("allocated_bytes.all.peak", 0),
                requested_peak=stats.get("requested_bytes.all.peak", 0),
                reserved_peak=stats.get("reserved_bytes.all.peak", 0),
                allocated_before=self._before,
            )
        self.find_gradients()
        with self._lock:
            lives = tuple(replace(known.life, uses=tuple(known.uses)) for known in self._lives)
            for known in self._lives:
                known.reference = None
            self._of = {}
        faults = tuple(self._faults)
        return HeardMemory(
            lives,
            tuple(self._entries),
            allocator,
            self._number_bytes,
            faults,
            dict(self._unasked),
            convolution_tf32=_rounds_convolutions(),
        )

    @claim
    def operator(
        self, place: int, arguments: Any, result: Any, *, number_bytes: int = 0, is_collective: bool = False
    ) -> bool:
        """An eager operator has run: its place among those heard, what it was given and what it gave. True once noted.

        ``number_bytes`` is what numbers among its arguments took as tensors.
        """
        with self._lock:
            self._number_bytes += number_bytes
            self._entries.append(place)
            for tensor in tensors_in(arguments):
                self._find_bucket(tensor)
                if self._see(tensor) and is_collective:
                    known = self._of[tensor.untyped_storage()._cdata]
                    known.life = replace(known.life, is_exchanged=True)
            for tensor in tensors_in(result):
                self._see(tensor)
        return True

    def inside(self, result: Any) -> None:
        """An operator has run inside a compiled graph's call."""
        with self._lock:
            for tensor in tensors_in(result):
                self._see(tensor)

    def graph_begins(self, name: str, inputs: Sequence[Any]) -> None:
        """A compiled graph is called."""
        with self._lock:
            self._graph = len(self._entries)
            self._entries.append(name)
            if unasked := unasked_results():
                self._unasked[self._graph] = unasked
            for tensor in tensors_in(inputs):
                self._see(tensor, is_unseen=True)

    def graph_ends(self, result: Any) -> None:
        """The call of a compiled graph is over."""
        with self._lock:
            for tensor in tensors_in(result):
                self._see(tensor, is_unseen=True)
            self._graph = None

    def find_gradients(self) -> None:
        """Give names to the gradients that there are now."""
        not_ours = parameters_of_other_threads()
        with self._lock:
            for name, reference in self._names.parameters:
                parameter = reference()
                gradient = None if parameter is None or id(parameter) in not_ours else _gradient(parameter)
                if gradient is None:
                    continue
                if self._see(gradient, is_unseen=True):
                    known = self._of[gradient.untyped_storage()._cdata]
                    if known.life.owner is None:
                        known.life = replace(known.life, owner="gradient", name=name)

    # --- storages -----------------------------------------------------------------------------------------------

    @claim
    def _see(self, tensor: Any, *, is_before: bool = False, is_unseen: bool = False) -> bool:
        """Note the storage of a tensor; whether it has one of its own."""
        if self._is_of_compiler(tensor) or tensor.layout != torch.strided or tensor.device.type == "meta":
            return False
        if is_traceable_wrapper_subclass(tensor):  # its storage has the whole's size and no memory: others hold that
            return False
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # a wrapper around other tensors
            return False
        key, size = storage._cdata, storage.nbytes()
        known = self._of.get(key)
        if known is not None and known.size == size:
            if known.life.device == _NOWHERE:
                known.life = replace(known.life, device=str(tensor.device))
            known.use(len(self._entries) - 1)
            return True
        if known is not None:
            self._end(key, known)
        if not size:
            return False
        owner, name = self._names.owners.get(key, (None, None)) if is_before else (None, None)
        line = None if is_before or self._graph is None else self._wrapper_line(sys._getframe(1))
        life = StorageLife(
            nbytes=size,
            device=str(tensor.device),
            born=None if is_before else next(self._events),
            born_in=None if is_before else len(self._entries) - 1,
            born_line=line,
            owner=owner,
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=() if is_nested(tensor) else tuple(tensor.shape),
            requires_grad=bool(tensor.requires_grad),
            of_allocator=bool(storage.resizable()),
            is_unseen=is_unseen,
        )
        self._keep(key, storage, life)
        return self._of[key].size == size  # a fault where nothing was kept

    def _find_bucket(self, tensor: Any) -> None:
        """A tensor that nobody saw made and that is as large as a reducer's bucket is that: what is written to it and
        reduced shows it."""
        if not self._buckets or self._is_of_compiler(tensor) or tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        key, seen = storage._cdata, (storage.nbytes(), str(tensor.device))
        bucket = next((each for each in self._buckets if (each.life.nbytes, each.life.device) == seen), None)
        if bucket is not None and key not in self._of:
            self._buckets.remove(bucket)
            bucket.reference = weakref.ref(storage, functools.partial(self._freed, key, bucket))
            self._of[key] = bucket

    def _is_of_compiler(self, tensor: Any) -> bool:
        if isinstance(tensor, FunctionalTensor) or torch._is_functional_tensor(tensor):
            return True  # what a trace leaves behind until its cycles are collected: a size, and no memory
        return isinstance(tensor, FakeTensor) and (self._fake is None or not self._fake.is_our_fake(tensor))

    def _keep(self, key: int, storage: Any, life: StorageLife) -> None:
        known = _Known(life, size=life.nbytes)
        known.reference = weakref.ref(storage, functools.partial(self._freed, key, known))
        self._of[key] = known
        self._lives.append(known)

    def _freed(self, key: int, known: _Known, _: Any) -> None:
        begin = time.thread_time()
        try:
            with self._lock:
                if self._of.get(key) is known:
                    self._end(key, known)
            self._on_noted(begin)
        except Exception as error:  # Python would print it: nobody has called this
            self._faults.append(f"the end of a storage: {type(error).__name__}: {error}")

    def _end(self, key: int, known: _Known) -> None:
        del self._of[key]
        if not self._is_on:
            return
        known.life = replace(
            known.life,
            freed=next(self._events),
            freed_in=len(self._entries) - 1,
            freed_line=None if self._graph is None else self._wrapper_line(sys._getframe(1)),
        )

    def _heard_allocation(self, allocate: Any, *args: Any) -> Any:
        result = allocate(*args)
        try:
            with self._lock:
                if isinstance(result, torch.Tensor):
                    self._see(result)
        except Exception as error:  # the program has its tensor
            let_through(error)
            self._faults.append(f"an allocation of a compiled graph: {type(error).__name__}: {error}")
        return result

    def _wrapper_line(self, frame: FrameType | None) -> int | None:
        """The line of the generated wrapper that a stack is in."""
        for _ in range(_DEEPEST):
            if frame is None:
                return None
            if frame.f_code.co_filename in self._files:
                return frame.f_lineno
            frame = frame.f_back
        return None

    def _resized(self, storage: Any) -> None:
        """FSDP frees what it gathered, and allocates it again, by the size of one storage."""
        with self._lock:
            key, size = storage._cdata, storage.nbytes()
            known = self._of.get(key)
            if known is not None and known.size == size:
                return
            before = None if known is None else known.life
            if known is not None:
                self._end(key, known)
            if size:
                life = before or StorageLife(size, str(storage.device))
                life = replace(life, nbytes=size, born=next(self._events), born_in=len(self._entries) - 1)
                self._keep(key, storage, replace(life, born_line=None, freed=None, freed_in=None, freed_line=None))


def _rounds_convolutions() -> bool:
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # a program mixed torch's old and new way of saying so
        return True


def _resize(storage: Any, resized: Callable[[Any], None], size: int) -> Any:
    result = torch._C.StorageBase.resize_(storage, size)
    resized(storage)
    return result


def _is_allocation(name: str) -> bool:
    return name.startswith("empty_strided_")


def _names(modules: Sequence[Any], optimizers: Sequence[Any], not_ours: Collection[int]) -> _Names:
    """Parameters and buffers of the modules, gradients and optimizer state, by the storages that they lie in.

    The gradients of ``not_ours``, parameters by their ``id``, are left out.
    """
    names = _Names()
    inner = {id(child) for module in modules for child in module._modules.values()}
    parameter_names: dict[int, str] = {}
    roots = [module for module in modules if id(module) not in inner]
    for root in roots:
        for name, parameter in root.named_parameters():
            path = name.replace("_orig_mod.", "")
            if id(parameter) in parameter_names:
                continue
            parameter_names[id(parameter)] = path
            names.parameters.append((path, weakref.ref(parameter)))
            _own(names, parameter, "parameter", path)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in parameter_names:
                    parameter_names[id(parameter)] = "a parameter of no module"
                    names.parameters.append((parameter_names[id(parameter)], weakref.ref(parameter)))
                    _own(names, parameter, "parameter", parameter_names[id(parameter)])
        for parameter, state in optimizer.state.items():
            if not isinstance(state, dict):
                continue
            of = parameter_names.get(id(parameter), "a parameter of no module")
            for key, value in itertools.islice(state.items(), _LARGEST_STATE):
                for tensor in tensors_in(value):
                    _own(names, tensor, "optimizer_state", f"{of}.{key}")
    for name, reference in names.parameters:
        parameter = reference()
        gradient = None if parameter is None or id(parameter) in not_ours else _gradient(parameter)
        if gradient is not None:
            _own(names, gradient, "gradient", name)
    # Behind the rest: the graph of a compiled optimizer is a module, with its states and gradients as buffers.
    for root in roots:
        for name, buffer in root.named_buffers():
            _own(names, buffer, "buffer", name.replace("_orig_mod.", ""))
    return names


def _reducer_buckets(modules: Iterable[Any]) -> list[StorageLife]:
    """What the reducers of DistributedDataParallel hold of gradients beside them, made below everything that is heard.

    Where gradients are views of the buckets, they show these; the reducer in Python has none.
    """
    lives = []
    for each in modules:
        if not issubclass(type(each), torch.nn.parallel.DistributedDataParallel):
            continue
        if each.gradient_as_bucket_view or each._use_python_reducer:
            continue
        reduced: Counter[str] = Counter()
        for name, parameter in each.module.named_parameters():
            if parameter.requires_grad and name not in each.parameters_to_ignore:
                reduced[str(parameter.device)] += parameter.nbytes
        for device, nbytes in reduced.items():
            sizes = _bucket_sizes(each)
            found = sizes if sum(sizes) == nbytes else [nbytes]
            lives += [StorageLife(size, device, owner="bucket", name=_BUCKETS) for size in found]
    return lives


def _bucket_sizes(parallel: torch.nn.parallel.DistributedDataParallel) -> list[int]:
    """Bytes of each bucket, as the reducer's own log has them; none where it says nothing of the kind."""
    logged: dict[str, Any] = parallel._get_ddp_logging_data()
    text = str(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or "")
    return [int(size) for size in text.split(",") if size.strip().isdigit()]


def _own(names: _Names, tensor: Any, owner: Owner, name: str) -> None:
    for inner in tensors_in(_local(tensor)):
        try:
            names.owners.setdefault(inner.untyped_storage()._cdata, (owner, name))
        except (NotImplementedError, RuntimeError):  # a wrapper around other tensors
            continue


def _local(tensor: Any) -> Any:
    """What a tensor of several ranks holds on this one."""
    return getattr(tensor, "_local_tensor", tensor)


def _gradient(tensor: Any) -> Any:
    if not tensor.requires_grad or not _is_leaf(tensor):
        return None
    return _local(tensor.grad) if tensor.grad is not None else None


def _is_leaf(tensor: Any) -> bool:
    """Whether nothing has computed a tensor. Of a view made under ``no_grad`` whose base was written to since (traces
    of a collective in place in a ``Function`` leave such behind) autograd refuses to say what has, so something did."""
    try:
        return bool(tensor.is_leaf)
    except RuntimeError:
        return False
