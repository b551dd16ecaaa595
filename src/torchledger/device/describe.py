"""What the hardware and the software around a run are.

Enters: nothing; the machine is asked. Leaves: ``Device`` and ``Environment`` records. Torch is never imported here and
CUDA is never initialised: what they alone know is asked only of a torch that the user's program has already imported
and of a CUDA that it has already initialised. So describe again at the end of a run: more is known then.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torchledger
from torchledger.nouns import Device, Environment

log = logging.getLogger(__name__)

_SETTING_PREFIXES = ("TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_COMPILE", "TRITON_", "AOT_INDUCTOR_")
_SETTING_NAMES = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "CXX",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
)
"""Environment variables that change what a model compiles to or how fast it runs; no others are stored."""

_NO_SETTINGS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Where caches lie changes nothing, and torch itself sets them."""

# Values of CUdevice_attribute in CUDA's cuda.h; stable since CUDA 4 to 6.
_CUDA_ATTRIBUTES = {
    "max_threads_per_block": 1,
    "warp_size": 10,
    "clock_rate": 13,
    "multi_processor_count": 16,
    "memory_clock_rate": 36,
    "memory_bus_width": 37,
    "L2_cache_size": 38,
    "max_threads_per_multi_processor": 39,
    "shared_memory_per_multiprocessor": 81,
}


def describe_devices() -> tuple[Device, ...]:
    """The CPU, and each CUDA device if the program has initialised CUDA."""
    return (describe_cpu(), *_describe_cuda_devices())


def describe_cpu() -> Device:
    """The host's processor: ``clock_rate_mhz`` is the highest it may run at (where the host tells only the present
    one, that), ``l2_cache_bytes`` that of one core, ``num_cores`` the logical cores this process may use."""
    return Device(
        name=_cpu_name(),
        kind="cpu",
        total_memory_bytes=_host_memory_bytes(),
        clock_rate_mhz=_cpu_clock_mhz(),
        l2_cache_bytes=_parse_size(_read("/sys/devices/system/cpu/cpu0/cache/index2/size")),
        num_cores=_usable_cores(),
    )


def describe_environment() -> Environment:
    """Versions, threads and settings, as far as they are known without importing torch."""
    torch = sys.modules.get("torch")
    torch_version = getattr(torch, "version", None)
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        torchledger=torchledger.__version__,
        torch=str(getattr(torch, "__version__", None) or _installed_version("torch") or "") or None,
        triton=_installed_version("triton"),
        cuda=getattr(torch_version, "cuda", None),
        driver=_driver_version(),
        compiler=_compiler_version(),
        num_threads=_num_threads(torch),
        settings=_settings(torch),
    )


# --- CUDA ------------------------------------------------------------------------------------------------------------


def _describe_cuda_devices() -> tuple[Device, ...]:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return ()
    return tuple(_describe_cuda_device(cuda, index) for index in range(cuda.device_count()))


def _describe_cuda_device(cuda: Any, index: int) -> Device:
    properties = cuda.get_device_properties(index)
    attributes = _cuda_attributes(index)

    def known(name: str) -> int | None:
        value = getattr(properties, name, None) or attributes.get(name)
        return int(value) if value else None

    def megahertz(name: str) -> float | None:
        kilohertz = known(name)
        return None if kilohertz is None else kilohertz / 1e3

    uuid = getattr(properties, "uuid", None)
    return Device(
        name=properties.name,
        kind="cuda",
        index=index,
        uuid=None if uuid is None else str(uuid),
        compute_capability=(properties.major, properties.minor),
        total_memory_bytes=properties.total_memory,
        clock_rate_mhz=megahertz("clock_rate"),
        memory_clock_rate_mhz=megahertz("memory_clock_rate"),
        num_multiprocessors=known("multi_processor_count"),
        max_threads_per_block=known("max_threads_per_block"),
        max_threads_per_multiprocessor=known("max_threads_per_multi_processor"),
        warp_size=known("warp_size"),
        l2_cache_bytes=known("L2_cache_size"),
        max_shared_memory_per_multiprocessor_bytes=known("shared_memory_per_multiprocessor"),
        memory_bus_width_bits=known("memory_bus_width"),
        power_limit_w=None if uuid is None else _power_limit_w(str(uuid)),
    )


def _cuda_attributes(index: int) -> dict[str, int]:
    """What the driver knows and older torch versions do not hand on; empty without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {}
    device = ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(device), index) != 0:
        return {}
    attributes = {}
    for name, number in _CUDA_ATTRIBUTES.items():
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0:
            attributes[name] = value.value
    return attributes


def _power_limit_w(uuid: str) -> float | None:
    """The power limit in force, by NVML, which comes with the driver; ``None`` without it or where it does not tell."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        handle, milliwatts = ctypes.c_void_p(), ctypes.c_uint()
        if nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)) != 0:
            return None
        if nvml.nvmlDeviceGetEnforcedPowerLimit(handle, ctypes.byref(milliwatts)) != 0:
            return None
        return milliwatts.value / 1e3
    finally:
        nvml.nvmlShutdown()


def _driver_version() -> str | None:
    match = re.search(r"Kernel Module\D*\s(\d+\.[\d.]+)", _read("/proc/driver/nvidia/version") or "")
    return match.group(1) if match else None


# --- CPU -------------------------------------------------------------------------------------------------------------


def _cpu_name() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo") or "", re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or platform.machine() or "unknown CPU"


def _cpu_clock_mhz() -> float | None:
    if highest := _read("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"):
        return int(highest) / 1e3
    match = re.search(r"^cpu MHz\s*:\s*([\d.]+)$", _read("/proc/cpuinfo") or "", re.MULTILINE)
    return float(match.group(1)) if match else None


def _host_memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _usable_cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


# --- software --------------------------------------------------------------------------------------------------------


def _installed_version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _num_threads(torch: Any) -> int | None:
    return None if torch is None else int(torch.get_num_threads())


def _compiler_version() -> str | None:
    """First line of ``$CXX --version`` (``g++`` by default, as Inductor takes it)."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    return None if compiler is None else _version_line(compiler)


@functools.cache
def _version_line(program: str) -> str | None:
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        log.debug("%s --version: %s", program, error)
        return None
    return answer.stdout.partition("\n")[0].strip() or None


def _settings(torch: Any) -> dict[str, str]:
    settings = {
        name: value
        for name, value in sorted(os.environ.items())
        if (name in _SETTING_NAMES or name.startswith(_SETTING_PREFIXES)) and name not in _NO_SETTINGS
    }
    if torch is not None:
        try:
            settings["float32_matmul_precision"] = str(torch.get_float32_matmul_precision())
        except RuntimeError as error:  # raised when a program mixed torch's old and new way of setting TF32
            settings["float32_matmul_precision"] = f"unknown ({str(error).partition(chr(10))[0]})"
        try:
            settings["cudnn_allow_tf32"] = str(torch.backends.cudnn.allow_tf32)
        except RuntimeError as error:
            settings["cudnn_allow_tf32"] = f"unknown ({str(error).partition(chr(10))[0]})"
        settings["cudnn_benchmark"] = str(torch.backends.cudnn.benchmark)
        settings["deterministic_algorithms"] = str(torch.are_deterministic_algorithms_enabled())
    return settings


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _parse_size(text: str | None) -> int | None:
    """``"1024K"`` as the kernel writes cache sizes (here K is 1024) -> bytes."""
    match = re.fullmatch(r"\s*(\d+)([KMG]?)\s*", text or "")
    return int(match.group(1)) * 1024 ** " KMG".index(match.group(2) or " ") if match else None
