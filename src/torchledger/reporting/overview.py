"""``torchledger show FILE``: what a run compiled, whether its books balance, and what is heaviest."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from torchledger.nouns import Breakdown, Device, Run, Step
from torchledger.printable import counted
from torchledger.reporting.balance import balance_as_plain, balance_section
from torchledger.reporting.columns import format_bytes
from torchledger.reporting.document import Block, Document, Facts, Section, Sentence, Table, as_plain, columns, joined
from torchledger.reporting.memory import memory_as_plain, memory_sections
from torchledger.reporting.remarks import profile_gaps, remarks, why_no_graph
from torchledger.reporting.step import step_as_plain, step_sections, verdict_of_step
from torchledger.reporting.summary import (
    UNATTRIBUTED,
    Costs,
    GraphFacts,
    Group,
    Summary,
    add_costs,
    fold_modules,
    summarize_ledger,
)
from torchledger.reporting.time_breakdown import breakdown_as_plain, breakdown_document
from torchledger.roofline import arithmetic_intensity
from torchledger.store import LedgerReader
from torchledger.store.latest import latest


def overview_as_plain(summary: Summary) -> dict[str, Any]:
    """What ``show FILE --json`` prints; keys are stable."""
    return {
        "file": summary.file,
        "run": as_plain(summary.run),
        "is_balanced": summary.balance.is_balanced,
        "balance": balance_as_plain(summary.balance),
        "step": step_as_plain(summary.step),
        "memory": memory_as_plain(
            summary.memory, summary.step.calls if summary.step is not None else (), summary.recomputations
        ),
        "verdict": list(verdict(summary)),
        "totals": as_plain(summary.totals) | {"entries": summary.entries, "kernels": len(summary.kernels)},
        "graphs": [_flat(graph) | {"calls": _step_calls(summary, graph.name)} for graph in summary.graphs],
        "by_category": [_flat(group) for group in summary.by_category],
        "by_source": [_flat(group) for group in summary.by_source],
        "by_module": [_flat(group) for group in summary.by_module],
        "kernels": [_flat(kernel) for kernel in summary.kernels],
        "launches": [
            {"launch_id": launch.launch_id, **launch._asdict(), "bytes_moved": launch.bytes_moved}
            | {"is_call": bool(launch.is_call)}
            for launch in summary.launches
        ],
        "compilations": [each._asdict() for each in summary.compilations],
        "remarks": list(remarks(summary)),
    }


def ledger_document(reader: LedgerReader, *, top: int = 10, module_depth: int = 2, folder: str = "") -> Document:
    """A ledger's overview, and where the time of its profile went; arguments as ``overview_document``'s."""
    overview = overview_document(summarize_ledger(reader), top=top, module_depth=module_depth, folder=folder)
    breakdown = latest(reader, Breakdown)
    if breakdown is None:
        return overview
    # The step's own advice stands first: a second one, of the profile alone, may point elsewhere.
    return joined(overview, breakdown_document(breakdown, top=top, is_of_step=bool(reader.count(Step))))


def ledger_as_plain(reader: LedgerReader) -> dict[str, Any]:
    """What ``show FILE --json`` prints."""
    breakdown = latest(reader, Breakdown)
    breakdowns = [] if breakdown is None else [breakdown_as_plain(breakdown)]
    return overview_as_plain(summarize_ledger(reader)) | {"breakdowns": breakdowns}


def overview_document(summary: Summary, *, top: int = 10, module_depth: int = 2, folder: str = "") -> Document:
    """The overview as a document: at most ``top`` rows a table (the others in one row, so that rows add to the total),
    modules folded to ``module_depth``, source paths relative to ``folder``."""
    sections = [_verdict_section(summary)]
    if summary.graphs or not summary.run.is_imported:  # sums of nothing would balance
        sections.append(balance_section(summary.balance, top=top))
    if summary.step is not None:
        sections += step_sections(summary.step, top=top, shorten=lambda source: shorten_source(source, folder))
        if summary.memory is not None:
            sections += memory_sections(
                summary.memory,
                summary.step.calls,
                summary.recomputations,
                top=top,
                shorten=lambda source: shorten_source(source, folder),
            )
    sections.append(_run_section(summary))
    if summary.launches:
        if summary.sizes.sentence is not None:
            sections.append(Section("Sizes", (Sentence(summary.sizes.sentence),)))
        by_source = [Group(shorten_source(group.name, folder), group.costs) for group in summary.by_source]
        sections += [
            _group_section("Launches by category", "category", summary.by_category, summary.totals, top=top),
            _graph_section(summary, top=top),
            _group_section("Launches by source line", "source", by_source, summary.totals, top=top),
            _group_section(
                "Launches by module",
                "module",
                fold_modules(summary.by_module, module_depth),
                summary.totals,
                top=top,
            ),
            _heaviest_section("Heaviest kernels by FLOPs", summary, lambda costs: costs.flops, top=top),
            _heaviest_section("Heaviest kernels by bytes", summary, lambda costs: costs.bytes_moved, top=top),
        ]
    said = verdict(summary)
    remarked = tuple(Sentence(remark) for remark in remarks(summary) if remark not in said)
    sections += [Section("What to look at", remarked)] if remarked else []
    return Document(tuple(section for section in sections if section.blocks))


def _flat(record: Any) -> dict[str, Any]:
    """A group's name and its costs side by side."""
    plain: dict[str, Any] = as_plain(record)
    costs: dict[str, Any] = plain.pop("costs")
    return plain | costs


