"""The balance sheet of a ledger: each sum beside an independent count, each difference and each gap by name.

Enters: a ledger. Leaves: a ``BalanceSheet``. An account is a function from the ``Books`` to an ``Account``, or to
``None`` when the ledger holds nothing for it; ``ACCOUNTS`` lists them in the order in which they are shown.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from torchledger.books import Books
from torchledger.memory.differences import block_differences, scratch_differences
from torchledger.nouns import (
    Account,
    BalanceSheet,
    Breakdown,
    Difference,
    EagerCount,
    FlopReference,
    Gap,
    Graph,
    Launch,
    Profile,
    Step,
)
from torchledger.stepping.aligning import is_uncounted
from torchledger.stepping.inner_work import SEEN_INSIDE
from torchledger.stepping.recomputed import flops_after_last_saved
from torchledger.stepping.totals import StepTotals
from torchledger.stepping.unasked import unasked_flops
from torchledger.store.latest import latest
from torchledger.work.categories import GENERATED
from torchledger.work.sizes import sizes_at


def balance_books(books: Books) -> BalanceSheet:
    """All accounts of a run."""
    accounts = (account(books) for account in ACCOUNTS)
    return BalanceSheet({account.name: account for account in accounts if account is not None})


def launches_account(books: Books) -> Account:
    """Entries that the wrappers call, against the calls found in the wrappers' code by another route."""
    entries = Counter(launch.graph for launch in books.launches if launch.is_call)
    calls = {graph.name: len(graph.wrapper_calls) for graph in books.graphs}
    recorded = books.gaps_of("launches")
    return Account(
        name="launches",
        unit="launches",
        ledger=sum(entries.values()),
        reference=sum(calls.values()),
        differences=books.differences_of("launches"),
        missing=(*recorded, *_unexplained_launches(books, entries, calls, recorded)),
    )


def flops_account(books: Books) -> Account:
    """Tensor FLOPs of all launches, against an independent count over each model graph."""
    unknown = [launch for launch in books.launches if launch.flops is None]
    references, without_reference = _model_references(books.graphs)
    inside = _seen_inside(books)
    explained = {gap.where for gap in books.gaps_of("flops")}
    missing = [
        *books.gaps_of("flops"),
        *(
            Gap("flops", launch.launch_id, launch.reason or "no FLOPs were recorded")
            for launch in unknown
            if launch.launch_id not in explained
        ),
        *(
            Gap("flops", graph, "no independent count was made of this graph's model")
            for graph in without_reference
            if graph not in explained
        ),
        *(
            Gap("flops", graph, f"the independent count has no formula for {operator}")
            for graph, reference in references
            for operator in reference.uncounted_ops
            if (graph, operator) not in inside
        ),
    ]
    reason = "the independent count has no formula for it: the operators that ran inside it in a recorded step"
    return Account(
        name="flops",
        unit="FLOPs",
        ledger=sum(launch.flops or 0 for launch in books.launches),
        reference=sum(reference.flops for _, reference in references),
        differences=(
            *books.differences_of("flops"),
            *(
                Difference("flops", f"{graph}:{op}", f"{op}: {reason}", flops)
                for (graph, op), flops in inside.items()
                if flops
            ),
        ),
        missing=tuple(missing),
    )


def _seen_inside(books: Books) -> dict[tuple[str, str], int]:
    """FLOPs of a graph's operators of the program's own, by graph and operator, where all were seen to run."""
    found: Counter[tuple[str, str]] = Counter()
    unknown = set()
    for graph in dict.fromkeys(launch.graph for launch in books.launches if launch.reason == SEEN_INSIDE):
        flops = {launch.order: launch.flops for launch in books.launches if launch.graph == graph}
        for launch in books.reader.read(Launch, graph=graph):
            if launch.flops is None and launch.aten_ops:
                operator = graph, launch.aten_ops[-1]
                found[operator] += flops[launch.order] or 0
                if flops[launch.order] is None:
                    unknown.add(operator)
    return {operator: total for operator, total in found.items() if operator not in unknown}


