"""A ledger's launches as the page shows them: columns, what a kernel's page shows besides, and the kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from torchledger.device.ceilings import product_rate
from torchledger.nouns import Buffer, Ceilings, Graph, Kernel, Launch, Measurement, TimeRow
from torchledger.reporting.columns import format_bytes
from torchledger.reporting.html_texts import SOURCES_IN_ALL, Texts, clean, cut_source, rounded, sizes_text
from torchledger.reporting.overview import shorten_source
from torchledger.reporting.summary import Summary
from torchledger.roofline import bound, roofline_us
from torchledger.store import LedgerReader
from torchledger.work.categories import category_of_launch

SAMPLES_SHOWN = 200


class Entries:
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
            duration_us=rounded(duration),
            step_us=rounded(per_step),
            usual_us=rounded(usual),
            iqr_us=rounded(time.iqr_us if time is not None else None),
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
            calls=rounded(row.calls / n_steps),
            kernel=kernel,
            category=text(row.category),
            flops=flops,
            vector_flops=None,
            bytes_read=None,
            bytes_written=None,
            bytes_moved=bytes_moved,
            duration_us=rounded(row.median_us),
            step_us=rounded(row.total_us / n_steps),
            usual_us=rounded(row.median_us * row.calls / n_steps),
            iqr_us=rounded(row.iqr_us),
            dtype=0,
            source=0,
            code=0,
            module=0,
            ops=text(", ".join(row.ops)),
            roofline_us=rounded(row.roofline_us / row.calls if row.roofline_us is not None and row.calls else None),
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
        return {"roofline_us": rounded(limit), "bound": self._texts.place(what)}

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
            text(sizes_text(buffer.shape_expr, buffer.shape)),
            text(sizes_text(buffer.stride_expr, buffer.stride)),
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
            "samples": [rounded(sample) for sample in measurement.samples_us[:SAMPLES_SHOWN]],
            "median_us": rounded(measurement.duration_us),
            "iqr_us": rounded(measurement.iqr_us),
            "facts": [[text(name), text(value)] for name, value in facts.items() if value is not None and value != ""],
        }


def main_dtype(buffers: Sequence[Buffer]) -> str | None:
    """The element type of a product's operands: that of the largest input, or of the largest buffer without one.

    >>> main_dtype([])
    """
    inputs = [buffer for buffer in buffers if buffer.role in ("input", "inout")] or list(buffers)
    return max(inputs, key=lambda buffer: buffer.bytes_read or 0).dtype if inputs else None


def _per_call(value: int | None, row: TimeRow) -> int | None:
    return None if value is None or not row.calls else round(value / row.calls)


def _joined(sizes: Sequence[int] | None) -> str | None:
    return None if sizes is None else " x ".join(map(str, sizes))
