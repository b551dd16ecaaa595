"""What the page shows of one ledger, as plain data: columns, with every text written once.

Everything that a person may read passes ``printable`` here and is cut to a length that a browser bears; what was cut
says so. The page's script looks texts up by their place in ``texts``.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torchledger.device.ceilings import known_ceilings, product_rate
from torchledger.nouns import (
    Account,
    Breakdown,
    Buffer,
    Ceilings,
    Device,
    Graph,
    Kernel,
    Launch,
    Measurement,
    Prediction,
    Profile,
    StepPrediction,
    Timeline,
    TimeRow,
    ValueComparison,
    ValueFinding,
    ValueStats,
)
from torchledger.printable import printable, shorten
from torchledger.reporting.balance import balance_lines
from torchledger.reporting.columns import counted, format_bytes, format_share, format_si, format_us
from torchledger.reporting.html_memory import memory_of_step
from torchledger.reporting.html_step import recorded_step
from torchledger.reporting.overview import run_facts, shorten_source, verdict
from torchledger.reporting.remarks import remarks
from torchledger.reporting.summary import Summary, summarize_ledger
from torchledger.roofline import bound, roofline_us
from torchledger.store import LedgerReader
from torchledger.store.latest import latest, latest_measurements
from torchledger.store.value_stats import iterate_value_stats
from torchledger.traces.verdict import describe_category
from torchledger.work.categories import category_of_launch

Progress = Callable[[int, int, str], None]

LONGEST_TEXT = 2_000
LONGEST_LINE = 4_000
LONGEST_SOURCE = 200_000
SOURCES_IN_ALL = 6_000_000
SAMPLES_SHOWN = 200
MOST_PREDICTIONS = 20_000
MOST_VALUES = 20_000
MOST_FINDINGS = 500
_DISTURBED = 1.2
_MICROSECONDS = re.compile(r"(?<=\d) us\b")


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
    entries = _Entries(reader, texts, ceilings, summary, folder)
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
        "title": clean(
            " ".join((os.path.basename(summary.run.argv[0]), *summary.run.argv[1:])) if summary.run.argv else ""
        ),
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
        "verdict": [in_words(text) for text in breakdown.verdict] if breakdown else [],
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
        "timeline": _timeline(reader, texts),
        "values": _values(reader, texts),
        "predictions": _predictions(reader, texts, measured, predictions),
    }
    kernels = entries.kernels(reader)
    return {
        "data": data | {"texts": texts.all},
        "details": {"launches": entries.details, "kernels": kernels},
    }


def clean(text: object) -> str:
    """Any value as harmless text of bearable length."""
    return printable(shorten(str(text), LONGEST_TEXT))


def in_words(text: str) -> str:
    """A sentence that holds times, in the page's spelling.

    >>> in_words("3.1 us of us")
    '3.1 µs of us'
    """
    return _MICROSECONDS.sub(" µs", clean(text))


class Texts:
    """Texts by place, each once."""

    def __init__(self) -> None:
        self.all: list[str] = [""]
        self._places: dict[str, int] = {"": 0}

    def place(self, text: object) -> int:
        """Where the text is; ``None`` and "" are 0."""
        if text is None:
            return 0
        key = str(text)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self.all)
            self.all.append(clean(key))
        return place

    def places(self, texts: Iterable[object]) -> list[int]:
        """The place of each."""
        return [self.place(text) for text in texts]


class _Entries:
    """Collects launches into columns, details and kernels."""

    def __init__(
        self, reader: LedgerReader, texts: Texts, ceilings: Ceilings | None, summary: Summary, folder: str
    ) -> None:
        self.details: list[dict[str, Any]] = []
        self._texts = texts
        self._ceilings = ceilings
        self._folder = folder
        settings = summary.run.environment.settings
        self._allow_tf32 = settings.get("float32_matmul_precision", "highest") != "highest"
        self._columns: dict[str, list[Any]] = defaultdict(list)
        self._kernels: dict[tuple[str, str], int] = {}
        self._places = {graph.name: place for place, graph in enumerate(summary.graphs)}
        self._wrappers = {graph.name: (graph.wrapper_source or "").splitlines() for graph in reader.iterate(Graph)}
        self._rows: list[TimeRow] = []
        self._calls = summary.step.step.graph_calls if summary.step is not None else None

    def add(self, launch: Launch, measured: Sequence[Measurement], n_steps: int | None) -> None:
        """One launch, with what was measured of it."""
        text = self._texts.place
        profile = next((each for each in measured if each.kind == "profile"), None)
        bench = next((each for each in measured if each.kind == "bench"), None)
        time = profile or bench
        duration = time.duration_us if time is not None else None
        dtype = main_dtype(launch.buffers)
        work = self._limits(launch.flops, launch.bytes_moved, dtype, duration)
        kernel = self._kernels.setdefault((launch.kernel, launch.kernel_name), len(self._kernels))
        per_step = None if profile is None else sum(profile.samples_us) / (n_steps or 1)
        usual = None if profile is None else profile.duration_us * profile.repeats / (n_steps or 1)
        self._put(
            graph=self._places.get(launch.graph, -1),
            order=launch.order,
            calls=1 if self._calls is None else self._calls.get(launch.graph, 0),
            kernel=kernel,
            category=text(category_of_launch(launch) or "other"),
            flops=launch.flops,
            vector_flops=launch.vector_flops,
            bytes_read=launch.bytes_read,
            bytes_written=launch.bytes_written,
            bytes_moved=launch.bytes_moved,
            duration_us=_rounded(duration),
            step_us=_rounded(per_step),
            usual_us=_rounded(usual),
            iqr_us=_rounded(time.iqr_us if time is not None else None),
            dtype=text(dtype),
            source=text(shorten_source(launch.source, self._folder) if launch.source else None),
            code=text(launch.sources[-1].code.strip() if launch.sources and launch.sources[-1].code else None),
            module=text(launch.module),
            ops=text(", ".join(launch.aten_ops)),
            **work,
        )
        self.details.append(self._detail(launch, measured))

    def add_row(self, row: TimeRow, n_steps: int) -> None:
        """One kernel of a trace, or of steps that called no compiled graph: it has no launches in the ledger."""
        text = self._texts.place
        bytes_moved, flops = _per_call(row.bytes_moved, row), _per_call(row.flops, row)
        kernel = self._kernels.setdefault(("", row.name), len(self._kernels))
        self._rows.append(row)
        self._put(
            graph=-1,
            order=len(self.details),
            calls=_rounded(row.calls / n_steps),
            kernel=kernel,
            category=text(row.category),
            flops=flops,
            vector_flops=None,
            bytes_read=None,
            bytes_written=None,
            bytes_moved=bytes_moved,
            duration_us=_rounded(row.median_us),
            step_us=_rounded(row.total_us / n_steps),
            usual_us=_rounded(row.median_us * row.calls / n_steps),
            iqr_us=_rounded(row.iqr_us),
            dtype=0,
            source=0,
            code=0,
            module=0,
            ops=text(", ".join(row.ops)),
            roofline_us=_rounded(row.roofline_us / row.calls if row.roofline_us is not None and row.calls else None),
            bound=text(row.bound),
        )
        facts = [[text(name), text(value)] for name, value in row.detail.items()]
        facts.append([text("calls"), text(f"{row.calls:,}")])
        facts += [[text("unknown"), text(reason)] for reason in row.reasons]
        self.details.append({"facts": facts})

    def weight(self) -> str:
        """What pictures are sized by: time where there is any, else bytes, else FLOPs."""
        for column, name in (("step_us", "time"), ("duration_us", "time"), ("bytes_moved", "bytes")):
            if any(self._columns[column]):
                return name
        return "flops"

    def sum_of(self, column: str) -> float:
        """Over the launches whose value is known."""
        return float(sum(value for value in self._columns[column] if value is not None))

    def by_category(self) -> dict[str, list[float]]:
        """Launches, time, FLOPs and bytes of each category, as often as the step that was recorded makes them."""
        groups: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0, 0])
        columns = (self._columns[name] for name in ("category", "calls", "step_us", "flops", "bytes_moved"))
        for category, calls, time, flops, bytes_moved in zip(*columns, strict=True):
            sums = groups[self._texts.all[category]]
            for place, value in enumerate((calls, time, (flops or 0) * calls, (bytes_moved or 0) * calls)):
                sums[place] += value or 0
        return groups

    def columns(self) -> dict[str, list[Any]]:
        """The table, one list a column."""
        return dict(self._columns)

    def kernel_names(self) -> list[str]:
        """In order of first launch."""
        return [clean(name) for _, name in self._kernels]

    def kernels(self, reader: LedgerReader) -> list[dict[str, Any]]:
        """Every kernel that was launched, in order of first launch, with its source while room is left."""
        recorded = {(kernel.key, kernel.name): kernel for kernel in reader.iterate(Kernel)}
        by_key = {kernel.key: kernel for kernel in recorded.values()}
        room = SOURCES_IN_ALL
        found = []
        for key, name in self._kernels:
            kernel = recorded.get((key, name)) or by_key.get(key)
            plain: dict[str, Any] = {"key": clean(key), "name": clean(name)}
            if kernel is not None:
                source, note = cut_source(kernel.source, room)
                room -= len(source or "")
                plain |= {
                    "category": kernel.category,
                    "backend": kernel.backend,
                    "path": clean(kernel.path or ""),
                    "source": source,
                    "note": note,
                    "metadata": [[clean(each), clean(value)] for each, value in kernel.metadata.items()],
                    "sub_kernels": [clean(by_key[each].name) for each in kernel.sub_kernels if each in by_key],
                }
            found.append(plain)
        return found

    def _put(self, **values: Any) -> None:
        for name, value in values.items():
            self._columns[name].append(value)

    def _limits(
        self, flops: int | None, bytes_moved: int | None, dtype: str | None, duration: float | None
    ) -> dict[str, Any]:
        if self._ceilings is None:
            return {"roofline_us": None, "bound": 0}
        rate = product_rate(self._ceilings, dtype or "", allow_tf32=self._allow_tf32)
        bandwidth = self._ceilings.copy_gb_per_s
        limit = roofline_us(flops, bytes_moved, peak_tflops_per_s=rate, peak_gb_per_s=bandwidth)
        what = bound(
            flops,
            bytes_moved,
            peak_tflops_per_s=rate,
            peak_gb_per_s=bandwidth,
            duration_us=duration,
            launch_overhead_us=self._ceilings.launch_overhead_us,
        )
        return {"roofline_us": _rounded(limit), "bound": self._texts.place(what)}

    def _detail(self, launch: Launch, measured: Sequence[Measurement]) -> dict[str, Any]:
        """What only the kernel's page shows; empty parts are left out."""
        text, texts = self._texts.place, self._texts.places
        recomputed = set(launch.recomputed_ops)
        lines = self._wrappers.get(launch.graph, [])
        line = launch.wrapper_line
        call = lines[line - 1].strip() if line is not None and 1 <= line <= len(lines) else launch.call
        detail: dict[str, Any] = {
            "category": text(launch.category),
            "device": text(launch.device),
            "buffers": [self._buffer(buffer) for buffer in launch.buffers],
            "ops": [[text(name), int(name in recomputed)] for name in launch.aten_ops],
            "nodes": texts(launch.fx_nodes),
            "sources": [
                [text(shorten_source(f"{each.file}:{each.line}", self._folder)), text(each.function), text(each.code)]
                for each in launch.sources
            ],
            "modules": texts(launch.modules),
            "call": text(call),
            "line": line,
            "kwargs": [[text(name), text(value)] for name, value in launch.kwargs.items()],
            "grid": text(", ".join(launch.grid)),
            "flops_by_op": [[text(name), count] for name, count in launch.flops_by_op.items()],
            "loops": [self._loops(nest) for nest in launch.loops],
            "reason": text(launch.reason),
            "flops_quality": text(launch.flops_quality if launch.flops_quality != "exact" else None),
            "bytes_quality": text(launch.bytes_quality if launch.bytes_quality != "exact" else None),
            "measured": [self._measurement(each) for each in measured],
        }
        return {name: value for name, value in detail.items() if value}

    def _buffer(self, buffer: Buffer) -> list[Any]:
        text = self._texts.place
        return [
            text(buffer.name),
            text(buffer.role),
            text(buffer.dtype),
            text(_sizes(buffer.shape_expr, buffer.shape)),
            text(_sizes(buffer.stride_expr, buffer.stride)),
            buffer.bytes_read,
            buffer.bytes_written,
            text(None if buffer.bytes_quality == "exact" else buffer.bytes_quality.replace("_", " ")),
            text(buffer.fx_node),
        ]

    def _loops(self, nest: Any) -> int:
        sentence = " x ".join(map(str, nest.extents)) or "1"
        if nest.reduction_extents:
            sentence += f", reduced over {' x '.join(map(str, nest.reduction_extents))}"
        if nest.ops:
            sentence += "; per element " + ", ".join(f"{count} {name}" for name, count in nest.ops.items())
        return self._texts.place(sentence)

    def _measurement(self, measurement: Measurement) -> dict[str, Any]:
        text = self._texts.place
        facts = {
            "kernel": ", ".join(measurement.symbols),
            "grid": _joined(measurement.grid),
            "block": _joined(measurement.block),
            "warps": measurement.num_warps,
            "stages": measurement.num_stages,
            "registers": measurement.n_regs,
            "spills": measurement.n_spills,
            "shared memory": None if measurement.shared_bytes is None else format_bytes(measurement.shared_bytes),
            "configuration": measurement.configuration,
            "cache": measurement.l2_state,
            "warm-up": measurement.warmup or None,
            "note": measurement.note,
        }
        return {
            "kind": text(measurement.kind),
            "clock": text(measurement.clock),
            "n": measurement.repeats,
            "samples": [_rounded(sample) for sample in measurement.samples_us[:SAMPLES_SHOWN]],
            "median_us": _rounded(measurement.duration_us),
            "iqr_us": _rounded(measurement.iqr_us),
            "facts": [[text(name), text(value)] for name, value in facts.items() if value is not None and value != ""],
        }


