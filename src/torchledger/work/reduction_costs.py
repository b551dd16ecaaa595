"""Reductions, softmax, scans, sorting and losses."""

from __future__ import annotations

from collections.abc import Mapping

from torchledger.nouns import Cost
from torchledger.work.cost_parts import (
    Formula,
    dense,
    memory_cost,
    named,
    revised,
)
from torchledger.work.op_shapes import DTYPE_OF_SCALAR_TYPE, OpCall, Tensor, broadcast_shape
from torchledger.work.pointwise_costs import pointwise

_REDUCTIONS: Mapping[str, int] = {
    "sum": 1,
    "nansum": 1,
    "mean": 1,
    "nanmean": 1,
    "prod": 1,
    "amax": 1,
    "amin": 1,
    "aminmax": 1,
    "max": 1,
    "min": 1,
    "argmax": 1,
    "argmin": 1,
    "any": 1,
    "all": 1,
    "std": 1,
    "var": 1,
    "std_mean": 1,
    "var_mean": 1,
    "logsumexp": 1,
    "norm": 2,
    "linalg_vector_norm": 2,
    "count_nonzero": 1,
    "median": 1,
    "nanmedian": 1,
    "mode": 1,
    "kthvalue": 2,
}
"""Reduction to the position of its dimensions."""