_CELL = re.compile(r"(?:/ipykernel_\d+/\d+\.py|<ipython-input-[\w-]+>)((?::\d+)?)$")


def shorten_source(source: str, folder: str) -> str:
    """A path below ``folder`` is shown relative to it, one of an installed package from the package on, and the file
    that a notebook makes of a cell as ``cell``.

    >>> shorten_source("/home/me/project/train.py:7", "/home/me/project"), shorten_source("/tmp/ipykernel_9/1.py:3", "")
    ('train.py:7', 'cell:3')
    """
    if (cell := _CELL.search(source)) is not None:
        return f"cell{cell[1]}"
    for marker in ("/site-packages/", "/dist-packages/"):
        if marker in source:
            return source.rpartition(marker)[2]
    prefix = folder.rstrip(os.sep) + os.sep
    return source.removeprefix(prefix) if folder else source


def device_sentence(device: Device) -> str:
    """One line about a device, with what is known of it."""
    parts = [device.name]
    if device.num_multiprocessors:
        parts.append(f"{device.num_multiprocessors} multiprocessors")
    if device.num_cores:
        parts.append(counted(device.num_cores, "core"))
    if device.total_memory_bytes:
        parts.append(f"{format_bytes(device.total_memory_bytes)} memory")
    if device.compute_capability:
        parts.append("compute capability {}.{}".format(*device.compute_capability))
    return ", ".join(parts)


# --- sections --------------------------------------------------------------------------------------------------------


def how_to_profile(run: Run) -> str:
    """What records its steps too, to type where it was recorded."""
    return "%%ledger --profile" if _is_interactive(run) else "torchledger run --profile SCRIPT"


def _is_interactive(run: Run) -> bool:
    """Recorded in a notebook or in IPython: what its process was given says nothing of the cell."""
    return bool(run.argv) and os.path.basename(run.argv[0]).startswith(("ipykernel", "ipython"))


def verdict(summary: Summary) -> tuple[str, ...]:
    """The first lines: what a step takes, where it goes, what to look at; or that the ledger holds no step."""
    if summary.step is not None:
        return verdict_of_step(summary.step)
    gaps = tuple(
        f"A profile was made and holds no step: {gap.reason.rstrip('.')}." for gap in profile_gaps(summary.balance)
    )
    run = summary.run
    if not summary.graphs and run.is_imported:
        return (
            "This ledger holds a trace that somebody else recorded: where its time went stands below.",
            "It has no compiled graph, so that there is nothing to bench, to predict or to compare launch by launch.",
        )
    if not summary.graphs:
        code = f" (exit code {run.exit_code})" if run.exit_code is not None else ""
        failed = run.status == "failed"
        why = f"the script failed{code} before a graph was compiled" if failed else "no graph was compiled"
        return (f"This ledger is empty: {why}.", *gaps, *why_no_graph(summary))
    why_not = next(iter(gaps), f"What a step takes and where it goes: {how_to_profile(summary.run)}.")
    held = f"{counted(len(summary.graphs), 'compiled graph')} with {counted(summary.totals.launches, 'launch')}"
    return (
        f"This ledger holds no step: it has {held}, each counted once, however often a step calls it.",
        "What runs outside compiled graphs (loss, optimizer, anything eager) is not in it.",
        why_not,
    )


