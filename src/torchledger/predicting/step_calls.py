"""The eager part of a recorded step: a time for each operator and collective, by what was learned of operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torchledger.errors import PredictError
from torchledger.fitting.call_costs import CallCost, cost_keys, cost_of, is_scaler, known_name, share_of_chunk
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Prediction, StepCall, TensorArgument
from torchledger.operators import find_operator
from torchledger.operators.collectives import COLLECTIVE_OPERATORS, OPERATOR_PREFIX
from torchledger.predicting.operators import by_roofline, predict
from torchledger.work.categories import operator_name
from torchledger.work.collectives import collective_kind
from torchledger.work.element_sizes import element_size
from torchledger.work.graph_collectives import WAIT, GraphCollective


@dataclass(frozen=True)
class Question:
    """An operator of the catalogue at a shape; ``note`` says in what it differs from the call that it stands for."""

    operator: str
    parameters: Mapping[str, int]
    direction: str
    dtype: str
    note: str | None = None


def price_calls(model: TimeModel, calls: Sequence[StepCall], *, ran_on_cpu: bool) -> list[tuple[StepCall, Prediction]]:
    """The calls of a step that work on the device, each with its predicted time; graphs are left to their launches.

    An operator that the model has learned is asked for at the call's sizes. Of any other the time is its roofline at
    the rates that the device was measured at, plus the launch floor; ``Prediction.model`` is then ``"roofline"``.
    ``ran_on_cpu`` says that the record is of a CPU, where no kernel tells which operators do work.
    """
    answers: dict[Hashable, Prediction] = {}
    found = []
    beside_scaler = any(is_scaler(call.name) for call in calls)
    for call in calls:
        if not is_priced(call, ran_on_cpu=ran_on_cpu):
            continue
        key = replace(call, order=0, start_us=None, host_us=None, samples_us=(), sources=(), modules=(), streams=())
        if key not in answers:
            answers[key] = _price(model, call, beside_scaler=beside_scaler)
        found.append((call, answers[key]))
    return found


def predict_graph_collectives(
    model: TimeModel, collectives: Iterable[GraphCollective], group_sizes: Mapping[str, int]
) -> list[Prediction]:
    """The collectives that compiled graphs call; ``group_sizes`` names the ranks of process groups.

    What waits for one launches nothing, and has no prediction. Of a group whose size nothing says, the time is that of
    the bytes.
    """
    found = []
    for collective in collectives:
        if collective.name == WAIT:
            continue
        launch = collective.launch
        size = group_sizes.get(collective.group or "") or collective.group_size
        message = collective.message_bytes(size)
        call = StepCall(
            step="",
            order=launch.order,
            kind="collective",
            name=collective.operator,
            phase="communication",
            kernels=1,
            arguments=tuple(TensorArgument(each.shape, each.dtype, each.stride) for each in launch.buffers),
            bytes_moved=message,
            group=collective.group,
            group_size=size,
            message_bytes=message,
        )
        found.append(replace(_price(model, call), subject=launch.launch_id))
    return found


def is_priced(call: StepCall, *, ran_on_cpu: bool) -> bool:
    """True for an eager operator or collective that keeps the device busy; views and synchronizations do not."""
    if call.kind not in ("operator", "collective") or is_copy_to_host(call):
        return False
    if not ran_on_cpu:
        return call.kernels > 0
    return bool(call.flops) or call.bytes_moved is None or call.bytes_moved > 0


def is_copy_to_host(call: StepCall) -> bool:
    """True for copies between host and device, reading one number of a tensor (``item()``) included."""
    return call.kind == "copy" or operator_name(call.name)[1] == "_local_scalar_dense"


def is_over_lists(call: StepCall) -> bool:
    """True for a fused or foreach operator, which works on lists of tensors."""
    return operator_name(call.name)[1].startswith(("_fused_adam", "_fused_sgd", "_fused_adagrad", "_foreach_"))


def is_recurrent(call: StepCall) -> bool:
    """True for all layers of an LSTM, GRU or plain recurrent network at once, whose time steps follow one another."""
    return operator_name(call.name)[1].removesuffix("_backward") in ("_cudnn_rnn", "miopen_rnn")


def question_of(call: StepCall) -> Question | None:
    """What the catalogue calls an eager operator at its recorded sizes; ``None`` where it has no such operator.

    >>> question_of(StepCall("s", 0, "operator", "aten::mm", "loss", arguments=(
    ...     TensorArgument((4, 8), "float32"), TensorArgument((8, 2), "float32")))).parameters
    {'m': 4, 'k': 8, 'n': 2}
    """
    name = operator_name(call.name)[1]
    if call.kind == "collective":
        return _collective(name, call)
    if is_over_lists(call):
        return _tensor_list(name, call)
    reader = _READERS.get(name)
    if reader is None or not call.arguments:
        return None
    try:
        return reader(call)
    except (IndexError, ValueError):
        # Fewer arguments or dimensions than the operator's signature has: recorded otherwise, so not understood.
        return None


def _price(model: TimeModel, call: StepCall, *, beside_scaler: bool = False) -> Prediction:
    question = question_of(call)
    first = call.arguments[0] if call.arguments else TensorArgument(())
    names = dict.fromkeys((known_name(call.name, beside_scaler=beside_scaler), call.name))
    keys = [key for name in names for key in cost_keys(name, first.shape, first.dtype, first.stride)]
    # A call of another layout than those that were seen is nearer to these than to its roofline.
    others = (*cost_keys(call.name, dtype=first.dtype), call.name, f"{call.name} across")
    cost = cost_of((*keys, *others), model.extras)
    # What the catalogue says of a list is of tensors alike: in a list of a model's, some fill blocks and most do not.
    is_described = question is not None and question.note is None and not is_over_lists(call)
    if cost is not None and call.bytes_moved is not None and not is_described and not _is_product(call):
        return _by_cost(model, call, cost)
    reason = f"the model has learned no {call.name}"
    if question is not None:
        try:
            found = predict(
                model, question.operator, question.parameters, direction=question.direction, dtype=question.dtype
            )
        except PredictError as error:
            reason = str(error).rstrip(".")
        else:
            notes = [note for note in (found.note, question.note) if note]
            return replace(found, subject=subject_of(call), note="; ".join(notes) or None)
    return _by_bytes(model, call, reason)


def _is_product(call: StepCall) -> bool:
    """True for what its bytes say little of."""
    return operator_name(call.name)[1] in ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")


def _by_cost(model: TimeModel, call: StepCall, cost: CallCost) -> Prediction:
    assert call.bytes_moved is not None
    # What no device ran, as in a plan, has no kernels to count.
    kernels = call.kernels if call.samples_us else max(call.kernels, cost.kernels)
    chunk = share_of_chunk(call.tensors, call.elements)
    # Its result is counted in the dtype of what it is given.
    moves_all = operator_name(call.name)[1] != "_to_copy"
    time_us = cost.duration_us(kernels, call.bytes_moved, model.machine.bytes_per_us, chunk=chunk, moves_all=moves_all)
    wide = math.exp(cost.spread)
    return Prediction(
        subject=subject_of(call),
        duration_us=time_us,
        low_us=time_us / wide,
        high_us=time_us * wide,
        coverage=COVERAGE,
        range="inside",
        device=model.device,
        model=f"calls of {call.name}",
        roofline_us=call.bytes_moved / model.machine.bytes_per_us,
        note="by its kernels and bytes, as calls in other steps took",
    )


def _by_bytes(model: TimeModel, call: StepCall, reason: str) -> Prediction:
    machine = model.machine
    dtype = next((argument.dtype for argument in call.arguments if argument.dtype), "float32")
    roofline = None
    if call.flops is not None or call.bytes_moved is not None:
        roofline = max((call.flops or 0) / machine.peak(dtype), (call.bytes_moved or 0) / machine.bytes_per_us)
    if call.bytes_moved is None:
        reason += "; its bytes are unknown"
    time_us = (roofline or 0.0) + machine.floor_us * max(1, call.kernels)
    return by_roofline(model, subject_of(call), time_us, roofline, reason)


def subject_of(call: StepCall) -> str:
    """``"aten::mm (4, 8) (8, 2)"``: an eager call and the shapes it was given."""
    if call.tensors is not None:
        return f"{call.name} ({call.tensors:,} tensors, {call.elements or 0:,} elements)"
    return " ".join([call.name, *(str(argument.shape) for argument in call.arguments)])


def _dtype(argument: TensorArgument) -> str:
    if argument.dtype is None:
        raise ValueError("an argument without a dtype")
    return argument.dtype


def _rows(shape: Sequence[int]) -> tuple[int, int]:
    return math.prod(shape[:-1]), shape[-1]


def _product(first: int) -> Callable[[StepCall], Question]:
    """A product of the arguments at ``first`` and after; what stands before them is added."""

    def read(call: StepCall) -> Question:
        left, right = call.arguments[first], call.arguments[first + 1]
        (m, k), n = left.shape, right.shape[-1]
        return Question("linear", {"m": m, "k": k, "n": n, **({"bias": 1} if first else {})}, "forward", _dtype(left))

    return read


def _batched_product(first: int) -> Callable[[StepCall], Question]:
    def read(call: StepCall) -> Question:
        left, right = call.arguments[first], call.arguments[first + 1]
        b, m, k = left.shape
        return Question("bmm", {"b": b, "m": m, "k": k, "n": right.shape[-1]}, "forward", _dtype(left))

    return read


def _grouped_product(call: StepCall) -> Question | None:
    """Groups whose sizes the data decide are taken for equal ones; gradients of weights for a batched product."""
    (left, right), ranks = call.arguments[:2], [len(each.shape) for each in call.arguments[:2]]
    note = "as if all groups were as large"
    if ranks == [2, 3]:
        (rows, k), (groups, _, n) = left.shape, right.shape
        sizes = {"groups": groups, "m": math.ceil(rows / max(groups, 1)), "k": k, "n": n}
        return Question("grouped_gemm", sizes, "forward", _dtype(left), note)
    if ranks == [2, 2]:
        (m, rows), (_, n), groups = left.shape, right.shape, math.prod(call.arguments[2].shape)
        sizes = {"b": groups, "m": m, "k": math.ceil(rows / max(groups, 1)), "n": n}
        return Question("bmm", sizes, "forward", _dtype(left), note)
    return None


def _rowwise(operator: str, direction: str, *, note: str | None = None) -> Callable[[StepCall], Question]:
    """An operator over the last dimension; its first argument is the input, or the gradient of the output."""

    def read(call: StepCall) -> Question:
        rows, dim = _rows(call.arguments[0].shape)
        return Question(operator, {"rows": rows, "dim": dim}, direction, _dtype(call.arguments[0]), note)

    return read


def _elementwise(operator: str, direction: str, tensors: int) -> Callable[[StepCall], Question | None]:
    def read(call: StepCall) -> Question | None:
        given = call.arguments
        if len(given) != tensors or len({argument.shape for argument in given}) > 1:
            return None
        return Question(operator, {"numel": math.prod(given[0].shape)}, direction, _dtype(given[0]))

    return read


def _embedding(call: StepCall) -> Question:
    table, ids = call.arguments[0], call.arguments[1]
    vocab, dim = table.shape
    parameters = {"tokens": math.prod(ids.shape), "vocab": vocab, "dim": dim}
    return Question("embedding", parameters, "forward", _dtype(table))


def _attention(first: int, direction: str) -> Callable[[StepCall], Question]:
    def read(call: StepCall) -> Question:
        query, key = call.arguments[first], call.arguments[first + 1]
        b, h, length, d = query.shape
        parameters = {"b": b, "h": h, "l": length, "d": d}
        if key.shape[1:3] != (h, length):
            parameters |= {"h_kv": key.shape[1], "l_kv": key.shape[2]}
        # A causal mask leaves the count of the whole square as an upper bound.
        parameters["causal"] = int(call.flops_quality == "upper_bound")
        return Question("sdpa", parameters, direction, _dtype(query))

    return read


_READERS: Mapping[str, Callable[[StepCall], Question | None]] = {
    "mm": _product(0),
    "addmm": _product(1),
    "bmm": _batched_product(0),
    "baddbmm": _batched_product(1),
    "_grouped_mm": _grouped_product,
    "_softmax": _rowwise("softmax", "forward"),
    "_log_softmax": _rowwise("softmax", "forward", note="priced as a softmax"),
    "_softmax_backward_data": _rowwise("softmax", "backward"),
    "_log_softmax_backward_data": _rowwise("softmax", "backward", note="priced as a softmax"),
    "native_layer_norm": _rowwise("layer_norm", "forward"),
    "native_layer_norm_backward": _rowwise("layer_norm", "backward"),
    "_fused_rms_norm": _rowwise("rms_norm", "forward"),
    "_fused_rms_norm_backward": _rowwise("rms_norm", "backward"),
    "gelu": _elementwise("gelu", "forward", 1),
    "gelu_backward": _elementwise("gelu", "backward", 2),
    "add": _elementwise("add", "forward", 2),
    "sub": _elementwise("add", "forward", 2),
    "mul": _elementwise("mul", "forward", 2),
    "embedding": _embedding,
    **{
        f"_scaled_dot_product_{kind}_attention{suffix}": _attention(0, "forward")
        for kind, suffix in (("flash", ""), ("efficient", ""), ("cudnn", ""), ("flash", "_for_cpu"))
    },
    **{
        f"_scaled_dot_product_{kind}_attention{suffix}_backward": _attention(1, "backward")
        for kind, suffix in (("flash", ""), ("efficient", ""), ("cudnn", ""), ("flash", "_for_cpu"))
    },
}
"""ATen's name to the catalogue's question."""

_ADAMW_TENSORS_TOUCHED = 7
"""A fused AdamW step reads four tensors and writes three of them."""


def _tensor_list(name: str, call: StepCall) -> Question | None:
    """A fused AdamW step, or another operator over lists of tensors as the step that moves as many bytes."""
    dtype = next((argument.dtype for argument in call.arguments if argument.dtype), None)
    size = element_size(dtype) if dtype is not None else None
    if dtype is None or not size or not call.tensors or not call.elements:
        return None
    if name.startswith("_fused_adam"):
        return Question("adamw", {"numel": call.elements, "tensors": call.tensors}, "step", dtype)
    if not call.bytes_moved or name == "_foreach_copy_":
        return None  # a copy is nearer to its bytes than to an optimizer's step: 17.6 us measured, 14.6 and 31.4 said
    numel = max(call.tensors, call.bytes_moved // (size * _ADAMW_TENSORS_TOUCHED))
    return Question(
        "adamw",
        {"numel": numel, "tensors": call.tensors},
        "step",
        dtype,
        note="priced as a fused AdamW step over as many tensors that moves as many bytes",
    )


def _collective(name: str, call: StepCall) -> Question | None:
    """A collective over its group, at the size of its message."""
    kind, world = collective_kind(name), call.group_size
    if f"{OPERATOR_PREFIX}{kind}" not in COLLECTIVE_OPERATORS or not world or world < 2 or not call.message_bytes:
        return None
    dtype = next((argument.dtype for argument in call.arguments if argument.dtype), None) or "float32"
    numel = max(world, call.message_bytes // (element_size(dtype) or 4) // world * world)
    return Question(find_operator(f"collective.{kind}").key, {"numel": numel, "world": world}, "forward", dtype)