def eager_flops_account(books: Books) -> Account | None:
    """Tensor FLOPs of all launches against an eager run of the same step, where one was asked for."""
    count = latest(books.reader, EagerCount)
    if count is None or count.is_step:
        return None
    return Account(
        name="flops_eager",
        unit="FLOPs",
        ledger=count.ledger_flops,
        reference=count.flops,
        differences=books.differences_of("flops_eager"),
        missing=books.gaps_of("flops_eager"),
    )


def bytes_account(books: Books) -> Account:
    """Minimum traffic of all launches; only a measured bandwidth can contradict it."""
    known = [launch.bytes_moved for launch in books.launches if launch.bytes_moved is not None]
    explained = {gap.where for gap in books.gaps_of("bytes")}
    missing = [
        *books.gaps_of("bytes"),
        *(
            Gap("bytes", launch.launch_id, launch.reason or "no traffic was recorded")
            for launch in books.launches
            if launch.bytes_moved is None and launch.launch_id not in explained
        ),
    ]
    bounds = sum(launch.bytes_quality == "upper_bound" for launch in books.launches)
    note = "minimum traffic: each address once per launch"
    if bounds:
        note += f"; an upper bound in {bounds:,} launch{'es' * (bounds > 1)} whose addresses depend on data"
    return Account(
        name="bytes",
        unit="bytes",
        ledger=sum(known),
        reference=None,
        differences=books.differences_of("bytes"),
        missing=tuple(missing),
        note=note,
    )


def sources_account(books: Books) -> Account:
    """Launches of fused kernels that name a source line, a module or a reason, against all of them."""
    fused = [launch for launch in books.launches if launch.category in GENERATED]
    explained = {gap.where for gap in books.gaps_of("sources")}
    unexplained = [launch for launch in fused if not (launch.source or launch.module or launch.reason)]
    missing = [
        *books.gaps_of("sources"),
        *(
            Gap("sources", launch.launch_id, "it names no line or module of the model", 1)
            for launch in unexplained
            if launch.launch_id not in explained
        ),
    ]
    by_reason = sum(1 for launch in fused if not (launch.source or launch.module) and launch.reason)
    return Account(
        name="sources",
        unit="launches of fused kernels",
        ledger=len(fused) - len(unexplained),
        reference=len(fused),
        differences=books.differences_of("sources"),
        missing=tuple(missing),
        note=f"{by_reason:,} of them state{'s'[: by_reason == 1]} why no line of the model caused them"
        if by_reason
        else None,
    )


def device_time_account(books: Books) -> Account | None:
    """Kernel time that belongs to entries, against all that the profiler saw launched inside compiled graphs."""
    profile = latest(books.reader, Profile)
    gaps = books.gaps_of("device_time")
    if profile is None:
        return Account("device_time", "us", None, None, missing=gaps) if gaps else None
    named = {
        ("CUDA graphs", "inputs copied to where a CUDA graph reads them"): profile.copied_us,
        ("conditionals and loops", "read to choose a way or another turn"): profile.decided_us,
    }
    seen = f"{profile.entries_seen:,} of {profile.entries:,} entries ran in the profiled steps"
    return Account(
        name="device_time",
        unit="us",
        ledger=profile.matched_us,
        reference=profile.inside_us,
        differences=tuple(Difference("device_time", where, reason, -us) for (where, reason), us in named.items() if us),
        missing=gaps,
        note=f"{seen} (clock: {profile.clock})",
    )


def wall_time_account(books: Books) -> Account | None:
    """Busy plus idle time by cause on the profiler's clock, against steps that the host timed without the profiler."""
    totals = books.step
    if totals is None:
        return _wall_time_of_old(books)
    step = totals.step
    if step.busy_us is None or step.duration_us is None:
        return None
    ledger = round(step.busy_us + sum(step.idle_us.values()), 3)
    tolerance = max(_WALL_TIME_TOLERANCE, _MARKS_US / step.duration_us)
    recorded_us = statistics.median(step.profiled_us) if step.profiled_us else None
    added = None if recorded_us is None else recorded_us - step.duration_us
    account = Account(
        name="wall_time",
        unit="us",
        ledger=ledger,
        reference=round(step.duration_us, 3),
        differences=()
        if added is None
        else (Difference("wall_time", "profiler", _between_steps(step, added), round(added, 3)),),
        missing=books.gaps_of("wall_time"),
        note="one step: busy and idle time by cause on the profiler's clock, beside steps timed without it",
        tolerance=tolerance,
    )
    if step.is_steady or (recorded_us is not None and account.is_balanced is False):
        # The recorded steps have to agree with the host's clock, however unsteady the others are.
        return account
    return dataclasses.replace(account, reference=None, differences=(), note=_unsteady(step, recorded_us))


