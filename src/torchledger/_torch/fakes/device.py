"""A CUDA device that is not there, on a machine with or without a CUDA build of torch.

``FakeDevice`` answers all that a program, torch, Inductor and Triton ask of a GPU by the record of one; nothing runs on
it. Everything is taken back when it is left, also what the program has set of torch.
"""

from __future__ import annotations

import contextlib
import importlib
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchledger._torch.devices import use_none
from torchledger._torch.fakes.attention import answer_for_kernels, choose_attention
from torchledger._torch.fakes.captures import Captures
from torchledger._torch.fakes.checkpoints import keep_checkpoints_away
from torchledger._torch.fakes.generators import device_state, let_states_be_unknown
from torchledger._torch.fakes.guises import take_tensors_for_real
from torchledger._torch.fakes.inductor import compile_for_fake_device
from torchledger._torch.fakes.library import CUDNN_VERSION, load_library
from torchledger._torch.fakes.live_memory import LiveMemory
from torchledger._torch.fakes.loaders import Loading
from torchledger._torch.fakes.operators import instead_of_kernel
from torchledger._torch.fakes.pools import pool_names
from torchledger._torch.fakes.profiler import profile_host_alone
from torchledger._torch.fakes.scripts import run_scripts_unfused
from torchledger._torch.fakes.spawn import run_spawned_here
from torchledger._torch.fakes.stores import ask_for_world
from torchledger._torch.fakes.streams import StreamOrder, install_streams
from torchledger._torch.fakes.tensors import FakeTensors
from torchledger._torch.fakes.threads import FakeThreads
from torchledger._torch.fakes.tools import answer_for_tools
from torchledger._torch.patching import Patches, pass_through
from torchledger._torch.program_settings import keep_settings
from torchledger._torch.user_lines import is_called_from
from torchledger.errors import PlanError
from torchledger.nouns import Device
from torchledger.work.unaligned import Pays, stays_as_it_is

_CUDA_VERSION = "13.0"
_NCCL_VERSION = (2, 28, 9)
_SHARED_KIB = {(7, 0): 96, (7, 5): 64, (8, 0): 164, (8, 6): 100, (8, 9): 100, (9, 0): 228, (10, 0): 228, (12, 0): 100}
"""Shared memory of a multiprocessor by compute capability (CUDA C programming guide, table of technical
specifications); since 8.0 a block can have all but ``_RESERVED_SHARED`` bytes of it."""
_LATEST_SHARED_KIB, _RESERVED_SHARED, _FIRST_RESERVED = 228, 1024, (8, 0)
_REGISTERS = 65536


def import_what_it_needs() -> None:
    """Import what is imported when the device is made: for a process that is forked before."""
    for name in ("torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.select_algorithm"):
        importlib.import_module(name)


