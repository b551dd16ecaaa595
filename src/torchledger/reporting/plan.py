"""A plan: the price of a step on devices that are not there, and what its program was told."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torchledger.nouns import DryRun, PlannedStep, StandIn
from torchledger.printable import counted
from torchledger.reporting.columns import format_bytes, format_us
from torchledger.reporting.document import Block, Document, Facts, Section, Sentence
from torchledger.reporting.planned_job import collectives_as_plain

_MOST_LINES = 12


def plan_as_plain(step: PlannedStep, dry_run: DryRun | None = None) -> dict[str, Any]:
    """A plan for scripts; times in microseconds, sizes in bytes."""
    return {
        "step": {
            "duration_us": step.duration_us,
            "low_us": step.low_us,
            "high_us": step.high_us,
            "device_us": step.device_us,
            "host_us": step.host_us,
            "host_work_us": step.host_work_us,
            "decided_by": step.decides,
            "mean_us": step.mean_us,
        },
        "communication": {
            "total_us": step.communication_us,
            "exposed_us": step.exposed_us,
            "bubble_us": step.bubble_us,
            "collectives": collectives_as_plain(step.collectives),
        },
        "memory": {"peak_allocated_bytes": step.peak_allocated_bytes, "fits": step.fits},
        "ranks": step.world_size,
        "launches": step.launches,
        "kernel_launches": step.kernel_launches,
        "rarer_steps": [asdict(each) for each in step.rarer],
        "notes": list(step.notes),
        "stand_ins": [
            {"source": each.source, "asked": each.asked, "value": each.value, "count": each.count}
            for each in (dry_run.stand_ins if dry_run is not None else ())
        ],
        "decisions": [
            {"decided": what, "count": count}
            for what, count in (dry_run.decisions.items() if dry_run is not None else ())
        ],
    }


def plan_document(step: PlannedStep, dry_run: DryRun | None = None) -> Document:
    """The same for a reader."""
    facts = [
        ("step", f"{format_us(step.duration_us)} ({format_us(step.low_us)} to {format_us(step.high_us)})"),
        ("decided by", _deciding(step)),
        ("device", f"{format_us(step.device_us)} in {_launches(step)}"),
        ("host", f"{format_us(step.host_us)}{_computing(step)}"),
    ]
    if step.world_size > 1:
        exposed = format_us(step.exposed_us)
        total = format_us(step.communication_us)
        facts.append(("communication", f"{total}, of which {exposed} has no kernel beside it"))
    if step.bubble_us:
        facts.append(("bubble", f"{format_us(step.bubble_us)} of waiting for other ranks, the mean over all"))
    if step.peak_allocated_bytes is not None:
        facts.append(("peak memory", f"{format_bytes(step.peak_allocated_bytes)} allocated"))
    blocks: list[Block] = [Facts(tuple(facts))]
    blocks += [Sentence(f"{note[0].upper()}{note[1:]}.", "quiet") for note in step.notes]
    many = f"{step.world_size} x " if step.world_size > 1 else ""
    sections = [Section(f"A step on {many}{step.device}, planned without it", tuple(blocks))]
    if dry_run is not None:
        sections += dry_run_sections(dry_run)
    return Document(tuple(sections))


def dry_run_sections(dry_run: DryRun) -> list[Section]:
    """What a program was told that ran without its device, and what was decided in the device's place."""
    sections = []
    if dry_run.stand_ins:
        told = [
            (each.source, f"{_told(each)}{f', {each.count} times' if each.count > 1 else ''}")
            for each in dry_run.stand_ins[:_MOST_LINES]
        ]
        further = len(dry_run.stand_ins) - len(told)
        rest = [Sentence(f"And {counted(further, 'more line')}.", "quiet")] if further else []
        sections.append(Section("Stand-ins for values that were not computed", (Facts(tuple(told)), *rest)))
    if dry_run.decisions:
        decided = [(what, "once" if count == 1 else f"{count} times") for what, count in dry_run.decisions.items()]
        sections.append(Section("Decided by a rule where the device would be asked", (Facts(tuple(decided)),)))
    return sections


def _told(stand_in: StandIn) -> str:
    """What was asked, and what it was told where that is not said with it."""
    return f"{stand_in.asked}: {stand_in.value}" if stand_in.value else stand_in.asked


def _launches(step: PlannedStep) -> str:
    """What is counted of a step: kernels, and the calls that launch them."""
    if step.kernel_launches is None:
        return counted(step.launches, "launch")
    of_one = " of one rank's step" if step.world_size > 1 else ""
    return (
        f"{counted(step.kernel_launches, 'launch')} of kernels, by {step.launches:,} eager calls and launches of "
        f"compiled graphs{of_one}"
    )


def _computing(step: PlannedStep) -> str:
    return f", of which it computes for {format_us(step.host_work_us)}" if step.host_work_us else ""


_COUNTS = 0.1
"""A share of the way that decides a step's length from which on it is named."""


def _deciding(step: PlannedStep) -> str:
    """What the way that decides a step's length is made of, with shares where it is more than one thing.

    What the device and the host need alone may both be less than the step: one waits for the other.
    """
    named = {what: share for what, share in step.decided_by.items() if share >= _COUNTS}
    words = _WORDS | ({"host": _COMPUTES} if step.host_work_us >= _COUNTS * step.host_us > 0 else {})
    if len(named) < 2:
        return words.get(step.decides or "", step.decides or "nothing")
    parts = [f"{words.get(what, what)} ({share * 100:.0f} %)" for what, share in named.items()]
    longer = "" if step.duration_us <= _LONGER * max(step.device_us, step.host_us) else "; one waits for the other"
    return f"{', '.join(parts[:-1])} and {parts[-1]}{longer}"


_LONGER = 1.02
"""How many times as long as what device and host need each a step is of which it is said that one waits."""

_COMPUTES = "the host, which computes and launches kernels"
_WORDS = {
    "compute": "the device's kernels",
    "host": "the host, which launches kernels",
    "communication": "communication",
    "idle": "waiting",
}
