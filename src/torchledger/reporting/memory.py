"""What fills the device's memory in a step: its peak, what is alive there, and which call makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchledger.memory.advice import Recomputation
from torchledger.memory.live_set import MemoryTotals, rounded
from torchledger.nouns import LiveStorage, StepCall
from torchledger.printable import ended
from torchledger.reporting.columns import format_bytes, format_share
from torchledger.reporting.document import Block, Facts, Section, Sentence, Table, as_plain, columns

CATEGORY_WORDS: Mapping[str, str] = {
    "parameters": "parameters",
    "buffers": "buffers of modules",
    "optimizer_state": "optimizer state",
    "gradients": "gradients",
    "inputs": "inputs",
    "activations": "activations for the backward",
    "temporaries": "temporaries of compiled graphs",
    "eager": "tensors of eager operators",
    "collectives": "buffers of collectives",
    "cuda_graphs": "pools of CUDA graphs",
    "workspaces": "workspaces of libraries",
    "blocks": "rests of larger blocks",
    "kept": "kept from before the step",
}
"""What a storage is for, in words."""

_COUNTER_WORDS = {"cuda_allocator": "the caching allocator's own peak", "cpu_profiler": "allocations that were counted"}
_HEAVIEST = 50


def memory_as_plain(
    totals: MemoryTotals | None, calls: Sequence[StepCall], advice: Sequence[Recomputation] = ()
) -> dict[str, Any] | None:
    """What ``show --json`` prints under ``memory``; ``None`` where no step's memory was watched. Keys are stable."""
    if totals is None:
        return None
    memory, peak = totals.memory, totals.curve.peak
    return {
        "device": memory.device,
        "peak_allocated_bytes": totals.peak_allocated_bytes,
        "peak_live_bytes": totals.peak_live_bytes,
        "expected_reserved_bytes": None if totals.allocator is None else totals.allocator.reserved_bytes,
        "peak_at": {
            "order": peak.order,
            "entry": entry_name(peak.order, peak.launch, calls),
            "launch": peak.launch,
            "phase": next((call.phase for call in calls if call.order == peak.order), None),
        },
        "by_category": dict(totals.by_category),
        "by_module": {module or "(none)": nbytes for module, nbytes in totals.by_module.items()},
        "measured_peak_bytes": memory.measured_peak_bytes,
        "measured_by": memory.counter,
        "requested_peak_bytes": memory.requested_peak_bytes,
        "reserved_peak_bytes": memory.reserved_peak_bytes,
        "heaviest": [as_plain(each) for each in totals.at_peak[:_HEAVIEST]],
        "recompute": [as_plain(each) for each in advice],
        "notes": list(memory.notes),
    }


def entry_name(order: int, launch: int | None, calls: Sequence[StepCall]) -> str:
    """An entry in words: ``"backward_0#12"``, ``"aten::add"``, or where the step begins."""
    call = next((call for call in calls if call.order == order), None)
    if call is None:
        return "the beginning of the step"
    within = f"#{launch}" if launch is not None else ""
    times = f" (call {call.call + 1})" if call.call else ""
    return f"{call.name}{within}{times}"


def memory_sections(
    totals: MemoryTotals,
    calls: Sequence[StepCall],
    advice: Sequence[Recomputation] = (),
    *,
    top: int,
    shorten: Callable[[str], str] = str,
) -> tuple[Section, ...]:
    """The peak in tables: by category, by module, its heaviest tensors, and what recomputing modules would free.

    ``shorten`` makes source lines short."""
    return (
        _facts_section(totals, calls),
        _module_section(totals, top),
        _heaviest_section(totals, top, shorten),
        _advice_section(advice, top),
    )


def advice_sentence(each: Recomputation) -> str:
    """``"Recompute layers.*.mlp: -11.2 GB at +6.0 % step time."``"""
    if each.added_share is None:
        cost = "; its forward's time was not measured"
    else:
        about = "about " if each.host_decides and not each.is_least else ""
        least = " at least" if each.is_least else ""
        host = f"{least}: the host decides this step" if each.host_decides else ""
        cost = f" at {about}+{format_share(each.added_share)} step time{host}"
    return f"Recompute {each.pattern}: -{format_bytes(each.freed_bytes)}{cost}."


