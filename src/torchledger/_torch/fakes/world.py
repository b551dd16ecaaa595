"""A world of many ranks in one process: process groups that move nothing, as one of their ranks sees them.

A program that reads its rank from the environment, makes process groups and meshes and calls collectives runs unchanged
beside ranks that are not there. What it would get from them is stood in for: every rank gives what this one gives.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatch
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as core
from torch._compile import _disable_dynamo
from torch._guards import TracingContext
from torch.distributed import distributed_c10d as c10d
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from torchledger._torch.eager_calls import collective_call
from torchledger._torch.fakes.late_hooks import begin_hooks_soon
from torchledger._torch.fakes.messages import Messages
from torchledger._torch.fakes.pipelines import let_pipelines_run
from torchledger._torch.fakes.pools import let_groups_allocate
from torchledger._torch.fakes.shares import send_shares
from torchledger._torch.fakes.stores import answer_for_others
from torchledger._torch.fakes.streams import StreamOrder, active_order, communication_stream
from torchledger._torch.fakes.symmetric import share_memory
from torchledger._torch.patching import Patches, pass_through, replace_everywhere
from torchledger._torch.tensors import tensors_in
from torchledger._torch.user_lines import user_line
from torchledger.errors import UsageError
from torchledger.nouns import MadeGroup, WorldSpec
from torchledger.work.meshes import check_mesh, undivided

BACKEND = "torchledger"
"""The name of the backend behind every group; programs are told the one that they asked for."""

_METHODS = tuple(
    name
    for name in (
        *("allreduce", "allreduce_coalesced", "allgather", "_allgather_base", "all_gather_single"),
        *("allgather_coalesced", "all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
        *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single"),
        *("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
        *("alltoall", "alltoall_base", "all_to_all_single"),
        *("broadcast", "reduce", "gather", "scatter", "send", "recv", "recv_anysource", "barrier"),
    )
    if hasattr(dist.ProcessGroup, name)
)
_POINT_TO_POINT = {"send": 1, "recv": 1}
_SENDS_TO_LIKE = frozenset({"alltoall", "alltoall_base", "all_to_all_single", "allgather", "_allgather_base"})
_DEVICES = ("cpu", "cuda")
_MOST_NAMED = 8
_OF_MESHES = (
    *("__init__", "mesh", "__getitem__", "from_group", "get_coordinate", "_sym_get_coordinate", "get_all_groups"),
    *("_compute_coordinates_from_mesh", "_compute_coordinate_on_dim", "_get_mesh_tensor_from_full_mesh"),
    *("_init_one_process_group", "_init_process_groups", "_create_sub_mesh", "_create_flatten_mesh"),
    *("_get_all_submeshes", "_flatten", "_create_unflatten_mesh", "_unflatten", "_concatenate"),
)


@dataclass
class FakeWorld:
    """The world around one rank, between ``start`` and ``stop``: groups that were made, and values stood in for.

    ``hints`` say what of the program does not divide over the ranks: the reason, where it fails. ``tensor_parallel``
    are the sizes of the meshes over which modules are cut. ``notes`` are on the step that the program is had to make.
    ``on_message`` is told of each ``"send"`` and ``"recv"`` that is asked for, and of the other rank. ``backed`` are
    the devices for which the group that is made has a backend.
    """

    spec: WorldSpec
    order: StreamOrder = field(default_factory=lambda: active_order() or StreamOrder())
    stand_ins: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    tensor_parallel: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    mail: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    read_mail: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    groups: dict[str, MadeGroup] = field(default_factory=dict)
    asked_groups: set[tuple[int, ...]] = field(default_factory=set)
    messages: Messages = field(init=False)
    on_message: Callable[[Any, int], None] | None = None
    backed: frozenset[str] = frozenset(_DEVICES)
    _undo: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.messages = Messages(self.spec)

    def start(self) -> None:
        """Set the variables that a launcher sets, and replace what makes process groups."""
        patches = Patches()
        self._undo.callback(patches.undo)
        if not dist.is_initialized():
            # Groups are named by a count, alike on all ranks: what this process made before is none of the program's.
            c10d._world.group_count = 0
        _set_environment(self.spec, patches)
        _register_backend(self, patches)
        _note_groups(self, patches)
        _replace_rendezvous(self, patches)
        _replace_objects(self, patches)
        answer_for_others(patches, self.spec.size, self.stand_in)
        _let_meshes_hold_values(patches)
        _let_ddp_run(patches)
        begin_hooks_soon(patches, self.notes.append)
        let_pipelines_run(self, patches)
        let_groups_allocate(patches)
        share_memory(patches, self.note)
        _watch_tensor_parallel(self, patches)

    def stop(self) -> None:
        """Undo all of it; a process group that is still there is left without a backend to call."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self._undo.close()

    def __enter__(self) -> FakeWorld:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def left_over(self) -> str | None:
        """That some ranks are in none of the groups that the program makes of parts of the world, and that these are of
        a size that does not divide it; ``None`` where neither is so."""
        size = self.spec.size
        parts = [ranks for ranks in self.asked_groups if len(ranks) < size]
        divides = all(size % len(ranks) == 0 for ranks in parts)
        if divides or not (left := sorted(set(range(size)).difference(*parts))):
            return None
        named = f"rank {left[0]} is" if len(left) == 1 else f"ranks {', '.join(map(str, left[:_MOST_NAMED]))} are"
        more = f" ({len(left)} in all)" if len(left) > _MOST_NAMED else ""
        largest = max(len(ranks) for ranks in parts)
        return (
            f"{named} in none of the groups that the script makes{more}, of {largest} ranks at most: does its layout "
            f"divide a world of {size}? All ranks are priced as if they were in one"
        )

    def stand_in(self, what: str) -> None:
        """Note a value that another rank would have given."""
        if what not in self.stand_ins:
            self.stand_ins.append(what)

    def note(self, said: str) -> None:
        """Note something on the step that the program is had to make, once."""
        if said not in self.notes:
            self.notes.append(said)

    def check_backend(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raises what torch raises where an operator is given tensors on a device for which its group has no backend,
        as tensors of the host and a group of NCCL's alone."""
        if TracingContext.try_get() is not None or (heard := collective_call(func, args, kwargs)) is None:
            return
        _, name, _ = heard
        if name is None:
            return
        backed = {device.type for device in c10d._resolve_process_group(cast(Any, name))._device_types}
        for tensor in tensors_in((args, kwargs)):
            if tensor.device.type not in backed:
                raise RuntimeError(f"No backend type associated with device type {tensor.device.type}")


def environment_of(spec: WorldSpec) -> Mapping[str, str]:
    """What a launcher tells this rank in variables."""
    local = spec.local_size
    return {
        "RANK": str(spec.rank),
        "LOCAL_RANK": str(spec.local_rank),
        "WORLD_SIZE": str(spec.size),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(spec.rank // local),
        "GROUP_WORLD_SIZE": str(-(-spec.size // local)),
        "ROLE_RANK": str(spec.rank),
        "ROLE_WORLD_SIZE": str(spec.size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "plan",
    }


def _set_environment(spec: WorldSpec, patches: Patches) -> None:
    former = {name: os.environ.get(name) for name in environment_of(spec)}

    def restore() -> None:
        for name, value in former.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    patches.on_undo(restore)
    os.environ.update(environment_of(spec))


# --- groups ---------------------------------------------------------------------------------------------------------


class FakeWork(core.Work):
    """A collective that was asked for: done already, and known by its place on a stream."""

    def __init__(
        self,
        order: StreamOrder,
        after: tuple[int, ...],
        tensors: Any,
        *,
        blocks_host: bool = False,
        source: int | None = None,
    ) -> None:
        super().__init__()
        self._order, self._after, self._blocks_host, self._source = order, after, blocks_host, source
        self._tensors = tensors
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """The calling thread's stream goes on after it; after a barrier the host does."""
        if self._blocks_host:
            self._order.host_waits("barrier", self._after)
        else:
            self._order.wait(self._order.current, self._after)
        return True

    def synchronize(self) -> None:
        """The same, by its other name."""
        self.wait()

    def block_current_stream(self) -> None:
        """The same, by a third name."""
        self.wait()

    def is_completed(self) -> bool:
        """Nothing runs: always done."""
        return True

    def is_success(self) -> bool:
        """Nothing runs: nothing fails."""
        return True

    def get_future(self) -> Any:
        """A future with the tensors. DDP's reducer takes it, and waits for it when the backward ends."""
        if torch._C._current_graph_task_id() >= 0:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self.wait)
        if self._future is None:
            self._future = torch.futures.Future()
            self._future.set_result(_as_nccl_holds(self._tensors))
        return self._future

    def result(self) -> Any:
        """The tensors."""
        return _as_nccl_holds(self._tensors)

    def _source_rank(self) -> int:
        """Whom a message is from, by its place in the group."""
        if self._source is None:
            raise RuntimeError("only what receives a message has a source")
        return self._source


def _as_nccl_holds(tensors: Any) -> Any:
    """What a program finds in the work of NCCL: an all-gather into a list has one buffer for all, of which it copies
    them (``newLikeFlat`` in ``ProcessGroupNCCL.cpp``)."""
    if not tensors or not isinstance(tensors[0], list) or len({tuple(each.shape) for each in tensors[0]}) != 1:
        return tensors
    return [part[0].new_empty((len(part), *part[0].shape)) for part in tensors]


class FakeGroup(dist.ProcessGroup):
    """A process group whose collectives are passed to one that moves nothing, on the streams on which NCCL has them.

    What is asked for asynchronously runs on the group's own stream once the current one has come so far; the rest runs
    on the current stream.
    """

    def __init__(self, world: FakeWorld, common: Any) -> None:
        place: Any = (common.group_rank, common.group_size)
        super().__init__(*place)
        kind = dist.ProcessGroup.BackendType.CUSTOM
        self._world = world
        self._inner = dist.ProcessGroup(common.store, *place)
        backend = core.FakeProcessGroup._create_internal(*place)
        for device in map(torch.device, _DEVICES):
            if device.type in world.backed:
                self._register_backend(device, kind, backend)
            self._inner._register_backend(device, kind, backend)
        self._inner._set_default_backend(kind)
        self._ranks = tuple(common.global_ranks_in_group or range(common.group_size))
        others = [each for each in range(len(self._ranks)) if each != self.rank()]
        self._sources = itertools.cycle(others if self.rank() == 0 else others[:1])

    def _set_group_name(self, name: Any) -> None:
        super()._set_group_name(name)
        self._inner._set_group_name(name)
        self._world.groups[str(name)] = MadeGroup(str(name), self._ranks)

    def _set_group_desc(self, desc: str) -> None:
        super()._set_group_desc(desc)
        name = str(self.group_name)
        self._world.groups[name] = MadeGroup(name, self._ranks, desc)

    def _start_coalescing(self, device: Any) -> None:
        """Calls that follow are recorded one by one."""

    def _end_coalescing(self, device: Any) -> Any:
        order = self._world.order
        return FakeWork(order, order.mark(communication_stream(str(self.group_name))), [])

    def getBackendName(self) -> str:
        """What its backend is called."""
        return BACKEND

    def _run(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FakeWork:
        order = self._world.order
        name = str(self.group_name)
        if method == "recv_anysource":
            method, args = "recv", (args[0], self._next_source(), *args[1:])
        options = next((each for each in (*args, *kwargs.values()) if hasattr(each, "asyncOp")), None)
        stream = order.current
        if method in _POINT_TO_POINT:
            peer = args[_POINT_TO_POINT[method]]
            self._check_peer(method, peer)
            if self._world.on_message is not None:
                self._world.on_message(method, self._ranks[peer])
            if order.is_together:
                stream = order.lane(communication_stream(name))
            else:
                stream = communication_stream(name, (self.rank(), peer))
        elif options is None or options.asyncOp:
            stream = communication_stream(name)
        order.wait(stream, order.mark(order.current))
        with order.on(stream):
            getattr(self._inner, method)(*args, **kwargs)
        if method in _SENDS_TO_LIKE:
            send_shares(args[0], args[1])
        if method in _POINT_TO_POINT:
            pass_on = self._world.messages.send if method == "send" else self._world.messages.receive
            pass_on(args[0], name, self._ranks[args[_POINT_TO_POINT[method]]])
        first = args[0] if args else []
        tensors = first if isinstance(first, list) else list(tensors_in((first,)))
        source = args[_POINT_TO_POINT[method]] if method == "recv" else None
        return FakeWork(order, order.mark(stream), tensors, blocks_host=method == "barrier", source=source)

    def _next_source(self) -> int:
        """Whom a message from whichever rank is taken to be from: the first rank, which hears the others in turn."""
        self._world.stand_in("recv: a message from any rank is taken to be the first one's, and its from each in turn")
        return next(self._sources)

    def _check_peer(self, method: str, peer: int) -> None:
        """Raises ``UsageError`` for a message to or from a rank that the group has not, as ranks have that a layout
        leaves over."""
        size = len(self._ranks)
        if not 0 <= peer < size:
            does = "sends to" if method == "send" else "receives from"
            raise UsageError(
                f"it {does} rank {peer} of a group of {size} at {user_line()}, which has ranks 0 to {size - 1}. Does "
                "the script's own layout (stages of a pipeline, say) divide the world? --world says how many ranks."
            )


def _method(name: str) -> Callable[..., FakeWork]:
    def method(self: FakeGroup, *args: Any, **kwargs: Any) -> FakeWork:
        return self._run(name, args, kwargs)

    method.__name__ = name
    return _disable_dynamo(method)


for _name in _METHODS:
    setattr(FakeGroup, _name, _method(_name))


def _register_backend(world: FakeWorld, patches: Patches) -> None:
    backend = dist.Backend
    alive: list[FakeGroup] = []  # C++ keeps the group, not its Python half

    def create(common: Any, options: Any) -> FakeGroup:
        alive.append(FakeGroup(world, common))
        return alive[-1]

    former = {
        name: copy.copy(getattr(backend, name))
        for name in ("backend_list", "backend_capability", "backend_type_map", "default_device_backend_map", "_plugins")
        if hasattr(backend, name)
    }
    had = hasattr(backend, BACKEND.upper())

    def unregister() -> None:
        for name, value in former.items():
            setattr(backend, name, value)
        if not had and hasattr(backend, BACKEND.upper()):
            delattr(backend, BACKEND.upper())

    patches.on_undo(unregister)
    backend.register_backend(BACKEND, create, extended_api=True, devices=list(_DEVICES))
    for device in _DEVICES:
        if device in former.get("default_device_backend_map", {}):
            backend.default_device_backend_map[device] = former["default_device_backend_map"][device]


def _note_groups(world: FakeWorld, patches: Patches) -> None:
    """Each rank asks for all groups, those that it is not in among them."""
    make = c10d.new_group

    @functools.wraps(make)
    def made(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        if ranks is not None:
            world.asked_groups.add(tuple(ranks))
        return make(ranks, *args, **kwargs)

    replace_everywhere(patches, make, made)


def _replace_rendezvous(world: FakeWorld, patches: Patches) -> None:
    """Groups are made without anybody to meet, of whatever backend."""
    spec = world.spec

    def rendezvous(*_: Any, **__: Any) -> Iterator[tuple[Any, int, int]]:
        yield dist.HashStore(), spec.rank, spec.size

    def init_process_group(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        asked = kwargs.get("world_size", args[3] if len(args) > 3 else -1)
        if asked not in (None, -1, spec.size):
            raise UsageError(
                f"the script asks for a world of {asked} ranks, but the plan is for {spec.size}. "
                f"Pass --world {asked}, or have the script read WORLD_SIZE."
            )
        device = kwargs.pop("device_id", None)
        original(*args, **kwargs)
        _bind(c10d._get_default_group(), device)

    def helper(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        args, asked = (*args[:3], BACKEND, *args[4:]), str(args[3])
        asked = asked if asked != "undefined" else "nccl"
        world.backed = frozenset(c10d.BackendConfig(c10d.Backend(asked)).get_device_backend_map())
        kwargs = {name: value for name, value in kwargs.items() if name not in ("backend_options", "pg_options")}
        kwargs.pop("device_id", None)
        result = original(*args, **kwargs)
        group = result[0] if isinstance(result, tuple) else result
        if isinstance(group, FakeGroup):
            _, store = c10d._world.pg_map[group]
            c10d._world.pg_map[group] = (asked, store)
        return result

    replace_everywhere(patches, c10d.rendezvous, rendezvous)
    pass_through(patches, c10d, "_new_process_group_helper", helper)
    pass_through(patches, c10d, "init_process_group", init_process_group)
    if hasattr(c10d, "split_group"):
        pass_through(patches, c10d, "split_group", _split_group)
    replace_everywhere(patches, c10d.monitored_barrier, lambda *args, **kwargs: None)

    patches.set(dist, "is_nccl_available", lambda: True)  # torch's own code asks c10d whether there is the class

    def batch(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with world.order.together():
            return original(*args, **kwargs)

    pass_through(patches, c10d, "batch_isend_irecv", batch)


def _bind(group: Any, device: torch.device | int | None) -> None:
    """Have a group say that its communicator is of one device, which is what lets a program split it."""
    device = torch.device("cuda", device) if isinstance(device, int) else device
    if device is not None and device.index is not None:
        group.bound_device_id = device


def _split_group(
    original: Callable[..., Any],
    parent_pg: Any = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    **others: Any,
) -> Any:
    """The part of a group that this rank is in, made as any other group: no communicator is there to be split."""
    whole = c10d._get_default_group()
    if whole.bound_device_id is None or not split_ranks:
        return original(parent_pg, split_ranks, timeout, pg_options, group_desc, **others)  # which says what is wrong
    parent = whole if parent_pg is None else parent_pg
    mine = next((sorted(ranks) for ranks in split_ranks if parent.rank() in ranks), None)
    if mine is None:
        return None
    ranks = c10d.get_process_group_ranks(parent)
    made = c10d.new_group([ranks[each] for each in mine], timeout, group_desc=group_desc)
    _bind(made, whole.bound_device_id)
    return made


def _let_meshes_hold_values(patches: Patches) -> None:
    """A mesh reads the ranks out of its tensors: they are real, whatever mode the program is in."""
    from torch.distributed import device_mesh

    def real(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def method(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                return function(*args, **kwargs)

        return method

    kind = device_mesh.DeviceMesh
    for name in _OF_MESHES:
        held = vars(kind).get(name)
        if held is None:
            continue
        if isinstance(held, property):
            value: Any = property(real(held.fget)) if held.fget is not None else held
        elif isinstance(held, (staticmethod, classmethod)):
            value = type(held)(real(held.__func__))
        else:
            value = real(held)
        patches.set(kind, name, value)
    make = device_mesh.init_device_mesh

    @functools.wraps(make)
    def made(device_type: str, mesh_shape: Any, *args: Any, **kwargs: Any) -> Any:
        shape, names = tuple(mesh_shape), kwargs.get("mesh_dim_names")
        sizes = ", ".join(f"{name}={size}" for name, size in zip(names, shape, strict=False)) if names else str(shape)
        check_mesh(f"the script's mesh ({sizes})", shape, int(os.environ["WORLD_SIZE"]))
        return real(make)(device_type, mesh_shape, *args, **kwargs)

    replace_everywhere(patches, make, made)


# --- objects of other ranks -----------------------------------------------------------------------------------------


def _replace_objects(world: FakeWorld, patches: Patches) -> None:
    """Python objects are not sent as tensors, which have no values here: every rank's is this one's."""

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        world.stand_in("all_gather_object: what this rank gave stands for what every rank gives")
        object_list[:] = [copy.deepcopy(obj) for _ in range(dist.get_world_size(group))]

    def gather_object(
        obj: Any, object_gather_list: list[Any] | None = None, dst: int | None = None, group: Any = None, **_: Any
    ) -> None:
        if object_gather_list is not None:
            all_gather_object(object_gather_list, obj, group)

    def broadcast_object_list(
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
    ) -> None:
        if group_src is not None:
            src = group_src if group is None else dist.get_global_rank(group, group_src)
        name = "" if group is None else str(group.group_name)
        if src is None or src == world.spec.rank:
            world.messages.publish(object_list, name)
        elif (sent := world.messages.published(name, src)) is not None:
            object_list[:] = sent
        else:
            world.stand_in(f"broadcast_object_list: what rank {src} sends is taken to be what this rank holds")

    def scatter_object_list(
        scatter_object_output_list: list[Any], scatter_object_input_list: Sequence[Any] | None = None, **__: Any
    ) -> None:
        if scatter_object_input_list:
            scatter_object_output_list[0] = scatter_object_input_list[dist.get_rank()]
        else:
            world.stand_in("scatter_object_list: what another rank sends is not known, None stands for it")

    def nothing_sent(*_: Any, **__: Any) -> None:
        return None

    def recv_object_list(object_list: list[Any], src: int | None = None, *_: Any, **__: Any) -> int:
        world.stand_in(f"recv_object_list: what rank {src} sends is taken to be what this rank holds")
        return src or 0

    for function in (all_gather_object, gather_object, broadcast_object_list, scatter_object_list, recv_object_list):
        replace_everywhere(patches, getattr(c10d, function.__name__), function)
    replace_everywhere(patches, c10d.send_object_list, nothing_sent)


# --- DDP ------------------------------------------------------------------------------------------------------------


class _RealIntegers(TorchDispatchMode):
    """Integers that C++ makes to read them back itself hold values and are on the host."""

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Compilation goes on under it."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.int32:
            kwargs["device"] = torch.device("cpu")
            kwargs.pop("pin_memory", None)
        elif not (given := list(tensors_in((args, kwargs)))) or any(
            type(tensor) is not torch.Tensor for tensor in given
        ):
            return func(*args, **kwargs)
        with _disable_current_modes():
            return func(*args, **kwargs)


def _let_ddp_run(patches: Patches) -> None:
    """The reducer compares shapes of parameters over ranks, and has the order of its buckets broadcast, by value."""
    from torch.nn.parallel import distributed

    for module in (distributed, dist, dist.utils):
        for name in ("_verify_param_shape_across_processes", "_verify_model_across_ranks"):
            if hasattr(module, name):
                patches.set(module, name, lambda *args, **kwargs: None)

    def rebuild(original: Callable[..., Any], self: Any) -> Any:
        with _RealIntegers():
            return original(self)

    pass_through(patches, dist.Reducer, "_rebuild_buckets", rebuild)
    if hasattr(dist, "_register_builtin_comm_hook"):
        patches.set(dist, "_register_builtin_comm_hook", _register_hook)
    # What it would log of its own speed comes from a timer of the device.
    patches.set(core.Logger, "set_runtime_stats_and_log", lambda self: None)


def _register_hook(reducer: Any, kind: Any) -> None:
    """A hook of C++ insists on the future of a backend of C++: the same one of Python's runs in its place."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks

    is_half = kind == dist.BuiltinCommHookType.FP16_COMPRESS
    dist._register_comm_hook(reducer, None, hooks.fp16_compress_hook if is_half else hooks.allreduce_hook)


# --- heads that do not divide ---------------------------------------------------------------------------------------


_HEAD_SIZES = ("head_dim", "head_size", "head", "hd", "d_head", "dim_head")
_HEADS = (
    *("num_heads", "num_attention_heads", "num_key_value_heads", "num_kv_heads", "n_heads", "n_kv_heads", "n_head"),
    *("nhead", "heads"),
)


def _watch_tensor_parallel(world: FakeWorld, patches: Patches) -> None:
    """Note heads that do not divide over the ranks of tensor parallelism, and behind them features of layers."""
    from torch.distributed.tensor.parallel import api

    def parallelize(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind_partial(*args, **kwargs).arguments
        module, mesh, styles = (given.get(name) for name in ("module", "device_mesh", "parallelize_plan"))
        if module is None:
            return original(*args, **kwargs)
        size = mesh.size() if mesh is not None else world.spec.size
        world.tensor_parallel.add(size)
        found = list[str]()
        for name, part in module.named_modules():
            # A number of heads, and layers that have as many, are one reason.
            uneven = {heads: owner for owner, heads in reversed(list(_heads_of(part))) if heads % size}
            for heads, owner in uneven.items():
                found.append(undivided(f"{name or 'the module'}.{owner}", heads, size, world.spec.size))
        found += [
            undivided(name, count, size, world.spec.size, "features")
            for name, count in _features_of(module, styles, size)
        ]
        world.hints += [hint for hint in dict.fromkeys(found) if hint not in world.hints]
        return original(*args, **kwargs)

    pass_through(patches, api, "parallelize_module", parallelize)


def _heads_of(module: Any) -> Iterator[tuple[str, int]]:
    """Numbers of heads that a module names, or that its layers have by the size of a head."""
    for name in _HEADS:
        if isinstance(value := getattr(module, name, None), int) and not isinstance(value, bool) and value > 0:
            yield name, value
    sizes = [value for name in _HEAD_SIZES if isinstance(value := getattr(module, name, None), int) and value > 0]
    for name, layer in module.named_children():
        if sizes and isinstance(layer, torch.nn.Linear) and layer.out_features % sizes[0] == 0:
            yield name, layer.out_features // sizes[0]


def _features_of(module: Any, styles: Any, size: int) -> Iterator[tuple[str, int]]:
    """Linear layers whose features a plan shards unevenly: a view of as many heads as ever fails behind them."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    for pattern, style in styles.items() if isinstance(styles, Mapping) else ():
        for name, layer in module.named_modules():
            if not isinstance(layer, torch.nn.Linear) or not fnmatch(name, pattern):
                continue
            if isinstance(style, ColwiseParallel) and layer.out_features % size:
                yield name, layer.out_features
            elif isinstance(style, RowwiseParallel) and layer.in_features % size:
                yield name, layer.in_features
