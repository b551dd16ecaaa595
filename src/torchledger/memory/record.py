"""The storages of a step as records: what each is for, which call made it and which was over when it was freed.

Storages were watched in one step and the calls recorded in others of the same kind: the entries that the watch counted
are given their places among the step's calls. Nothing here knows what the allocator did; what it counted stands beside.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING

from torchledger.memory.caching_allocator import CUDA_ROUNDING
from torchledger.memory.gradient_sums import summed_in_place
from torchledger.memory.live_set import Curve, live_curve
from torchledger.memory.workspaces import library_workspaces
from torchledger.nouns import Device, Launch, LiveStorage, MemoryCategory, StepCall, StepMemory
from torchledger.stepping.record import StepRecord
from torchledger.work.graph_names import direction_of

if TYPE_CHECKING:
    from torchledger._torch.eager_calls import EagerCall
    from torchledger._torch.storages import HeardMemory, StorageLife

_OF_OWNER: Mapping[str, MemoryCategory] = {
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer_state": "optimizer_state",
    "bucket": "collectives",
}
_COMMUNICATES = re.compile(r"torch/(nn/parallel|distributed)/")
_WORKS = re.compile(
    r"torch/(nn/modules/module\.py|optim/|autograd/graph\.py:_engine_run_backward"
    r"|distributed/tensor/(?!_redistribute|_collective_utils|placement_types)"
    r"|distributed/.*:(_compute_loss|merge_chunks|to_map|cast_fn|_cast_fp_tensor)$)"
)
"""Torch's functions that communicate, and those in which it is at the program's own work again, whoever called them: a
module, a backward, an optimizer, an operator on distributed tensors, a pipeline's loss, casts of a model's inputs."""
_OF_TRANSFORMS = ("torch/_functorch/vmap.py", "torch/_functorch/eager_transforms.py")
_BEFORE_BACKWARD = ("input", "forward", "loss", "other")
_PASSING: tuple[MemoryCategory, ...] = ("inputs", "activations", "eager", "temporaries")
"""What a step may leave behind that is no part of a model, its gradients or its optimizers."""


@dataclass(frozen=True)
class Heard:
    """What was heard of one step: its storages, and its eager operators."""

    memory: HeardMemory
    calls: Sequence[EagerCall]


def record_memory(
    heard: Heard,
    record: StepRecord,
    launches: Mapping[str, Sequence[Launch]],
    *,
    devices: Sequence[Device] = (),
    allocations: Sequence[tuple[int, int]] | None = None,
) -> list[LiveStorage | StepMemory]:
    """The records of a step's memory; none if no storage was seen.

    ``launches`` are those of each compiled graph, ``devices`` the machine's, ``allocations`` what a CPU's allocator
    gave and took back in a recorded step (nanoseconds since its beginning, bytes).
    """
    lives = heard.memory.lives
    if not lives:
        return []
    device = _main_device(lives)
    entries = _Entries(heard, record, launches)
    lives = tuple(summed_in_place(lives, entries.in_place))
    notes = list(heard.memory.faults)
    foreign = sum(life.nbytes for life in lives if life.device == device and not life.of_allocator)
    if foreign:
        notes.append(
            f"{foreign:,} bytes of tensors lie in memory that torch did not allocate, or in pools of CUDA graphs, and "
            "are not counted"
        )
    storages = [
        _storage(number, life, record, entries, launches)
        for number, life in enumerate(lives)
        if life.device == device and life.of_allocator
    ]
    replayed = entries.replayed(lives)
    storages += library_workspaces(
        [call for call in record.calls if call.kind != "graph" or call.name not in replayed],
        launches,
        storages,
        step=record.step.name,
        device=device,
        compute_capability=_capability(device, devices),
        first_number=len(lives),
        convolution_tf32=heard.memory.convolution_tf32,
    )
    if allocations is not None and device == "cpu" and any(map(_is_wrapped, heard.calls)):
        kept = sum(nbytes for _, nbytes in allocations) - _growth(storages)
        if kept > 0:
            allocations = None
            notes.append(
                f"{kept:,} bytes were still allocated at the end of a recorded step, which the ledger saw freed: a "
                "profiler that records shapes keeps what torch.func wraps until it ends, and its count is no reference"
            )
    memory = StepMemory(
        step=record.step.name,
        device=device,
        rounding=CUDA_ROUNDING if device.startswith("cuda") else 1,
        number_bytes=heard.memory.number_bytes,
        notes=tuple(notes),
    )
    if heard.memory.allocator is not None:
        memory = _with_allocator(memory, heard.memory, storages)
    elif allocations is not None and device == "cpu":
        memory = _with_allocations(memory, storages, _heard_calls(record), allocations)
    return [memory, *storages]


def _is_wrapped(call: EagerCall) -> bool:
    """True for an operator on tensors of ``torch.func``: the wrapper of one lets go of it when it is gone itself, which
    a weak reference of the profiler prevents."""
    return any(name.startswith(_OF_TRANSFORMS) for name in call.library)


def _growth(storages: Sequence[LiveStorage]) -> int:
    """By how many bytes the step leaves more alive than it found."""
    born = sum(each.nbytes for each in storages if each.born is not None)
    return born - sum(each.nbytes for each in storages if each.freed is not None)


def _main_device(lives: Sequence[StorageLife]) -> str:
    """The device that the step's memory is of: the fullest accelerator, else the host."""
    sizes: Counter[str] = Counter()
    for life in lives:
        sizes[life.device] += life.nbytes
    accelerators = [device for device in sizes if device != "cpu"]
    return max(accelerators or sizes, key=lambda device: sizes[device])