def title_of(run: Run) -> str:
    """What ran, for the head of a page: the script without its folder, and its arguments."""
    if _is_interactive(run):
        return "a notebook"
    if run.is_imported and run.argv:
        return os.path.basename(run.argv[-1])
    return " ".join((os.path.basename(run.argv[0]), *run.argv[1:])) if run.argv else ""


def _verdict_section(summary: Summary) -> Section:
    return Section(f"Ledger {summary.file}", tuple(Sentence(line) for line in verdict(summary)))


def _run_section(summary: Summary) -> Section:
    return Section("Run", (Facts(run_facts(summary)),))


def run_facts(summary: Summary) -> tuple[tuple[str, str], ...]:
    """Names and texts: script, status, software, devices, settings, and how much the ledger holds."""
    run, environment = summary.run, summary.run.environment
    versions = [f"torch {environment.torch or 'unknown'}"]
    versions += [
        f"{name} {value}" for name, value in (("triton", environment.triton), ("CUDA", environment.cuda)) if value
    ]
    versions += [f"Python {environment.python}", f"torchledger {environment.torchledger}"]
    rows = [
        ("script", "a notebook, or IPython" if _is_interactive(run) else " ".join(run.argv)),
        ("status", _status(run)),
        ("software", ", ".join(versions)),
    ]
    if environment.compiler:
        rows.append(("compiler", environment.compiler))
    rows += [(f"device {device.kind}:{device.index}", device_sentence(device)) for device in run.devices]
    if environment.num_threads is not None:
        rows.append(("threads", str(environment.num_threads)))
    if environment.settings:
        rows.append(("settings", ", ".join(f"{name}={value}" for name, value in environment.settings.items())))
    totals = summary.totals
    silent = summary.entries - totals.launches
    rows.append(
        (
            "ledger",
            ", ".join(
                (
                    counted(len(summary.graphs), "graph"),
                    counted(len(summary.kernels), "kernel"),
                    counted(totals.launches, "launch"),
                )
            )
            + (
                f" (and {silent:,} {'entry that launches' if silent == 1 else 'entries that launch'} nothing)"
                if silent > 0
                else ""
            ),
        )
    )
    return tuple(rows)


def _status(run: Run) -> str:
    status = run.status if run.exit_code is None else f"{run.status}, exit code {run.exit_code}"
    times = f"{run.started_utc} to {run.finished_utc}" if run.finished_utc else f"since {run.started_utc}"
    rank = f", rank {run.rank}" if run.rank is not None else ""
    rank += f" of {run.world_size}" if run.rank is not None and run.world_size is not None else ""
    return f"{status} ({times}){rank}"


_COST_COLUMNS = ("launches", "flops", "flops_share", "vector_flops", "bytes_moved", "bytes_share")
_OPTIONAL_COLUMNS = ("vector_flops", "arithmetic_intensity", "launch_id", "bytes_share", "category", "flops_share")


def _cost_cells(costs: Costs, totals: Costs) -> tuple[Any, ...]:
    return (
        costs.launches,
        costs.flops,
        _share(costs.flops, totals.flops),
        costs.vector_flops,
        costs.bytes_moved,
        _share(costs.bytes_moved, totals.bytes_moved),
    )


def _share(part: int | None, total: int | None) -> float | str | None:
    if part is None:
        return None
    return part / total if total else ""