class FakeDevice:
    """A context in which ``device`` is there ``count`` times, this process on number ``index``, and holds no values.

    ``tensors`` is the mode in which tensors are made, with the stand-ins that the program was given, also on
    ``threads`` that the program starts; ``memory`` counts what it allocates once it follows these (``tensors.flows``).
    ``pays`` says which products Inductor pads. Raises ``PlanError`` on entering if a C++ compiler is missing or a real
    GPU is in use; what compiles does without Triton.
    """

    def __init__(self, device: Device, *, index: int = 0, count: int = 1, pays: Pays = stays_as_it_is) -> None:
        self.device, self._pays = device, pays
        self.index, self.count = index, count
        self._stack = contextlib.ExitStack()
        self.tensors = FakeTensors(devices=count)
        self.threads = FakeThreads(self.tensors)
        self.decisions: dict[str, int] = {}
        self.order = StreamOrder()
        self.memory = LiveMemory(properties_of(device).total_memory)
        self.captures = Captures(self.decisions, self.tensors, self.order)
        self.loading = Loading(self.tensors.handling)

    def __enter__(self) -> FakeDevice:
        if torch.cuda.is_initialized():
            raise PlanError("this process uses a GPU already: a plan is made in a process of its own.")
        capability = self.device.compute_capability
        if capability is None:
            raise PlanError(
                f"{self.device.name} has no compute capability of CUDA, which code is generated for. Plan for an "
                "NVIDIA device (`torchledger devices` lists them)."
            )
        with contextlib.ExitStack() as stack:
            settings = Patches()
            stack.callback(settings.undo)
            keep_settings(settings)
            library = load_library()
            library.install(lambda asked: choose_attention(asked, capability), device=self.index)
            stack.callback(library.uninstall)
            patches = Patches()
            stack.callback(patches.undo)
            use_none(patches)
            _patch_cuda(patches, self)
            answer_for_kernels(patches, capability)
            install_streams(patches, self.order)
            compile_for_fake_device(patches, self.device, self.decisions, self.tensors, self._pays)
            keep_checkpoints_away(patches, self.tensors.note)
            take_tensors_for_real(patches)
            ask_for_world(patches)
            profile_host_alone(patches)
            run_scripts_unfused(patches, self.tensors.note)
            let_states_be_unknown(patches, self.tensors.note)
            answer_for_tools(patches, self.device, self.count, self.tensors.note)
            self.threads.install(patches)
            self.loading.install(patches)
            self.processes = run_spawned_here(patches, self.index, self.count)
            stack.enter_context(_without_warnings())
            stack.enter_context(self.tensors)
            stack.callback(self.tensors.end)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def join(self) -> None:
        """Wait for the program's threads and processes as Python does at the end of a program."""
        self.processes.join()
        self.threads.join()


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """torch warns of what is done here on purpose."""
    added = []
    for message in _WARNINGS:
        warnings.filterwarnings("ignore", message=message)
        added.append(warnings.filters[0])
    try:
        yield
    finally:
        for each in added:
            with contextlib.suppress(ValueError):
                warnings.filters.remove(each)


_WARNINGS = (
    "Accessing the data pointer of FakeTensor",
    "Attempted to get default timeout for nccl backend, but NCCL support is not compiled",
)


class _Generator(torch.Generator):
    """The random numbers of a device: its state is asked for, and put into graphs that recompute dropout."""

    index = 0
    offset = 0

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", self.index)

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> _Generator:
        self.offset = offset
        return self

    def get_state(self) -> torch.Tensor:
        return device_state()

    def set_state(self, new_state: torch.Tensor) -> _Generator:
        return self

    def clone_state(self) -> _Generator:
        return self

    def graphsafe_get_state(self) -> _Generator:
        return self

    def graphsafe_set_state(self, state: torch.Generator) -> _Generator:
        return self


def _generators(count: int) -> tuple[_Generator, ...]:
    made = tuple(_Generator() for _ in range(count))
    for index, each in enumerate(made):
        each.index = index
    return made


def properties_of(device: Device) -> Any:
    """What ``torch.cuda.get_device_properties`` would say of a device."""
    major, minor = device.compute_capability or (0, 0)
    capability = (major, minor)
    shared = device.max_shared_memory_per_multiprocessor_bytes or _SHARED_KIB.get(capability, _LATEST_SHARED_KIB) << 10
    return types.SimpleNamespace(
        name=device.name,
        major=major,
        minor=minor,
        multi_processor_count=device.num_multiprocessors,
        total_memory=device.total_memory_bytes or 80 << 30,
        warp_size=device.warp_size or 32,
        regs_per_multiprocessor=_REGISTERS,
        max_threads_per_multi_processor=device.max_threads_per_multiprocessor or 2048,
        max_threads_per_block=device.max_threads_per_block or 1024,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=shared - _RESERVED_SHARED * (capability >= _FIRST_RESERVED),
        shared_memory_per_multiprocessor=shared,
        L2_cache_size=device.l2_cache_bytes or 0,
        clock_rate=int((device.clock_rate_mhz or 0) * 1000),
        memory_clock_rate=int((device.memory_clock_rate_mhz or 0) * 1000),
        memory_bus_width=device.memory_bus_width_bits or 0,
        is_integrated=False,
        is_multi_gpu_board=False,
        gcnArchName="",
        uuid=f"{device.name}",
    )