def _capability(device: str, devices: Sequence[Device]) -> tuple[int, int] | None:
    if not device.startswith("cuda"):
        return None
    cuda = [each for each in devices if each.kind == "cuda"]
    index = int(device.partition(":")[2] or 0)
    return cuda[index].compute_capability if index < len(cuda) else None


class _Entries:
    """Where the entries that the watch counted stand among the step's calls."""

    def __init__(self, heard: Heard, record: StepRecord, launches: Mapping[str, Sequence[Launch]]) -> None:
        graphs = {(call.name, call.call): call.order for call in record.calls if call.kind == "graph"}
        counted: Counter[str] = Counter()
        self.heard: list[EagerCall | None] = []
        self.graphs: list[str | None] = []
        self.orders: list[int] = []
        last = 0
        for entry in heard.memory.entries:
            if isinstance(entry, str):
                order = graphs.get((entry, counted[entry]))
                counted[entry] += 1
            else:
                order = record.places.get(entry)
            last = last if order is None else order
            self.orders.append(last)
            self.heard.append(None if isinstance(entry, str) else heard.calls[entry])
            self.graphs.append(entry if isinstance(entry, str) else None)
        self.calls = {call.order: call for call in reversed(record.calls)}
        """The first of the step's calls of each order."""
        phases = {call.order: call.phase for call in record.calls}
        self.backward = [
            place
            for place, call in enumerate(self.heard)
            if (call is not None and call.node is not None)
            or direction_of(self.graphs[place] or "") == "backward"
            or (call is None and phases.get(self.orders[place]) == "backward")
        ]
        self._is_backward = frozenset(self.backward)
        names = {call.order: call.name for call in record.calls}
        self.in_place = frozenset(
            place
            for place, call in enumerate(self.heard)
            if call is not None and names.get(self.orders[place]) == f"{call.call.name}_"
        )
        """Places of what was heard to make a tensor and wrote, in the recorded steps, to one that it was given."""
        self.prefixes = self._find_prefixes(heard.memory.lives, launches)

    def _find_prefixes(self, lives: Sequence[StorageLife], launches: Mapping[str, Sequence[Launch]]) -> dict[int, str]:
        """For graphs of a part of the model, where that part is: their modules are named from there on.

        The parameters that a call is given say where it is.
        """
        given: dict[int, set[str]] = {}
        for life in lives:
            if life.owner == "parameter" and life.name is not None:
                for place in life.uses:
                    given.setdefault(place, set()).add(life.name.rpartition(".")[0])
        found = {}
        for place, graph in enumerate(self.graphs):
            owners = given.get(place, set())
            own = {launch.module for launch in launches.get(graph or "", ()) if launch.module}
            if not owners or not own or owners & own:
                continue
            parts = [path.split(".") for path in owners]
            shared = list(takewhile(lambda level: len(set(level)) == 1, zip(*parts, strict=False)))
            for length in range(len(shared), 0, -1):
                prefix = ".".join(level[0] for level in shared[:length]) + "."
                if any(prefix + module in owners for module in own):
                    found[place] = prefix
                    break
        return found

    def replayed(self, lives: Sequence[StorageLife]) -> set[str]:
        """Graphs in whose calls no line of a wrapper allocated: CUDA graphs, of which cuBLAS keeps nothing outside."""
        allocating = {life.born_in for life in lives if life.born_line is not None}
        return {graph for place, graph in enumerate(self.graphs) if graph is not None and place not in allocating}

    def is_backward(self, place: int) -> bool:
        """True for an entry of a backward."""
        return place in self._is_backward

    def order(self, place: int) -> int:
        """The order of the call at a place; -1 for what came before all of them."""
        return self.orders[place] if place >= 0 else -1

    def readers(self, life: StorageLife) -> tuple[str, ...]:
        """What was given a storage before the backward: modules, or the order of a graph's call (``"@12"``)."""
        found = []
        for place in life.uses:
            if place == life.born_in or place in self._is_backward:
                continue
            heard = self.heard[place]
            found.append((heard.module or "") if heard is not None else f"@{self.orders[place]}")
        return tuple(dict.fromkeys(found))

    def next_backward(self, place: int) -> int | None:
        """The first place from here on that belongs to a backward."""
        index = bisect.bisect_left(self.backward, place)
        return self.backward[index] if index < len(self.backward) else None


