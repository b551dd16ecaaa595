"""What the balance and other answers read of a ledger, once: records added up."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from torchledger.memory.advice import ForwardTimes, Recomputation, recomputations
from torchledger.memory.live_set import MemoryTotals, add_up_memory
from torchledger.nouns import (
    Difference,
    Gap,
    Graph,
    LiveStorage,
    Step,
    StepCall,
    StepMemory,
)
from torchledger.stepping.inner_work import with_inner_work
from torchledger.stepping.totals import StepTotals, call_us, total_step
from torchledger.store import LedgerReader
from torchledger.store.latest import latest, step_measurements
from torchledger.store.rows import LaunchRow, read_launch_rows


@dataclass(frozen=True)
class Books:
    """What the accounts are computed from, read once."""

    reader: LedgerReader
    graphs: Sequence[Graph]
    launches: Sequence[LaunchRow]
    gaps: Sequence[Gap]
    differences: Sequence[Difference]
    step: StepTotals | None = None
    memory: MemoryTotals | None = None

    def gaps_of(self, account: str) -> tuple[Gap, ...]:
        """The gaps that were recorded for one account."""
        return tuple(gap for gap in self.gaps if gap.account == account)

    def differences_of(self, account: str) -> tuple[Difference, ...]:
        """The differences that were recorded for one account."""
        return tuple(difference for difference in self.differences if difference.account == account)


def open_books(reader: LedgerReader) -> Books:
    """Read what the balance needs; bodies of launches stay closed."""
    launches = read_launch_rows(reader)
    step = read_step(reader, Counter(launch.graph for launch in launches if launch.is_call))
    return Books(
        reader=reader,
        graphs=reader.read(Graph),
        launches=with_inner_work(launches, () if step is None else step.calls),
        gaps=reader.read(Gap),
        differences=reader.read(Difference),
        step=step,
        memory=None if step is None else read_memory(reader, step.step.name),
    )


def read_step(reader: LedgerReader, launches_of: Mapping[str, int]) -> StepTotals | None:
    """The step that counts, added up; ``None`` where there is none. ``launches_of`` counts each graph's launches."""
    step = latest(reader, Step)
    if step is None:
        return None
    return total_step(step, reader.read(StepCall, step=step.name), launches_of)


def read_memory(reader: LedgerReader, step: str) -> MemoryTotals | None:
    """The memory of a step, added up; ``None`` where its storages were not watched."""
    memories = reader.read(StepMemory, step=step)
    return add_up_memory(memories[-1], reader.read(LiveStorage, step=step)) if memories else None


def read_recomputations(books: Books) -> list[Recomputation]:
    """What recomputing modules would free of the step's peak, and what it costs by the forward's measured times."""
    if books.memory is None or books.step is None:
        return []
    step = books.step.step
    times = step_measurements(books.reader)
    directions = {graph.name: graph.direction for graph in books.graphs}
    # A profiler makes the host slower, and on a CPU the host is what does the work.
    slower = step.wall_us / step.duration_us if step.duration_us and step.wall_us else 1.0
    slower_device = slower if step.clock == "cpu_profiler" else 1.0
    device_us: defaultdict[str, float] = defaultdict(float)
    modules_of: defaultdict[str, list[str]] = defaultdict(list)
    for launch in books.launches:
        if launch.module and directions.get(launch.graph) == "forward":
            modules_of[launch.graph].append(launch.module)
            if (measured := times.get(launch.launch_id)) is not None:
                calls = step.graph_calls.get(launch.graph, 0)
                device_us[launch.module] += measured.duration_us * calls / slower_device
    host_us: defaultdict[str, float] = defaultdict(float)
    for call, host in _host_times(books.step.calls):
        if call.phase not in ("forward", "loss"):
            continue
        if call.kind == "operator" and call.modules:
            device_us[call.modules[-1]] += call_us(call) / slower_device
            host_us[call.modules[-1]] += host / slower
        for module in modules_of[call.name] if call.kind == "graph" else ():
            host_us[module] += host / slower / len(modules_of[call.name])
    busy_us = None if step.busy_us is None else step.busy_us / slower_device
    forward = ForwardTimes(step.duration_us or step.wall_us, busy_us, dict(device_us), dict(host_us))
    return recomputations(books.memory, forward)


def _host_times(calls: Sequence[StepCall]) -> Iterator[tuple[StepCall, float]]:
    """Each call and for how long the host was at it, until it made the next, in microseconds."""
    threads: defaultdict[int, list[StepCall]] = defaultdict(list)
    for call in calls:
        threads[call.thread].append(call)
    for members in threads.values():
        members.sort(key=lambda call: call.start_us or 0.0)
        for call, following in zip_longest(members, members[1:]):
            until = following.start_us if following is not None else None
            host = until - call.start_us if until is not None and call.start_us is not None else call.host_us
            yield call, host or 0.0