# --- the first screen -------------------------------------------------------------------------------------------------


def sentences(
    summary: Summary,
    profile: Profile | None,
    breakdown: Breakdown | None,
    device: Device | None,
    entries: _Entries,
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
            f"{format_us(breakdown.device_us)} of device time{on} in {breakdown.events:,} events, imported from "
            f"{breakdown.source}."
        ]
    if not entries.details:
        return ["Nothing was compiled in this run, so the ledger holds no launches."]
    work = f"{format_si(totals.flops or 0, 'FLOP')} of matrix and convolution work"
    traffic = f"{format_bytes(totals.bytes_moved or 0)} of minimum traffic"
    return [
        f"The run compiled to {what} and {counted(totals.launches, 'launch')}: {work} and {traffic}{on}.",
        "Nothing was timed: record with `torchledger run --profile` to see where the time goes.",
    ]


def _heaviest(entries: _Entries) -> str:
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


def _step(profile: Profile | None, breakdown: Breakdown | None, entries: _Entries) -> dict[str, Any] | None:
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
                [_rounded(gap.duration_us), clean(gap.cause), clean(gap.host or ""), clean(gap.after or "")]
                for gap in breakdown.gaps
            ],
            "notes": [in_words(note) for note in (*breakdown.problems, *breakdown.notes)],
        }
    return step