def _storage(
    number: int,
    life: StorageLife,
    record: StepRecord,
    entries: _Entries,
    launches: Mapping[str, Sequence[Launch]],
) -> LiveStorage:
    found = LiveStorage(
        step=record.step.name,
        number=number,
        category=_category(life, entries),
        nbytes=life.nbytes,
        device=life.device,
        born=life.born,
        freed=life.freed,
        name=life.name,
        dtype=life.dtype,
        shape=life.shape,
        needed_by=entries.order(life.uses[-1]) if life.uses else None,
    )
    if life.freed_in is not None:
        graph = entries.graphs[life.freed_in] if life.freed_in >= 0 else None
        after = None if graph is None else _next_launch(launches.get(graph, ()), life.freed_line, after=True)
        found = replace(found, freed_in=entries.order(life.freed_in), freed_launch=after)
    if life.owner is not None:
        parts = (life.name or "").split(".")
        found = replace(found, module=".".join(parts[: -2 if life.owner == "optimizer_state" else -1]) or None)
    if life.born_in is None:
        return found
    found = replace(found, born_in=entries.order(life.born_in))
    if life.born_in < 0:
        return found
    graph, heard = entries.graphs[life.born_in], entries.heard[life.born_in]
    if life.is_unseen:
        return found
    found = replace(found, read_by=entries.readers(life))
    if graph is not None:
        return _made_by_graph(found, life, launches.get(graph, ()), entries.prefixes.get(life.born_in, ""))
    if heard is None:
        return found
    call = entries.calls.get(entries.order(life.born_in))
    module = heard.module or (call.modules[-1] if call is not None and call.modules else None)
    sources = heard.sources or (call.sources if call is not None else ())
    return replace(
        found,
        operator=heard.call.name,
        module=found.module or module,
        source=sources[-1] if sources else None,
    )


def _made_by_graph(found: LiveStorage, life: StorageLife, launches: Sequence[Launch], prefix: str) -> LiveStorage:
    order = _next_launch(launches, life.born_line, after=False)
    launch = next((each for each in launches if each.order == order), None)
    if launch is None:
        return replace(found, born_launch=order)
    names = {each.name for each in launch.buffers if each.role != "input" and each.shape == life.shape}
    readers = {
        prefix + reader.module
        for reader in launches
        if reader.order != order and reader.module and any(each.name in names for each in reader.buffers)
    }
    return replace(
        found,
        born_launch=order,
        read_by=tuple(dict.fromkeys([*sorted(readers), *found.read_by])),
        operator=launch.kernel_name,
        module=found.module or (None if launch.module is None else prefix + launch.module),
        source=launch.source,
    )


def _next_launch(launches: Sequence[Launch], line: int | None, *, after: bool) -> int | None:
    """The first launch on a line of the wrapper or below it; with ``after`` below it alone."""
    if line is None:
        return None
    lines = [(launch.wrapper_line, launch.order) for launch in launches if launch.wrapper_line is not None]
    below = [each for each in lines if (each[0] > line if after else each[0] >= line)]
    if below:
        return min(below)[1]
    return max((order for _, order in lines), default=-1) + 1


