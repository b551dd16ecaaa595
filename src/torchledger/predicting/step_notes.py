"""What is said of a step's price beside its numbers: where its times come from, and what it does not know or hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch, StepCall
from torchledger.predicting.bus_copies import notes_on_copies
from torchledger.predicting.call_sizes import at_usual_sizes, sizes_of_calls
from torchledger.predicting.flex_launches import taken_share
from torchledger.predicting.launches import is_foreign
from torchledger.predicting.step_calls import is_recurrent_by_bytes
from torchledger.printable import counted
from torchledger.stepping.totals import StepTotals
from torchledger.work.categories import is_of_program, operator_name
from torchledger.work.flex import SIMPLE, VISITED

_MOST_NAMED = 3

CALLS_OF_CPU = "eager calls are those that a CPU was given: optimizers are other operators (foreach, fused) on a GPU"
"""What is noted of a price on a GPU whose record is a CPU's."""

_FUSED = ("launch:fused/pointwise", "launch:fused/reduction")
"""Entries that every model of steps has: where they have no rows, launches of that device taught nothing."""


def step_notes(model: TimeModel, record: StepTotals | None, launches: Sequence[Launch]) -> tuple[str, ...]:
    """What is said of a step, whichever way its calls are priced together. ``launches`` are all that its ledger holds;
    without a ``record`` each counts once."""
    calls = None if record is None else record.step.graph_calls
    called = [launch for launch in launches if calls is None or calls.get(launch.graph)]
    return (
        *_origin_notes(model),
        *_foreign_notes(model, called),
        *_mask_notes(called if record is None else at_usual_sizes(called, sizes_of_calls(record.calls))),
        *_record_notes(model, record, launches),
    )


def note_on_pools(reserved_bytes: int | None) -> str:
    """Of a step that was recorded as CUDA graphs replayed it: its storages lack what these hold."""
    said = "" if reserved_bytes is None else f": the allocator had {reserved_bytes:,} bytes reserved where it ran"
    return f"peak memory is of what lies outside the pools of CUDA graphs, which nothing counts{said}"


def notes_on_tuned_convolutions(
    settings: Mapping[str, str], calls: Sequence[StepCall], launches: Sequence[Launch]
) -> tuple[str, ...]:
    """Of a program that has cuDNN time its kernels before it takes one, by the ``settings`` that it ran with."""
    if settings.get("cudnn_benchmark") != "True":
        return ()
    names = (*(launch.kernel_name for launch in launches), *(call.name for call in calls))
    if not any("convolution" in name for name in names):
        return ()
    return (
        "cuDNN times its kernels and takes the quickest (torch.backends.cudnn.benchmark): convolutions are priced as "
        "it chooses without that, and may be quicker",
    )


def _origin_notes(model: TimeModel) -> tuple[str, ...]:
    """Where the times of launches come from, if none of the device itself taught them."""
    learned = [model.entries[key].n_rows for key in _FUSED if key in model.entries]
    if not model.source or not learned or any(learned):
        return ()
    return (
        f"no launch of {model.device} was measured: these are another device's times at its rates ({model.source}), in "
        "wider intervals",
    )


def _foreign_notes(model: TimeModel, launches: Sequence[Launch]) -> tuple[str, ...]:
    launched = [launch for launch in launches if launch.is_call] or launches  # made alone, they are no wrapper's
    foreign = [launch for launch in launched if is_foreign(model, launch)]
    if not foreign:
        return ()
    devices = ", ".join(sorted({launch.device.partition(":")[0] for launch in foreign}))
    if devices == "cpu" and len(foreign) < len(launched):
        return (
            f"{len(foreign):,} of {len(launched):,} launches are kernels for cpu, which the host runs (numbers of the "
            f"program's, mostly): they are priced as if {model.device} ran them",
        )
    return (
        f"{len(foreign):,} of {len(launched):,} launches are kernels for {devices}, which {model.device} does not run: "
        "generated code is priced by its loops, library calls by their sizes, all beyond what was measured; another "
        "device's compiler may fuse otherwise",
    )


