"""``torchledger bench``: kernels run alone, beside their time inside the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Any

from torchledger.nouns import Measurement
from torchledger.replaying.bench_report import Benched, BenchReport, gain, median_ratio
from torchledger.reporting.ceilings import above_ceilings
from torchledger.reporting.columns import format_share, format_us
from torchledger.reporting.document import Block, Document, Section, Sentence, Table, Tone, as_plain, columns

_KEYS = (
    "launch_id", "kernel_name", "duration_us", "iqr_us", "calls", "cold_us", "placed_us", "step_us", "over_step",
    "step_calls", "time_share", "achieved_gb_per_s", "achieved_tflops_per_s", "roofline_fraction", "bound",
)  # fmt: skip
_OF_A_STEP = ("step_calls", "time_share")
_OPTIONAL = ("iqr_us", "calls", "cold_us", "placed_us", "achieved_tflops_per_s", "bound", "achieved_gb_per_s")
_COMPILED = (
    "launch_id", "kernel_name", "configuration", "num_warps", "num_stages", "n_regs", "n_spills", "shared_bytes",
)  # fmt: skip


def bench_as_plain(report: BenchReport) -> dict[str, Any]:
    """What ``bench --json`` prints; keys are stable."""
    return {
        "file": report.file,
        "selection": report.selection,
        "mode": report.mode,
        "seconds": report.seconds,
        "median_over_step": median_ratio(report),
        "entries": [_entry_as_plain(entry) for entry in report.entries],
        "remarks": [text for text, _ in _remarks(report)],
    }


def bench_document(report: BenchReport) -> Document:
    """The bench as a document."""
    timed = [entry for entry in report.entries if entry.status == "ok"]
    sections = [Section("Kernels run alone", (Sentence(f"{report.selection}; {report.seconds:.1f} s"),))]
    if timed:
        rows = tuple(tuple(_cells(entry)[key] for key in _KEYS) for entry in timed)
        table = Table(columns(*_KEYS), rows, optional=_OPTIONAL)
        if all(entry.use is None for entry in timed):
            table = table.without(_OF_A_STEP)
        sections[0] = Section("Kernels run alone", (*sections[0].blocks, table))
    compiled = [entry for entry in timed if entry.warm is not None and entry.warm.configuration and not entry.same_as]
    if compiled:
        rows = tuple(tuple(_compiled_cells(entry)[key] for key in _COMPILED) for entry in compiled)
        sections.append(Section("Compiled to", (Table(columns(*_COMPILED), rows),)))
    for entry in timed:
        if entry.configurations and not entry.same_as:
            sections.append(_configurations_section(entry))
    untimed = [entry for entry in report.entries if entry.status != "ok"]
    if untimed:
        keys = ("launch_id", "kernel_name", "state", "reason")
        rows = tuple(
            (entry.launch.launch_id, entry.launch.kernel_name, entry.status, entry.reason) for entry in untimed
        )
        sections.append(Section("Not timed", (Table(columns(*keys), rows),)))
    remarks: tuple[Block, ...] = tuple(Sentence(text, tone) for text, tone in _remarks(report))
    sections.append(Section("What to look at", remarks))
    return Document(tuple(sections))


def _cells(entry: Benched) -> dict[str, Any]:
    measured = entry.warm or entry.cold
    return {
        "launch_id": entry.launch.launch_id,
        "kernel_name": entry.launch.kernel_name,
        "duration_us": entry.duration_us,
        "iqr_us": measured.iqr_us if measured else None,
        "calls": measured.repeats if measured else None,
        "cold_us": entry.cold.duration_us if entry.cold else None,
        "placed_us": entry.placed.duration_us if entry.placed else None,
        "step_us": entry.in_step.duration_us if entry.in_step else None,
        "over_step": entry.over_step,
        "step_calls": entry.use.calls if entry.use is not None else None,
        "time_share": entry.use.share if entry.use is not None else None,
        "achieved_gb_per_s": entry.achieved_gb_per_s,
        "achieved_tflops_per_s": entry.achieved_tflops_per_s,
        "roofline_fraction": entry.roofline_fraction,
        "bound": entry.bound,
    }


def _compiled_cells(entry: Benched) -> dict[str, Any]:
    measured = entry.warm
    assert measured is not None
    return {
        "launch_id": entry.launch.launch_id,
        "kernel_name": entry.launch.kernel_name,
        "configuration": measured.configuration,
        "num_warps": measured.num_warps,
        "num_stages": measured.num_stages,
        "n_regs": measured.n_regs,
        "n_spills": measured.n_spills,
        "shared_bytes": measured.shared_bytes,
    }


def _configurations_section(entry: Benched) -> Section:
    keys = ("configuration", "duration_us", "iqr_us", "n_regs", "n_spills", "shared_bytes")

    def cells(found: Measurement) -> tuple[Any, ...]:
        return found.configuration, found.duration_us, found.iqr_us, found.n_regs, found.n_spills, found.shared_bytes

    ordered = sorted(entry.configurations, key=lambda found: found.duration_us)
    title = f"Configurations of {entry.launch.kernel_name} ({entry.launch.launch_id})"
    return Section(title, (Table(columns(*keys), tuple(map(cells, ordered))),))


def _entry_as_plain(entry: Benched) -> dict[str, Any]:
    return {
        **_cells(entry),
        "category": entry.launch.category,
        "status": entry.status,
        "reason": entry.reason,
        "same_as": entry.same_as,
        "roofline_us": entry.roofline_us,
        "notes": list(entry.notes),
        "warm": as_plain(entry.warm),
        "cold": as_plain(entry.cold),
        "placed": as_plain(entry.placed),
        "lead_in": entry.lead_in,
        "unplaced": entry.unplaced,
        "warm_over_step": entry.warm_over_step,
        "cold_over_step": entry.cold_over_step,
        "explanation": entry.explanation,
        "in_step": as_plain(entry.in_step),
        "configurations": as_plain(entry.configurations),
        "as_run": as_plain(entry.as_run),
    }


def _agreement(report: BenchReport) -> Iterator[str]:
    """How the times alone compare with those inside the step, by what the cache held, and why they differ."""
    states = {
        "in its place (cache as the launches before it leave it)": [
            entry.over_step for entry in report.entries if entry.placed is not None
        ],
        "warm": [entry.warm_over_step for entry in report.entries],
        "cold": [entry.cold_over_step for entry in report.entries],
    }
    for state, found in states.items():
        ratios = [ratio for ratio in found if ratio is not None]
        if ratios:
            near = sum(1 for ratio in ratios if abs(ratio - 1) <= 0.15) / len(ratios)
            yield (
                f"{state} over inside the step: median {median(ratios):.3f}, {format_share(near)} of {len(ratios)} "
                "within 15 %"
            )
    reasons = Counter(entry.explanation for entry in report.entries if entry.explanation)
    summed: Counter[str] = Counter()
    for reason, count in reasons.items():
        summed[reason.partition(":")[0]] += count
    if summed:
        shown = ", ".join(f"{reason} {count}" for reason, count in summed.most_common())
        yield f"where warm differs from the step by more than 5 %, by reason: {shown} (--json has each)"


def _remarks(report: BenchReport) -> list[tuple[str, Tone | None]]:
    """Sentences with their tone."""
    remarks: list[tuple[str, Tone | None]] = []
    if report.mode != "run":
        winners, choosable, before, after = gain(report)
        change = (after - before) / before if before else 0.0
        remarks.append(
            (
                f"{winners} of {choosable} Triton launches gain; all launches together {format_us(before)} -> "
                f"{format_us(after)} ({100 * change:+.1f} %). Library calls and C++ kernels have one configuration.",
                None,
            )
        )
    if report.ratios:
        remarks += [(text, None) for text in _agreement(report)]
    elif report.entries and all(entry.in_step is None for entry in report.entries):
        remarks.append(("no time inside the step is known: record with `torchledger run --profile`", None))
    unused = sorted({entry.launch.graph for entry in report.entries if entry.use is not None and not entry.use.calls})
    if unused:
        remarks.append(
            (
                f"did not run in the recorded step, which does not call their graph: launches of {', '.join(unused)}",
                None,
            )
        )
    if any(ceilings is None for ceilings in report.ceilings.values()):
        remarks.append(("no measured ceilings for this device: `torchledger doctor` gives roofline fractions", None))
    fractions = ((entry.launch.launch_id, entry.roofline_fraction, entry.bound) for entry in report.entries)
    remarks += [(text, None) for text in above_ceilings(fractions)]
    for entry in report.failures:
        remarks.append((f"{entry.launch.launch_id} {entry.status}: {entry.reason}", "bad"))
    wide = [(entry, note) for entry in report.entries if not entry.same_as for note in entry.notes]
    for entry, note in wide[:5]:
        remarks.append((f"{entry.launch.launch_id}: {note}", None))
    if len(wide) > 5:
        remarks.append((f"and {len(wide) - 5} more such notes (--json has all)", None))
    return remarks