def _patch_cuda(patches: Patches, fake: FakeDevice) -> None:
    """All of ``torch.cuda`` that asks a driver."""
    import torch.cuda.memory
    import torch.cuda.random
    from torch._subclasses import fake_tensor

    cuda: Any = torch.cuda
    for answers, owners in (
        (_answers_of_device(fake), (cuda,)),
        (_answers_of_memory(fake), (torch.cuda.memory, cuda)),
        (_answers_of_randomness(fake), (torch.cuda.random, cuda)),
        (fake.captures.names(), (torch.cuda.graphs, cuda)),
    ):
        for name, value in answers.items():
            for owner in owners:
                if hasattr(owner, name):
                    patches.set(owner, name, value)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        patches.set(torch.cuda.nvtx, name, _answer(None))
    patches.set(fake_tensor, "init_gpu_context", _answer(None))
    patches.set(fake_tensor.FakeTensorMode, "avoid_device_init", property(lambda mode: True))
    pass_through(patches, fake_tensor, "run_fallback_kernel", instead_of_kernel)
    patches.around(fake_tensor.FakeTensorMode, "from_tensor", _taken_over)
    patches.around(torch._utils, "_restore_device_fake_mode", _on_numbered(fake.index))
    patches.set(torch.backends.mha, "get_fastpath_enabled", _takes_fused_encoders(fake.decisions))
    patches.set(torch.version, "cuda", torch.version.cuda or _CUDA_VERSION)
    patches.set(torch.backends.cudnn, "version", _answer(CUDNN_VERSION))
    patches.set(torch.backends.cudnn, "is_available", _answer(True))
    patches.set(torch.backends.cudnn, "is_acceptable", _is_acceptable)
    patches.set(torch.backends.cudnn.rnn, "get_cudnn_mode", _RECURRENT_MODES.index)
    for name, value in {
        "_cuda_getCurrentRawStream": _answer(0),
        "_cuda_cudaCachingAllocator_is_enabled": _answer(True),
        "_cuda_getDeviceCount": _answer(fake.count),
        "_cuda_isCurrentStreamCapturing": lambda: fake.captures.is_open,
        "_scatter": _scattered,
    }.items():
        patches.set_or_add(torch._C, name, value)
    if not hasattr(torch._C, "_nccl_version"):  # what a log of checkpoints says
        patches.set(torch.cuda.nccl, "version", _answer(_NCCL_VERSION))


def _scattered(
    tensor: Any, devices: Sequence[int], sizes: Sequence[int] | None, dim: int, streams: Sequence[Any] | None = None
) -> list[Any]:
    """The parts of a tensor, each copied to its device unless it lies there (``scatter`` in ``csrc/cuda/comm.cpp``), as
    ``nn.DataParallel`` asks also on one; a build for the CPU has no such function."""
    parts = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(list(sizes), dim)
    made = []
    for part, index, stream in zip(parts, devices, streams or [None] * len(devices), strict=False):
        with torch.cuda.stream(stream):
            is_there = part.device.type == "cuda" and part.device.index == index
            made.append(part if is_there else part.to(torch.device("cuda", index), non_blocking=True))
    return made


def _answer(value: Any) -> Callable[..., Any]:
    """A function that answers with the value; one of its own for each, as Dynamo keeps one rule for each."""
    return lambda *args, **kwargs: value


def _answers_of_device(fake: FakeDevice) -> dict[str, Any]:
    properties = properties_of(fake.device)
    capability = (properties.major, properties.minor)
    return {
        "is_available": _answer(True),
        "is_initialized": _answer(True),
        "device_count": _answer(fake.count),
        "current_device": _answer(fake.index),
        "get_device_properties": _answer(properties),
        "get_device_capability": _answer(capability),
        "get_device_name": _answer(fake.device.name),
        "is_bf16_supported": _answer(capability >= (8, 0)),
        "is_tf32_supported": _answer(capability >= (8, 0)),
        "get_arch_list": _answer([f"sm_{capability[0]}{capability[1]}"]),
        "can_device_access_peer": _answer(True),
        "_lazy_init": _answer(None),
        "init": _answer(None),
        "set_device": _answer(None),
        "_exchange_device": _answer(fake.index),
        "_maybe_exchange_device": lambda device: fake.index,  # two functions: Dynamo registers each once
        "_check_capability": _answer(None),
        "ipc_collect": _answer(None),
        "memory_usage": _answer(0),
        "utilization": _answer(0),
        "_sleep": _answer(None),
        "default_generators": _generators(fake.count),
    }