def _categories(breakdown: Breakdown | None, entries: _Entries) -> list[dict[str, Any]]:
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


# --- further records --------------------------------------------------------------------------------------------------


def _timeline(reader: LedgerReader, texts: Texts) -> dict[str, Any] | None:
    timeline = latest(reader, Timeline)
    if timeline is None:
        return None
    return {
        "clock": clean(timeline.clock),
        "step": timeline.step,
        "left_out": timeline.left_out,
        "start_ns": timeline.start_ns,
        "duration_ns": timeline.duration_ns,
        "name": _looked_up(timeline.name, texts.places(timeline.names)),
        "category": _looked_up(timeline.category, texts.places(timeline.categories)),
        "launch": _looked_up(timeline.launch, texts.places(timeline.launch_ids)),
        "lane": timeline.lane,
        "lanes": [clean(lane) for lane in timeline.lanes],
        "phase": _looked_up(timeline.phase, texts.places(timeline.phases)),
    }


def _looked_up(places: Iterable[int | None], table: Sequence[int]) -> list[int]:
    return [0 if place is None else table[place] for place in places]


def _values(reader: LedgerReader, texts: Texts) -> dict[str, Any] | None:
    """Value statistics, those with NaN or Inf always, the others while there is room."""
    rows: list[ValueStats] = []
    left_out = 0
    for stats in iterate_value_stats(reader):
        if len(rows) < MOST_VALUES or stats.n_nan or stats.n_inf:
            rows.append(stats)
        else:
            left_out += 1
    findings = reader.read(ValueFinding)
    comparisons = reader.read(ValueComparison)
    if not (rows or findings or comparisons):
        return None
    return {
        "left_out": left_out,
        "findings": [
            [
                texts.place(each.question),
                texts.place(each.verdict),
                texts.place(each.subject),
                each.call_index,
                texts.place(each.buffer),
                texts.place(each.dtype),
                each.count,
                texts.place(each.note),
            ]
            for each in findings[:MOST_FINDINGS]
        ],
        "comparisons": [
            [
                texts.place(each.subject),
                texts.place(each.buffer),
                texts.place(each.dtype),
                _finite(each.compiled_error),
                _finite(each.eager_error),
                texts.place(each.further),
                each.is_within,
                texts.place(each.note),
            ]
            for each in sorted(comparisons, key=_how_far)[:MOST_FINDINGS]
        ],
        "findings_left_out": max(0, len(findings) - MOST_FINDINGS) + max(0, len(comparisons) - MOST_FINDINGS),
        "rows": [
            [
                texts.place(each.subject),
                each.call_index,
                texts.place(each.buffer),
                texts.place(each.moment),
                texts.place(each.dtype),
                texts.place(_sizes(None, each.shape)),
                each.n_nan,
                each.n_inf,
                *(_finite(value) for value in (each.minimum, each.maximum, each.mean, each.std)),
                texts.place(each.note),
            ]
            for each in rows
        ],
    }