def _between_steps(step: Step, added_us: float) -> str:
    """What lies between recorded steps and those timed without the profiler, both by the host's clock."""
    if not step.is_steady:
        return "recorded steps beside those without the profiler, which were not steady: what it adds is not known"
    if added_us < 0:
        return "recorded steps were quicker than those without the profiler, by the host's clock"
    return "what the profiler adds to a step, by the host's clock"


def _unsteady(step: Step, recorded_us: float | None) -> str:
    """Why plain steps are not compared, and what the recorded ones were found to agree with."""
    low, high = step.plain_range_us or (0.0, 0.0)
    some = "steps" if len(step.plain_us) < 4 else "half of the steps"
    said = (
        f"one step, on the profiler's clock: {some} without the profiler took {low:,.0f} to {high:,.0f} us, so that "
        "none is a reference, and what the profiler adds is not known"
    )
    if recorded_us is None:
        return said
    return f"{said}; the recorded steps took as long by the host's clock ({recorded_us:,.0f} us)"


def _wall_time_of_old(books: Books) -> Account | None:
    """The account of ledgers that hold no step: of the device's span within all profiled steps."""
    breakdown = latest(books.reader, Breakdown)
    if breakdown is None or not breakdown.step_us:
        return None
    return Account(
        name="wall_time",
        unit="us",
        ledger=round(breakdown.busy_us + breakdown.idle_us, 3),
        reference=round(sum(breakdown.step_us), 3),
        differences=books.differences_of("wall_time")[-1:],
        missing=books.gaps_of("wall_time"),
    )


def step_launches_account(books: Books) -> Account | None:
    """Launches of compiled graphs in a step, calls times launches, against those that were seen to run in each call."""
    totals = books.step
    if totals is None or not totals.step.graph_calls:
        return None
    seen = [call.launches for call in totals.calls if call.kind == "graph"]
    return Account(
        name="step_launches",
        unit="launches",
        ledger=totals.graph_launches,
        reference=None if None in seen else sum(each for each in seen if each is not None),
        differences=books.differences_of("step_launches"),
        missing=books.gaps_of("step_launches"),
        note="in compiled graphs: calls times launches, beside launches that were seen to run",
    )


def step_operators_account(books: Books) -> Account | None:
    """Eager operators of a step, against what a dispatch mode heard in another step."""
    totals = books.step
    if totals is None or totals.step.operators is None:
        return None
    step = totals.step
    if step.has_unlike_steps:
        return Account("step_operators", "operators", step.operators, None, note=_unlike(step))
    notes = []
    if not step.is_measured:
        notes.append("of one step, those among them that launch nothing: views, allocations")
    if aliases := sum(call.kind == "operator" and is_uncounted(call.name) for call in totals.calls):
        only = "call that only aliases or allocates" if aliases == 1 else "calls that only alias or allocate"
        notes.append(f"without {aliases:,} {only} (detach, empty): modes hear others of these than run")
    if step.operators_elsewhere:
        notes.append(f"{step.operators_elsewhere:,} more on threads that no mode listened to")
    if (differ := _counts_apart(step)) is not None:
        notes.append(f"recorded steps differ ({differ} eager operators); this one does what was heard in another")
    elif len(step.operators_by_step) == 1 and step.operators != (step.operators_heard or 0) + sum(
        step.operators_otherwise.values()
    ):
        notes.append("one step alone was recorded: whether steps differ is not known")
    reason = "autograd's formula calls other operators while a mode listens"
    differences = tuple(
        Difference("step_operators", node, reason, more) for node, more in step.operators_otherwise.items()
    )
    return Account(
        "step_operators", "operators", step.operators, step.operators_heard, differences, note="; ".join(notes) or None
    )