def _advice_section(advice: Sequence[Recomputation], top: int) -> Section:
    if not advice:
        return Section("What recomputing would free", ())
    rows = tuple(
        (each.pattern, each.instances, each.freed_bytes, each.peak_bytes, each.added_us, each.added_share)
        for each in advice[:top]
    )
    keys = ("module", "instances", "freed_bytes", "alive_bytes", "added_us", "added_share")
    host = ", on the host, for which the device waits" if advice[0].host_decides else ""
    if advice[0].is_least:
        host += ", with what torch.utils.checkpoint takes there; a slower host needs more"
    under = f"Each by itself; the cost is the time of its forward, once more{host}."
    blocks = (Sentence(advice_sentence(advice[0])), Table(columns(*keys), rows), Sentence(under, "quiet"))
    return Section("What recomputing would free", blocks)


def _facts_section(totals: MemoryTotals, calls: Sequence[StepCall]) -> Section:
    memory, peak = totals.memory, totals.curve.peak
    blocks_of = "" if totals.allocator is None else " in the blocks that its allocator makes of them"
    rows = [
        (
            "peak allocated",
            f"{format_bytes(totals.peak_allocated_bytes)} on {memory.device}, by the ledger's storages{blocks_of}",
        ),
        ("made by", entry_name(peak.order, peak.launch, calls)),
    ]
    if memory.measured_peak_bytes is not None and memory.counter is not None:
        rows.append(
            (
                "measured",
                f"{format_bytes(memory.measured_peak_bytes)} ({_COUNTER_WORDS[memory.counter]}, the same step)",
            )
        )
    if memory.reserved_peak_bytes is not None and memory.measured_peak_bytes is not None:
        unused = memory.reserved_peak_bytes - memory.measured_peak_bytes
        rows.append(
            (
                "reserved",
                f"{format_bytes(memory.reserved_peak_bytes)}, {format_bytes(unused)} of it held beside these "
                "(fragmentation, caches, pools of CUDA graphs)",
            )
        )
    if totals.allocator is not None:
        rows.append(
            ("reserved, expected", f"{format_bytes(totals.allocator.reserved_bytes)}, by the allocator's rules")
        )
    table = Table(
        columns("memory_use", "alive_bytes", "peak_share"),
        tuple(
            (CATEGORY_WORDS[category], nbytes, _share(nbytes, totals))
            for category, nbytes in totals.by_category.items()
        ),
        ("total", totals.peak_allocated_bytes, 1.0 if totals.peak_allocated_bytes else None),
    )
    notes = tuple(Sentence(ended(note), "quiet") for note in memory.notes)
    blocks: tuple[Block, ...] = (Facts(tuple(rows)), table, *notes)
    return Section("Memory at its peak", blocks)


def _share(nbytes: int, totals: MemoryTotals) -> float | None:
    return nbytes / totals.peak_allocated_bytes if totals.peak_allocated_bytes else None


def _module_section(totals: MemoryTotals, top: int) -> Section:
    ranked = list(totals.by_module.items())
    shown, rest = (ranked, []) if len(ranked) <= top + 1 else (ranked[:top], ranked[top:])
    rows = [(module or "(none)", nbytes, _share(nbytes, totals)) for module, nbytes in shown]
    if rest:
        others = sum(nbytes for _, nbytes in rest)
        rows.append((f"({len(rest):,} others)", others, _share(others, totals)))
    table = Table(
        columns("module", "alive_bytes", "peak_share"), tuple(rows), ("total", totals.peak_allocated_bytes, 1.0)
    )
    return Section("Memory at its peak by module", (table,))


def _heaviest_section(totals: MemoryTotals, top: int, shorten: Callable[[str], str]) -> Section:
    rows = tuple(
        (
            storage_name(each),
            CATEGORY_WORDS[each.category],
            rounded(each.nbytes, totals.memory.rounding),
            each.dtype,
            each.shape,
            each.module or "",
            shorten(each.source) if each.source else "",
        )
        for each in totals.at_peak[:top]
    )
    keys = ("tensor", "memory_use", "alive_bytes", "dtype", "shape", "module", "source")
    table = Table(columns(*keys), rows, optional=("dtype", "source", "module", "shape"))
    of_all = format_share(sum(row[2] for row in rows) / totals.peak_allocated_bytes) if rows else "0 %"
    return Section(f"Heaviest tensors at the peak ({of_all} of it)", (table,))


def storage_name(storage: LiveStorage) -> str:
    """A parameter's path, else what made the storage."""
    return storage.name or storage.operator or "(not seen made)"
