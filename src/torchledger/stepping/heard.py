"""A step of which only its operators were heard, as a record: the calls in order, without times or device events.

That is all there is of a program that runs without its device. How many kernels an operator launches is then estimated.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torchledger.capturing.conditionals import Fork
from torchledger.loop_ends import ValueLoop, may_end_a_loop, value_loop
from torchledger.nouns import CallKind, Step, StepCall
from torchledger.printable import counted
from torchledger.stepping.aligning import is_counted
from torchledger.stepping.assumed_ways import notes_on_ways
from torchledger.stepping.entries import Entry
from torchledger.stepping.phases import phases_of
from torchledger.stepping.record import (
    Ledgered,
    StepFacts,
    StepRecord,
    forward_calls,
    with_graph,
    with_group,
    with_work,
)
from torchledger.traces.graph_marks import graph_mark
from torchledger.work.collectives import OF_GROUPS
from torchledger.work.element_sizes import element_size
from torchledger.work.host_waits import BARRIER, host_waits
from torchledger.work.kernel_counts import kernel_count
from torchledger.work.list_costs import BLOCKS_A_LAUNCH, CHUNK_ELEMENTS, TENSORS_A_LAUNCH
from torchledger.work.op_costs import op_cost
from torchledger.work.op_shapes import OpCall, Tensor

if TYPE_CHECKING:
    from torchledger._torch.eager_calls import EagerCall, HostWait, OwnWorkHeard

_BACKWARD = "autograd::engine::evaluate_function: "
_FOREACH = re.compile(r"^aten::(_foreach_|_fused_(adam|sgd|adagrad)|_amp_foreach)")
_READS_A_NUMBER = "aten::_local_scalar_dense"
_STREAM_WAIT = "cudaStreamSynchronize"
_MOVES, _DTYPE, _TARGET, _NON_BLOCKING = "aten::_to_copy", 1, 3, 5
"""The operator of ``tensor.to``, and where its arguments say of which dtype, to which device, and whether the host goes
on meanwhile."""
_NON_BLOCKING_COPY = 2
"""Where those of ``copy_`` say that."""

_LOADS = "torch/utils/data/_utils/fetch.py:fetch"
"""The function of a data loader in which a plan takes the time (``_torch/fakes/loaders.py``)."""

_SCALER, _SOLVER = "torch/amp/grad_scaler.py", "torch/optim/lbfgs.py"
"""Torch's own that read values: what skips a step, and the one optimizer that goes round as long as they say."""

_CHECKS = "torch/distributions/distribution.py"
"""Where distributions ask whether their parameters and samples are of their domain: a program ends where not."""

_MOST_AT_ONCE = 2
"""Numbers that a line may read without a loop around it."""

_WAITS = "_c10d_functional::wait_tensor"

"""Operators that launch several kernels: as most of their calls in recordings did (``data/h200/calls_...``)."""


