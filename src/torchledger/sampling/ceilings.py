"""A device's ceilings, quickly measured, for the sanity gates of labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from torchledger.nouns import Ceilings


def measure_ceilings(device: str, *, dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32")) -> Ceilings:
    """Copy bandwidth (read plus written, 1e9 bytes/s) and dense TFLOP/s per dtype, each the best of a few repeats.

    On CUDA a gigabyte is copied and 8192-cubed products are taken, timed by events; on a CPU much smaller ones, by the
    host's clock. Takes about a second.
    """
    import torch

    place = torch.device(device)
    on_cuda = place.type == "cuda"
    copied = 2**30 if on_cuda else 2**26
    copy_us = _best_copy_us(copied, place, on_cuda)
    side = 8192 if on_cuda else 1024
    rates = {}
    for dtype in dtypes:
        left = torch.randn(side, side, device=place).to(getattr(torch, dtype))
        right = torch.randn(side, side, device=place).to(getattr(torch, dtype))
        rates[dtype] = 2 * side**3 / _best_us(lambda a=left, b=right: a @ b, on_cuda, repeats=3) / 1e6  # type: ignore[misc]
        del left, right
    return Ceilings(
        copy_gb_per_s=2 * copied / copy_us / 1e3,
        tflops_per_s=rates,
        measured_utc=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        method=f"copy of {copied} bytes; {side}-cubed products; best of repeats",
    )


DATASHEETS: Mapping[str, tuple[float, float, float, int]] = {
    # Dense FP16/BF16 TFLOP/s, FP32 TFLOP/s, memory GB/s, L2 bytes, from NVIDIA's datasheets and architecture papers.
    "A100-SXM4-80GB": (312.0, 19.5, 2039.0, 40 * 2**20),
    "A100-SXM4-40GB": (312.0, 19.5, 1555.0, 40 * 2**20),
    "H100 80GB HBM3": (989.4, 66.9, 3350.0, 50 * 2**20),
    "H200": (989.4, 66.9, 4800.0, 50 * 2**20),
    "GH200 120GB": (989.4, 66.9, 4000.0, 50 * 2**20),
}


def datasheet_ceilings(device: str) -> tuple[Ceilings, int] | None:
    """Ceilings and L2 bytes by the vendor's figures, for data of a device that is not at hand; ``None`` if unknown.

    The name may be written without spaces and with its maker, as the guide's files do.
    """
    plain = device.replace(" ", "").removeprefix("NVIDIA").lower()
    for name, (half, single, bandwidth, l2_bytes) in DATASHEETS.items():
        if plain == name.replace(" ", "").lower():
            rates = {"float16": half, "bfloat16": half, "float32": single}
            return Ceilings(copy_gb_per_s=bandwidth, tflops_per_s=rates, method="datasheet"), l2_bytes
    return None


def _best_copy_us(copied: int, place: Any, on_cuda: bool) -> float:
    import torch

    source = torch.empty(copied, dtype=torch.uint8, device=place).random_(0, 255)
    target = torch.empty_like(source)
    return _best_us(lambda: target.copy_(source), on_cuda)


def _best_us(run: Callable[[], Any], on_cuda: bool, repeats: int = 5) -> float:
    import torch

    for _ in range(2):
        run()
    times = []
    for _ in range(repeats):
        if on_cuda:
            first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            first.record()
            run()
            second.record()
            torch.cuda.synchronize()
            times.append(float(first.elapsed_time(second)) * 1e3)
        else:
            started = time.perf_counter_ns()
            run()
            times.append((time.perf_counter_ns() - started) / 1e3)
    return min(times)
