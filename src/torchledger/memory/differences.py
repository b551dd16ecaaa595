"""By what the live set's peak differs from the one that was counted, by name."""

from __future__ import annotations

from torchledger.memory.live_set import MemoryTotals
from torchledger.nouns import Difference
from torchledger.stepping.marks import IN_PACKAGE
from torchledger.stepping.totals import StepTotals


def block_differences(totals: MemoryTotals) -> tuple[Difference, ...]:
    """What blocks have too much by the allocator's own two counts, beyond what its rules give for the step."""
    memory = totals.memory
    if memory.measured_peak_bytes is None or memory.requested_peak_bytes is None:
        return ()
    asked = sum(each.nbytes for each in totals.at_peak)
    larger = memory.measured_peak_bytes - memory.requested_peak_bytes - (totals.peak_allocated_bytes - asked)
    reason = "rests of blocks that one step's storages do not explain by the allocator's rules"
    return (Difference("memory", memory.device, reason, -larger),) if larger else ()


def scratch_differences(totals: MemoryTotals, step: StepTotals | None) -> tuple[Difference, ...]:
    """What the call at the counted peak works on itself, and how far the ledger's peak lies above that call."""
    memory = totals.memory
    if not memory.counted or step is None:
        return ()
    order = max(memory.counted, key=lambda each: memory.counted[each])
    call = next((call for call in step.calls if str(call.order) == order), None)
    name = call.name if call is not None else "the beginning of the step"
    found = []
    if memory.scratch.get(order):
        reason = "memory that its library operators work on and give back, which no tensor of the step is"
        found.append(Difference("memory", name, reason, -memory.scratch[order]))
    unseen = max(memory.unseen.get(order, 0), 0)
    if memory.held_bytes and unseen >= memory.held_bytes:
        reason = "what an autograd graph of the step before holds, which no tensor of Python's shows"
        found.append(Difference("memory", name, reason, -memory.held_bytes))
        unseen -= memory.held_bytes
    inputs = 0 if unseen <= memory.number_bytes else min(unseen, _inputs_freed_before(totals, int(order)))
    if inputs and unseen - inputs <= memory.number_bytes:
        reason = "inputs from before the recording, of which the profiler does not see the end"
        found.append(Difference("memory", name, reason, -inputs))
        unseen -= inputs
    if 0 < unseen <= memory.number_bytes:
        reason = "numbers of Python that operators were given as tensors, some kept for the backward"
        found.append(Difference("memory", name, reason, -unseen))
    most = totals.curve.most_in(int(order))
    if unseen > memory.number_bytes and IN_PACKAGE in step.step.idle_us:
        # What is first seen in this call, and was there before, is in the ledger's sum.
        unnamed = memory.counted[order] - most + sum(each.amount for each in found)
        reason = "memory of a package compiled ahead of time, whose tensors nobody sees between its library calls"
        found += [Difference("memory", name, reason, -unnamed)] if unnamed > 0 else []
    above = totals.peak_allocated_bytes - most
    if above:
        reason = "the counted peak is in this call; without what calls work on themselves another is the highest"
        found.append(Difference("memory", name, reason, above))
    return tuple(found)


def _inputs_freed_before(totals: MemoryTotals, order: int) -> int:
    """Bytes of batches that a loader had made before the step (one ahead, or more), and that are gone at a call."""
    return sum(
        each.nbytes
        for each in totals.storages
        if each.category in ("inputs", "kept")
        and each.born is None
        and each.freed_in is not None
        and each.freed_in < order
    )
