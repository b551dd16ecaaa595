"""Where torchledger steps between the launches of a compiled graph, and what it must switch off for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._functorch import config as functorch_config
from torch._inductor import compile_fx, config, output_code
from torch._inductor.virtualized import V

from torchledger._torch.patching import Patches


def switch_off_cuda_graphs(patches: Patches, on_skip: Callable[[], None]) -> None:
    """Run graphs that ask for CUDA graphs without: nothing can look between the launches of a replay."""

    def skip(original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        for value in (*args, *kwargs.values()):
            if type(value).__name__ == "BoxedBool":
                value.value = False
        on_skip()

    for name in ("cudagraph_post_compile", "cudagraph_partition_post_compile"):
        if hasattr(output_code, name):
            patches.around(output_code, name, skip, may_skip=True)


def switch_off_cpp_wrappers(patches: Patches, on_skip: Callable[[], None]) -> None:
    """Have graphs that ask for a C++ wrapper written with a Python one: nothing can look between launches out of C++.

    What is compiled ahead of time stays as it is.
    """

    def compiled(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        options = dict(kwargs.get("config_patches") or {})
        asks = config.cpp_wrapper or kwargs.get("cpp_wrapper") or options.get("cpp_wrapper")
        if not asks or V.aot_compilation:
            return original(*args, **kwargs)
        if "cpp_wrapper" in kwargs:
            kwargs["cpp_wrapper"] = False
        if options.pop("cpp_wrapper", None):
            kwargs["config_patches"] = options
        on_skip()
        with config.patch({"cpp_wrapper": False}):
            return original(*args, **kwargs)

    # The first is asked for a model, the second where a backward is compiled later, on its own thread.
    for name in ("compile_fx", "_compile_fx_inner"):
        patches.around(compile_fx, name, compiled)


def switch_off_builtin_printer(patches: Patches) -> None:
    """Keep Inductor's own printer out of the generated code, which its variables would switch on too."""
    if hasattr(config.aot_inductor, "debug_intermediate_value_printer"):
        patches.set_config(config.aot_inductor, "debug_intermediate_value_printer", "0")


def switch_off_caches(patches: Patches) -> None:
    """Lower each graph anew: one out of a cache brings no FX graph to compare with.

    The caches of kernels stay on. (``force_disable_caches`` would go into the source of each Triton kernel, and have it
    compiled and tried anew.)
    """
    patches.set_config(functorch_config, "enable_autograd_cache", False)
    patches.set_config(functorch_config, "enable_remote_autograd_cache", False)
    patches.set_config(config, "fx_graph_cache", False)
    patches.set_config(config, "fx_graph_remote_cache", False)


def wrapper_source(compiled: Any) -> str | None:
    """The generated wrapper of a ``CompiledFxGraph``."""
    return getattr(compiled, "source_code", None)


def called_of(compiled: Any) -> Any:
    """What a ``CompiledFxGraph`` calls, the wrapper's ``call`` or what took its place; ``None`` where it has none."""
    return getattr(compiled, "current_callable", None)


def lowered_module(graph: Any) -> Any:
    """The FX module that a ``GraphLowering`` was made from."""
    return graph.module
