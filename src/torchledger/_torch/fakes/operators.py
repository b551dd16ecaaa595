"""Operators whose results torch cannot tell without their device: what stands for them.

Of those whose size depends on values it is the size that they have if every element is taken. Of those without a meta
function it is what their kernel for the CPU makes of zeros, or for a few that only a GPU has, what is written here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_unflatten

from torchledger._torch.fakes.chances import CHANCE, MARKED, SHARE, note_chances
from torchledger._torch.fakes.gradients import asks_for_zeros
from torchledger._torch.fakes.quantized import QUANTIZED
from torchledger._torch.fakes.ranges import taken_by
from torchledger._torch.fakes.recurrent import RECURRENT
from torchledger._torch.fakes.shares import origin_of, shares_of
from torchledger._torch.tensors import tensors_in, tree_map
from torchledger.errors import PlanError

_ATEN = torch.ops.aten

EXAMPLE_BYTES = 1 << 28
"""What zeros may take up that an operator is given on the CPU."""


class NoShapeError(PlanError, RuntimeError):
    """An operator's result has no shape that could be known without its device."""


def real_layouts(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Layouts of real tensors among arguments that are not strided."""
    given = (each for each in tensors_in((args, kwargs)) if not isinstance(each, FakeTensor))
    return sorted({str(each.layout) for each in given if each.layout is not torch.strided})


def shapes_by_example(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operator makes of fake tensors: shapes, strides and dtypes of what its CPU kernel makes of zeros.

    One that changes its arguments and gives nothing or the first of them back is not run, nor is one that fills what it
    is given (``out=``).
    Raises ``NoShapeError`` where there is no such kernel, where it does not take zeros, and for arguments of more than
    ``EXAMPLE_BYTES``.
    """
    if not func._schema.returns:
        return None
    if (filled := kwargs.get("out")) is not None:
        return filled
    if args and isinstance(args[0], FakeTensor) and _is_in_place(func._schema):
        return args[0]
    given: list[Any] = [each for each in tensors_in((args, kwargs)) if isinstance(each, FakeTensor)]
    if not given:
        if layouts := real_layouts(args, kwargs):
            raise NoShapeError(f"it is given {', '.join(layouts)}, where a plan follows torch.sparse_coo alone")
        raise NoShapeError("it was given no tensors")
    if sum(each.numel() * each.element_size() for each in given if each.layout is torch.strided) > EXAMPLE_BYTES:
        raise NoShapeError(f"its arguments are larger than {EXAMPLE_BYTES >> 20} MiB")
    device, fake_of = given[0].fake_device, {}

    def real(value: Any) -> Any:
        if not isinstance(value, FakeTensor):
            return torch.device("cpu") if isinstance(value, torch.device) else value
        made = torch.zeros(value.shape, dtype=value.dtype, layout=value.layout)
        if value.layout is torch.strided:
            made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).zero_()
        fake_of[id(made)] = value
        return made

    with _disable_current_modes():
        examples = tree_map(real, (list(args), dict(kwargs)))
        try:
            result = func(*examples[0], **examples[1])
        except Exception as error:
            raise NoShapeError("its kernel for the CPU does not take zeros, or there is none") from error

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in fake_of:
            return fake_of[id(value)]
        if value.layout is not torch.strided or value.is_nested:
            raise NoShapeError("its result is sparse or nested")
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)

    return tree_map(fake, result)


COALESCED = frozenset(
    f"c10d::{name}"
    for name in (
        *("allreduce_coalesced_", "allgather_coalesced_", "allgather_into_tensor_coalesced_"),
        "reduce_scatter_tensor_coalesced_",
    )
)
"""Collectives over lists that torch has no meta function for: they fill what they are given, and return work to wait
for."""


