"""``torchledger show FILE KERNEL``, ``--wrapper``, ``--stage``: a kernel's whole story, a graph's code and stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torchledger.errors import StoreError
from torchledger.nouns import (
    Buffer,
    Graph,
    Kernel,
    Launch,
    LoopNest,
    Measurement,
    SourceLine,
    Stage,
    StageName,
    Step,
)
from torchledger.printable import counted
from torchledger.reporting.columns import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_ratio,
    format_shape,
    format_share,
    format_si,
    format_us,
)
from torchledger.reporting.document import Block, Code, Document, Facts, Section, Sentence, Table, as_plain, columns
from torchledger.reporting.overview import shorten_source
from torchledger.roofline import achieved_gb_per_s, achieved_tflops_per_s, arithmetic_intensity
from torchledger.stepping.ran_sizes import RanSizes, read_ran_sizes
from torchledger.stepping.totals import StepUse, use_of
from torchledger.store import LedgerReader
from torchledger.store.find import Target, find_kernel
from torchledger.store.latest import latest, latest_measurements
from torchledger.store.rows import LaunchRow, read_launch_rows


@dataclass(frozen=True)
class Story:
    """A kernel, its launches, and everything about one of them (the one asked for, or the first).

    ``kernel`` is ``None`` when the launch was recorded and its kernel was not; ``launch`` is ``None`` for a kernel that
    is only part of another one. ``wrapper_code`` is the line of the graph's wrapper that calls it. ``use`` is what the
    ledger's step makes of the launch; ``None`` without a step.
    """

    file: str
    name: str
    kernel: Kernel | None
    sub_kernels: tuple[Kernel, ...]
    launches: tuple[LaunchRow, ...]
    launch: Launch | None
    graph: Graph | None
    wrapper_code: str | None
    measurements: tuple[Measurement, ...] = ()
    use: StepUse | None = None
    sizes: RanSizes = field(default_factory=RanSizes)


def tell_story(reader: LedgerReader, question: str) -> Story:
    """Find what was asked for (see ``find_kernel``) and read it."""
    target = find_kernel(reader, question)
    sizes = read_ran_sizes(reader)
    own = [row for row in read_launch_rows(reader) if (row.kernel, row.kernel_name) == (target.key, target.kernel_name)]
    rows = tuple(sizes.rows(reader, own))
    kernel = next(reader.iterate(Kernel, key=target.key, name=target.kernel_name), None)
    recorded = _read_launch(reader, target, rows)
    launch = sizes.launch(recorded) if recorded is not None else None
    graph = next(reader.iterate(Graph, name=launch.graph), None) if launch else None
    measurements = tuple(latest_measurements(reader, subject=launch.launch_id)) if launch else ()
    in_step = next((each.duration_us for each in measurements if each.kind == "profile"), None)
    step = latest(reader, Step)
    return Story(
        file=str(reader.path),
        name=target.kernel_name,
        kernel=kernel,
        sub_kernels=tuple(
            each for key in (kernel.sub_kernels if kernel else ()) for each in reader.read(Kernel, key=key)
        ),
        launches=rows,
        launch=launch,
        graph=graph,
        wrapper_code=_wrapper_code(graph, launch),
        measurements=measurements,
        use=use_of(step, launch.graph, in_step) if step is not None and launch is not None else None,
        sizes=sizes,
    )


def story_as_plain(reader: LedgerReader, story: Story) -> dict[str, Any]:
    """What ``show FILE KERNEL --json`` prints: the kernel, and its launches in full (only the one that was asked for
    when it was asked for by its launch id)."""
    launches = [
        story.sizes.launch(launch)
        for row in story.launches
        for launch in reader.iterate(Launch, graph=row.graph, order=row.order)
    ]
    return {
        "file": story.file,
        "name": story.name,
        "kernel": as_plain(story.kernel),
        "sub_kernels": as_plain(story.sub_kernels),
        "wrapper_code": story.wrapper_code,
        "launch_id": story.launch.launch_id if story.launch else None,
        "launches": [launch_as_plain(launch) for launch in launches],
        "measurements": [
            as_plain(measured) | {"duration_us": measured.duration_us, "iqr_us": measured.iqr_us}
            for measured in story.measurements
        ],
        "use": as_plain(story.use),
    }


def launch_as_plain(launch: Launch) -> dict[str, Any]:
    """A launch with its fields and what follows from them."""
    plain: dict[str, Any] = as_plain(launch)
    return plain | {
        "launch_id": launch.launch_id,
        "is_call": launch.is_call,
        "bytes_read": launch.bytes_read,
        "bytes_written": launch.bytes_written,
        "bytes_moved": launch.bytes_moved,
        "bytes_quality": launch.bytes_quality,
        "arithmetic_intensity": arithmetic_intensity(launch.flops, launch.bytes_moved),
    }


def story_document(story: Story, *, top: int = 10, folder: str = "") -> Document:
    """The story as a document."""
    sections = [Section(f"Kernel {story.name}", (Facts(_kernel_facts(story)),))]
    if len(story.launches) > 1:
        sections.append(_launches_section(story, top=top, folder=folder))
    if story.launch is not None:
        sections += _launch_sections(story, story.launch, folder)
    sections += _source_sections(story)
    return Document(tuple(sections))


def wrapper_document(graph: Graph) -> Document:
    """The generated code of a graph, or where it went."""
    if graph.wrapper_source is None:
        where = f" It was generated at {graph.wrapper_path}." if graph.wrapper_path else ""
        return Document((Section("", (Sentence(f"The wrapper of {graph.name} was not recorded.{where}"),)),))
    language: Literal["python", "cpp"] = graph.wrapper_language
    return Document((Section("", (Code(graph.wrapper_source, language),)),))


def read_stage(reader: LedgerReader, graph: Graph, stage: StageName) -> Stage:
    """One stage of a graph, of a backward that of its forward where both came of it.

    Raises ``StoreError`` with how to record it, if it was not kept.
    """
    found = _find_stage(reader, graph, stage)
    if found is None:
        raise StoreError(
            f"the stage {stage} of {graph.name} was not recorded. `torchledger run --stages SCRIPT` keeps it."
        )
    return found


def _find_stage(reader: LedgerReader, graph: Graph, stage: StageName) -> Stage | None:
    if stage == "post-grad":
        return Stage(graph.name, stage, graph.fx_source) if graph.fx_source is not None else None
    names = [graph.name]
    if stage in ("pre-grad", "joint") and graph.model_key is not None:
        names += [each.name for each in reader.iterate(Graph) if each.model_key == graph.model_key]
    return next((found for name in names for found in reader.iterate(Stage, graph=name, stage=stage)), None)


def stage_document(stage: Stage) -> Document:
    """The text of a stage."""
    return Document((Section("", (Code(stage.text, "text" if stage.stage.startswith("ir-") else "python"),)),))


def stage_as_plain(graph: Graph, stage: Stage) -> dict[str, Any]:
    """What ``show FILE --stage NAME GRAPH --json`` prints; ``of`` is the graph that it was kept with."""
    return {"graph": graph.name, "stage": stage.stage, "of": stage.graph, "text": stage.text}


def wrapper_as_plain(graph: Graph) -> dict[str, Any]:
    """What ``show FILE --wrapper GRAPH --json`` prints."""
    plain: dict[str, Any] = as_plain(graph)
    return plain


def _read_launch(reader: LedgerReader, target: Target, rows: Sequence[LaunchRow]) -> Launch | None:
    for row in rows:
        if target.launch_id in (None, row.launch_id):
            return next(reader.iterate(Launch, graph=row.graph, order=row.order), None)
    return None


def _wrapper_code(graph: Graph | None, launch: Launch | None) -> str | None:
    if graph is None or launch is None:
        return None
    if graph.wrapper_source is not None and launch.wrapper_line is not None:
        lines = graph.wrapper_source.splitlines()
        if 1 <= launch.wrapper_line <= len(lines):
            return lines[launch.wrapper_line - 1].strip()
    return launch.call


# --- sections --------------------------------------------------------------------------------------------------------


def _kernel_facts(story: Story) -> tuple[tuple[str, str], ...]:
    kernel = story.kernel
    if kernel is None:
        return (("source", "not recorded: the balance sheet of `torchledger show FILE` says why"),)
    rows = [("category", kernel.category), ("backend", kernel.backend), ("key", kernel.key)]
    if kernel.path:
        rows.append(("path", kernel.path))
    if story.sub_kernels:
        rows.append(("made of", ", ".join(each.name for each in story.sub_kernels)))
    rows += list(kernel.metadata.items())
    rows.append(("launches", format_count(sum(bool(row.is_call) for row in story.launches))))
    return tuple(rows)


def _launches_section(story: Story, *, top: int, folder: str) -> Section:
    rows = tuple(
        (
            row.launch_id,
            row.flops,
            row.bytes_read,
            row.bytes_written,
            shorten_source(row.source, folder) if row.source else "",
            row.module or "",
        )
        for row in story.launches[:top]
    )
    keys = ("launch_id", "flops", "bytes_read", "bytes_written", "source", "module")
    optional = ("module", "bytes_written")
    blocks: list[Block] = [Table(columns(*keys), rows, optional=optional)]
    if len(story.launches) > top:
        blocks.append(Sentence(f"{counted(len(story.launches) - top, 'further launch')}; --json has all.", "quiet"))
    return Section("Launches", tuple(blocks))


def _launch_sections(story: Story, launch: Launch, folder: str) -> list[Section]:
    sections = [Section(f"Launch {launch.launch_id}", (Facts(_launch_facts(story, launch)),))]
    if launch.buffers:
        sections.append(_buffers_section(launch.buffers))
    if any(nest.accesses for nest in launch.loops):
        sections.append(_accesses_section(launch.loops))
    origins = [*(("line", _source_text(line, folder)) for line in launch.sources)]
    origins += [("module", module) for module in launch.modules]
    if launch.reason:
        origins.append(("reason", launch.reason))
    if not origins:
        origins.append(("line", "no line or module of the model is known for it"))
    sections.append(Section("Where it came from", (Facts(tuple(origins)),)))
    return sections


def _launch_facts(story: Story, launch: Launch) -> tuple[tuple[str, str], ...]:
    rows = [("graph", _graph_text(story.graph, launch)), ("device", launch.device)]
    if story.wrapper_code:
        line = f"line {launch.wrapper_line}: " if launch.wrapper_line is not None else ""
        rows.append(("called at", f"{line}{story.wrapper_code}"))
    if launch.grid:
        rows.append(("grid", format_shape(launch.grid)))
    if launch.aten_ops:
        recomputed = set(launch.recomputed_ops)
        names = (f"{name} (recomputed)" if name in recomputed else name for name in launch.aten_ops)
        rows.append(("ATen ops", ", ".join(names)))
    if launch.fx_nodes:
        rows.append(("FX nodes", ", ".join(launch.fx_nodes)))
    if launch.kwargs:
        rows.append(("arguments", ", ".join(f"{name}={value}" for name, value in launch.kwargs.items())))
    rows += [("loop nest", _loops_text(loops)) for loops in launch.loops]
    rows.append(("FLOPs", _flops_text(launch)))
    if launch.vector_flops is not None:
        rows.append(("vector FLOPs", _exact(launch.vector_flops, format_si(launch.vector_flops))))
    rows.append(("bytes", _bytes_text(launch)))
    intensity = arithmetic_intensity(launch.flops, launch.bytes_moved)
    if intensity is not None:
        rows.append(("intensity", f"{format_ratio(intensity)} FLOP/B"))
    rows += [_measurement_fact(launch, measured) for measured in story.measurements]
    if launch.compiler_estimate_us is not None:
        rows.append(("Inductor's estimate", _estimate_text(launch.compiler_estimate_us, story.measurements)))
    if story.use is not None:
        rows.append(("of a step", _use_text(story)))
    return tuple(rows)


def _estimate_text(estimate_us: float, measurements: Sequence[Measurement]) -> str:
    """``"12.3 us, 0.62 of the time in the step"``: beside the time in the step, else beside the kernel alone."""
    times = {each.kind: each.duration_us for each in measurements}
    for measured, words in ((times.get("profile"), "the time in the step"), (times.get("bench"), "the time alone")):
        if measured:
            return f"{format_us(estimate_us)}, {format_ratio(estimate_us / measured)} of {words}"
    return format_us(estimate_us)


def _use_text(story: Story) -> str:
    assert story.use is not None
    is_timed = any(measured.kind == "profile" for measured in story.measurements)
    if not story.use.calls and story.graph is not None and story.graph.is_ahead_of_time:
        if is_timed:
            return "an operator of it, as its graph is a library (AOTInductor)"
        return "not known: a library (AOTInductor) shows its kernels if compiled with cpp.enable_kernel_profile"
    if not story.use.calls:
        return "did not run: the recorded step does not call its graph"
    calls = f"{story.use.calls:,} call{'' if story.use.calls == 1 else 's'} of its graph"
    if is_timed:
        share = UNKNOWN if story.use.share is None else format_share(story.use.share)
        return f"{calls}, {share} of the device time"
    return f"{calls}; the profile saw none of its launches run, so it has no time"


def _measurement_fact(launch: Launch, measured: Measurement) -> tuple[str, str]:
    """A time with its clock and spread, and the rates that it means."""
    us = measured.duration_us
    parts = [f"{format_us(us)} median of {measured.repeats} (clock: {measured.clock})"]
    if measured.iqr_us is not None:
        parts.append(f"interquartile range {format_us(measured.iqr_us)}")
    for rate, unit in (
        (achieved_gb_per_s(launch.bytes_moved, us), "GB/s"),
        (achieved_tflops_per_s(launch.flops, us) if launch.flops else None, "TFLOP/s"),
    ):
        if rate is not None:
            parts.append(f"{format_ratio(rate)} {unit}")
    resources = (("registers", measured.n_regs), ("spills", measured.n_spills), ("bytes shared", measured.shared_bytes))
    parts += [f"{count} {name}" for name, count in resources if count is not None]
    name = {"profile": "in the step", "bench": "alone", "sample": "in a sweep"}[measured.kind]
    if measured.kind == "bench" and measured.l2_state is not None:
        name = {"warm": "alone, warm", "cold": "alone, cold", "step": "alone, in place"}[measured.l2_state]
    return (name, ", ".join(parts))


def _graph_text(graph: Graph | None, launch: Launch) -> str:
    if graph is None:
        return launch.graph
    compiled = f", compiled as {graph.compile_id}" if graph.compile_id else ""
    return f"{graph.name} ({graph.direction}{compiled}), launch {launch.order}"


def _loops_text(loops: LoopNest) -> str:
    text = " x ".join(str(extent) for extent in loops.extents) or "1"
    if loops.reduction_extents:
        text += f", reduced over {' x '.join(str(extent) for extent in loops.reduction_extents)}"
    if loops.ops:
        text += "; per element " + ", ".join(f"{count} {name}" for name, count in loops.ops.items())
    return text


def _flops_text(launch: Launch) -> str:
    if launch.flops is None:
        return f"{UNKNOWN} ({launch.reason or 'no reason was recorded'})"
    text = _exact(launch.flops, format_si(launch.flops))
    if launch.flops_quality != "exact":
        text += f", {launch.flops_quality}"
    if launch.flops_by_op:
        text += ": " + ", ".join(f"{name} {count:,}" for name, count in launch.flops_by_op.items())
    return text


def _bytes_text(launch: Launch) -> str:
    if launch.bytes_moved is None:
        return f"{UNKNOWN} ({launch.reason or 'unknown for a buffer below'})"
    text = f"{format_bytes(launch.bytes_read or 0)} read, {format_bytes(launch.bytes_written or 0)} written"
    return text if launch.bytes_quality == "exact" else f"{text} ({launch.bytes_quality.replace('_', ' ')})"


def _exact(value: int, rounded: str) -> str:
    exact = f"{value:,}"
    return exact if exact == rounded else f"{exact} ({rounded})"


def _buffers_section(buffers: Sequence[Buffer]) -> Section:
    rows = tuple(
        (
            buffer.name,
            buffer.role,
            buffer.dtype,
            _expression(buffer.shape_expr, buffer.shape),
            _expression(buffer.stride_expr, buffer.stride),
            buffer.bytes_read,
            buffer.bytes_written,
            "" if buffer.bytes_quality == "exact" else buffer.bytes_quality.replace("_", " "),
        )
        for buffer in buffers
    )
    keys = ("name", "role", "dtype", "shape", "stride", "bytes_read", "bytes_written", "state")
    return Section("Buffers", (Table(columns(*keys), rows, optional=("stride", "role")),))


def _accesses_section(nests: Sequence[LoopNest]) -> Section:
    """Each load and store of the loop nests with its index; ``p0``, ``p1``, ... are the loops of a nest."""
    rows = []
    for nest in nests:
        extents = (*nest.extents, *nest.reduction_extents)
        loops = ", ".join(f"p{place} < {extent}" for place, extent in enumerate(extents)) or "once"
        rows += [(each.kind, each.buffer, each.index, loops, each.dtype or "") for each in nest.accesses]
    return Section("Reads and writes", (Table(columns("access", "buffer", "index", "loops", "dtype"), tuple(rows)),))


def _expression(expression: tuple[str, ...] | None, hint: tuple[int, ...]) -> tuple[int | str, ...]:
    """Symbolic sizes with their value in the recorded step, else with that which was compiled for: ``s0=32``."""
    if expression is None:
        return hint
    return tuple(
        value if text == str(value) else f"{text}={value}" for text, value in zip(expression, hint, strict=False)
    )


def _source_text(line: SourceLine, folder: str) -> str:
    text = shorten_source(f"{line.file}:{line.line}", folder)
    if line.function:
        text += f" in {line.function}"
    return f"{text}: {line.code.strip()}" if line.code else text


def _source_sections(story: Story) -> list[Section]:
    kernels = [each for each in (story.kernel, *story.sub_kernels) if each is not None]
    sections = [
        Section(
            f"Generated source of {kernel.name}", (Code(kernel.source, "cpp" if kernel.backend == "cpp" else "python"),)
        )
        for kernel in kernels
        if kernel.source
    ]
    if not sections and story.kernel is not None:
        why = "it is a library call" if story.kernel.category == "extern" else "none was recorded"
        sections.append(Section("Generated source", (Sentence(f"none: {why}"),)))
    return sections