def _how_far(comparison: ValueComparison) -> tuple[bool, float]:
    """Those outside their tolerance first, then the larger error."""
    return comparison.is_within is not False, -(comparison.compiled_error or 0.0)


def _predictions(
    reader: LedgerReader,
    texts: Texts,
    measured: Mapping[str, Sequence[Measurement]],
    further: Sequence[Prediction | StepPrediction],
) -> dict[str, Any] | None:
    rows: list[list[Any]] = []
    left_out = 0
    for each in (*reader.iterate(Prediction), *(one for one in further if isinstance(one, Prediction))):
        if len(rows) >= MOST_PREDICTIONS:
            left_out += 1
            continue
        times = measured.get(each.subject, ())
        truth = next((time for time in times if time.kind == "profile"), None) or next(iter(times), None)
        rows.append(
            [
                texts.place(each.subject),
                _rounded(each.duration_us),
                _rounded(each.low_us),
                _rounded(each.high_us),
                each.coverage,
                texts.place(each.range),
                texts.place(each.device),
                texts.place(each.model),
                _rounded(truth.duration_us) if truth is not None else None,
                _rounded(each.roofline_us),
                texts.place(each.note),
            ]
        )
    steps = [
        {
            "mode": clean(each.mode),
            "device": clean(each.device),
            "us": each.duration_us,
            "low_us": each.low_us,
            "high_us": each.high_us,
            "coverage": each.coverage,
            "kernels_us": each.kernels_us,
            "gaps_us": each.gaps_us,
            "host_us": each.host_us,
            "optimizer_us": each.optimizer_us,
            "eager_us": each.eager_us,
            "collectives_us": each.collectives_us,
            "notes": [in_words(note) for note in each.notes],
            "launches": each.launches,
            "extrapolated": each.extrapolated,
            "unlearned": each.unlearned,
            "measured_us": each.measured_us,
            "is_host_bound": each.is_host_bound,
        }
        for each in (*reader.iterate(StepPrediction), *(one for one in further if isinstance(one, StepPrediction)))
    ]
    return {"rows": rows, "left_out": left_out, "steps": steps} if rows or steps else None