def _group_section(title: str, column: str, groups: Sequence[Group], totals: Costs, *, top: int) -> Section:
    if all(group.name == UNATTRIBUTED for group in groups):
        return Section(title, ())
    shown, rest = _cap([group for group in groups if _weighs(group.costs)], top)
    rows = [(group.name, *_cost_cells(group.costs, totals)) for group in shown]
    if rest:
        rows.append((f"({len(rest):,} others)", *_cost_cells(add_costs([group.costs for group in rest]), totals)))
    total = ("total", *_cost_cells(totals, totals))
    table = Table(columns(column, *_COST_COLUMNS), tuple(rows), total, optional=_OPTIONAL_COLUMNS)
    return Section(title, (table, *_unknown_sentence(totals)))


def _weighs(costs: Costs) -> bool:
    return bool(costs.launches or costs.flops or costs.bytes_moved)


def _cap(groups: Sequence[Group], top: int) -> tuple[Sequence[Group], Sequence[Group]]:
    return (groups, ()) if len(groups) <= top + 1 else (groups[:top], groups[top:])


def _unknown_sentence(totals: Costs) -> tuple[Sentence, ...]:
    unknown = []
    if totals.unknown_flops:
        unknown.append(f"the FLOPs of {totals.unknown_flops:,}")
    if totals.unknown_bytes:
        unknown.append(f"the bytes of {totals.unknown_bytes:,}")
    return (Sentence(f"Sums leave out {' and '.join(unknown)} entries, which are unknown.", "bad"),) if unknown else ()


def _graph_section(summary: Summary, *, top: int) -> Section:
    shown = summary.graphs if len(summary.graphs) <= top + 1 else summary.graphs[:top]
    rest = summary.graphs[len(shown) :]
    totals = summary.totals

    def row(graph: GraphFacts) -> tuple[Any, ...]:
        calls = _step_calls(summary, graph.name)
        return (
            graph.name,
            graph.compile_id or ("ahead of time" if graph.is_ahead_of_time else ""),
            calls,
            graph.cache_hit,
            graph.is_dynamic,
            *_cost_cells(graph.costs, totals),
        )

    rows = [row(graph) for graph in shown]
    if rest:
        costs = add_costs([graph.costs for graph in rest])
        rows.append((f"({len(rest):,} others)", "", "", "", "", *_cost_cells(costs, totals)))
    table = Table(
        columns("graph", "compile_id", "step_calls", "cache_hit", "is_dynamic", *_COST_COLUMNS),
        tuple(rows),
        total=("total", "", "", "", "", *_cost_cells(totals, totals)),
        optional=("compile_id", *_OPTIONAL_COLUMNS),
    )
    telling = {"cache_hit": any(graph.cache_hit for graph in summary.graphs)}
    telling["is_dynamic"] = any(graph.is_dynamic for graph in summary.graphs)
    telling["step_calls"] = summary.step is not None
    blocks: list[Block] = [table.without([key for key, tells in telling.items() if not tells])]
    if summary.step is not None and set(summary.step.step.graph_calls.values()) != {1}:
        blocks.append(
            Sentence("Sums over launches count each graph once; the step's tables count it as often as it is called.")
        )
    return Section("Launches by graph", tuple(blocks))


def _step_calls(summary: Summary, graph: str) -> int | None:
    """How often the ledger's step calls a graph; ``None`` where it holds no step."""
    return summary.step.step.graph_calls.get(graph, 0) if summary.step is not None else None


def _heaviest_section(title: str, summary: Summary, cost: Callable[[Costs], int | None], *, top: int) -> Section:
    heaviest = sorted(
        (kernel for kernel in summary.kernels if cost(kernel.costs)),
        key=lambda kernel: -(cost(kernel.costs) or 0),
    )[:top]
    totals = summary.totals
    rows = tuple(
        (
            kernel.kernel_name,
            kernel.category,
            kernel.launch_id,
            *_cost_cells(kernel.costs, totals),
            arithmetic_intensity(kernel.costs.flops, kernel.costs.bytes_moved),
        )
        for kernel in heaviest
    )
    keys = ("kernel_name", "category", "launch_id", *_COST_COLUMNS, "arithmetic_intensity")
    table = Table(columns(*keys), rows, optional=_OPTIONAL_COLUMNS).without(("vector_flops",))
    return Section(title, (table,) if rows else ())