def _mask_notes(launches: Sequence[Launch]) -> tuple[str, ...]:
    unknown = [launch for launch in launches if SIMPLE in launch.kwargs and VISITED not in launch.kwargs]
    if not unknown:
        return ()
    kernels = "a kernel" if len(unknown) == 1 else f"{len(unknown):,} kernels"
    shares = [taken_share(each) for each in unknown]
    ends = dict.fromkeys((min(shares), max(shares)))
    share = " to ".join(f"{each:.2%}" if each < _FEW else f"{each:.0%}" for each in ends)
    return (f"which blocks {kernels} of flex_attention visit depends on data: {share} of them are taken to be",)


_FEW = 0.1
"""A share below which two more digits are told."""


def _record_notes(model: TimeModel, record: StepTotals | None, launches: Sequence[Launch]) -> tuple[str, ...]:
    if record is None:
        return ()
    notes = [] if record.step.is_measured else list(record.step.notes)
    stale = sorted({launch.graph for launch in launches} - {name for name, n in record.step.graph_calls.items() if n})
    if stale:
        notes.append(f"not called in the step, and not in its price: {', '.join(stale)}")
    if len(record.step.kinds) > 1:
        notes.append(
            f"steps differ, and the price is that of {record.step.kinds[0].count:,} of {record.step.seen:,} seen: "
            "where a turn of the program's loop is more than one step of its optimizer, end it with torchledger.step()"
        )
    if record.step.found_by == "period":
        called = [f"{name} x{count}" for name, count in record.step.graph_calls.items()]
        more = f" and {len(called) - _MOST_NAMED:,} more" if len(called) > _MOST_NAMED else ""
        graphs = ", ".join(called[:_MOST_NAMED]) + more
        notes.append(
            f"a step is what repeats among the calls{f' ({graphs})' if graphs else ''}: where a turn of the program's "
            "loop holds more, end it with torchledger.step()"
        )
    # Ledgers of before do not say which launches these are.
    untold = [call for call in record.calls if not call.times]
    if not_taken := sum(call.not_taken for call in untold):
        launched, are = counted(not_taken, "launch"), "is" if not_taken == 1 else "are"
        notes.append(f"{launched} in ways of conditionals that the step did not take {are} in its price")
    if repeated := sum(call.repeated for call in untold):
        launched, are = counted(repeated, "launch"), "is" if repeated == 1 else "are"
        notes.append(f"{launched} that loops in compiled graphs made again {are} not in its price")
    if ran_on_cpu(record) and model.machine.device.kind != "cpu":
        notes.append(CALLS_OF_CPU)
    if own := _of_own_operators(record, launches):
        named = ", ".join(own[:_MOST_NAMED]) + (" and others" if len(own) > _MOST_NAMED else "")
        notes.append(
            f"what {named} computes is not known: it is priced by its bytes alone, and may take much longer, or less "
            "where it goes over a part of what it is given"
        )
    notes += notes_on_copies(model, record.calls, ran_on_cpu=ran_on_cpu(record))
    if recurrent := sum(is_recurrent_by_bytes(model, call) for call in record.calls):
        notes.append(
            f"the time steps of recurrent layers ({counted(recurrent, 'call')}) wait for each other: they take longer "
            "than their FLOPs and bytes, at which they are priced"
        )
    return tuple(notes)


def _of_own_operators(record: StepTotals, launches: Sequence[Launch]) -> list[str]:
    """Operators of the step that are none of torch's, and of which no FLOPs are known."""
    compiled = {
        each.kernel_name
        for each in launches
        if each.category == "extern" and each.flops is None and record.step.graph_calls.get(each.graph)
    }
    eager = {call.name for call in record.calls if call.kernels and call.flops is None}
    return sorted({"::".join(operator_name(name)) for name in compiled | eager if is_of_program(name)})


def ran_on_cpu(record: StepTotals) -> bool:
    """Whether what was recorded ran on a CPU."""
    return record.step.clock == "cpu_profiler"
