"""What the page shows of one ledger, as plain data: columns, with every text written once.

Everything that a person may read passes ``html_texts``, which makes it harmless and cuts it to a length that a browser
bears; what was cut says so. The page's script looks texts up by their place in ``texts``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torchledger.device.ceilings import known_ceilings
from torchledger.nouns import (
    Account,
    Breakdown,
    Ceilings,
    Device,
    Launch,
    Measurement,
    Prediction,
    Profile,
    StepPrediction,
)
from torchledger.printable import counted
from torchledger.reporting.balance import balance_lines
from torchledger.reporting.columns import format_bytes, format_share, format_si, format_us
from torchledger.reporting.html_entries import Entries
from torchledger.reporting.html_memory import memory_of_step
from torchledger.reporting.html_records import predictions_plain, timeline_plain, values_plain
from torchledger.reporting.html_step import recorded_step
from torchledger.reporting.html_texts import Texts, clean, in_words, rounded
from torchledger.reporting.overview import how_to_profile, run_facts, shorten_source, title_of, verdict
from torchledger.reporting.remarks import remarks
from torchledger.reporting.summary import Summary, summarize_ledger
from torchledger.store import LedgerReader
from torchledger.store.latest import latest, latest_measurements
from torchledger.traces.verdict import beside_a_step, describe_category, time_words

Progress = Callable[[int, int, str], None]

_DISTURBED = 1.2


def page_data(
    reader: LedgerReader,
    *,
    folder: str = "",
    predictions: Sequence[Prediction | StepPrediction] = (),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """All that the page of one ledger shows, with ``predictions`` beside those that it holds; source paths relative to
    ``folder``."""
    summary = summarize_ledger(reader)
    texts = Texts()
    steps = latest(reader, Profile)
    breakdown = latest(reader, Breakdown)
    ceilings, device = _ceilings(summary, breakdown)
    entries = Entries(reader, texts, ceilings, summary, folder)
    n_steps = steps.steps if steps is not None else (breakdown.steps if breakdown is not None else None)
    measured = _by_subject(latest_measurements(reader))
    total = reader.count(Launch)
    for number, launch in enumerate(reader.iterate(Launch)):
        if progress is not None and number % 500 == 0:
            progress(number, total, "launches")
        if launch.category != "nop":
            entries.add(summary.sizes.launch(launch), measured.get(launch.launch_id, ()), n_steps)
    if not total and breakdown is not None:
        for row in breakdown.kernels:
            entries.add_row(row, breakdown.steps or 1)
    if progress is not None:
        progress(total, total, "launches")
    data = {
        "kind": "run",
        "title": clean(title_of(summary.run)),
        "file": clean(summary.file),
        "sentences": [in_words(text) for text in sentences(summary, steps, breakdown, device, entries)],
        "recorded": recorded_step(
            summary.step,
            {graph.name: graph.costs.launches for graph in summary.graphs},
            place=texts.place,
            words=in_words,
            shorten=lambda source: shorten_source(source, folder),
        ),
        "memory": memory_of_step(
            summary.memory,
            summary.step.calls if summary.step is not None else (),
            summary.recomputations,
            words=clean,
            shorten=lambda source: shorten_source(source, folder),
        ),
        "verdict": [in_words(text) for text in _said(summary, breakdown)],
        "facts": [[clean(name), clean(text)] for name, text in run_facts(summary)],
        "remarks": [clean(text) for text in remarks(summary)],
        "balance": _balance(summary) | {"is_imported": summary.run.is_imported},
        "weight": entries.weight(),
        "step": _step(steps, breakdown, entries),
        "categories": _categories(breakdown, entries),
        "ceilings": _ceilings_plain(ceilings, device),
        "graphs": [
            {
                "name": clean(graph.name),
                "direction": graph.direction,
                "compile_id": clean(graph.compile_id or ""),
                "launches": graph.costs.launches,
            }
            for graph in summary.graphs
        ],
        "silent": summary.entries - len(entries.details) if total else 0,
        "launches": entries.columns(),
        "kernel_names": entries.kernel_names(),
        "timeline": timeline_plain(reader, texts),
        "values": values_plain(reader, texts),
        "predictions": predictions_plain(reader, texts, measured, predictions),
    }
    kernels = entries.kernels(reader)
    return {
        "data": data | {"texts": texts.all},
        "details": {"launches": entries.details, "kernels": kernels},
    }


# --- the first screen -------------------------------------------------------------------------------------------------


def _said(summary: Summary, breakdown: Breakdown | None) -> tuple[str, ...]:
    if breakdown is None:
        return ()
    return breakdown.verdict if summary.step is None else beside_a_step(breakdown.verdict)


def sentences(
    summary: Summary,
    profile: Profile | None,
    breakdown: Breakdown | None,
    device: Device | None,
    entries: Entries,
) -> list[str]:
    """The step in one sentence, and what that sentence leaves out; a recorded step has its verdict instead."""
    if summary.step is not None:
        return list(verdict(summary))
    totals = summary.totals
    what = f"{counted(len(summary.graphs), 'graph')} of {counted(len(summary.kernels), 'kernel')}"
    made = f"{counted(totals.launches, 'launch')} of {counted(len(summary.kernels), 'kernel')}"
    on = f" on {device.name}" if device is not None else ""
    if profile is not None:
        device_us = entries.sum_of("step_us")
        step = profile.plain_step_us or profile.profiled_step_us
        heaviest = _heaviest(entries)
        start = f"One step takes {format_us(step)}: its" if step else "One step's"
        first = f"{start} {made} take {format_us(device_us)} of device time{on}{heaviest}."
        if not entries.details:
            first = f"{start} compiled graphs hold no launch."
        alone = "Of compiled graphs alone: the ledger holds no step, so what ran outside of them is not in it."
        if step and device_us > _DISTURBED * step:
            profiled = f" ({format_us(profile.profiled_step_us)} a step)" if profile.profiled_step_us else ""
            return [
                first,
                f"That is more than the step itself: the profiled steps{profiled} were disturbed, or slowed by the "
                "profiler. Profile again on a quiet machine.",
                alone,
            ]
        return [first, alone]
    if breakdown is not None:
        return [
            f"{format_us(breakdown.device_us)} of {time_words(breakdown)}{on} in {breakdown.events:,} events, imported "
            f"from {breakdown.source}."
        ]
    if not entries.details:
        return ["Nothing was compiled in this run, so the ledger holds no launches."]
    work = f"{format_si(totals.flops or 0, 'FLOP')} of matrix and convolution work"
    traffic = f"{format_bytes(totals.bytes_moved or 0)} of minimum traffic"
    return [
        f"The run compiled to {what} and {counted(totals.launches, 'launch')}: {work} and {traffic}{on}.",
        f"Nothing was timed: record with `{how_to_profile(summary.run)}` to see where the time goes.",
    ]


def _heaviest(entries: Entries) -> str:
    groups = entries.by_category()
    total = sum(sums[1] for sums in groups.values())
    if not total:
        return ""
    name, sums = max(groups.items(), key=lambda item: item[1][1])
    return f", {format_share(sums[1] / total)} of it in {describe_category(name)}"


def _balance(summary: Summary) -> dict[str, Any]:
    accounts = []
    for account in summary.balance.accounts.values():
        state, tone, lines = balance_lines(account)
        accounts.append(
            {
                "name": clean(account.name),
                "short": clean(_what_is_missing(account)),
                "unit": clean(account.unit),
                "ledger": account.ledger,
                "reference": account.reference,
                "differences": len(account.differences),
                "missing": len(account.missing),
                "state": state,
                "tone": tone,
                "lines": [[in_words(text), tone] for text, tone in lines],
            }
        )
    return {"is_balanced": summary.balance.is_balanced, "accounts": accounts}


def _what_is_missing(account: Account) -> str:
    """A few words for a badge: how much is missing, or by how much two counts differ."""
    amounts = [gap.amount for gap in account.missing]
    known = [amount for amount in amounts if amount is not None]
    if amounts and len(known) == len(amounts) and any(known):
        of = f" of {_in_unit(account.reference, account.unit)}" if account.reference else ""
        return f"{_in_unit(sum(known), account.unit)}{of} missing"
    if amounts:
        return f"{len(amounts):,} missing"
    off = (account.ledger or 0) - (account.reference or 0) - sum(each.amount for each in account.differences)
    return f"{_in_unit(abs(off), account.unit)} too {'many' if off > 0 else 'few'}"


def _in_unit(amount: float, unit: str) -> str:
    return in_words(format_us(amount)) if unit == "us" else format_si(amount)


def _step(profile: Profile | None, breakdown: Breakdown | None, entries: Entries) -> dict[str, Any] | None:
    if profile is None and breakdown is None:
        return None
    step: dict[str, Any] = {"entries_us": entries.sum_of("step_us")}
    if profile is not None:
        step |= {
            "clock": clean(profile.clock),
            "steps": profile.steps,
            "plain_us": profile.plain_step_us,
            "profiled_us": profile.profiled_step_us,
            "matched_share": profile.matched_share,
        }
    if breakdown is not None:
        steps = breakdown.steps or 1
        step |= {
            "clock": clean(breakdown.clock),
            "steps": breakdown.steps,
            "device_us": breakdown.device_us / steps,
            "wall_us": breakdown.wall_us / steps,
            "busy_share": breakdown.busy_share,
            "idle_us": breakdown.idle_us / steps,
            "idle_causes": [[clean(cause), time / steps] for cause, time in breakdown.idle_causes.items()],
            "host_during_idle": [
                [clean(doing), time / steps] for doing, time in list(breakdown.host_during_idle.items())[:20]
            ],
            "gaps": [
                [rounded(gap.duration_us), clean(gap.cause), clean(gap.host or ""), clean(gap.after or "")]
                for gap in breakdown.gaps
            ],
            "notes": [in_words(note) for note in (*breakdown.problems, *breakdown.notes)],
        }
    return step


def _categories(breakdown: Breakdown | None, entries: Entries) -> list[dict[str, Any]]:
    """Heaviest first, a step's worth; from the breakdown where there is one, which knows work outside of entries."""
    if breakdown is not None:
        steps = breakdown.steps or 1
        return [
            {
                "name": clean(row.name),
                "meaning": clean(describe_category(row.name)),
                "launches": row.calls / steps,
                "us": row.total_us / steps,
                "flops": None if row.flops is None else row.flops / steps,
                "bytes": None if row.bytes_moved is None else row.bytes_moved / steps,
                "tflops_per_s": row.achieved_tflops_per_s,
                "gb_per_s": row.achieved_gb_per_s,
                "roofline": row.roofline_fraction,
            }
            for row in breakdown.categories
        ]
    groups = entries.by_category()
    weight = {"time": 1, "flops": 2, "bytes": 3}[entries.weight()]
    return [
        {
            "name": clean(name),
            "meaning": clean(describe_category(name)),
            "launches": sums[0],
            "us": sums[1] or None,
            "flops": sums[2],
            "bytes": sums[3],
        }
        for name, sums in sorted(groups.items(), key=lambda item: -item[1][weight])
    ]


