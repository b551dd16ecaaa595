"""Inductor and Triton for a device that is not there: code is generated as on the device, and runs without kernels.

A generated wrapper is loaded and called as ever: it allocates fake tensors, calls operators on them and frees them in
its own order, so that shapes, aliases and memory are those of the program. Kernels are stand-ins that do nothing. What
Inductor would measure on the device is decided by a rule, and each such decision is counted.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from torchledger._torch.composites import fused_with_collectives, unfused
from torchledger._torch.dynamo import forget_what_was_compiled, keep_out_of, make_states_under
from torchledger._torch.fakes.graph_values import follow_values_of_graphs
from torchledger._torch.fakes.packages import package_without_libraries
from torchledger._torch.fakes.tensors import FakeTensors
from torchledger._torch.fakes.triton import patch_triton
from torchledger._torch.fakes.wrappers import run_without_kernels
from torchledger._torch.patching import Patches, pass_through
from torchledger._torch.symbol_sizes import hint
from torchledger.nouns import CUDA_GRAPH, Device
from torchledger.work.unaligned import Pays, UnalignedProduct


def compile_for_fake_device(
    patches: Patches, device: Device, decisions: dict[str, int], mode: FakeTensors, pays: Pays
) -> None:
    """Have what is compiled until the patches are undone be for ``device``. Decisions are counted by name; whether a
    product is padded is what ``pays`` says. What was compiled before is forgotten, and this is when they are undone.

    Graphs of the host make tensors of ``mode`` and compute nothing either: what they are given has no values.
    """

    def note(what: str) -> None:
        decisions[what] = decisions.get(what, 0) + 1

    forget_what_was_compiled(patches)
    keep_out_of(patches, str(Path(__file__).parent))
    make_states_under(patches, mode)
    _tell_of_device(patches)
    patch_triton(patches, device.compute_capability or (0, 0))
    run_without_kernels(patches, mode)
    follow_values_of_graphs(patches, mode)
    package_without_libraries(patches, mode, note)
    _switch_off_graphs_and_caches(patches, note)
    _fold_on_host(patches)
    _copy_constants(patches, mode)
    _take_libraries(patches, note)
    _decide_padding(patches, pays, note)
    _keep_first_splits(patches, note)
    _part_products_and_collectives(patches, note)


def _tell_of_device(patches: Patches) -> None:
    """What Dynamo and Inductor ask of a device is what ``torch.cuda`` says, which is patched already."""
    from torch._dynamo.device_interface import (
        CudaInterface,
        caching_worker_current_devices,
        caching_worker_device_properties,
    )
    from torch._inductor.runtime.hints import DeviceProperties
    from torch._inductor.utils import get_device_tflops, get_gpu_dram_gbps
    from torch._utils_internal import max_clock_rate

    for name in ("get_device_properties", "current_device", "set_device", "device_count", "stream", "current_stream",
                 "synchronize", "memory_allocated", "is_bf16_supported"):  # fmt: skip
        if hasattr(CudaInterface, name):
            patches.set(CudaInterface, name, staticmethod(getattr(torch.cuda, name)))
    answers: dict[str, Any] = {
        "exchange_device": torch.cuda._exchange_device,
        "maybe_exchange_device": torch.cuda._maybe_exchange_device,
        "is_triton_capable": lambda device=None: True,
        "raise_if_triton_unavailable": lambda device=None: None,
        "get_raw_stream": lambda device=0: 0,
    }
    for name, value in answers.items():
        patches.set(CudaInterface, name, staticmethod(value))
    for cache in (caching_worker_device_properties, caching_worker_current_devices):
        patches.on_undo(functools.partial(_refill, cache, dict(cache)))
        cache.clear()
    for answer in (DeviceProperties.create, get_device_tflops, get_gpu_dram_gbps, max_clock_rate):
        answer.cache_clear()
        patches.on_undo(answer.cache_clear)


def _switch_off_graphs_and_caches(patches: Patches, note: Callable[[str], None]) -> None:
    """What would be recorded as a CUDA graph is called as it is; nothing is kept for other processes, or timed."""
    import torch._dynamo.config
    import torch._functorch.config
    import torch._inductor.config as config
    from torch._inductor import compile_fx, cudagraph_trees

    def graphed(model: Any, *args: Any, **kwargs: Any) -> Any:
        note(CUDA_GRAPH)
        return model

    patches.set(compile_fx, "cudagraphify", graphed)
    patches.set(cudagraph_trees, "cudagraphify_impl", graphed)  # the backend "cudagraphs" asks for this one
    # Dynamo asks for it for each gradient of an optimizer. Torch keeps it where autograd's threads find it, and has
    # lost it where the first to ask was a hook inside a backward.
    patches.set(cudagraph_trees, "get_manager", lambda *args, **kwargs: None)

    settings: dict[str, Any] = {
        # Not force_disable_caches, which is written into each kernel.
        "fx_graph_cache": False,
        "fx_graph_remote_cache": False,
        "compile_threads": 1,
        "max_autotune_gemm_backends": "ATEN",
        "max_autotune_conv_backends": "ATEN",
    }
    for name, value in settings.items():
        patches.set_config(config, name, value)
    for name in ("enable_autograd_cache", "enable_remote_autograd_cache"):
        patches.set_config(torch._functorch.config, name, False)
    patches.set_config(torch._dynamo.config, "automatic_dynamic_local_pgo", False)


def _fold_on_host(patches: Patches) -> None:
    """Scalars that a pass folds are computed on the host."""
    from torch._inductor.fx_passes import joint_graph
    from torch.fx.experimental import proxy_tensor

    def on_host(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def folds(*args: Any, **kwargs: Any) -> Any:
            with _ConstantsOnHost():
                return original(*args, **kwargs)

        return folds

    folder = joint_graph.UniformValueConstantFolder
    for name in ("_deduce_value", "_add_peephole_patterns"):
        if hasattr(folder, name):  # not in all versions
            patches.set(folder, name, on_host(getattr(folder, name)))
    unset_fake = proxy_tensor.unset_fake_temporarily

    @contextlib.contextmanager
    def unset_fake_on_host() -> Iterator[Any]:
        with unset_fake() as mode, _ConstantsOnHost():
            yield mode

    patches.set(proxy_tensor, "unset_fake_temporarily", unset_fake_on_host)


def _copy_constants(patches: Patches, mode: FakeTensors) -> None:
    """A constant of the host that a graph needs on the device is one without values there."""
    from torch._inductor.graph import GraphLowering

    moved: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()

    def constant_name(original: Callable[..., str], graph: Any, name: str, device_override: Any) -> str:
        constant = graph.constants[name]
        if device_override is None or constant.device == device_override:
            return original(graph, name, device_override)
        there = moved.setdefault(graph, {})
        key = f"{name}_{device_override.type}{device_override.index or 0}"
        if key not in there:
            with mode:
                copy = constant.to(device_override)
            there[key] = graph.allocate_non_dup_const_name(key, copy)
        return there[key]

    pass_through(patches, GraphLowering, "constant_name", constant_name)


def _keep_first_splits(patches: Patches, note: Callable[[str], None]) -> None:
    """Where Inductor would time in how many parts a reduction is cut that goes both ways, the first guess stays."""
    from torch._inductor.runtime import coordinate_descent_tuner

    def first(fn: Any, init_val: Any, *args: Any, **kwargs: Any) -> Any:
        note("in how many parts a reduction is cut: as first guessed")
        return init_val

    tuner = coordinate_descent_tuner.CoordescTuner
    if hasattr(tuner, "autotune_single_field"):  # torch 2.9 and before have no such reductions
        patches.set(tuner, "autotune_single_field", staticmethod(first))


def _part_products_and_collectives(patches: Patches, note: Callable[[str], None]) -> None:
    """Where products and collectives would become one operator (``_micro_pipeline_tp``), which nobody can price as
    one, they stay what they are: each is priced, and they run one after the other. Those that the program has made one
    itself are taken apart."""
    from torch._inductor import decomposition
    from torch._inductor.fx_passes import post_grad

    def apart(graph: torch.fx.Graph) -> None:
        note("products and collectives that would overlap (_micro_pipeline_tp): one after the other")

    if hasattr(post_grad, "micro_pipeline_tp_pass"):
        patches.set(post_grad, "micro_pipeline_tp_pass", apart)

    def decompositions(original: Callable[[], Mapping[Any, Any]]) -> Mapping[Any, Any]:
        parts = {each: functools.partial(_parts, each, note) for each in fused_with_collectives()}
        return {**original(), **parts}

    pass_through(patches, decomposition, "select_decomp_table", decompositions)


def _parts(operator: Any, note: Callable[[str], None], *args: Any, **kwargs: Any) -> Any:
    note(f"products and a collective that would overlap ({operator._opname}): one after the other")
    return unfused(operator, args, kwargs)


def _decide_padding(patches: Patches, pays: Pays, note: Callable[[str], None]) -> None:
    """Where Inductor would time a product with and without padding, a rule decides."""
    from torch._inductor.fx_passes import pad_mm

    asked: dict[str, bool] = {}
    original_key = pad_mm.should_pad_bench_key

    def key_of(match: Any, mat1: Any, mat2: Any, op: Any, *args: Any, **kwargs: Any) -> str:
        key = str(original_key(match, mat1, mat2, op, *args, **kwargs))
        product = _unaligned(match, mat1, mat2, op, pad_mm.should_exclude_padding_time)
        asked[key] = product is not None and pays(product)
        return key

    def decided(key: str) -> bool:
        note(f"a product that is not aligned: {'padded' if asked[key] else 'not padded'}")
        return asked[key]

    patches.set(pad_mm, "should_pad_bench_key", key_of)
    patches.set(pad_mm, "get_cached_should_pad", decided)


def _take_libraries(patches: Patches, note: Callable[[str], None]) -> None:
    """Where ``max-autotune`` would time its choices, take the library's kernel: most often it wins, or nearly does."""
    from torch._inductor import select_algorithm

    # Since torch 2.13 the choice is always told; before, where that was asked for.
    always_pairs = "return_choice" not in inspect.signature(select_algorithm.AlgorithmSelectorCache.__call__).parameters

    def choose(self: Any, name: str, choices: Any, *args: Any, **kwargs: Any) -> Any:
        libraries = [each for each in choices if isinstance(each, select_algorithm.ExternKernelCaller)]
        if not libraries and not choices:
            raise self.create_no_valid_choices(name, "No choices exist for backend.")
        chosen = (libraries or list(choices))[0]
        if len(choices) > 1:
            note(f"max-autotune of {name}: {'the library' if libraries else 'the first template'}")
        node = chosen.output_node()
        return (node, chosen) if kwargs.get("return_choice", always_pairs) else node

    patches.set(select_algorithm.AlgorithmSelectorCache, "__call__", choose)


