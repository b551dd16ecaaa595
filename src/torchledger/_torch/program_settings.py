"""What a program sets for its whole process: taken back behind it, so that the next one finds what it would find."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchledger._torch.patching import Patches

_Setting = tuple[Callable[[], Any], Callable[[Any], Any]]
"""What reads it, and what sets it."""

_CONFIGS = (
    "torch._dynamo.config",
    "torch._inductor.config",
    "torch._functorch.config",
    "torch.fx.experimental._config",
)

_PRECISIONS = (("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"))

_BY_NAME = (
    ("_get_float32_matmul_precision", "_set_float32_matmul_precision"),
    ("_get_cublas_allow_fp16_reduced_precision_reduction", "_set_cublas_allow_fp16_reduced_precision_reduction"),
    ("_get_cublas_allow_bf16_reduced_precision_reduction", "_set_cublas_allow_bf16_reduced_precision_reduction"),
    ("_get_cudnn_enabled", "_set_cudnn_enabled"),
    ("_get_cudnn_benchmark", "_set_cudnn_benchmark"),
    ("_get_cudnn_deterministic", "_set_cudnn_deterministic"),
    ("_get_cudnn_allow_tf32", "_set_cudnn_allow_tf32"),
    ("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    ("_get_math_sdp_enabled", "_set_sdp_use_math"),
    ("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
)
"""Functions of ``torch._C``; a version that lacks one lacks the setting."""


def keep_settings(patches: Patches) -> None:
    """When the patches are undone torch's settings are what they are now, whatever the program between has set: modes
    of the calling thread, defaults, precisions, choices of libraries and attention, and the compiler's. Process groups
    that it made itself are left."""
    patches.on_undo(functools.partial(_leave_groups, _has_groups()))
    for name in _CONFIGS:
        config: Any = importlib.import_module(name)
        patches.on_undo(functools.partial(_configure, config, config.get_config_copy()))
    # The latest is put back first: by newer and older names precisions are the same, and the newer say more.
    for read, put in reversed(list(_settings())):
        with contextlib.suppress(RuntimeError):  # precisions that were set by both names are read by neither
            patches.on_undo(functools.partial(_put_back, read, put, read()))


@contextlib.contextmanager
def by_default() -> Iterator[None]:
    """Tensors are of the host and have gradients, whatever the process has set."""
    with torch.inference_mode(False), torch.enable_grad(), torch.device("cpu"):
        yield


def _settings() -> Iterator[_Setting]:
    yield torch.is_grad_enabled, torch._C._set_grad_enabled
    yield _default_device, torch.set_default_device
    yield torch.get_default_dtype, torch.set_default_dtype
    for kind in ("cuda", "cpu"):
        yield (
            functools.partial(torch.is_autocast_enabled, kind),
            functools.partial(torch.set_autocast_enabled, kind),
        )
        yield functools.partial(torch.get_autocast_dtype, kind), functools.partial(torch.set_autocast_dtype, kind)
    yield torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled
    yield _determinism, lambda asked: torch.use_deterministic_algorithms(asked[0], warn_only=asked[1])
    yield _anomaly, lambda asked: torch.set_anomaly_enabled(*asked)
    for place in _PRECISIONS if hasattr(torch._C, "_get_fp32_precision_getter") else ():
        yield (
            functools.partial(torch._C._get_fp32_precision_getter, *place),
            functools.partial(torch._C._set_fp32_precision_setter, *place),
        )
    for read, put in _BY_NAME:
        if hasattr(torch._C, read) and hasattr(torch._C, put):
            yield getattr(torch._C, read), getattr(torch._C, put)


def _default_device() -> torch.device | None:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _has_groups() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _leave_groups(had_groups: bool) -> None:
    if _has_groups() and not had_groups:
        torch.distributed.destroy_process_group()


def _put_back(read: Callable[[], Any], put: Callable[[Any], Any], former: Any) -> None:
    with contextlib.suppress(RuntimeError):
        if read() == former:
            return
    with contextlib.suppress(RuntimeError):
        put(former)


def _configure(config: Any, former: dict[str, Any]) -> None:
    for name, now in config.get_config_copy().items():
        if name in former and now != former[name]:
            setattr(config, name, former[name])