def _counts_apart(step: Step) -> str | None:
    """From how few to how many operators the recorded steps have; ``None`` where all have as many."""
    fewest, most = min(step.operators_by_step, default=0), max(step.operators_by_step, default=0)
    return f"{fewest:,} to {most:,}" if fewest < most else None


def _unlike(step: Step) -> str:
    """Why what was counted in another step is not compared."""
    return (
        f"recorded steps differ ({_counts_apart(step)} eager operators), so that what was heard in another step "
        f"({step.operators_heard or 0:,} operators) is no reference"
    )


def step_flops_account(books: Books) -> Account | None:
    """Tensor FLOPs of one step, graphs by calls and eager operators, against an eager step where one was counted."""
    totals = books.step
    if totals is None:
        return None
    eager = latest(books.reader, EagerCount)
    has_step = eager is not None and eager.is_step
    if eager is not None and has_step and (totals.step.has_unlike_steps or totals.step.is_heard_at_other_sizes):
        note = f"the eager step that was counted ({eager.flops:,} FLOPs) is no reference, as steps differ"
        return Account("step_flops", "FLOPs", totals.whole.flops, None, note=note)
    return Account(
        name="step_flops",
        unit="FLOPs",
        ledger=totals.whole.flops,
        reference=eager.flops if eager is not None and has_step else None,
        differences=differences_from_eager(books, totals) if has_step else (),
        missing=books.gaps_of("step_flops"),
    )


def differences_from_eager(books: Books, totals: StepTotals) -> tuple[Difference, ...]:
    """FLOPs by which a step differs from an eager one: what compilation added to each graph or took from it, and what
    it never got as nothing reads it, as often as the step calls that graph; what torch counts of eager operators too
    much; what a graph that is run again computes past what the backward needs; and what a backward's graph computes
    that nobody asked for."""
    found = []
    for difference in (*books.differences_of("flops"), *books.differences_of("step_flops")):
        graph, _, where = difference.where.partition(":")
        calls = 1 if graph == totals.step.name else totals.step.graph_calls.get(graph, 0)
        if calls and not difference.is_eager_too:
            said = difference.reason if calls == 1 else f"{difference.reason}, in {calls} calls"
            found.append(Difference("step_flops", f"{graph}:{where}", said, calls * difference.amount))
    return (*found, *_computed_in_vain(books, totals), *_not_asked_for(books, totals))


def _not_asked_for(books: Books, totals: StepTotals) -> Iterable[Difference]:
    graphs = {graph.name: graph for graph in books.graphs}
    amounts: Counter[str] = Counter()
    for call in totals.calls:
        if call.unasked and call.name in graphs:
            launches = sizes_at(books.reader.read(Launch, graph=call.name), dict(call.sizes))
            amounts[call.name] += unasked_flops(graphs[call.name], launches, call.unasked) or 0
    reason = "gradients that the program does not ask for, which a compiled backward computes with the others"
    return [Difference("step_flops", name, reason, amount) for name, amount in amounts.items() if amount]


def _computed_in_vain(books: Books, totals: StepTotals) -> Iterable[Difference]:
    graphs = {graph.name: graph for graph in books.graphs}
    called = [call for call in totals.calls if call.kind == "graph" and call.name in graphs]
    amounts: Counter[str] = Counter()
    for call, following in pairwise(called):
        # Where another saves its tensors last, eager code runs to the end of this one, too.
        is_last = call.recomputed_for == _COMPILED_NODE and graphs[following.name].direction == "backward"
        if is_last:
            launches = sizes_at(books.reader.read(Launch, graph=call.name), dict(call.sizes))
            amounts[call.name] += flops_after_last_saved(graphs[call.name], launches) or 0
    reason = "a checkpoint runs it again to its end; eager code stops where the backward has what it needs"
    return [Difference("step_flops", name, reason, amount) for name, amount in amounts.items() if amount]


def step_device_time_account(books: Books) -> Account | None:
    """Device time of one step that belongs to its calls, against all that the profiler saw in it."""
    totals = books.step
    if totals is None or totals.step.device_us is None:
        return None
    step = totals.step
    return Account(
        name="step_device_time",
        unit="us",
        ledger=round(step.covered_us, 3),
        reference=round(totals.step.device_us, 3),
        missing=tuple(Gap("step_device_time", "step", reason, us) for reason, us in step.uncovered_us.items()),
        note=f"all of one step, outside compiled graphs too (clock: {step.clock})",
    )


