"""Roofline arithmetic: intensity, bound and lower-bound time.

The model is the classic roofline (Williams, Waterman, Patterson 2009): a kernel that does F FLOPs and must move B bytes
takes at least ``max(F / peak FLOP rate, B / bandwidth)``. Units are decimal: 1 GB = 1e9 bytes, 1 TFLOP = 1e12
FLOPs, one multiply-add = 2 FLOPs. Nothing here imports more than the standard library.
"""

from __future__ import annotations

from typing import Literal

Bound = Literal["compute", "memory", "overhead"]

USUAL_FLOPS_PER_BYTE = 100.0
"""What a large GPU computes in the time in which it moves a byte, nearly: what takes longer is told by it where no
device is named and no time is known."""


def arithmetic_intensity(flops: int | None, bytes_moved: int | None) -> float | None:
    """FLOPs per byte; ``None`` when either is unknown or no byte moves.

    >>> arithmetic_intensity(2048, 1024)
    2.0
    """
    if flops is None or not bytes_moved:
        return None
    return flops / bytes_moved


def achieved_gb_per_s(bytes_moved: int | None, duration_us: float | None) -> float | None:
    """Bytes over time in 1e9 bytes per second; ``None`` when either is unknown or the time is not positive."""
    if bytes_moved is None or duration_us is None or duration_us <= 0:
        return None
    return bytes_moved / duration_us / 1e3


def achieved_tflops_per_s(flops: int | None, duration_us: float | None) -> float | None:
    """FLOPs over time in 1e12 FLOPs per second; ``None`` when either is unknown or the time is not positive."""
    if flops is None or duration_us is None or duration_us <= 0:
        return None
    return flops / duration_us / 1e6


def roofline_us(
    flops: int | None,
    bytes_moved: int | None,
    *,
    peak_tflops_per_s: float | None,
    peak_gb_per_s: float | None,
) -> float | None:
    """Lower-bound time in microseconds; ``None`` when neither limit can be computed.

    >>> roofline_us(2_000_000, 1_000_000, peak_tflops_per_s=1.0, peak_gb_per_s=100.0)
    10.0
    """
    limits = []
    if flops is not None and peak_tflops_per_s:
        limits.append(flops / peak_tflops_per_s / 1e6)
    if bytes_moved is not None and peak_gb_per_s:
        limits.append(bytes_moved / peak_gb_per_s / 1e3)
    return max(limits) if limits else None


def ridge_point(peak_tflops_per_s: float, peak_gb_per_s: float) -> float:
    """Intensity in FLOP per byte above which a kernel is bound by arithmetic."""
    return peak_tflops_per_s * 1e3 / peak_gb_per_s


def bound(
    flops: int | None,
    bytes_moved: int | None,
    *,
    peak_tflops_per_s: float | None,
    peak_gb_per_s: float | None,
    duration_us: float | None = None,
    launch_overhead_us: float | None = None,
) -> Bound | None:
    """What limits a kernel: ``"overhead"`` when it runs no longer than an empty one, else the larger roofline term."""
    if duration_us is not None and launch_overhead_us is not None and duration_us <= launch_overhead_us:
        return "overhead"
    compute = flops / peak_tflops_per_s / 1e6 if flops is not None and peak_tflops_per_s else None
    memory = bytes_moved / peak_gb_per_s / 1e3 if bytes_moved is not None and peak_gb_per_s else None
    if compute is None and memory is None:
        return None
    return "compute" if (compute or 0.0) > (memory or 0.0) else "memory"