def _category(life: StorageLife, entries: _Entries) -> MemoryCategory:
    if life.owner is not None:
        return _OF_OWNER[life.owner]
    if life.born_in is None or life.born_in < 0:
        if life.is_exchanged:  # a reducer's bucket in a plan, or one of the program's own
            return "collectives"
        return "inputs" if life.uses else "kept"
    heard, graph = entries.heard[life.born_in], entries.graphs[life.born_in]
    if heard is not None and _communicates(heard):
        return "collectives"
    if graph is not None and life.freed_in == life.born_in:
        return "temporaries"
    order = entries.order(life.born_in)
    phase = entries.calls[order].phase if order in entries.calls else "other"
    is_backward = entries.is_backward(life.born_in)
    if graph is None and phase == "input" and not is_backward:
        return "inputs"
    is_before = not is_backward and (graph is not None or phase in _BEFORE_BACKWARD)
    backward = entries.next_backward(life.born_in) if is_before else None
    if backward is not None and (life.freed_in is None or life.freed_in >= backward):
        return "activations"
    return "temporaries" if graph is not None else "eager"


def _communicates(call: EagerCall) -> bool:
    """True for a collective, and for what torch does for one by itself: neither the program's own lines nor its modules
    lie between, as they do in the forward of a wrapper (DDP, FSDP, DataParallel)."""
    if call.call.name.startswith(("c10d", "_c10d", "fsdp::")):
        return True
    for function in reversed(call.library[call.behind_line :]):
        if _WORKS.match(function):
            return False
        if _COMMUNICATES.match(function):
            return True
    return False


def _with_allocator(memory: StepMemory, heard: HeardMemory, storages: Sequence[LiveStorage]) -> StepMemory:
    """The account of the CUDA caching allocator."""
    count = heard.allocator
    assert count is not None
    named = sum(-(-each.nbytes // memory.rounding) * memory.rounding for each in storages if each.born is None)
    return replace(
        memory,
        counter="cuda_allocator",
        measured_peak_bytes=count.allocated_peak,
        requested_peak_bytes=count.requested_peak,
        reserved_peak_bytes=count.reserved_peak,
        unseen_before_bytes=count.allocated_before - named,
    )


def _heard_calls(record: StepRecord) -> list[StepCall]:
    """The calls as a mode hears them: the first part of an operator that is known by its parts stands for all of them,
    whose tensors nobody saw."""
    entries = record.entries[record.index] if record.entries else ()
    found, last = [], None
    for call in record.calls:
        part_of = entries[call.order].part_of if call.order < len(entries) else None
        if part_of is None or part_of != last:
            found.append(call)
        last = part_of
    return found


def _with_allocations(
    memory: StepMemory,
    storages: Sequence[LiveStorage],
    calls: Sequence[StepCall],
    allocations: Sequence[tuple[int, int]],
) -> StepMemory:
    """The account of a CPU's allocations: what was there before the step, and what the profiler saw in it."""
    held = _held_bytes(memory, storages, allocations)
    before = held + sum(each.nbytes for each in storages if each.born is None)
    levels = list(accumulate((nbytes for _, nbytes in allocations), initial=before))
    timed = sorted((call.start_us or 0.0, call.order) for call in calls if call.start_us is not None)
    starts = [start for start, _ in timed]
    begin: dict[int, int] = {}
    most: dict[int, int] = {}
    for (at_ns, _), level_before, level in zip(allocations, levels, levels[1:], strict=False):
        place = bisect.bisect_right(starts, at_ns / 1e3) - 1
        order = timed[place][1] if place >= 0 else -1
        begin.setdefault(order, level_before)
        most[order] = max(most.get(order, level_before), level_before, level)
    ledger: Curve = live_curve(storages, rounding=memory.rounding)
    scratch, unseen = {}, {}
    for order, level in most.items():
        if more := begin[order] - ledger.before(order):
            unseen[str(order)] = more
        own = level - begin[order] - ledger.rise_in(order)
        if own > 0:
            scratch[str(order)] = own
    return replace(
        memory,
        counter="cpu_profiler",
        measured_peak_bytes=max(levels),
        held_bytes=held,
        scratch=scratch,
        unseen=unseen,
        counted={str(order): level for order, level in most.items()},
    )


def _held_bytes(memory: StepMemory, storages: Sequence[LiveStorage], allocations: Sequence[tuple[int, int]]) -> int:
    """What was there before the counted step and is freed in it, though no tensor showed it to the ledger.

    A program that keeps an autograd graph until the next step makes one (a slope with ``create_graph``, a loss that
    went backward with ``retain_graph``) leaves at the end of a step what it found at its beginning. The tensors that
    such a graph saved have Python objects where a mode heard their operators, and else none.
    """
    left = sum(
        each.nbytes for each in storages if each.born is not None and each.freed is None and each.category in _PASSING
    )
    held = min(left, _growth(storages) - sum(nbytes for _, nbytes in allocations))
    return held if held > memory.number_bytes else 0