def memory_account(books: Books) -> Account | None:
    """The live set at its peak, against the peak that an allocator counted in a step of the same kind."""
    totals = books.memory
    if totals is None:
        return None
    memory = totals.memory
    on_device = memory.counter == "cuda_allocator"
    kind = (
        "the caching allocator's peak" if on_device else "what was there before the step, and allocations counted in it"
    )
    # Storages are heard in one step, allocations counted in others.
    step = None if on_device or books.step is None else books.step.step
    differs = step is not None and (step.has_unlike_steps or step.is_heard_at_other_sizes)
    unlike = f" ({memory.measured_peak_bytes or 0:,} bytes): no reference, as steps differ" if differs else ""
    held = f" ({memory.held_bytes:,} bytes of it by what the step frees)" if memory.held_bytes else ""
    return Account(
        name="memory",
        unit="bytes",
        ledger=totals.peak_allocated_bytes,
        reference=None if unlike else memory.measured_peak_bytes,
        differences=block_differences(totals) if on_device else scratch_differences(totals, books.step),
        missing=books.gaps_of("memory"),
        note=f"the peak of one step on {memory.device}, beside {kind}{held}{unlike}" if memory.counter else None,
        tolerance=_MEMORY_TOLERANCE if on_device else 0.0,
    )


_COMPILED_NODE = "CompiledFunctionBackward"
"""Autograd's node of a compiled block."""

_MEMORY_TOLERANCE = 0.01
"""What the peak on a GPU may differ by; more is missing."""

_WALL_TIME_TOLERANCE = 0.01
"""What two clocks may differ by; more is missing."""

_MARKS_US = 50.0
"""What opening and closing the marks of a recorded step takes on the host, about."""


ACCOUNTS: tuple[Callable[[Books], Account | None], ...] = (
    launches_account,
    flops_account,
    eager_flops_account,
    bytes_account,
    sources_account,
    device_time_account,
    step_launches_account,
    step_operators_account,
    step_flops_account,
    step_device_time_account,
    wall_time_account,
    memory_account,
)
"""In the order shown. An account that only some runs have returns ``None`` for the others."""


def _unexplained_launches(
    books: Books, entries: Counter[str], calls: dict[str, int], recorded: Iterable[Gap]
) -> list[Gap]:
    """A gap per graph whose calls and entries differ by more than what was recorded as missing."""
    recorded_amounts: dict[str, list[int | float | None]] = defaultdict(list)
    for gap in recorded:
        recorded_amounts[gap.where.partition("#")[0]].append(gap.amount)
    gaps = []
    for graph in dict.fromkeys((*calls, *entries)):
        amounts = recorded_amounts[graph]
        if None in amounts:
            continue
        if graph not in calls:
            gaps.append(Gap("launches", graph, "its launches are here, the graph itself is not", -entries[graph]))
            continue
        difference = calls[graph] - entries[graph] - sum(amount or 0 for amount in amounts)
        if difference:
            gaps.append(Gap("launches", graph, _describe_difference(books, graph, calls, entries), difference))
    return gaps


def _describe_difference(books: Books, graph: str, calls: dict[str, int], entries: Counter[str]) -> str:
    called = Counter(next(each for each in books.graphs if each.name == graph).wrapper_calls)
    entered = Counter(launch.kernel_name for launch in books.launches if launch.is_call and launch.graph == graph)
    names = ", ".join(sorted(called - entered if calls[graph] > entries[graph] else entered - called)[:5])
    sentence = f"the wrapper makes {calls[graph]:,} calls, the ledger has {entries[graph]:,} entries"
    return f"{sentence} ({names})" if names else sentence


def _model_references(graphs: Sequence[Graph]) -> tuple[list[tuple[str, FlopReference]], list[str]]:
    """The model's count for each graph's direction, and the graphs that have none."""
    references = [
        (graph.name, reference) for graph in graphs for reference in graph.flop_references if reference.stage == "model"
    ]
    counted = {name for name, _ in references}
    return references, [graph.name for graph in graphs if graph.name not in counted]