def _unaligned(match: Any, mat1: Any, mat2: Any, op: Any, alone: Callable[[Any, str], bool]) -> UnalignedProduct | None:
    """The product that Inductor asks about; ``None`` for one of sizes that nobody knows."""
    from torch._inductor.fx_passes.pad_mm import get_alignment_size, get_padded_length

    # Without a guard, which would keep a dynamic size to its number.
    sides = (mat1.shape[-2], mat1.shape[-1], mat2.shape[-1])
    batch, *known = (hint(size) for size in (mat1.shape[0] if mat1.dim() == 3 else 1, *sides))
    strides = [[hint(stride) for stride in each.stride()] for each in (mat1, mat2)]
    if batch is None or None in known or None in strides[0] + strides[1]:
        return None
    rows, inner, columns = (size or 0 for size in known)
    return UnalignedProduct(
        operator=op.__name__,
        batch=batch,
        rows=rows,
        inner=inner,
        columns=columns,
        dtype=str(mat1.dtype).removeprefix("torch."),
        strides=(tuple(each or 0 for each in strides[0]), tuple(each or 0 for each in strides[1])),
        added=(
            get_padded_length(sides[0], get_alignment_size(mat1)),
            get_padded_length(sides[1], get_alignment_size(mat1)),
            get_padded_length(sides[2], get_alignment_size(mat2)),
        ),
        is_planned=(alone(match, "mat1"), alone(match, "mat2")),
        is_rounded=mat1.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32,
    )


def _refill(cache: dict[Any, Any], content: dict[Any, Any]) -> None:
    cache.clear()
    cache.update(content)


class _ConstantsOnHost(torch.utils._python_dispatch.TorchDispatchMode):
    """Computes on the host what would be computed on the device: scalars that a pass folds."""

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Compilation goes on under it."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        args = tuple(torch.device("cpu") if isinstance(each, torch.device) else each for each in args)
        return func(*args, **kwargs)