def record_heard_step(
    entries: Sequence[int | str],
    heard: Sequence[EagerCall],
    facts: StepFacts,
    ledgered: Ledgered,
    *,
    host_waits: Sequence[HostWait] = (),
    own_work: Sequence[OwnWorkHeard] = (),
    sizes: Mapping[int, Mapping[str, int]] | None = None,
    name: str = "step_0",
) -> StepRecord:
    """The record of a step of which a dispatch mode heard all operators; no call has a time.

    ``entries`` are the step's calls in order: the place of an eager operator in ``heard``, or the name of a compiled
    graph. ``host_waits`` are where the program itself has its host wait, in order, and ``own_work`` where it computes
    on the host beside torch. ``sizes`` holds the symbols of a
    dynamic graph's calls, by their place among the graph calls.
    """
    heard = [_as_it_is_heard(each) for each in heard]
    made: list[tuple[Entry, EagerCall | None]] = []
    places: dict[int, int] = {}
    waits: dict[int, int] = {}
    wait_sources: dict[int, tuple[str, ...]] = {}
    graphs = 0
    operators_made = 0
    worked: dict[int, list[OwnWorkHeard]] = {}
    works = deque(own_work)

    def work(behind: int) -> None:
        """What comes next in the step comes behind this work."""
        while works and works[0].behind <= behind and works[0].graphs <= graphs:
            worked.setdefault(len(made), []).append(works.popleft())

    def wait() -> None:
        asked = host_waits[len(waits)]
        waits[len(waits)] = place = len(made)
        wait_sources[place] = asked.sources
        made.append((Entry("synchronization", asked.name, place, 0, place, place), None))

    for each in entries:
        behind = each if isinstance(each, int) else operators_made
        work(behind)
        while len(waits) < len(host_waits) and host_waits[len(waits)].behind <= behind:
            if isinstance(each, str) and host_waits[len(waits)].graphs > graphs:
                break
            wait()
        place = len(made)
        if isinstance(each, str):
            mark = graph_mark(each, (sizes or {}).get(graphs, {}))
            graphs += 1
            made.append((Entry("graph", each, place, 0, place, place, mark=mark), None))
            continue
        places[each], operators_made = place, each + 1
        made.append((_entry(place, heard[each]), heard[each]))
        for later in range(place + 1, place + 1 + _host_waits(heard[each])):
            made.append((Entry("synchronization", _STREAM_WAIT, later, 0, later, later), None))
    while len(waits) < len(host_waits) and host_waits[len(waits)].is_inside:
        wait()
    whole = [entry for entry, _ in made]
    phases = phases_of(
        whole,
        directions=ledgered.directions,
        code={place: call.library for place, (_, call) in enumerate(made) if call is not None},
        modules={place: call.module for place, (_, call) in enumerate(made) if call is not None and call.module},
    )
    forward = forward_calls(heard)
    threads = {thread: number for number, thread in enumerate(dict.fromkeys(call.thread for _, call in made if call))}
    counted: Counter[str] = Counter()
    calls: list[StepCall] = []
    for place, ((entry, of_mode), phase) in enumerate(zip(made, phases, strict=True)):
        call = StepCall(step=name, order=place, kind=entry.kind, name=entry.name, phase=phase)
        if entry.kind == "graph":
            call = with_graph(call, entry, ledgered, counted[entry.name])
            counted[entry.name] += 1
        elif of_mode is not None:
            call = with_work(call, entry, of_mode, forward)
            if entry.kind == "collective":
                call = with_group(call, entry, of_mode)
            call = _as_loaded(_as_copied(call, of_mode), of_mode)
            call = replace(_with_kernels(call, of_mode, threads[of_mode.thread]), distributed=of_mode.distributed)
        if place in worked:
            call = replace(call, own_us=sum(one.us for one in worked[place]), own_source=worked[place][0].source)
        if of_mode is None and entry.kind == "synchronization":
            # Of the call that waits, where it is not the program itself.
            call = replace(call, sources=wait_sources[place] if place in wait_sources else calls[-1].sources)
        calls.append(call)
    operators = sum(call is not None and is_counted(call) for _, call in made)
    step = Step(
        name=name,
        found_by=facts.found_by,
        clock="host",
        seen=facts.seen,
        recorded=1,
        kinds=facts.kinds,
        graph_calls=dict(counted),
        operators=operators,
        operators_heard=operators,
        optimizers=facts.optimizers,
        notes=(
            *facts.notes,
            *notes_on_ways(ledgered.launches, _called(ledgered.forks, counted)),
            *_notes_on_reads([heard[each] for each in entries if isinstance(each, int)]),
        ),
    )
    return StepRecord(step, tuple(calls), 0, {}, (tuple(whole),), places, waits)


def _called(forks: Mapping[str, Sequence[Fork]], counted: Mapping[str, int]) -> dict[str, Sequence[Fork]]:
    return {graph: found for graph, found in forks.items() if counted.get(graph)}


def _as_it_is_heard(heard: EagerCall) -> EagerCall:
    call = _as_it_runs(heard.call)
    return heard if call is heard.call else replace(heard, call=call, parameters=None)


def _as_it_runs(call: OpCall) -> OpCall:
    """The call of ATen's that an operator of FSDP is made of on a device, where a recording holds that one."""
    if call.name == "fsdp::all_gather_copy_in":
        given, gathered = call.tensor_list(0), call.tensor(1)
        dtype = None if gathered is None else gathered.dtype
        places = tuple(Tensor((each.numel,), dtype or each.dtype, (1,)) for each in given)
        return OpCall("aten::_foreach_copy_", (places, given, None), ("", "", "False"))
    return replace(call, name="aten::_chunk_cat") if call.name == "fsdp::chunk_cat" else call


def _entry(place: int, heard: EagerCall) -> Entry:
    name = heard.call.name
    kind: CallKind = "operator"
    if name.startswith(OF_GROUPS) and name != _WAITS:
        kind = "collective"
    elif _reads_a_number(heard) or _is_between_host_and_device(heard):
        kind = "copy"
    return Entry(
        kind,
        name,
        place,
        0,
        place,
        place,
        around=() if heard.node is None else (_BACKWARD + heard.node,),
        call=heard.call,
        cost=op_cost(heard.call),
    )


def _as_copied(call: StepCall, heard: EagerCall) -> StepCall:
    """A copy between host and device moves its tensor once, as a recording says."""
    first = next(iter(heard.call.tensors), None)
    if first is None or call.kind != "copy":
        return call
    nbytes = _bytes_between(heard) or first.bytes
    settings = (*(call.settings or ()), ("pinned", (1,))) if heard.is_pinned else call.settings
    return replace(call, bytes_moved=nbytes, settings=settings)


