"""What time of an entry is booked as: by its category, and what a kernel's name says."""

from __future__ import annotations

from torchledger.nouns import DeviceEvent, Launch
from torchledger.nouns.breakdown import TimeCategory
from torchledger.work.categories import category_of_launch, category_of_operator
from torchledger.work.kernel_names import category_of_kernel, is_helper_kernel


def main_kind(name: str) -> TimeCategory | None:
    """The category of a kernel that does the main work of a library call; ``None`` of its helpers and of all others."""
    kind = category_of_kernel(name)
    return kind if kind in ("gemm", "convolution", "attention") and not is_helper_kernel(name) else None


def time_category(entry: Launch, op: str | None, event: DeviceEvent | None = None) -> TimeCategory:
    """What an entry computes; where its own operator is unknown, what the profiler's operator or the kernel say."""
    by_operator = category_of_launch(entry) or category_of_operator(op or "")
    return by_operator or (category_of_kernel(event.name) if event is not None else "other")
