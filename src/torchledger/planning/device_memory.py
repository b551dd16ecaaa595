"""Whether what a step holds at its peak fits into the memory of its device."""

from __future__ import annotations

from dataclasses import replace

from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import PlannedStep

_RESERVED = 0.08
"""Share of a device's memory that is not for tensors: its context, the collectives' buffers, gaps between blocks."""


def memory_of(model: TimeModel) -> int | None:
    """Bytes of the device that a model is of."""
    return model.total_memory_bytes or model.machine.device.total_memory_bytes


def fits(peak_bytes: int | None, memory_bytes: int | None) -> bool | None:
    """Whether so many bytes of tensors fit into a device's memory; ``None`` where one of both is unknown.

    >>> fits(70, 80), fits(79, 80), fits(70, None)
    (True, False, None)
    """
    if peak_bytes is None or memory_bytes is None:
        return None
    return peak_bytes <= room_for_tensors(memory_bytes)


def room_for_tensors(memory_bytes: int) -> int:
    """Bytes of a device's memory that tensors may take.

    >>> room_for_tensors(100)
    92
    """
    return int((1 - _RESERVED) * memory_bytes)


def with_fit(step: PlannedStep, memory_bytes: int | None) -> PlannedStep:
    """The step with whether it fits, and a note first of all where it does not."""
    is_fitting = fits(step.peak_allocated_bytes, memory_bytes)
    notes = step.notes
    if is_fitting is False and step.peak_allocated_bytes is not None and memory_bytes is not None:
        notes = (_note(step.peak_allocated_bytes, memory_bytes), *notes)
    return replace(step, fits=is_fitting, notes=notes)


def _note(peak_bytes: int, memory_bytes: int) -> str:
    return (
        f"the step does not fit into the device's memory: its tensors take {peak_bytes / 1e9:,.1f} GB at the peak, and "
        f"the device has {memory_bytes / 1e9:,.1f} GB, of which {_RESERVED:.0%} are not for tensors; try a smaller "
        "batch, recomputation (torch.utils.checkpoint) or parameters spread over ranks (fsdp)"
    )