def _bytes_between(heard: EagerCall) -> int | None:
    """What travels where a copy changes the dtype too: the host changes it, before or behind, unless it is to go on
    meanwhile (``conversion_device`` in ``Copy.cu``); ``None`` where that is unknown, or it is no such copy."""
    if not _is_between_host_and_device(heard):
        return None
    target: str | None
    made: str | None
    if heard.call.name == _MOVES:
        source, target, made = heard.call.tensor(0), heard.call.constant(_TARGET), heard.call.constant(_DTYPE)
    else:
        source, target, made = heard.call.tensor(1), heard.device, getattr(heard.call.tensor(0), "dtype", None)
    if source is None or not made:
        return None
    # To the device the host has the source, and changes it first; from there it has the result, and does so behind.
    is_as_it_was = _goes_on_meanwhile(heard) != _is_host(target or "")
    size = element_size(source.dtype if is_as_it_was else made.removeprefix("torch."))
    return None if size is None else source.numel * size


def _goes_on_meanwhile(heard: EagerCall) -> bool:
    """Whether a copy is asked to be non-blocking."""
    return heard.call.constant(_NON_BLOCKING if heard.call.name == _MOVES else _NON_BLOCKING_COPY) == "True"


def _as_loaded(call: StepCall, heard: EagerCall) -> StepCall:
    """What a data loader computes on the host is marked, as its time is told otherwise."""
    if call.kind != "operator" or _LOADS not in heard.library or not _is_host(heard.device or ""):
        return call
    return replace(call, settings=(*(call.settings or ()), ("loaded", (1,))))


def _is_between_host_and_device(heard: EagerCall) -> bool:
    """True for a tensor that is moved from the host to the device (``.cuda()``) or back (``.cpu()``), or copied into
    one that lies there.

    Of one without elements ATen copies nothing, and waits for nothing (``Copy.cpp``).
    """
    first = next(iter(heard.call.tensors), None)
    if heard.device is None or (first is not None and not first.numel):
        return False
    if heard.source_device is not None:
        return _is_host(heard.source_device) != _is_host(heard.device)
    if heard.call.name != _MOVES:
        return False
    target = heard.call.constant(_TARGET)
    return bool(target) and _is_host(target) != _is_host(heard.device)


def _host_waits(heard: EagerCall) -> int:
    """How often the host waits for the device in a call: once for a copy between host and device that is not asked to
    be non-blocking and for the reading of one number, else as the operator's own code does."""
    is_moved = _is_between_host_and_device(heard) and not _goes_on_meanwhile(heard)
    if is_moved or _reads_a_number(heard):
        return 1
    # A barrier has no tensor of its own, and says that it is the host's.
    is_on_host = heard.device is not None and _is_host(heard.device) and heard.call.name != BARRIER
    return 0 if is_on_host else host_waits(heard.call)


def _reads_a_number(heard: EagerCall) -> bool:
    """True for ``item()`` of a tensor on the device."""
    return heard.call.name == _READS_A_NUMBER and heard.device is not None and not _is_host(heard.device)


def _notes_on_reads(heard: Iterable[EagerCall]) -> list[str]:
    """The lines that read numbers or truth values again and again, in a loop that may end by them.

    A line of the program's may read two by itself, as to print them; an optimizer that asks again and again goes round.
    """
    reads = [each for each in heard if each.sources and _is_a_decision(each)]
    read = Counter(each.sources[-1] for each in reads)
    ways = {each.sources: None for each in reads}
    return [
        note
        for line, count in read.items()
        if (note := _note_on_reads(line, count, [each for each in reads if each.sources[-1] == line], ways)) is not None
    ]


def _note_on_reads(line: str, count: int, reads: Sequence[EagerCall], ways: Iterable[Sequence[str]]) -> str | None:
    """What is said of a line that reads values ``count`` times in the step; ``None`` where no loop ends by them."""
    times = f"{counted(count, 'time')} in the step"
    loop = _value_loop(line, ways)
    if loop is not None and loop.has_end and count > 1:
        return (
            f"a loop that may be left early by what {line} reads ({times}) goes round to its own end: values may end "
            "it sooner"
        )
    if any(each.is_limited for each in reads):
        # A step that asks once is a round of the loop, or holds one.
        is_said = count > 1 and (loop is not None or (count > _MOST_AT_ONCE and _ends_loops(line, ways)))
        return (
            f"a loop that ends by what {line} reads ({times}) goes round until the program's own limit: values may end "
            "it sooner"
            if is_said
            else None
        )
    if loop is not None and not loop.ends_anyway:
        is_truth = any((asked := each.call.tensor(0)) is not None and asked.dtype == "bool" for each in reads)
        if is_truth and loop.goes_on is None:
            told = "each truth there is taken for false"
        else:
            told = "it is priced as if it ended as early as it can"
        return (
            f"how often a loop goes round that ends by what {line} reads ({times}) is not known without values: "
            f"{told}. Plan it with a fixed number of rounds"
        )
    is_solved = any(_SOLVER in function for each in reads for function in each.library)
    if (is_solved and count > 1) or (count > _MOST_AT_ONCE and _ends_loops(line, ways)):
        return (
            f"values of the device are read {times} at {line}, which was given stand-ins: where they decide how often "
            "a loop goes round (the iterations of a solver), it may be more often or less there"
        )
    return None