def _answers_of_memory(fake: FakeDevice) -> dict[str, Any]:
    return {
        **fake.memory.answers(),
        "memory_stats": lambda *args, **kwargs: _Zeros(fake.memory.statistics()),
        "memory_stats_as_nested_dict": _answer({}),
        "memory_summary": _answer(""),
        "memory_snapshot": _answer([]),
        "reset_accumulated_memory_stats": _answer(None),
        "empty_cache": _answer(None),
        "set_per_process_memory_fraction": _answer(None),
        "_record_memory_history": _answer(None),
        "_dump_snapshot": _answer(None),
        "_snapshot": _answer({}),
        **pool_names(),
    }


def _answers_of_randomness(fake: FakeDevice) -> dict[str, Any]:
    return {
        "get_rng_state": lambda *args, **kwargs: device_state(),
        "get_rng_state_all": lambda: [device_state() for _ in range(fake.count)],
        "set_rng_state": _answer(None),
        "set_rng_state_all": _answer(None),
        "manual_seed": _answer(None),
        "manual_seed_all": _answer(None),
        "seed": _answer(None),
        "seed_all": _answer(None),
        "initial_seed": _answer(0),
    }


def _takes_fused_encoders(decisions: dict[str, int]) -> Callable[[], bool]:
    """Whether ``nn.TransformerEncoder`` runs a layer as one operator, of whose parts and padding nothing can be told.

    Compiled it does as ever, so that graphs are those of the device.
    """

    def get_fastpath_enabled() -> bool:
        if torch.compiler.is_compiling():
            return bool(torch.backends.mha._is_fastpath_enabled)
        if not torch.is_grad_enabled() and is_called_from("torch/nn/modules/transformer.py"):
            decisions[_UNFUSED] = decisions.get(_UNFUSED, 0) + 1
        return False

    return get_fastpath_enabled


_UNFUSED = "layers of nn.TransformerEncoder are taken operator by operator, not fused"

_RECURRENT_MODES = ("RNN_RELU", "RNN_TANH", "LSTM", "GRU")
"""cuDNN's numbers for them."""


def _is_acceptable(tensor: torch.Tensor) -> bool:
    """Whether a module may put its weights into cuDNN's one buffer."""
    dtypes = torch.backends.cudnn.CUDNN_TENSOR_DTYPES
    return torch.backends.cudnn.enabled and tensor.device.type == "cuda" and tensor.dtype in dtypes


def _taken_over(original: Callable[..., Any], mode: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """A tensor for a compiler's own mode. A view is made again from its base, and what was computed is copied, which
    the program's mode would do where it is still on the stack (inside ``DistributedDataParallel.forward``)."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import _disable_current_modes

    is_made_again = isinstance(tensor, FakeTensor) and (tensor._is_view() or not tensor.is_leaf)
    if is_made_again and tensor.fake_mode is not mode:
        with _disable_current_modes():
            return original(mode, tensor, *args, **kwargs)
    return original(mode, tensor, *args, **kwargs)


def _on_numbered(index: int) -> Callable[..., Any]:
    """What is loaded on ``cuda`` is on the current device, which torch until 2.12 leaves without its number."""

    def restored(original: Callable[..., Any], tensor: Any) -> Any:
        loaded = original(tensor)
        device = getattr(loaded, "fake_device", None)
        if device is not None and device.type == "cuda" and device.index is None:
            loaded.fake_device = torch.device("cuda", index)
        return loaded

    return restored


class _Zeros(dict[str, int]):
    """Statistics of an allocator, of which those that are not counted are 0."""

    def __missing__(self, key: str) -> int:
        return 0