def _ceilings(summary: Summary, breakdown: Breakdown | None) -> tuple[Ceilings | None, Device | None]:
    """The device that the graphs run on, and what it was measured to reach."""
    kinds = {device.partition(":")[0] for graph in summary.graphs for device in graph.devices}
    devices = [*summary.run.devices, *(breakdown.devices if breakdown is not None else ())]
    ran_on = [device for device in devices if device.kind in kinds and device.kind != "cpu"]
    ran_on += [device for device in devices if device.kind in kinds] or devices
    for device in ran_on:
        if (ceilings := known_ceilings(device)) is not None:
            return ceilings, device
    return None, ran_on[0] if ran_on else None


def _ceilings_plain(ceilings: Ceilings | None, device: Device | None) -> dict[str, Any]:
    plain: dict[str, Any] = {"device": clean(device.name) if device is not None else None}
    if ceilings is not None:
        plain |= {
            "copy_gb_per_s": ceilings.copy_gb_per_s,
            "tflops_per_s": {clean(name): rate for name, rate in ceilings.tflops_per_s.items()},
            "launch_overhead_us": ceilings.launch_overhead_us,
            "measured_utc": clean(ceilings.measured_utc or ""),
        }
    return plain


def _by_subject(measurements: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    groups: dict[str, list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        groups[measurement.subject].append(measurement)
    return groups
