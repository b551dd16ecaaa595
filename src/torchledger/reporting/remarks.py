"""What to look at in a ledger, as sentences: what is wrong, what stands out, and the next command."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from torchledger.nouns import BalanceSheet, Gap
from torchledger.printable import counted, ended, sentence
from torchledger.reporting.columns import format_bytes, format_si
from torchledger.reporting.summary import CompilationFacts, GraphFacts, Summary
from torchledger.stepping.totals import stale_graphs


def remarks(summary: Summary) -> tuple[str, ...]:
    """Plain sentences: what is wrong, what stands out, and the next command."""
    found = [*_run_remarks(summary), *_balance_remarks(summary.balance), *_cost_remarks(summary)]
    if summary.kernels:
        example = summary.kernels[0].launch_id
        found.append(
            f"One kernel's story: torchledger show {summary.file} {example}. "
            f"A graph's code: torchledger show {summary.file} --wrapper {summary.launches[0].graph}."
        )
    return tuple(found)


def _run_remarks(summary: Summary) -> list[str]:
    run, found = summary.run, []
    if run.status == "running":
        found.append(
            "This run is still being written, or was killed: what is here is whole up to the last finished graph."
        )
    if run.status == "failed":
        code = "" if run.exit_code is None else f" (exit code {run.exit_code})"
        found.append(f"The script failed{code}: the ledger holds what was compiled until then.")
    found += map(sentence, run.notes)
    found += [text for text in why_no_graph(summary) if text not in found]
    hits = sum(graph.cache_hit for graph in summary.graphs)
    if hits:
        found.append(
            f"{hits:,} of {counted(len(summary.graphs), 'graph')} came out of Inductor's cache with its entries."
        )
    found += _recompilation_remarks(summary.graphs, summary.compilations)
    libraries = [graph.name for graph in summary.graphs if graph.is_ahead_of_time]
    if libraries:
        found.append(
            f"Compiled ahead of time (AOTInductor): {', '.join(libraries)}. A library runs without Python: its "
            "launches are counted once, and a step shows its C++ kernels if it was compiled with ranges around them: "
            'inductor_configs={"cpp.enable_kernel_profile": True}.'
        )
    if summary.step is not None:
        called = (graph.name for graph in summary.graphs if not graph.is_ahead_of_time)
        stale = stale_graphs(summary.step.step, called)
        if stale:
            found.append(
                f"{counted(len(stale), 'stale graph')}: compiled, not called in the step, in none of its sums: "
                f"{', '.join(stale)}."
            )
    skipped = Counter(graph.cudagraph_skip_reason for graph in summary.graphs if graph.cudagraph_skip_reason)
    found += [
        f"{counted(count, 'graph')} not recorded as CUDA graphs: {ended(reason)}" for reason, count in skipped.items()
    ]
    return found


def why_no_graph(summary: Summary) -> tuple[str, ...]:
    """Why a ledger of ours has no compiled graph, as far as that is known; nothing where it has one."""
    run = summary.run
    if summary.graphs or run.is_imported:
        return ()
    if run.left_eager is not None:
        return (sentence(run.left_eager),)
    if summary.step is not None:
        return ("No compiled graph: is torch.compile called? The step above ran eagerly as a whole.",)
    ends = "end with an optimizer's step or with torchledger.step()"
    steps = (
        f"Steps of a model that runs eagerly {ends}."
        if profile_gaps(summary.balance)
        else f"Of a model that runs eagerly `torchledger run --profile` records steps: those that {ends}."
    )
    started = (
        "Processes that a script starts by multiprocessing have ledgers of their own beside this one, if they compile; "
        "of others torchledger.capture(path) and its profile(step) record what they run."
    )
    return (f"No compiled graph: is torch.compile called? {steps} {started}",)


def profile_gaps(balance: BalanceSheet) -> list[Gap]:
    """Why a profile that was asked for holds nothing."""
    account = balance.accounts.get("device_time")
    return [gap for gap in account.missing if gap.where == "profile"] if account is not None else []


_LISTED = 5


def _is_of_sizes(compiled: CompilationFacts) -> bool:
    """True where each guard that failed (``"0/1: GUARD; 0/0: GUARD"``) asked for a size or a stride."""
    return all("size" in guard or "stride" in guard for guard in (compiled.reason or "").split("; "))


def _recompilation_remarks(graphs: Sequence[GraphFacts], compiled: Sequence[CompilationFacts]) -> list[str]:
    """Frames of Dynamo (the first part of ``"0/1"``) that were compiled more than once, and why."""
    compilations: dict[str, dict[str, bool]] = defaultdict(dict)
    for graph in graphs:
        if graph.compile_id and "/" in graph.compile_id:
            frame, _, compilation = graph.compile_id.rpartition("/")
            compilations[frame][compilation] = graph.is_dynamic
    recompiled = {frame: list(numbers.values()) for frame, numbers in compilations.items() if len(numbers) > 1}
    if not recompiled:
        return []
    times = max(len(numbers) for numbers in recompiled.values())
    sentence = f"{counted(len(recompiled), 'frame')} compiled more than once (up to {times:,} times)"
    again = [each for each in compiled if each.reason is not None]
    reasons = [
        f"{each.function} ({each.source}) was compiled again as {each.compile_id}, as a guard failed: "
        f"{ended(each.reason or '')}"
        for each in again[:_LISTED]
    ]
    if len(again) > _LISTED:
        reasons.append(f"{counted(len(again) - _LISTED, 'further compilation')} of the same frames; --json has all.")
    if all(numbers[-1] for numbers in recompiled.values()):
        others = "" if all(map(_is_of_sizes, again)) else ", though what else failed below may"
        said = f"{sentence}, the last time with symbolic sizes: other sizes need no further compilation{others}."
        return [said, *reasons]
    if not again:
        return [f"{sentence}: TORCH_LOGS=recompiles says why, dynamic=True may compile once for all sizes."]
    is_size = any("size mismatch" in (each.reason or "") for each in again)
    return [f"{sentence}{': dynamic=True may compile once for all sizes' if is_size else ''}.", *reasons]


def _balance_remarks(balance: BalanceSheet) -> list[str]:
    wrong = [account.name for account in balance.accounts.values() if account.is_balanced is False]
    if not wrong:
        return []
    return [f"The books do not balance: see {', '.join(wrong)} in the balance sheet above."]


def _cost_remarks(summary: Summary) -> list[str]:
    found = []
    totals = summary.totals
    if totals.flops and summary.by_category:
        heaviest = summary.by_category[0]
        if heaviest.costs.flops:
            found.append(
                f"{heaviest.costs.flops / totals.flops:.0%} of the FLOPs ({format_si(heaviest.costs.flops)}) are in "
                f"{counted(heaviest.costs.launches, f'{heaviest.name} launch')}."
            )
    if totals.bytes_moved:
        heavy = max(summary.by_category, key=lambda group: group.costs.bytes_moved or 0)
        moved = heavy.costs.bytes_moved or 0
        found.append(
            f"{moved / totals.bytes_moved:.0%} of the minimum traffic ({format_bytes(moved)}) is in "
            f"{counted(heavy.costs.launches, f'{heavy.name} launch')}."
        )
    return found