def work_of_coalesced(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What stands for the work of one of ``COALESCED``: that of the same collective over empty tensors."""

    def empty(value: Any) -> Any:
        return torch.empty(0, dtype=value.dtype) if isinstance(value, torch.Tensor) else value

    with _disable_current_modes():
        given, options = tree_map(empty, (list(args), dict(kwargs)))
        return func(*given, **options)


def _is_in_place(schema: Any) -> bool:
    returned = schema.returns[0].alias_info if len(schema.returns) == 1 else None
    first = schema.arguments[0].alias_info
    return returned is not None and first is not None and first.is_write and returned.before_set == first.before_set


# --- sizes that depend on values ------------------------------------------------------------------------------------


def _indices(tensor: Any, *shape: int) -> Any:
    return torch.empty(shape, dtype=torch.int64, device=tensor.device)


def note_choices(func: Any, args: Sequence[Any], result: Any) -> None:
    """Keep with a fake tensor among how many its numbers choose, and with a mask of one of them its share.

    Where nothing is known each is chosen as often: experts that a router chooses get equal shares of the tokens. Of
    uniform random numbers a limit leaves its own share.
    """
    name = func.name().partition(".")[0]
    if note_chances(func, args, result):
        return
    if name in _UNIFORM:
        result._is_uniform = True
    elif name == "aten::cat":
        _join_shares(args[0], result)
    elif not isinstance(args[0], FakeTensor):
        return
    elif func._schema.is_mutable and hasattr(args[0], "_is_uniform"):
        del args[0]._is_uniform
    elif name in _BELOW | _ABOVE and hasattr(args[0], "_is_uniform") and (limit := _limit_of(args[1])) is not None:
        below = min(max(limit, 0.0), 1.0)
        result._share = below if name in _BELOW else 1 - below
    elif name in CHOOSES and args[0].dim():
        chosen = result[-1] if isinstance(result, (tuple, list)) else result
        places = args[2 if name == "aten::topk" else 1 :][:1]
        size = args[0].shape[places[0] if places and type(places[0]) is int else -1]
        if isinstance(chosen, torch.Tensor) and chosen.dtype is torch.int64 and type(size) is int:
            chosen._choices = size
    elif name == "aten::clamp" and (count := _whole_numbers_between(*args[1:])) is not None:
        result._choices = count  # levels of a pyramid, say
    elif name == "aten::eq" and asks_for_zeros():
        result._share = 0.0
    elif name == "aten::eq" and hasattr(args[0], "_choices"):
        result._share = 1 / args[0]._choices
    elif name in _PUTS and args[0].dim() and len(args) > 3 and not isinstance(args[3], torch.Tensor):
        chosen, size = args[2].shape[args[1]], args[0].shape[args[1]]
        if type(chosen) is type(size) is int and size:
            result._share = min(1.0, chosen / size)
    elif name == "aten::index_put_" and (share := _share_put(*args[:2])) is not None:
        result._share = share
    elif isinstance(result, torch.Tensor) and (name in _KEEPS or _is_shifted(name, args)):
        for attribute in KEPT_OF_CHOICES:
            if hasattr(args[0], attribute):
                setattr(result, attribute, getattr(args[0], attribute))


def _limit_of(value: Any) -> float | None:
    """What random numbers are compared with: one number, or a tensor of chances that are all the same."""
    return value if type(value) is float else getattr(value, CHANCE, None)


def _share_put(mask: Any, places: Sequence[Any]) -> float | None:
    """Of a mask that is false everywhere the share that is true once these places are written."""
    if mask.dtype not in _MASKS or mask.dim() != 1 or len(places) != 1 or places[0] is None:
        return None
    known, count, size = shares_of(mask), places[0].numel(), mask.numel()
    if known is None or places[0].dtype is not torch.int64 or not type(count) is type(size) is int:
        return None
    with _disable_current_modes():
        is_false = not bool(known.any())
    return min(1.0, count / max(1, size)) if is_false else None


_MASKS = (torch.bool, torch.uint8)


def _join_shares(masks: Sequence[Any], result: Any) -> None:
    """Of masks one after another the share of all that is true."""
    if all(hasattr(each, "_share") for each in masks) and result.numel():
        result._share = sum(each._share * each.numel() for each in masks) / result.numel()


def spread_over_choices(tensor: Any) -> tuple[Any, str] | None:
    """Values for several numbers that choose among so many, as a tensor of the host, and how they were made up:
    different ones within a row where there are enough, and each about as often. ``None`` of any other tensor."""
    count = getattr(tensor, "_choices", None)
    if count is None or tensor.numel() <= 1 or not all(type(size) is int for size in tensor.shape):
        return None
    with _disable_current_modes():
        width = tensor.shape[-1]
        within = (2 * torch.arange(width) + 1) * count // (2 * width)
        rows = torch.arange(tensor.numel() // width)[:, None]
        values = ((within + rows) % count).reshape(tuple(tensor.shape)).to(tensor.dtype)
    return values, f"spread over the {count:,} that they choose from"


def _is_shifted(name: str, args: Sequence[Any]) -> bool:
    """True where one number is added to all of a tensor."""
    return name in ("aten::add", "aten::sub") and not isinstance(args[1], torch.Tensor)


def _whole_numbers_between(low: Any = None, high: Any = None, *others: Any) -> int | None:
    if not all(isinstance(each, (int, float)) and float(each).is_integer() for each in (low, high)):
        return None
    return int(high - low) + 1 if 0 < high - low < _MOST_LEVELS else None


_MOST_LEVELS = 16
"""Between bounds further apart numbers are taken to be any."""

_UNIFORM = ("aten::rand", "aten::rand_like")
_BELOW, _ABOVE = frozenset(("aten::lt", "aten::le")), frozenset(("aten::gt", "aten::ge"))
CHOOSES = ("aten::topk", "aten::argmax", "aten::argmin", "aten::max", "aten::min", "aten::sort")
"""Operators whose numbers choose, whatever they are given."""

KEPT_OF_CHOICES = ("_choices", SHARE, "_is_uniform", CHANCE, MARKED)
"""The attributes of a fake tensor that ``note_choices`` keeps with it."""

_PUTS = ("aten::scatter_", "aten::scatter")
_KEEPS = tuple(
    f"aten::{name}"
    for name in (
        "view", "_unsafe_view", "reshape", "transpose", "permute", "t", "unsqueeze", "squeeze", "select", "slice",
        "clone", "_to_copy", "floor", "round", "detach", "alias", "expand", "contiguous", "index", "copy_",
        "lift_fresh",
    )
)  # fmt: skip


def _truths_in(mask: Any) -> int | None:
    """How many elements a mask takes whose truths are known."""
    if (known := shares_of(mask)) is None:
        return None
    with _disable_current_modes():
        return int(torch.count_nonzero(known))


def _nonzero(tensor: Any) -> Any:
    """Dimension by dimension in memory, as ``Nonzero.cu`` writes them."""
    return _indices(tensor, tensor.dim(), _taken(tensor)).t()


def _taken(mask: Any) -> int:
    """How many elements a mask takes: by its truths where they are known, else by its share, else all."""
    if (truths := _truths_in(mask)) is not None:
        return truths
    if (taken := taken_by(mask)) is not None:
        return taken[0]
    share = getattr(mask, "_share", 1.0)
    if mask.dtype is torch.bool:
        mask._share = share  # sums over the mask are of what is found here
    return math.ceil(round(mask.numel() * share, 6))


def _masked(tensor: Any, mask: Any) -> Any:
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    return tensor.new_empty(_taken(mask) * (math.prod(shape) // max(1, mask.numel())))


def _different(tensor: Any, count: Callable[[Any], Any]) -> int | None:
    """How many different values there are of the program's own, by what ``count`` leaves of them."""
    known = shares_of(tensor)
    if known is None or origin_of(known) is not None:
        return None
    with _disable_current_modes():
        return int(count(known))


def _unique(tensor: Any, is_sorted: bool = True, inverse: bool = False, counts: bool = False) -> Any:
    return _uniques(tensor, _different(tensor, lambda known: known.unique().numel()), inverse, counts)


def _uniques(tensor: Any, size: int | None, inverse: bool, counts: bool) -> Any:
    size = tensor.numel() if size is None else size
    return (
        tensor.new_empty(size),
        _indices(tensor, *(tensor.shape if inverse or counts else (0,))),
        _indices(tensor, size if counts else 0),
    )


def _unique_alone(tensor: Any, is_sorted: bool = True, inverse: bool = False) -> Any:
    return _unique(tensor, is_sorted, inverse)[:2]


def _unique_consecutive(tensor: Any, inverse: bool = False, counts: bool = False, dim: int | None = None) -> Any:
    if dim is not None:
        return _uniques_along(tensor, dim, lambda known: known.unique_consecutive(dim=dim).shape[dim])
    size = _different(tensor, lambda known: known.unique_consecutive().numel())
    made = _uniques(tensor, size, inverse, counts)
    return made if inverse else (made[0], _indices(tensor, 0), made[2])


def _unique_dim(tensor: Any, dim: int, is_sorted: bool = True, inverse: bool = False, counts: bool = False) -> Any:
    return _uniques_along(tensor, dim, lambda known: known.unique(dim=dim).shape[dim])


def _uniques_along(tensor: Any, dim: int, count: Callable[[Any], Any]) -> Any:
    size = _different(tensor, count)
    shape = list(tensor.shape)
    shape[dim] = shape[dim] if size is None else size
    return tensor.new_empty(shape), _indices(tensor, tensor.shape[dim]), _indices(tensor, shape[dim])


def _repeated(repeats: Any, *, output_size: int | None = None) -> Any:
    if output_size is None:
        known = shares_of(repeats)
        with _disable_current_modes():
            output_size = repeats.numel() if known is None else int(known.sum())
    return _indices(repeats, output_size)


def _counted(tensor: Any, weights: Any = None, minlength: int = 0) -> Any:
    dtype = torch.int64 if weights is None else weights.dtype if weights.is_floating_point() else torch.float64
    return tensor.new_empty(max(int(minlength), 2), dtype=dtype)


def _suppressed(boxes: Any, *others: Any) -> Any:
    return _indices(boxes, boxes.shape[0])


def _ctc_loss(scores: Any, targets: Any, scored: Any, lengths: Any, *others: Any, **options: Any) -> Any:
    """Losses of a batch, and for each row of its scores those of every place in a target with its blanks."""
    if isinstance(lengths, FakeTensor):
        longest = targets.shape[1] if targets.dim() > 1 else targets.numel()
    else:
        longest = max(lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths, default=0)
    steps, batch = scores.shape[:2]
    return scores.new_empty(batch), scores.new_empty((batch, steps, 2 * longest + 1))


SIZED: Mapping[str, Callable[..., Any]] = {
    "aten::nonzero": _nonzero,
    "aten::masked_select": _masked,
    "aten::_unique2": _unique,
    "aten::_unique": _unique_alone,
    "aten::unique_consecutive": _unique_consecutive,
    "aten::unique_dim": _unique_dim,
    "aten::repeat_interleave.Tensor": _repeated,
    "aten::bincount": _counted,
    "aten::_ctc_loss": _ctc_loss,
    "aten::_ctc_loss.Tensor": _ctc_loss,
    "torchvision::nms": _suppressed,
}
"""Operators by their names, and their results if every element is taken (numbers are 1 where they count)."""


# --- operators that only a GPU has ----------------------------------------------------------------------------------


def _channels(tensor: Any) -> Any:
    dtype = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype
    return tensor.new_empty(tensor.shape[1], dtype=dtype)


def _statistics(rows: Any, *others: Any) -> Any:
    return _channels(rows), _channels(rows)


def _gathered_statistics(rows: Any, mean: Any, *others: Any) -> Any:
    return mean.new_empty(mean.shape[-1]), mean.new_empty(mean.shape[-1])


def _reduced(
    grad: Any, rows: Any, mean: Any, invstd: Any, weight: Any, of_rows: bool, of_weight: bool, of_bias: bool
) -> Any:
    sums = (torch.empty_like(mean) if of_rows else None for _ in range(2))
    like = mean if weight is None else weight
    return (*sums, torch.empty_like(like) if of_weight else None, torch.empty_like(like) if of_bias else None)


def _like_first(first: Any, *others: Any) -> Any:
    return torch.empty_like(first)


def _like_second(first: Any, second: Any, *others: Any) -> Any:
    return torch.empty_like(second)


def _drawn_from_two(first: Any, second: Any, *others: Any) -> Any:
    return first.new_empty(torch.broadcast_shapes(first.shape, second.shape))


def _histogram(rows: Any, bins: int = 100, *bounds: Any, **named_bounds: Any) -> Any:
    """Bounds that are values of the device's are not held against one another, as torch's own rule does."""
    return rows.new_empty(bins)


def _product_added(rows: Any, left: Any, right: Any, out_dtype: torch.dtype, **factors: Any) -> Any:
    return left.new_empty((*left.shape[:-1], right.shape[-1]), dtype=out_dtype)


def _with_numbers(overload: Any) -> Callable[..., Any]:
    """An operator over lists that is given its factors as numbers, which it reads from a tensor of the host: torch's
    rule finds that tensor on ``meta``."""

    def made(rows: Any, left: Any, right: Any, factors: Any) -> Any:
        return overload(rows, left, right, factors.tolist())

    return made


def _filled(*args: Any, out: Any, **factors: Any) -> Any:
    return out


def _gru_cell(gates: Any, hidden_gates: Any, hx: Any, *biases: Any) -> Any:
    return torch.empty_like(hx), hx.new_empty((hx.shape[0], hx.shape[1] * 5))


def _gru_cell_backward(grad: Any, workspace: Any, has_bias: bool) -> Any:
    gates = workspace.new_empty((workspace.shape[0], workspace.shape[1] // 5 * 3))
    biases = [workspace.new_empty(gates.shape[1]) if has_bias else None for _ in range(2)]
    return gates, torch.empty_like(gates), torch.empty_like(grad), *biases


def _grid_gradients(rows: Any, grid: Any, grad: Any) -> Any:
    return torch.empty_like(rows), torch.empty_like(grid)


def _sampled(rows: Any, grid: Any) -> Any:
    return rows.new_empty((*rows.shape[:2], *grid.shape[1:3]))


def _least_squares(
    rows: Any, others: Any, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Any, Any, Any, Any]:
    """A GPU has the driver ``gels`` alone, which tells neither a rank nor singular values."""
    height, width = rows.shape[-2:]
    is_vector = others.dim() == 1 or (rows.dim() - 1 == others.dim() and others.shape == rows.shape[:-1])
    columns = () if is_vector else tuple(others.shape[-1:])
    batch = torch.broadcast_shapes(rows.shape[:-2], others.shape[: -1 if is_vector else -2])
    residuals = rows.new_empty((*batch, *(columns or (1,))) if height > width else (0,), dtype=_real_dtype(rows))
    singular = rows.new_empty((0,), dtype=_real_dtype(rows))
    return rows.new_empty((*batch, width, *columns)), residuals, _indices(rows, 0), singular


def _real_dtype(tensor: Any) -> torch.dtype:
    return tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype


def _takes_cudnn(scores: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int) -> bool:
    """ATen's own conditions for cuDNN's loss of alignments (``aten/src/ATen/native/cudnn/LossCTC.cpp``)."""
    if blank != 0 or targets.dim() != 1 or scores.dim() != 3 or not torch.backends.cudnn.enabled:
        return False
    if (scores.dtype, targets.dtype) != (torch.float32, torch.int32) or not targets.is_contiguous():
        return False
    if isinstance(input_lengths, torch.Tensor):
        if (input_lengths.dtype, target_lengths.dtype) != (torch.int32, torch.int32):
            return False
        return _fit(_numbers_of(input_lengths), _numbers_of(target_lengths), scores, targets)
    are_full = all(length == scores.shape[0] for length in input_lengths)
    return targets.device.type == "cpu" and are_full and _fit(input_lengths, target_lengths, scores, targets)


def _numbers_of(lengths: Any) -> list[int] | None:
    if isinstance(lengths, FakeTensor):
        return None
    with _disable_current_modes():
        return list(lengths.tolist())


def _fit(frames: Sequence[int] | None, labels: Sequence[int] | None, scores: Any, targets: Any) -> bool:
    """Whether each target is short enough; where lengths are not known, the mean one in all of the frames."""
    if frames is None or labels is None:
        frames, labels = [scores.shape[0]], [-(-targets.numel() // max(scores.shape[1], 1))]
    return all(label < _MOST_LABELS and label <= frame for frame, label in zip(frames, labels, strict=False))


_MOST_LABELS = 256


def _cudnn_ctc_loss(scores: Any, *others: Any) -> Any:
    """Losses of a batch and their gradient, which backward only scales."""
    return scores.new_empty(scores.shape[1]), torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)


def _no_library(*args: Any, **kwargs: Any) -> bool:
    return False


ONLY_THERE: Mapping[Any, Callable[..., Any]] = {
    **QUANTIZED,
    **RECURRENT,
    _ATEN.batch_norm_stats.default: _statistics,
    _ATEN.batch_norm_gather_stats_with_counts.default: _gathered_statistics,
    _ATEN.batch_norm_elemt.default: _like_first,
    _ATEN._transformer_encoder_layer_fwd.default: _like_first,
    _ATEN.batch_norm_backward_reduce.default: _reduced,
    _ATEN.batch_norm_backward_elemt.default: _like_first,
    _ATEN.cudnn_grid_sampler.default: _sampled,
    _ATEN.cudnn_grid_sampler_backward.default: _grid_gradients,
    _ATEN.linalg_lstsq.default: _least_squares,
    # torch decomposes these as if they were the overload that is not asked for a dtype.
    **{
        overload: makes
        for name in ("addmm", "baddbmm")
        for overload, makes in (
            (getattr(_ATEN, name).dtype, _product_added),
            (getattr(_ATEN, name).dtype_out, _filled),
        )
    },
    **dict.fromkeys(
        (
            *(_ATEN._standard_gamma.default, _ATEN._standard_gamma_grad.default),
            *(_ATEN._sample_dirichlet.default, _ATEN._dirichlet_grad.default),
        ),
        _like_first,
    ),
    **dict.fromkeys(
        (
            *(_ATEN.multi_margin_loss_backward.default, _ATEN.multilabel_margin_loss_backward.default),
            _ATEN.fractional_max_pool3d_backward.default,
        ),
        _like_second,
    ),
    **{
        getattr(_ATEN, name).Tensor: _with_numbers(getattr(_ATEN, name).ScalarList)
        for name in ("_foreach_addcmul", "_foreach_addcmul_", "_foreach_addcdiv", "_foreach_addcdiv_")
    },
    _ATEN.binomial.default: _drawn_from_two,
    _ATEN.histc.default: _histogram,
    _ATEN._ctc_loss_backward.default: _like_second,
    _ATEN._ctc_loss_backward.Tensor: _like_second,
    _ATEN._thnn_fused_gru_cell.default: _gru_cell,
    _ATEN._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    **{
        overload: makes
        for name, makes in (
            ("_use_cudnn_ctc_loss", _takes_cudnn),
            ("_use_miopen_ctc_loss", _no_library),  # since torch 2.11
            ("_cudnn_ctc_loss", _cudnn_ctc_loss),
        )
        if hasattr(_ATEN, name)
        for overload in (getattr(_ATEN, name).default, getattr(_ATEN, name).Tensor)
    },
}
"""Operators of a GPU that torch has no meta functions for, or wrong ones, and what makes their results."""


def instead_of_kernel(
    original: Callable[..., Any], mode: Any, func: Any, flat: Sequence[Any], spec: Any, error: Any
) -> Any:
    """What an operator makes under another fake mode than the plan's, as of what Dynamo traces: torch would run the
    device's kernel there and look.

    Raises ``error`` where the kernel for the CPU cannot tell either: what traces leaves the operator to the program.
    """
    args, kwargs = tree_unflatten(flat, spec)
    if func in ONLY_THERE:
        with mode:
            return ONLY_THERE[func](*args, **kwargs)
    is_there = any(isinstance(each, FakeTensor) and each.fake_device.type == "cuda" for each in flat)
    if not is_there or torch.Tag.inplace_view in func.tags:
        return original(mode, func, flat, spec, error)
    try:
        with mode:
            return shapes_by_example(func, args, kwargs)
    except NoShapeError:
        raise error from None