# --- small helpers ----------------------------------------------------------------------------------------------------


def cut_source(source: str | None, room: int = SOURCES_IN_ALL) -> tuple[str | None, str]:
    """A source that a browser can show, and what was cut from it ("" for nothing).

    >>> cut_source("x = 1"), cut_source("x" * 9_000)[1]
    (('x = 1', ''), '1 long line is cut; the ledger has all 9,000 characters.')
    """
    if source is None:
        return None, "no source was recorded"
    limit = min(LONGEST_SOURCE, max(room, 0))
    text, notes = source, []
    if len(text) > limit:
        text = text[:limit]
        notes.append(f"the first {limit:,} characters are shown")
    lines = text.splitlines()
    long = sum(len(line) > LONGEST_LINE for line in lines)
    if long:
        text = "\n".join(shorten(line, LONGEST_LINE) if len(line) > LONGEST_LINE else line for line in lines)
        notes.append(f"{long:,} long line{'s are' if long > 1 else ' is'} cut")
    note = f"{'; '.join(notes)}; the ledger has all {len(source):,} characters." if notes else ""
    return printable(text), note


def main_dtype(buffers: Sequence[Buffer]) -> str | None:
    """The element type of a product's operands: that of the largest input, or of the largest buffer without one.

    >>> main_dtype([])
    """
    inputs = [buffer for buffer in buffers if buffer.role in ("input", "inout")] or list(buffers)
    return max(inputs, key=lambda buffer: buffer.bytes_read or 0).dtype if inputs else None


def _by_subject(measurements: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    groups: dict[str, list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        groups[measurement.subject].append(measurement)
    return groups


def _rounded(value: float | None) -> float | None:
    """To a thousandth: times are whole nanoseconds."""
    return None if value is None else round(value, 3)


def _finite(value: float | None) -> float | str | None:
    """JSON has no NaN and no infinity."""
    if value is None or value - value == 0:
        return value
    return str(value)


def _per_call(value: int | None, row: TimeRow) -> int | None:
    return None if value is None or not row.calls else round(value / row.calls)


def _joined(sizes: Sequence[int] | None) -> str | None:
    return None if sizes is None else " x ".join(map(str, sizes))


def _sizes(expression: Sequence[str] | None, hint: Sequence[int]) -> str:
    """``"s0=32, 64"``: symbolic sizes with their value in the recorded step, else with that which was compiled for."""
    if expression is None:
        return ", ".join(map(str, hint))
    pairs = zip(expression, hint, strict=False)
    return ", ".join(str(value) if text == str(value) else f"{text}={value}" for text, value in pairs)
