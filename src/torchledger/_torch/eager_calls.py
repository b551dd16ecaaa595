"""Hears every eager operator of one thread, and what autograd runs for it, for as long as it listens.

A ``TorchDispatchMode`` sees operators below autograd, with overloads, dtypes (also those of tensors in lists) and the
Python stack that asked for them. It declares itself infrastructure that ignores what ``torch.compile`` does: any other
mode silently turns compilation off.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

import torchledger
from torchledger._torch.alignments import read_lengths_first
from torchledger._torch.askers import StackPlace, asked_by, sequence_of, stack_places
from torchledger._torch.checkpoint_stops import watch_stops
from torchledger._torch.composites import is_composite, is_fused_with_collective, taken_apart, unfused
from torchledger._torch.fakes.gradients import as_written, note_made
from torchledger._torch.fakes.groups import by_groups, goes_by_groups
from torchledger._torch.fakes.host_operands import goes_one_by_one, moves_itself, one_by_one, with_operands_moved
from torchledger._torch.fakes.limits import at_limit
from torchledger._torch.fakes.sparse import put_in_order, transposed, transposes
from torchledger._torch.fakes.streams import Placed, StreamOrder, active_order
from torchledger._torch.fakes.subclasses import OfProgram
from torchledger._torch.fakes.tensors import FakeTensors, is_pinned_there
from torchledger._torch.flops import flops_of_own
from torchledger._torch.handling import Handling
from torchledger._torch.higher_order import run_inside
from torchledger._torch.own_work import OwnWork
from torchledger._torch.patching import Patches
from torchledger._torch.schemas import parameters_of
from torchledger._torch.storages import HeardMemory, StorageWatch
from torchledger._torch.subclass_constructors import make_unheard
from torchledger._torch.tensors import is_nested, tensors_in
from torchledger.claims import claim
from torchledger.signals import let_through
from torchledger.work.collectives import collective_kind
from torchledger.work.host_waits import DRIVER_WAITS, host_waits
from torchledger.work.kernel_counts import MASKS
from torchledger.work.op_shapes import Argument, OpCall, Tensor
from torchledger.work.settings import Parameter

log = logging.getLogger(__name__)

_TORCH = str(Path(torch.__file__).parent) + "/"
_OURS = str(Path(torchledger.__file__).parent) + "/"
_DISPATCH = tuple(_TORCH + name for name in ("_compile.py", "_dynamo/", "_ops.py", "utils/_python_dispatch.py"))
_MOST_LINES = 8
_NO_SEQUENCE = 2**63
_COPIES = "aten::copy_"
_COPIES_OF_TENSORS = frozenset({_COPIES, "aten::_to_copy"})
_PLAIN = (torch.Tensor,)
_CLASSES = (torch.nn.Parameter, OfProgram)
"""Classes whose tensors are heard of as such; those of a program are fake ones, which a plan alone has."""
_DEVICE = torch.ops.prim.device.default
_NO_WORK = ("profiler", "prim")
"""Marks of a profiler, and questions to a tensor such as which device it is on."""
_DISTRIBUTED = "DTensor"
_SHARDINGS, _WHAT_WOULD_COME = "torch.distributed.tensor._sharding_prop", "_propagate_tensor_meta_non_cached"
_READS_A_NUMBER = "aten::_local_scalar_dense"
_STREAM_WAIT = "cudaStreamSynchronize"
_GIVEN_NAMES = frozenset({"symm_mem", "_dtensor"})
_NUMBER_BYTES = {bool: 1, int: 8, float: 8, complex: 16}


@dataclass(frozen=True)
class EagerCall:
    """One eager operator: its call as shapes, the thread, and the code that asked for it.

    ``sources`` are the lines outside torch that led to it (``"train.py:12"``), innermost last; ``library`` torch's own
    functions on the way (``"torch/nn/utils/clip_grad.py:clip_grad_norm_"``), of which those from ``behind_line`` on lie
    behind the innermost line, ``module`` the path of the innermost ``nn.Module``. ``sequence`` is autograd's number: a
    backward operator carries that of the forward one, and ``node`` the name of its autograd node. ``distributed``
    counts the distributed tensors among the arguments, on whose parts this call works. ``stops`` says that a checkpoint
    ended what it ran again when the next operator was about to run. ``group`` and ``group_size`` are those of a
    collective, which is heard also where a compiled ``graph`` asks for it. ``source_device`` is where the source of a
    ``copy_`` lies, and ``is_pinned`` says of a copy in a plan that it reads or fills pinned memory of the host,
    ``is_limited`` of a truth that is read in one that a limit of the program's own decides it in the end. ``placed`` is
    its place among the streams of a device that is not there. ``flops`` are known of an operator of the program's own
    alone, with a formula of its own. ``parameters`` are those of its arguments that are integers, by their places.
    """

    call: OpCall
    overload: str
    thread: int
    device: str | None = None
    source_device: str | None = None
    is_pinned: bool = False
    is_limited: bool = False
    sources: tuple[str, ...] = ()
    library: tuple[str, ...] = ()
    behind_line: int = 0
    module: str | None = None
    module_class: str | None = None
    sequence: int | None = None
    node: str | None = None
    group: str | None = None
    group_size: int | None = None
    graph: str | None = None
    placed: Placed | None = None
    distributed: int = 0
    stops: bool = False
    flops: int | None = None
    parameters: tuple[Parameter | None, ...] | None = None


class _Stack(NamedTuple):
    """The user's lines, torch's functions, how many of these lie before the innermost line, the innermost module."""

    sources: tuple[str, ...]
    library: tuple[str, ...]
    behind_line: int
    module: torch.nn.Module | None


@dataclass(frozen=True)
class HostWait:
    """The program has its host wait, by the driver's call of this ``name``, behind so many of the calls that were
    heard (``behind``), and of the calls of graphs (``graphs``), in the last of which if ``is_inside``. ``placed`` says
    for what, ``sources`` as of an ``EagerCall`` from where."""

    name: str
    behind: int
    placed: Placed
    sources: tuple[str, ...] = ()
    graphs: int = 0
    is_inside: bool = False


@dataclass(frozen=True)
class OwnWorkHeard:
    """The program has computed on the host beside torch for ``us``, mostly at the line ``source``, behind so many of
    the calls that were heard (``behind``), and of the calls of graphs (``graphs``)."""

    us: float
    source: str
    behind: int
    graphs: int = 0


class EagerCalls(TorchDispatchMode):
    """Listens between ``start`` and ``stop``, which belong on one thread; ``calls`` are in order for each thread.

    ``inside`` tells whether the calling thread is in a compiled graph's call, whose operators are the ledger's already.
    On a device that is not there each call is placed among its streams, as are those of graphs (``graphs``) and what
    the host waits for (``host_waits``) or computes beside torch (``own_work``).
    """

    supports_higher_order_operators = True
    """Without it a higher-order operator (random numbers of a recomputed region, say) ends the program."""

    def __init__(self, inside: Callable[[], str | None]) -> None:
        super().__init__()
        self.graphs: list[tuple[str, Placed]] = []
        self.host_waits: list[HostWait] = []
        self.own_work: list[OwnWorkHeard] = []
        self._own_work: OwnWork | None = None
        self._handling: Handling | None = None
        self._streams: StreamOrder | None = None
        self._inside = inside
        self._is_generated: Callable[[str], bool] = lambda file: False
        self._is_entered = False
        self._tensors: tuple[type, ...] = _PLAIN
        self._storages: StorageWatch | None = None
        self.memory: HeardMemory | None = None
        self._module_names: dict[int, str] = {}
        self._named_roots: set[int] = set()
        self._lock = threading.Lock()
        self._unpacking = threading.local()
        self._patches = Patches()

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Compilation goes on under it."""
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """It is off while something compiles."""
        return True

    def start(self) -> bool:
        """Begin to listen; ``False`` if the thread is inside another mode, which might end before this one."""
        self.calls: list[EagerCall] = []
        self.faults: list[str] = []
        mode = _get_current_dispatch_mode()
        if mode is not None and not isinstance(mode, FakeTensors):
            return False
        self._tensors = _PLAIN if mode is None else (*_PLAIN, FakeTensor)
        if isinstance(mode, FakeTensors):
            self._is_generated = mode.is_generated
        self._watch_storages(mode)
        note_mode()
        self._streams = active_order()
        if self._streams is not None:
            self._streams.begin()
            self._streams.on_host_wait = self._note_host_wait
        propagator = getattr(sys.modules.get(_SHARDINGS), "ShardingPropagator", None)
        if hasattr(propagator, _WHAT_WOULD_COME):
            self._patches.around(propagator, _WHAT_WOULD_COME, self._while_asked)
        self._patches.on_undo(watch_stops(self._stopped, self.faults.append).undo)
        read_lengths_first(self._patches)
        if mode is None:  # tensors without values have a way of their own
            make_unheard(self._patches)
        self.__enter__()
        self._is_entered = True
        if isinstance(mode, FakeTensors):
            self._handling = mode.handling
            self._own_work = OwnWork(self._note_own_work, mode.handling.between)
        return True

    def stop(self) -> bool:
        """Listen no more; ``False`` if another mode lies on top, so that this one has to stay and stays silent."""
        if not self._is_entered:
            return True
        self._is_entered = False
        if self._own_work is not None:
            self._own_work.stop()
        self._patches.undo()
        if self._streams is not None:
            self._streams.on_host_wait = None
        self._end_of_storages()
        if self.memory is None and not self.faults:
            self.faults.append("storages: nothing is known of them")
        if _get_current_dispatch_mode() is not self:
            return False
        self.__exit__(None, None, None)
        return True

    def _watch_storages(self, fake: FakeTensors | None) -> None:
        watch = StorageWatch(fake, self._noted_end)
        try:
            with _unseen():
                watch.start()
        except Exception as error:  # operators are heard all the same
            let_through(error)
            log.debug("storages are not watched", exc_info=error)
            self.faults.append(f"storages: {type(error).__name__}: {error}")
            return
        self._storages = watch

    def _end_of_storages(self) -> None:
        if self._storages is None:
            return
        try:
            with _unseen():
                self.memory = self._storages.stop()
        except Exception as error:  # operators were heard all the same
            let_through(error)
            log.debug("storages were not watched to the end", exc_info=error)
            self.faults.append(f"storages: {type(error).__name__}: {error}")

    def graph_begins(self, name: str, inputs: Sequence[Any]) -> None:
        """A compiled graph is about to be called with ``inputs``."""
        if self._own_work is not None:
            self._own_work.begins()
        if self._storages is not None and self._is_entered:
            with _unseen():
                self._storages.graph_begins(name, inputs)
        if self._streams is not None and self._is_entered:
            self.graphs.append((name, self._streams.place()))

    def graph_ends(self, result: Any) -> None:
        """The call of a compiled graph has given ``result``."""
        try:
            if self._storages is not None and self._is_entered:
                with _unseen():
                    self._storages.graph_ends(result)
        finally:
            if self._own_work is not None:
                self._own_work.ends()

    def optimizer_stepped(self) -> None:
        """An optimizer has made its step: the gradients are still there."""
        if self._storages is not None and self._is_entered:
            with _unseen():
                self._storages.find_gradients()

    def _noted_end(self, since_s: float) -> None:
        """That a storage is gone has been noted, which is none of the program's work."""
        if self._own_work is not None:
            self._own_work.plan_worked(since_s)

    def _note_own_work(self, seconds: float, source: str) -> None:
        with self._lock:
            self.own_work.append(OwnWorkHeard(1e6 * seconds, source, len(self.calls), len(self.graphs)))

    def _note_host_wait(self, name: str, placed: Placed) -> None:
        if not self._is_entered or name not in DRIVER_WAITS:
            return
        try:
            sources = self._stack(stack_places(sys._getframe(3))).sources
            with self._lock:
                is_inside = self._inside() is not None
                behind, graphs = len(self.calls), len(self.graphs)
                self.host_waits.append(HostWait(name, behind, placed, sources, graphs, is_inside))
        except Exception as error:  # the program goes on
            let_through(error)
            self.faults.append(f"{name}: {type(error).__name__}: {error}")

    def hear_inside(self, result: Any) -> None:
        """A compiled graph's call has made or written ``result`` without asking an operator for it."""
        if self._storages is None or not self._is_entered or self._inside() is None:
            return
        try:
            self._storages.inside(result)
        except Exception as error:  # the program has its tensor
            let_through(error)
            self.faults.append(f"a tensor inside a compiled graph: {type(error).__name__}: {error}")

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Pass the call on; tensor subclasses are left to unpack themselves, their inner calls come here again."""
        if self._own_work is None or self._handling is None:
            return self._pass_on(func, types, args, kwargs or {})
        self._handling.begins()
        self._own_work.begins()
        try:
            return self._pass_on(func, types, args, kwargs or {})
        finally:
            self._own_work.ends()
            self._handling.ends()

    def _pass_on(self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with torch._C.DisableTorchFunctionSubclass():  # as _unseen, which may not fail here
            if not all(issubclass(kind, _CLASSES) or kind in self._tensors for kind in types):
                if FakeTensor in types and FakeTensor not in self._tensors:
                    # Somebody asks what would come of it; the tensors do not take it from here once a mode has had it.
                    return func(*args, **kwargs)
                self._note_distributed(func, types, args, kwargs)
                return NotImplemented
            if func is _DEVICE:
                return func(*args, **kwargs)
            if isinstance(func, HigherOrderOperator):
                try:
                    if self._inside() is None and self._tensors is _PLAIN:
                        result = run_inside(func, self, args, kwargs)
                        if result is not None:
                            return result
                except Exception as error:  # one of the program's comes again below
                    let_through(error)
                    self.faults.append(f"{func}: {type(error).__name__}: {error}")
                result = func(*args, **kwargs)
                try:
                    self._hear_higher_order(result)
                except Exception as error:  # the program's operator has its result
                    let_through(error)
                    log.debug("the storages of a higher-order operator were not recorded", exc_info=error)
                    self.faults.append(f"{func}: {type(error).__name__}: {error}")
                return result
            try:
                # Those of nested tensors have kernels of their own.
                is_made_of_others = is_composite(func.name()) and not any(map(is_nested, tensors_in((args, kwargs))))
                if self._tensors is not _PLAIN and is_fused_with_collective(func.name()):
                    with self:
                        return unfused(func, args, kwargs)
                if self._tensors is not _PLAIN and transposes(func, args):
                    with self:
                        return transposed(*args, **kwargs)
                if self._tensors is not _PLAIN and goes_one_by_one(func, args):
                    with self:
                        return one_by_one(*args, **kwargs)
                if self._tensors is not _PLAIN and goes_by_groups(func, args):
                    with self:
                        return by_groups(*args, **kwargs)
                if is_made_of_others:
                    # Under inference_mode these arrive whole; what they are made of is what the profiler sees as work.
                    with self:
                        result = taken_apart(func, args, kwargs)
                    if result is not NotImplemented:
                        return result
            except Exception as error:  # taken for one that does work itself, which says what is wrong if anything is
                let_through(error)
                self.faults.append(f"{func}: {type(error).__name__}: {error}")
            call, is_heard, held = None, False, None
            try:
                if self._tensors is not _PLAIN:
                    func, args = as_written(func, args, kwargs)
                    held = put_in_order(func, args)
                    if moves_itself(func) and not kwargs:
                        with self:
                            args = with_operands_moved(func, args)
                is_heard = self._hears(func)
                # Before it is made: ``squeeze_`` leaves its tensor with another shape.
                call = operator_call(func, args, kwargs) if is_heard else None
            except Exception as error:  # the program's operator is about to run
                let_through(error)
                is_heard = False
                log.debug("an eager operator was not recorded", exc_info=error)
                self.faults.append(f"{func}: {type(error).__name__}: {error}")
            result = func(*args, **kwargs)
            del held  # a product has its matrix in order until it is done
            if is_heard:
                try:
                    self._hear(call, func, args, kwargs, result)
                except Exception as error:  # the program's operator has its result
                    let_through(error)
                    log.debug("an eager operator was not recorded", exc_info=error)
                    self.faults.append(f"{func}: {type(error).__name__}: {error}")
            return result

    def _while_asked(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What distributed tensors try on tensors without data, to know what would come of an operator, is no call."""
        before = getattr(self._unpacking, "is_asked", False)
        self._unpacking.is_asked = True
        try:
            return original(*args, **kwargs)
        finally:
            self._unpacking.is_asked = before

    def _stopped(self) -> None:
        """A checkpoint has ended what it ran again on this thread."""
        thread = threading.get_native_id()
        with self._lock:
            for place in reversed(range(len(self.calls))):
                if self.calls[place].thread == thread:
                    self.calls[place] = replace(self.calls[place], stops=True)
                    return

    def _note_distributed(self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: Any) -> None:
        if any(kind.__name__ == _DISTRIBUTED for kind in types):
            try:
                found = [each for each in tensors_in((args, kwargs)) if type(each).__name__ == _DISTRIBUTED]
                self._unpacking.found = func, len(found)
            except Exception as error:  # it is about to be unpacked
                let_through(error)
                log.debug("distributed tensors were not counted", exc_info=error)

    def _distributed_of(self, func: Any) -> int:
        """How many distributed tensors the call was unpacked from."""
        of, count = getattr(self._unpacking, "found", (None, 0))
        if of is not func:
            return 0
        self._unpacking.found = None, 0
        return int(count)

    @claim
    def _hears(self, func: Any) -> bool:
        """Whether a call of an operator is one of the program's that does work."""
        return self._is_entered and func.namespace not in _NO_WORK and not getattr(self._unpacking, "is_asked", False)

    def _hear_higher_order(self, result: Any) -> None:
        """Of a higher-order operator only the storages inside a compiled call are the ledger's."""
        if self._storages is not None and self._inside() is not None:
            self._storages.inside(result)

    @claim
    def _hear(self, call: OpCall | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
        graph = self._inside()
        if graph is not None and self._storages is not None:
            self._storages.inside(result)
        if graph is not None and _group_of(func, args, kwargs)[0] is None:
            if self._streams is not None and call is not None and self._tensors is not _PLAIN:
                for _ in range(_waits_inside(call, args, kwargs)):
                    self._streams.host_waits(_STREAM_WAIT, self._streams.mark(self._streams.current))
            return False
        if call is None:
            raise TypeError("what it was called with is not told")
        call = _with_taken(call, result)
        node = torch._C._current_autograd_node()
        if node is not None and self._tensors is not _PLAIN:
            note_made(result, node)
        asker = asked_by()
        sequence = sequence_of(node) if asker is None else asker.sequence
        of_node = node if node is None else node.name()
        stack = self._stack(stack_places(sys._getframe(2)) if asker is None else asker.places)
        module = stack.module
        placed = None
        if self._streams is not None and graph is None:
            placed = self._streams.place_operator(call.name, args, result)
        heard = replace(
            called_operator(func, args, kwargs, result, call=call),
            sources=stack.sources,
            library=stack.library,
            behind_line=stack.behind_line,
            module=None if module is None else self._module_names.get(id(module), type(module).__name__),
            module_class=None if module is None else type(module).__name__,
            sequence=sequence if 0 <= sequence < _NO_SEQUENCE else None,
            node=of_node if asker is None else asker.node,
            graph=graph,
            placed=placed,
            distributed=self._distributed_of(func),
        )
        with self._lock:
            self.calls.append(heard)
            if self._storages is not None and graph is None:
                place = len(self.calls) - 1
                self._storages.operator(
                    place,
                    (args, kwargs),
                    result,
                    number_bytes=_bytes_of_numbers(func, args),
                    is_collective=heard.group is not None,
                )
        return True

    def _stack(self, places: Iterable[StackPlace]) -> _Stack:
        """What a stack shows, whose places are told from the operator outwards."""
        lines: list[str] = []
        library: list[str] = []
        behind: int | None = None
        modules: list[torch.nn.Module] = []
        for file, line, function, is_python, module in places:
            if file.startswith(_DISPATCH):
                pass
            elif file.startswith(_TORCH):
                library.append(f"torch/{file.removeprefix(_TORCH)}:{function}")
            elif not file.startswith((_OURS, "<")) and not is_python and not self._is_generated(file):
                lines.append(f"{file}:{line}")
                behind = len(library) if behind is None else behind
            if module is not None and (not modules or modules[-1] is not module):
                modules.append(module)
        if modules and id(modules[-1]) not in self._named_roots:
            self._name_modules(modules[-1])
        return _Stack(
            tuple(reversed(lines[:_MOST_LINES])),
            tuple(reversed(library)),
            0 if behind is None else len(library) - behind,
            modules[0] if modules else None,
        )

    def _name_modules(self, root: torch.nn.Module) -> None:
        self._named_roots.add(id(root))
        for name, module in root.named_modules():
            path = name.replace("_orig_mod.", "").removesuffix("_orig_mod")
            self._module_names.setdefault(id(module), path.strip(".") or type(module).__name__)


def called_operator(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, *, call: OpCall | None = None
) -> EagerCall:
    """An operator that has been called, without what asked for it; ``call`` are its arguments as they were before."""
    call = operator_call(func, args, kwargs) if call is None else call
    group, group_size = _group_of(func, args, kwargs)
    tensor = _deciding(args, kwargs, result)
    return EagerCall(
        call=call,
        overload=str(func._overloadname),
        thread=threading.get_native_id(),
        device=None if tensor is None else str(tensor.device),
        source_device=str(args[1].device) if call.name == _COPIES and isinstance(args[1], torch.Tensor) else None,
        is_pinned=call.name in _COPIES_OF_TENSORS and any(map(is_pinned_there, args[:2])),
        is_limited=call.name == _READS_A_NUMBER and at_limit(args[0]) is not None,
        group=group,
        group_size=group_size,
        flops=flops_of_own(func, args, kwargs, result),
        parameters=parameters_of(func),
    )


def does_work(func: Any) -> bool:
    """Whether an operator is more than a mark of a profiler, a question to a tensor, or one of higher order."""
    return not isinstance(func, HigherOrderOperator) and func.namespace not in _NO_WORK


def _waits_inside(call: OpCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """How often the host waits for the device in an operator that a compiled graph's wrapper calls: a copy between both
    is one of ``copy_`` there, or of places in a tensor of the host, which an index moves itself."""
    devices = [each.device.type for each in tensors_in((args, kwargs))]
    if call.name == "aten::_to_copy" and kwargs.get("device") is not None:
        devices.append(torch.device(kwargs["device"]).type)
        return int({*devices} == {"cpu", "cuda"} and not kwargs.get("non_blocking", False) and bool(args[0].numel()))
    if "cuda" not in devices:
        return 0
    if call.name == _READS_A_NUMBER:
        return 1
    if call.name == _COPIES:
        goes_on = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        return int("cpu" in devices and not goes_on and bool(args[0].numel()))
    return host_waits(call)


def _unseen() -> Any:
    """While tensors are looked at, and an operator is called once more: subclasses that count or print what is asked
    of them (``__torch_function__``) are not asked."""
    return torch._C.DisableTorchFunctionSubclass()


_threads = threading.local()


def note_mode() -> None:
    """A mode of ours begins on this thread: compiled functions have to leave it as it is."""
    _threads.has_modes = True


def keep_modes_over_compiled_calls() -> Patches:
    """Have a mode that begins or ends inside a compiled function's call last, or be gone, when the call returns.

    A compiled function sets the thread's dispatch keys to what they were when it was called, before and after: a mode
    that began meanwhile hears nothing, and one that ended leaves a key that asks for a mode where there is none.
    """
    patches = Patches()
    original = getattr(torch._C, "_ForceDispatchKeyGuard", None)
    if original is None:
        return patches

    class Guard:
        """The same guard, after which the keys of modes say whether there is a mode."""

        def __init__(self, *args: Any) -> None:
            self._guard = original(*args)

        def __enter__(self) -> Any:
            result = self._guard.__enter__()
            try:
                _include_modes()
            except Exception as error:  # the user's call is about to be made
                let_through(error)
                log.warning("a mode is not heard in a compiled call: %s: %s", type(error).__name__, error)
            return result

        def __exit__(self, *error: Any) -> Any:
            result = self._guard.__exit__(*error)
            try:
                _include_modes()
            except Exception as error:  # the user's call has been made
                let_through(error)
                log.warning("a mode is not heard after a compiled call: %s: %s", type(error).__name__, error)
            return result

    patches.set(torch._C, "_ForceDispatchKeyGuard", Guard)
    return patches


_number_of_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_include_key: Callable[[str, bool], None] = torch._C._dispatch_tls_set_dispatch_key_included


def _include_modes() -> None:
    """Runs where Dynamo looks at every frame already: it would trace one that names the module ``torch``."""
    if getattr(_threads, "has_modes", False):
        has_mode = _number_of_modes() > 0
        for key in ("Python", "PythonTLSSnapshot"):
            _include_key(key, has_mode)


def operator_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpCall:
    """An operator's arguments in the order of its schema: tensors as shapes, the rest as text.

    Arguments that were not given have their defaults, as in a profiler's record. Of a list that leaves some places out
    (``x[:, rows]``) the text says which are given: ``"[1]"``.
    """
    arguments: list[Argument] = []
    constants: list[str] = []
    for position, parameter in enumerate(func._schema.arguments):
        if position < len(args):
            value = args[position]
        else:
            value = kwargs.get(parameter.name, parameter.default_value if parameter.has_default_value() else None)
        argument = _as_argument(value)
        arguments.append(argument)
        if isinstance(argument, tuple) and any(each is None for each in value):
            constants.append(str([place for place, each in enumerate(value) if each is not None]))
        else:
            constants.append("" if argument is not None or value is None else _as_text(value))
    return OpCall(func._schema.name, tuple(arguments), tuple(constants))


def _with_taken(call: OpCall, result: Any) -> OpCall:
    """The call with how many elements its mask takes: as many as its result has rows of what the mask leaves whole."""
    table, given = call.tensor(0), call.tensor_list(1)
    if call.name != "aten::index" or table is None or len(given) != 1 or given[0].dtype not in MASKS:
        return call
    return replace(call, taken=result.numel() * given[0].numel // table.numel) if table.numel else call


def _deciding(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> torch.Tensor | None:
    """The tensor whose device an operator works on: the first, unless that is one number of the host among others of
    the device; ``None`` without tensors."""
    first = next(tensors_in((args, kwargs, result)), None)
    if first is None or first.dim() or first.device.type != "cpu":
        return first
    return next((each for each in tensors_in((args, kwargs)) if each.dim() and each.device.type != "cpu"), first)


def _bytes_of_numbers(func: Any, args: tuple[Any, ...]) -> int:
    """Bytes of the tensors that numbers of Python are wrapped in where an operator takes tensors.

    They are made below the mode, which is given the numbers.
    """
    return sum(
        _NUMBER_BYTES.get(type(value), 0)
        for parameter, value in zip(func._schema.arguments, args, strict=False)
        if type(value) in _NUMBER_BYTES and str(parameter.type) == "Tensor"
    )


def _as_argument(value: Any) -> Argument:
    if isinstance(value, torch.Tensor):
        return _as_shape(value)
    if isinstance(value, (list, tuple)):  # lists of lists are what collectives gather into
        return tuple(map(_as_shape, tensors_in(value))) or None
    return None


def _group_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str | None, int | None]:
    """Name and size of the process group that a collective is given; but for c10d's own they are given its name."""
    if func.namespace == "c10d":
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
                group = torch._C._distributed_c10d.ProcessGroup.unbox(argument)
                return str(group.group_name), int(group.size())
    elif "c10d_functional" in func.namespace or func.namespace in _GIVEN_NAMES:
        for position, parameter in enumerate(func._schema.arguments):
            named: Any = args[position] if position < len(args) else kwargs.get(parameter.name)
            if parameter.name != "group_name" or named is None:
                continue
            if isinstance(named, str):
                named = torch.distributed.distributed_c10d._resolve_process_group(cast(Any, named))
            return str(named.group_name), int(named.size())  # since torch 2.13 some are given the group itself
    return None, None


def collective_call(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[OpCall, str | None, int | None] | None:
    """A collective as shapes, with the name and the size of its group; ``None`` of what moves no tensors (a wait)."""
    call = operator_call(func, tuple(args), dict(kwargs))
    if collective_kind(call.name) is None:
        return None
    return (call, *_group_of(func, tuple(args), dict(kwargs)))


def _as_shape(tensor: torch.Tensor) -> Tensor:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if is_nested(tensor):  # a profiler knows no shape of it either
        return Tensor((), dtype)
    if tensor.layout in _SPARSE:
        return Tensor(tuple(tensor.shape), dtype, None, *_held_bytes(tensor))
    strides = tuple(tensor.stride()) if tensor.layout == torch.strided else None
    return Tensor(tuple(tensor.shape), dtype, strides)


_SPARSE = frozenset((torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc))


def _held_bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """Bytes of a sparse tensor's values and of the numbers that say where they are, and of the values alone."""
    if tensor.layout == torch.sparse_coo:
        parts = [tensor._values(), tensor._indices()]
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = [tensor.values(), tensor.col_indices(), tensor.crow_indices()]
    else:
        parts = [tensor.values(), tensor.row_indices(), tensor.ccol_indices()]
    sizes = [each.numel() * each.element_size() for each in parts]
    return sum(sizes), sizes[0]


def _as_text(value: Any) -> str:
    """What is no tensor: numbers, names and lists of these. Of anything else the kind: a storage would read its bytes
    one by one from the device."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_as_text, value))}]"
    return str(value) if isinstance(value, _SAID) else type(value).__name__


_SAID = (
    *(int, float, complex, str, type(None), torch.SymInt, torch.SymFloat, torch.SymBool),
    *(torch.device, torch.layout, torch.memory_format, torch.qscheme),
)
