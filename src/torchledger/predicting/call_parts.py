"""A call by the parts of its algorithm, and what prices of calls have in common.

Enters: eager calls, and launches of compiled graphs that call the same kernels of a library. Leaves: their times, as
calls in other steps took.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torchledger.expecting.machine import Machine
from torchledger.fitting.algorithm_costs import algorithm_cost
from torchledger.fitting.call_costs import BEYOND_CACHES, QUICKEST
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch, Prediction, StepCall, TensorArgument
from torchledger.work.algorithms import parts_of
from torchledger.work.categories import operation_of
from torchledger.work.element_sizes import element_size
from torchledger.work.settings import Settings, settings_of_launch

_OF_LIBRARIES = frozenset(
    {"_fft_c2c", "_fft_r2c", "_fft_c2r", "linalg_lu_factor_ex", "linalg_inv_ex", "linalg_qr"}
    | {"linalg_matrix_exp", "_linalg_slogdet", "_linalg_det", "_linalg_eigh", "_linalg_svd", "linalg_eig"}
    | {"linalg_lu_solve", "cholesky_solve", "linalg_solve_triangular", "_linalg_solve_ex"}
)
"""Transforms, factorizations and solvers: a graph calls the kernels that an eager program does, as ever.
Launches taught ``linalg_cholesky_ex`` themselves."""


def surer_by_parts(model: TimeModel, launch: Launch, said: Prediction) -> Prediction:
    """What a library's launch takes, by the parts of its algorithm where calls of it taught these more surely than
    launches of other operators taught what was ``said``."""
    name = operation_of(launch)
    if name not in _OF_LIBRARIES:
        return said
    given = tuple(
        TensorArgument(each.shape, each.dtype, each.stride) for each in launch.buffers if each.role == "input"
    )
    call = StepCall(
        *("", launch.order, "operator", f"aten::{name}", "forward"),
        arguments=given,
        settings=settings_of_launch(launch.kwargs),
        bytes_moved=launch.bytes_moved,
    )
    by_parts = price_by_parts(model, call)
    if by_parts is None or by_parts.high_us * said.low_us >= said.high_us * by_parts.low_us:
        return said
    return replace(by_parts, subject=said.subject, roofline_us=said.roofline_us)


def price_by_parts(model: TimeModel, call: StepCall) -> Prediction | None:
    """What the parts of a call's work take; ``None`` where it has none that were learned."""
    learned_us, spread = 0.0, 0.0
    stand_ins = _same_work(call)
    for each in stand_ins or (call,):
        parts = parts_of(each.name, each.arguments, each.settings, flops=each.flops, bytes_moved=each.bytes_moved)
        cost = None if parts is None else algorithm_cost(each.name, parts, model.extras)
        if parts is None or cost is None:
            return None
        learned_us, spread = learned_us + cost.duration_us(parts), max(spread, cost.spread)
    nbytes = call.bytes_moved or 0
    beyond_us = QUICKEST * nbytes / model.machine.bytes_per_us if nbytes > BEYOND_CACHES else 0.0
    time_us = max(learned_us * slower_lanes(model.machine), model.machine.floor_us, beyond_us)
    note = "by what its algorithm does, as calls in other steps took"
    if stand_ins:
        together = " and ".join(each.name for each in stand_ins)
        spread, note = max(spread, _UNMEASURED_SPREAD), f"as {together} together, not measured itself"
    return as_others(model, call, spread, time_us, roofline_of(model, call), note)


def _same_work(call: StepCall) -> tuple[StepCall, ...]:
    """Of cuDNN's loss of alignments, which no device was asked for, ATen's own forth and back, whose work it does at
    once; nothing of any other call."""
    if call.name != "aten::_cudnn_ctc_loss" or not call.arguments:
        return ()
    back = (call.arguments[0], *call.arguments)
    return replace(call, name="aten::_ctc_loss"), replace(call, name="aten::_ctc_loss_backward", arguments=back)


_UNMEASURED_SPREAD = math.log(3)


def further_call(
    call: StepCall,
    name: str,
    arguments: tuple[TensorArgument, ...],
    bytes_moved: int,
    settings: Settings | None = (),
) -> StepCall:
    """What a call does beside its own kernels, as the operator that does the same: one kernel, without FLOPs."""
    return replace(
        call, name=name, arguments=arguments, kernels=1, flops=0, flops_quality="exact", bytes_moved=bytes_moved,
        settings=settings, tensors=None, elements=None,
    )  # fmt: skip


def bytes_of(tensor: TensorArgument) -> int:
    """Bytes of a tensor's elements, four each where its dtype was not recorded."""
    return math.prod(tensor.shape) * (element_size(tensor.dtype) or 4)


def as_others(
    model: TimeModel, call: StepCall, spread: float, time_us: float, roofline_us: float | None, note: str
) -> Prediction:
    """A price by what calls in other steps cost, as sure as these agree."""
    wide = math.exp(spread)
    return Prediction(
        subject=subject_of(call),
        duration_us=time_us,
        low_us=time_us / wide,
        high_us=time_us * wide,
        coverage=COVERAGE,
        range="inside",
        device=model.device,
        model=f"calls of {call.name}",
        roofline_us=roofline_us,
        note=note,
    )


def slower_lanes(machine: Machine) -> float:
    """How much longer a device takes for an element than the one on which its model's costs were learned: by the number
    of their multiprocessors and their clocks; 1 for a device that taught its own, and where either is unknown."""
    own, taught = machine.device, machine.constants.reference.device
    known = own.num_multiprocessors, own.clock_rate_mhz, taught.num_multiprocessors, taught.clock_rate_mhz
    if machine.learned_on is None or None in known:
        return 1.0
    count, clock, their_count, their_clock = (float(each or 0.0) for each in known)
    return their_count * their_clock / (count * clock) if count * clock > 0 else 1.0


def roofline_of(model: TimeModel, call: StepCall) -> float | None:
    """The least time of a call in microseconds, by its FLOPs and bytes; ``None`` where neither is known."""
    if call.flops is None and call.bytes_moved is None:
        return None
    machine = model.machine
    dtype = next((argument.dtype for argument in call.arguments if argument.dtype), "float32")
    return max((call.flops or 0) / machine.peak(dtype), (call.bytes_moved or 0) / machine.bytes_per_us)


def subject_of(call: StepCall) -> str:
    """``"aten::mm (4, 8) (8, 2)"``: an eager call and the shapes it was given."""
    if call.tensors is not None:
        return f"{call.name} ({call.tensors:,} tensors, {call.elements or 0:,} elements)"
    return " ".join([call.name, *(str(argument.shape) for argument in call.arguments)])
