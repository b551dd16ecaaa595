"""Triton without its device: it compiles for one that is not there, and what it would launch is heard."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import torch

from torchledger._torch.patching import Patches
from torchledger.errors import PlanError


def _refuse_to_compile(patches: Patches) -> None:
    """Without Triton eager programs run, and what would compile ends with a sentence."""
    from torch._inductor import compile_fx

    wanted = {"2.11": "3.6.0", "2.13": "3.7.0"}.get(".".join(torch.__version__.split(".")[:2]))
    named = f"triton=={wanted}" if wanted else "triton"

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PlanError(
            f"compiled programs are planned with Triton, which writes their kernels: pip install {named} (it takes no "
            "GPU; Linux only)."
        )

    patches.set(compile_fx, "compile_fx", refuse)


class _Utilities:
    """What programs ask Triton's driver of a device, as libraries of kernels do that choose their tiles by it."""

    def get_device_properties(self, index: int = 0) -> dict[str, int]:
        told: Any = torch.cuda.get_device_properties(index)
        return {
            "max_shared_mem": told.shared_memory_per_block_optin,
            "max_num_regs": told.regs_per_multiprocessor,
            "multiprocessor_count": told.multi_processor_count,
            "warpSize": told.warp_size,
            "sm_clock_rate": told.clock_rate,
            "mem_clock_rate": told.memory_clock_rate,
            "mem_bus_width": told.memory_bus_width,
        }


def patch_triton(patches: Patches, capability: tuple[int, int]) -> None:
    """Have Triton compile for a device of a ``capability``, and launch nothing; without Triton nothing compiles."""
    import torch.utils._triton as checks

    try:
        import triton
    except ImportError:
        _refuse_to_compile(patches)
        return
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", capability[0] * 10 + capability[1], 32)

    class Driver:
        """Triton's driver of a device that is not there."""

        utils = _Utilities()

        def get_current_target(self) -> Any:
            return target

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: Any = None) -> int:
            return 0

        def get_active_torch_device(self) -> Any:
            return torch.device("cuda", 0)

        def get_device_capability(self, device: Any = None) -> tuple[int, int]:
            return capability

        def get_device_interface(self) -> Any:
            return torch.cuda

        def get_empty_cache_for_benchmark(self) -> Any:
            return torch.empty(0, device="cuda")

        def clear_cache(self, cache: Any) -> None:
            return None

        def get_benchmarker(self) -> Any:
            return lambda call, **kwargs: 1.0

        def is_active(self) -> bool:
            return True

    driver = triton.runtime.driver
    former = getattr(driver, "_active", None)
    driver.set_active(Driver())

    def restore() -> None:
        if former is None:
            with contextlib.suppress(Exception):
                driver.reset_active()
        else:
            driver.set_active(former)

    patches.on_undo(restore)
    for name in vars(checks):
        cached = getattr(getattr(checks, name), "cache_clear", None)
        if cached is not None:
            cached()
            patches.on_undo(cached)
    patches.set(checks, "has_triton", lambda *args, **kwargs: True)

    def run(self: Any, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> None:
        if not warmup:
            launch_heard(str(self.fn.__name__), [*args, *kwargs.values()])

    from triton.runtime.jit import JITFunction

    patches.set(JITFunction, "run", run)


NAMESPACE = "triton_kernels"
"""Of the operators that stand for kernels of a program's own which it launches itself."""


@functools.cache
def _library() -> torch.library.Library:
    return torch.library.Library(NAMESPACE, "DEF")  # for as long as the process: operators cannot be defined twice


def launch_heard(name: str, arguments: Sequence[Any]) -> None:
    """A kernel that the program launches outside its compiled graphs, as an operator on the tensors that it is given:
    what listens to operators hears it."""
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    tensors += [base for each in arguments if isinstance(base := getattr(each, "base", None), torch.Tensor)]
    if not hasattr(getattr(torch.ops, NAMESPACE), name):
        _library().define(f"{name}(Tensor[] tensors) -> ()")
        _library().impl(name, lambda tensors: None, "CompositeExplicitAutograd")
    with torch.no_grad():
        getattr(getattr(torch.ops, NAMESPACE), name)(tensors)
