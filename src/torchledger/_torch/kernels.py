"""Private names that running kernels alone needs: Inductor's kernel objects and how they are compiled."""

from __future__ import annotations

import re
from typing import Any


def launch_empty_kernel() -> None:
    """Launch a kernel that does nothing on the present CUDA stream."""
    spin(0)


def spin(cycles: int) -> None:
    """Keep the present CUDA stream busy for so many clock cycles.

    ``torch.cuda._sleep`` is private but present from torch 2.0 to 2.13.
    """
    import torch

    torch.cuda._sleep(cycles)


def wait_for_kernels(namespace: dict[str, Any]) -> None:
    """Replace the kernels of a generated module that are still being compiled by finished ones."""
    compiler = namespace.get("async_compile")
    if compiler is not None:
        compiler.wait(namespace)


def autotuners(namespace: dict[str, Any]) -> dict[str, Any]:
    """The Triton kernels of a generated module: those that choose among configurations."""
    return {
        name: value
        for name, value in namespace.items()
        if hasattr(value, "launchers") and hasattr(value, "precompile") and hasattr(value, "run")
    }


def launch_facts(autotuner: Any) -> dict[str, Any]:
    """What a Triton kernel was compiled to and which configuration was chosen; unknown values are absent."""
    if not autotuner.launchers:
        return {}
    launcher = autotuner.launchers[0]
    config = getattr(launcher, "config", None)
    facts: dict[str, Any] = {
        "configuration": describe_configuration(config),
        "num_warps": getattr(config, "num_warps", None),
        "num_stages": getattr(config, "num_stages", None),
        "n_regs": getattr(launcher, "n_regs", None),
        "n_spills": getattr(launcher, "n_spills", None),
        "shared_bytes": getattr(launcher, "shared", None),
    }
    return {name: value for name, value in facts.items() if value is not None}


def describe_configuration(config: Any) -> str | None:
    """``"XBLOCK=1024, num_warps=4, num_stages=1"``."""
    if config is None:
        return None
    parts = {**getattr(config, "kwargs", {}), "num_warps": config.num_warps, "num_stages": config.num_stages}
    return ", ".join(f"{name}={value}" for name, value in parts.items())


def with_all_configurations(source: str) -> str:
    """A Triton kernel's definition so that Inductor's heuristics offer every configuration that they know.

    What they offer hangs on flags inside the definition, written when it was generated; a choice that was kept from an
    earlier run is not taken.
    """
    return _with_flags(source, {"max_autotune": True, "max_autotune_pointwise": True} | _NO_KEPT_CHOICE)


def with_max_autotune(source: str) -> str:
    """A Triton kernel's definition as it would be under max-autotune with coordinate descent."""
    flags = {"max_autotune": True, "max_autotune_pointwise": True, "coordinate_descent_tuning": True}
    return _with_flags(source, flags | _NO_KEPT_CHOICE)


_NO_KEPT_CHOICE = {"autotune_local_cache": False, "autotune_remote_cache": False, "force_disable_caches": True}


def _with_flags(source: str, flags: dict[str, bool]) -> str:
    for name, value in flags.items():
        pattern = rf"'{name}': (?:True|False|None)"
        if re.search(pattern, source):
            source = re.sub(pattern, f"'{name}': {value}", source)
        else:
            source = re.sub(r"inductor_meta=\{", f"inductor_meta={{'{name}': {value}, ", source)
    return source


class OneLauncher:
    """Context manager: a Triton kernel with a single one of its compiled configurations."""

    def __init__(self, autotuner: Any, launcher: Any) -> None:
        self._autotuner = autotuner
        self._launcher = launcher
        self._former = list(autotuner.launchers)

    def __enter__(self) -> None:
        self._autotuner.launchers = [self._launcher]

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._autotuner.launchers = self._former