def _ends_loops(line: str, ways: Iterable[Sequence[str]]) -> bool:
    """Whether a loop may end by what a line reads, on one of the ways that lead to it."""
    return any(may_end_a_loop(way) for way in ways if way[-1] == line)


def _value_loop(line: str, ways: Iterable[Sequence[str]]) -> ValueLoop | None:
    """The loop that ends by what a line reads, on the first of the ways that lead to it."""
    return next((loop for way in ways if way[-1] == line and (loop := value_loop(way)) is not None), None)


def _is_a_decision(heard: EagerCall) -> bool:
    if not _reads_a_number(heard) or any(_SCALER in each or _CHECKS in each for each in heard.library):
        return False
    first = heard.call.tensor(0)
    return first is not None and first.dtype.startswith(("float", "bfloat", "bool"))


def _is_host(device: str) -> bool:
    return device.partition(":")[0] == "cpu"


def _with_kernels(call: StepCall, heard: EagerCall, thread: int) -> StepCall:
    """The call with an estimate of its kernels: none where nothing is moved, or on the host."""
    on_device = heard.device is not None and not heard.device.startswith(("cpu", "meta"))
    kernels = 0
    if on_device and call.kind != "copy" and (call.bytes_moved is None or call.bytes_moved > 0 or call.flops):
        kernels = _launches_of_lists(heard) if _FOREACH.match(call.name) else _count_of(heard)
    return replace(call, thread=thread, kernels=kernels, streams=(f"{heard.device}/0",) if kernels else ())


def _count_of(heard: EagerCall) -> int:
    tensors = [(tensor.dtype, tensor.shape) for tensor in heard.call.tensors]
    others = [text for text in heard.call.constants if text]
    return kernel_count(heard.call.name, tensors, others)


def _launches_of_lists(heard: EagerCall) -> int:
    """Launches of a fused or foreach operator on its lists of tensors.

    A foreach operator runs tensor by tensor where they do not lie alike.
    """
    lists = [argument for argument in heard.call.arguments if isinstance(argument, tuple) and argument]
    if not lists:
        return 1
    if heard.call.name.startswith("aten::_foreach_") and not _lie_alike(lists, heard.call.name):
        return sum(tensor.numel > 0 for tensor in lists[0])
    depth = TENSORS_A_LAUNCH[min(len(lists), len(TENSORS_A_LAUNCH) - 1)]
    launches = tensors = blocks = 0
    for tensor in lists[0]:
        tensors += 1
        rest = max(1, -(-tensor.numel // CHUNK_ELEMENTS))
        while rest:
            taken = min(rest, BLOCKS_A_LAUNCH - blocks)
            blocks, rest = blocks + taken, rest - taken
            if blocks == BLOCKS_A_LAUNCH:
                launches, blocks, tensors = launches + 1, 0, 1 if rest else 0
        if tensors == depth:
            launches, blocks, tensors = launches + 1, 0, 0
    return launches + (1 if blocks or tensors else 0)


def _lie_alike(lists: Sequence[tuple[Tensor, ...]], name: str) -> bool:
    """Whether torch takes its fast route over lists of tensors (``aten/src/ATen/native/ForeachUtils.h``): one dtype
    (but for copies), each tensor dense, and in each list of the same strides as in the first."""
    dtypes = {tensor.dtype for each in (lists[:1] if name == "aten::_foreach_copy_" else lists) for tensor in each}
    return (
        len(dtypes) == 1
        and all(_is_dense(tensor) for each in lists for tensor in each)
        and all(
            first.shape == other.shape and _places(first) == _places(other)
            for each in lists[1:]
            for first, other in zip(lists[0], each, strict=False)
        )
    )


def _places(tensor: Tensor) -> tuple[int, ...] | None:
    """Strides of the dimensions that have more than one place."""
    if tensor.strides is None:
        return None
    return tuple(stride for size, stride in zip(tensor.shape, tensor.strides, strict=False) if size != 1)


def _is_dense(tensor: Tensor) -> bool:
    """Whether no two elements share a place, and no place between them is left out."""
    if tensor.strides is None or not tensor.numel:
        return True
    wanted = 1
    for stride, size in sorted(zip(tensor.strides, tensor.shape, strict=False)):
        if size == 1:
            continue
        if stride != wanted:
            return False
        wanted *= size
    return True