def _reduction(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    if source is None:
        return None
    name = call.base_name
    if name in ("max", "min") and (other := call.tensor(1)) is not None and len(call.arguments) <= 3:
        return pointwise(2)(OpCall(call.name, (source, other)))
    position = _REDUCTIONS[name]
    dims = call.ints(position)
    has_list = call.constant(position).startswith("[")
    takes_int = name in (
        "any",
        "all",
        "argmax",
        "argmin",
        "max",
        "min",
        "prod",
        "median",
        "nanmedian",
        "mode",
        "kthvalue",
    )
    rank = len(source.shape)
    if dims is None or not (has_list or takes_int) or any(not -rank <= dim < max(rank, 1) for dim in dims):
        dims = ()
    reduced = {dim % rank for dim in dims} if dims and rank else set(range(rank))
    shape = tuple(size for axis, size in enumerate(source.shape) if axis not in reduced)
    values = Tensor(shape, _reduction_dtype(name, source.dtype))
    written = [values]
    if name in ("std_mean", "var_mean", "aminmax"):
        written.append(values)
    if name in ("max", "min", "median", "nanmedian", "mode", "kthvalue") and dims:
        written.append(Tensor(shape, "int64"))
    return memory_cost([source], written)


def _reduction_of_two(call: OpCall) -> Cost | None:
    tensors = call.tensors[:2]
    return memory_cost(tensors, []) if len(tensors) == 2 else None


def _reduction_dtype(name: str, dtype: str) -> str:
    if name in ("any", "all"):
        return "uint8" if dtype == "uint8" else "bool"
    if name in ("argmax", "argmin", "count_nonzero"):
        return "int64"
    if name in ("sum", "prod", "nansum") and not dtype.startswith(("float", "bfloat", "complex")):
        return "int64"
    return dtype


def _softmax(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    made = _softmax_made(call)
    return None if source is None or made is None else memory_cost([source], [made])


def _safe_softmax(call: OpCall) -> Cost | None:
    """A softmax, whether each element hid all, whether those of a row do, and zeros put where they do."""
    source = call.tensor(0)
    made, dim = _softmax_made(call), call.ints(1)
    if source is None or made is None or not dim:
        return None
    masks = Tensor(source.shape, "bool")
    rows = Tensor(tuple(1 if at == dim[0] % len(source.shape) else n for at, n in enumerate(source.shape)), "bool")
    return memory_cost([source, source, masks, rows, made], [made, masks, rows, made])


def _softmax_made(call: OpCall) -> Tensor | None:
    source = call.tensor(0)
    if source is None:
        return None
    widened = call.constant(2) == "True" and source.dtype in ("float16", "bfloat16")
    code = call.ints(2)
    dtype = "float32" if widened else source.dtype
    if code and call.constant(2) not in ("True", "False") and code[0] in DTYPE_OF_SCALAR_TYPE:
        dtype = DTYPE_OF_SCALAR_TYPE[code[0]]
    return Tensor(source.shape, dtype)


def _softmax_backward(call: OpCall) -> Cost | None:
    gradient, output = call.tensor(0), call.tensor(1)
    if gradient is None or output is None:
        return None
    code = call.ints(3)
    dtype = DTYPE_OF_SCALAR_TYPE.get(code[0], gradient.dtype) if code else gradient.dtype
    return memory_cost([gradient, output], [Tensor(gradient.shape, dtype)])


def _sort(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    if source is None:
        return None
    cost = memory_cost([source], [dense(source), Tensor(source.shape, "int64")])
    return revised(cost, bytes_quality="estimated", basis="one pass over the data; sorting makes several")


def _one_pass(call: OpCall) -> Cost | None:
    """What looks at all of its input and makes something of at most its size, how large the data decide."""
    source = call.tensor(0)
    if source is None:
        return None
    made = dense(source)
    if call.base_name == "nonzero":
        made = Tensor((source.numel, max(len(source.shape), 1)), "int64")
    basis = "as much written as could be; the data decide"
    return revised(memory_cost(call.tensors, [made]), bytes_quality="upper_bound", basis=basis)


def _distances(call: OpCall) -> Cost | None:
    left, right = call.tensor(0), call.tensor(1)
    if left is None or right is None or min(len(left.shape), len(right.shape)) < 2:
        return None
    batch = broadcast_shape([left.shape[:-2], right.shape[:-2]])
    if batch is None:
        return None
    return memory_cost([left, right], [Tensor((*batch, left.shape[-2], right.shape[-2]), left.dtype)])


def _gradient_of_second(call: OpCall) -> Cost | None:
    source = call.tensor(1)
    return None if source is None else memory_cost(call.tensors, [dense(source)])


def _transform(call: OpCall) -> Cost | None:
    """A Fourier transform: one pass over the data, where a long one takes several."""
    source = call.tensor(0)
    if source is None:
        return None
    dtype = "complex128" if source.dtype in ("float64", "complex128") else "complex64"
    made = Tensor(source.shape, dtype)
    if call.base_name == "_fft_r2c" and call.constant(3) == "True" and source.shape and (dims := call.ints(1)):
        last = dims[-1] % len(source.shape)
        made = Tensor(tuple(n // 2 + 1 if at == last else n for at, n in enumerate(source.shape)), dtype)
    return revised(memory_cost([source], [made]), bytes_quality="estimated", basis="one pass over the data")


def _multinomial(call: OpCall) -> Cost | None:
    source, number = call.tensor(0), call.ints(1)
    if source is None or number is None:
        return None
    return memory_cost([source], [Tensor((*source.shape[:-1], number[0]), "int64")])


def _topk(call: OpCall) -> Cost | None:
    source, number = call.tensor(0), call.ints(1)
    if source is None or number is None or not source.shape:
        return None
    axis = (call.ints(2) or (-1,))[0]
    shape = tuple(number[0] if index == axis % len(source.shape) else size for index, size in enumerate(source.shape))
    return memory_cost([source], [Tensor(shape, source.dtype), Tensor(shape, "int64")])


def _nll_loss(call: OpCall) -> Cost | None:
    scores, target = call.tensor(0), call.tensor(1)
    if scores is None or target is None:
        return None
    picked = Tensor(target.shape, scores.dtype)
    return revised(memory_cost([picked, target], [Tensor((), scores.dtype)]), bytes_quality="estimated")


def _nll_loss_backward(call: OpCall) -> Cost | None:
    scores, target = call.tensor(1), call.tensor(2)
    if scores is None or target is None:
        return None
    return memory_cost([target], [dense(scores)])


def _reduced_loss(call: OpCall) -> Cost | None:
    scores, target = call.tensor(0), call.tensor(1)
    if scores is None or target is None:
        return None
    reduction = {"binary_cross_entropy": 3, "binary_cross_entropy_with_logits": 4}.get(call.base_name, 2)
    is_elementwise = call.constant(reduction) == "0"
    weights = [tensor for tensor in call.tensors[2:] if tensor.shape]
    return memory_cost([scores, target, *weights], [dense(scores) if is_elementwise else Tensor((), scores.dtype)])


def _margin_loss(call: OpCall) -> Cost | None:
    """A loss for each row, or their mean; of several labels also a mask of which are meant."""
    scores, target = call.tensor(0), call.tensor(1)
    if scores is None or target is None:
        return None
    is_multilabel = call.base_name.startswith("multilabel")
    is_elementwise = call.constant(2 if is_multilabel else 5) == "0"
    made = [Tensor(scores.shape[:-1] if is_elementwise else (), scores.dtype)]
    masks = [Tensor(target.shape, scores.dtype)] if is_multilabel else []
    return memory_cost(call.tensors, [*made, *masks])


def _ctc_loss(call: OpCall) -> Cost | None:
    """A loss for each sequence, and the probability of each of its beginnings, with blanks between labels."""
    scores, targets = call.tensor(0), call.tensor(1)
    if scores is None or targets is None or len(scores.shape) != 3 or len(targets.shape) != 2:
        return None
    steps, batch, _ = scores.shape
    made = [Tensor((batch,), scores.dtype), Tensor((batch, steps, 2 * targets.shape[1] + 1), scores.dtype)]
    return revised(memory_cost([scores, targets], made), bytes_quality="upper_bound", basis="targets of full length")


REDUCTION_COSTS: Mapping[str, Formula] = {
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **named("_softmax softmax _log_softmax log_softmax", _softmax),
    "_safe_softmax": _safe_softmax,
    **named("_softmax_backward_data _log_softmax_backward_data", _softmax_backward),
    **named("sort argsort msort", _sort),
    "topk": _topk,
    **named("nonzero masked_select unique _unique2 unique_dim unique_consecutive histc bincount", _one_pass),
    "_cdist_forward": _distances,
    "_cdist_backward": _gradient_of_second,
    **named("multi_margin_loss_backward multilabel_margin_loss_backward _ctc_loss_backward", _gradient_of_second),
    **named("_fft_r2c _fft_c2c _fft_c2r", _transform),
    "multinomial": _multinomial,
    "equal": _reduction_of_two,
    **named("nll_loss_forward nll_loss2d_forward nll_loss", _nll_loss),
    **named("nll_loss_backward nll_loss2d_backward", _nll_loss_backward),
    **named("mse_loss smooth_l1_loss huber_loss l1_loss kl_div soft_margin_loss", _reduced_loss),
    "multi_margin_loss": _margin_loss,
    "multilabel_margin_loss_forward": _margin_loss,
    "_ctc_loss": _ctc_loss,
    **named("binary_cross_entropy binary_cross_entropy_with_logits", _reduced_loss),
}
"""Operator name (without namespace and in-place mark) to its formula."""
