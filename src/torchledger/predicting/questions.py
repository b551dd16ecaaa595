"""What the catalogue of operators calls an eager operator or collective of a step, at the sizes of its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchledger.nouns import StepCall, TensorArgument
from torchledger.operators import find_operator
from torchledger.operators.collectives import COLLECTIVE_OPERATORS, OPERATOR_PREFIX
from torchledger.work.categories import operator_name
from torchledger.work.collectives import collective_kind
from torchledger.work.element_sizes import element_size
from torchledger.work.tensor_layouts import layout_of
from torchledger.work.walks import walk_of


@dataclass(frozen=True)
class Question:
    """An operator of the catalogue at a shape; ``note`` says in what it differs from the call that it stands for."""

    operator: str
    parameters: Mapping[str, int]
    direction: str
    dtype: str
    note: str | None = None


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


def is_over_lists(call: StepCall) -> bool:
    """True for a fused or foreach operator, which works on lists of tensors."""
    return operator_name(call.name)[1].startswith(("_fused_adam", "_fused_sgd", "_fused_adagrad", "_foreach_"))


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


def _scaled_product(call: StepCall) -> Question:
    """A product of elements of one byte with their scales behind them."""
    left, right, *scales = call.arguments
    (m, k), n = left.shape, right.shape[-1]
    note = None if all(math.prod(each.shape) == 1 for each in scales[:2]) else "as if each factor had one scale"
    return Question("linear_fp8", {"m": m, "k": k, "n": n}, "forward", _dtype(left), note)


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


def _rowwise(operator: str, direction: str, *, note: str | None = None) -> Callable[[StepCall], Question | None]:
    """An operator over the last dimension; its first argument is the input, or the gradient of the output.

    One that was recorded to work along another dimension has a kernel of its own.
    """

    def read(call: StepCall) -> Question | None:
        walk = walk_of(call.name, call.arguments, call.settings)
        if walk is not None and walk.inner > 1:
            return None
        rows, dim = _rows(call.arguments[0].shape)
        return Question(operator, {"rows": rows, "dim": dim}, direction, _dtype(call.arguments[0]), note)

    return read


def _elementwise(operator: str, direction: str, tensors: int) -> Callable[[StepCall], Question | None]:
    def read(call: StepCall) -> Question | None:
        given = call.arguments
        if len(given) != tensors or len({argument.shape for argument in given}) > 1:
            return None
        if len({argument.dtype for argument in given}) > 1 or layout_of(given) not in ("dense", None):
            return None  # the catalogue's tensors are dense and alike
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
    "_scaled_mm": _scaled_product,
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
