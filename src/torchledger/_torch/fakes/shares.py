"""Numbers that a program may ask for though nobody computed them: counts, sizes, and what follows of them.

What a program moves from the host to the device, or fills there (sizes, lengths, shifts, masks), is known as long as
plain operators make something of it, truths that follow of it too (a loop that decodes as many tokens as it was told
ends where it would). What a router sends to whom is not, and taken for what it is if every expert is given
an equal share of the tokens: a count of chosen numbers (``bincount``, ``histc``, a sum over a mask or ``one_hot``) is
given the values that it would have if each were chosen as often; what plain operators make of it, and what like ranks
send of it, keeps them. Values share their memory as the program's tensors do: what is written into a part of one is
seen in the whole. A program that asks for them as sizes of its messages gets them in place of ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from torchledger._torch.fakes.flow import written_by
from torchledger._torch.tensors import tensors_in, tree_map

_SHARES = "_shares"
"""The attribute of a fake tensor that holds them: a tensor of the host."""

KEPT_OF_SHARES = (_SHARES, "_at_limit", "_stand_in")
"""The attributes that hold what is known of a fake tensor's values."""

_MOST = 1 << 14
"""So many numbers are kept at most: there are few experts and ranks."""

_MOST_MOVED, _MOST_TRUTHS = 1 << 16, 1 << 20
"""So many numbers of a tensor that is moved or filled, and so many truths that follow: lengths of a batch's words, and
where its sentences end."""

_MOST_FLOATS = 1 << 14
"""So many floats that are all the same: of masks that a program makes of them."""

_ORIGIN = "_stands_for"
"""The attribute of these values that says how they were made up; absent where they are the program's own."""

ARE_SHARES, _IS_ONE = "an equal share", "made of ones"

_KEEPS = frozenset(
    f"aten::{name}"
    for name in (
        "view", "_unsafe_view", "reshape", "transpose", "permute", "t", "unsqueeze", "squeeze", "select", "slice",
        "clone", "_to_copy", "detach", "alias", "expand", "contiguous", "lift_fresh", "sum", "cumsum", "cat", "stack",
        "split", "split_with_sizes", "unbind", "chunk", "add", "sub", "mul", "div", "floor_divide", "remainder",
        "max", "amax", "clamp", "roll", "flatten", "ceil", "floor", "constant_pad_nd", "index", "repeat_interleave",
        "nonzero", "masked_select", "rsub", "neg", "abs", "minimum", "maximum", "min", "amin", "prod", "cumprod",
        "round", "trunc", "fmod", "repeat", "flip", "index_select", "gather", "pow", "argmax", "argmin",
        "_unique", "_unique2", "unique_dim", "unique_consecutive",
    )
)  # fmt: skip


_MAKES = frozenset(f"aten::{name}" for name in ("full", "arange", "zeros", "ones"))
_FILLED: Mapping[str, int | None] = {
    **dict.fromkeys(("aten::ones_like", "aten::new_ones", "aten::ones"), 1),
    **dict.fromkeys(("aten::zeros_like", "aten::new_zeros", "aten::zeros"), 0),
    **dict.fromkeys(("aten::full_like", "aten::new_full", "aten::full", "aten::scalar_tensor"), None),
}
"""The number that a tensor is filled with; ``None`` where the last argument is that."""

_SHIFTS = frozenset(f"aten::{name}" for name in ("add", "sub", "mul", "floor_divide", "neg"))


_TRUTHS = frozenset(
    f"aten::{name}"
    for name in (
        "eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "logical_and",
        "logical_or", "logical_xor", "logical_not", "all", "any",
    )
)  # fmt: skip
DECIDED_BY = {"aten::bitwise_and": 0, "aten::logical_and": 0, "aten::bitwise_or": 1, "aten::logical_or": 1}
"""What one of two truths decides, whatever the other is."""


_FUNCTIONAL = frozenset(
    f"_c10d_functional::{name}" for name in ("all_to_all_single", "all_gather_into_tensor", "wait_tensor")
)


def shares_of(tensor: Any) -> Any:
    """The values that stand for those of a fake tensor, as a tensor of the host; ``None`` where none are known."""
    return getattr(tensor, _SHARES, None) if isinstance(tensor, FakeTensor) else None


def origin_of(known: Any) -> str | None:
    """How values that ``shares_of`` gave were made up; ``None`` if they are the program's own."""
    return getattr(known, _ORIGIN, None)


def count_shares(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """Keep with the ``result`` of an operator on fake tensors what its values would be with equal shares."""
    name = func._schema.name
    if name == "aten::_amp_update_scale_":
        _update_scale(args)
        return
    _forget_written(func, name, args, kwargs)
    if (counter := _COUNTERS.get(name)) is not None:
        sizes = counter(args, kwargs, result)
        if sizes is not None:
            _keep(result, sizes, ARE_SHARES)
    elif name == "aten::sum" and hasattr(args[0], "_share"):
        taken = args[0].numel() / max(1, result.numel()) * args[0]._share
        _keep(result, _full(tuple(result.shape), round(taken), result.dtype), ARE_SHARES)
    elif (truth := name.removesuffix("_")) in _TRUTHS:
        _follow_truths(func, truth, args, kwargs, result)
    elif name in _FUNCTIONAL:
        send_shares(result, args[0])
    elif name in _KEEPS and any(value_of(each) is not None for each in tensors_in((args, kwargs))):
        _follow(func, args, kwargs, result)
    elif name in _FILLED and (_is_of_whole_numbers(result) or _is_of_few_floats(result)):
        _fill(result, args[-1] if _FILLED[name] is None else _FILLED[name])
    elif name in _MAKES or (name in _SHIFTS and _is_number(result)):
        if is_small(result):
            _follow(func, args, kwargs, result)
    elif func._schema.is_mutable and args and isinstance(args[0], FakeTensor):
        _follow_writing(func, args, kwargs)


def _update_scale(args: Sequence[Any]) -> None:
    """A gradient scaler finds no infinite gradients here: its scale stays, and it counts one step more."""
    if (counted := shares_of(args[1])) is not None:
        with _disable_current_modes():
            counted = counted + 1
        _keep(args[1], counted, None)


def _forget_written(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Forget what an operator writes into beside its first argument: lists, results that it is given, statistics."""
    first = args[0] if args else None
    written = [*written_by(func, args, kwargs), *(args[place] for place in _WRITES_UNSAID.get(name, ()))]
    for each in written:
        if isinstance(each, FakeTensor) and each is not first:
            _forget_memory(each)


_WRITES_UNSAID = dict.fromkeys(("aten::native_batch_norm", "aten::cudnn_batch_norm"), (3, 4))
"""Arguments that operators write into whose schema does not say so."""


def forget_floats(given: Any) -> None:
    """What runs now may write into these tensors: nobody knows any more which floats they hold."""
    for each in tensors_in(given):
        if isinstance(each, FakeTensor) and each.dtype.is_floating_point and each.numel() != 1:
            _forget_memory(each)


def _fill(result: Any, value: Any) -> None:
    """Numbers and truths that are all the same; those of many are one, into which nothing can be written."""
    if not isinstance(value, (bool, int, float)):
        return
    if _are_few(result):
        _keep(result, _full(tuple(result.shape), value, result.dtype), None)
    elif result.numel() <= _MOST_TRUTHS:
        _keep(result, _full((), value, result.dtype).expand(tuple(result.shape)), None)


def send_shares(outputs: Any, inputs: Any) -> None:
    """What ranks that are like this one send it: as much as it sends them."""
    received, sent = list(tensors_in((outputs,))), list(tensors_in((inputs,)))
    known = [shares_of(each) for each in sent]
    if not received or not known or any(each is None for each in known):
        return
    with _disable_current_modes():
        every = torch.cat([each.flatten() for each in known])
        for tensor in received:
            if isinstance(tensor, FakeTensor) and every.numel() and tensor.numel() % every.numel() == 0:
                repeated = every.repeat(tensor.numel() // every.numel())
                _keep(tensor, repeated.reshape(tuple(tensor.shape)).to(tensor.dtype), ARE_SHARES)


def _follow(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """Run an operator on what is known of its arguments; nothing is kept where one of them is not known.

    An unknown whole number is taken for the one that the program would be given for it.
    """
    unknown, origin = False, None

    def real(value: Any) -> Any:
        nonlocal unknown, origin
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not isinstance(value, FakeTensor):
            return value
        known = shares_of(value)
        if known is None and _is_number(value):
            known = _full(tuple(value.shape), 1, value.dtype)
            setattr(known, _ORIGIN, _IS_ONE)
        unknown |= known is None
        origin = origin or origin_of(known)
        return known

    given, options = tree_map(real, (list(args), {**kwargs}))
    made = list(tensors_in((result,)))
    if unknown or not all(map(_are_few, made)):
        return
    with _disable_current_modes():
        try:
            values = list(tensors_in((func(*given, **options),)))
        except (RuntimeError, TypeError, NotImplementedError):
            return  # what is not known of it is not kept
    for tensor, value in zip(made, values, strict=False):
        if isinstance(tensor, FakeTensor) and tensor.shape == value.shape:
            _keep(tensor, value, origin)


def follow_known(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """Keep what any operator makes of arguments that are all known, where nothing is kept of its ``result`` yet."""
    made = list(tensors_in((result,)))
    if not made or any(shares_of(each) is not None for each in made) or func._schema.is_mutable:
        return
    given = list(tensors_in((args, kwargs)))
    is_drawn = torch.Tag.nondeterministic_seeded in func.tags
    if not is_drawn and all(value_of(each) is not None for each in given) and _is_made_of_any(given, made):
        _follow(func, args, kwargs, result)


def _is_made_of_any(given: Sequence[Any], made: Sequence[Any]) -> bool:
    """Without tensors whole numbers alone are made: what a plan fills with floats is a model's."""
    return bool(given) or all(_is_of_whole_numbers(each) for each in made)


def _follow_truths(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """Keep truths that follow of the program's own values; nothing follows of those that were made up."""
    known = [value_of(each) for each in tensors_in((args, kwargs))]
    values = None
    if is_small(result) and not any(origin_of(each) is not None for each in known):
        with _disable_current_modes():
            if all(each is not None for each in known):
                values = _truths_of(func, args, kwargs)
            elif (deciding := DECIDED_BY.get(name)) is not None and any(
                each is not None and each.shape == result.shape and bool((each == deciding).all()) for each in known
            ):
                values = torch.full(tuple(result.shape), deciding, dtype=result.dtype)
    if isinstance(result, FakeTensor) and values is not None and values.shape == result.shape:
        if func._schema.is_mutable:
            _write(result, values.to(result.dtype))
        else:
            _keep(result, values.to(result.dtype), None)
    elif isinstance(result, FakeTensor) and func._schema.is_mutable:
        _forget_memory(result)


def _follow_writing(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Have an operator that writes into its first argument write into what is known of it, also as a part of a whole;
    what is written without being known makes all of it unknown."""
    target, known = args[0], shares_of(args[0])
    others = [value_of(each) for each in tensors_in((args[1:], kwargs))]
    is_known = all(each is not None for each in others) and torch.Tag.nondeterministic_seeded not in func.tags
    origin = next((found for each in (known, *others) if (found := origin_of(each)) is not None), None)
    if known is None and is_known and func._schema.name == "aten::copy_" and others[0].shape == target.shape:
        _forget_memory(target)
        with _disable_current_modes():
            _keep(target, others[0].to(target.dtype, copy=True), origin)
    elif known is not None and is_known and func._schema.name.endswith("_"):
        given, options = tree_map(
            lambda each: known if each is target else value_of(each) if isinstance(each, torch.Tensor) else each,
            (list(args), {**kwargs}),
        )
        try:
            with _disable_current_modes():
                func(*given, **options)
        except (RuntimeError, TypeError, NotImplementedError, IndexError):
            _forget_memory(target)
        else:
            _keep(target, known, origin)
    else:
        _forget_memory(target)


def _write(tensor: FakeTensor, values: Any) -> None:
    """Let a tensor hold these truths, and what sees the same memory as well."""
    held = shares_of(tensor)
    if held is None:
        _forget_memory(tensor)
        held = values
    with _disable_current_modes():
        _keep(tensor, held if held is values else held.copy_(values), None)


def _forget_memory(tensor: FakeTensor) -> None:
    """Nobody knows what a tensor holds any more, nor the whole of which it is a part."""
    for each in (tensor, getattr(tensor, "_base", None)):
        if each is not None:
            forget_value(each)


def _truths_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operator makes of known values, which stay as they are."""
    given, options = tree_map(
        lambda each: value_of(each).clone() if isinstance(each, torch.Tensor) else each, (list(args), {**kwargs})
    )
    try:
        return func(*given, **options)
    except (RuntimeError, TypeError, NotImplementedError):
        return None


def _keep(tensor: Any, values: Any, origin: str | None) -> None:
    if origin is not None and origin_of(values) is None:
        setattr(values, _ORIGIN, origin)
    setattr(tensor, _SHARES, values)


def keep_value(tensor: Any, values: Sequence[int | bool], origin: str | None) -> None:
    """Let a tensor hold these numbers from here on; ``origin`` says how they were made up, if they were."""
    with _disable_current_modes():
        known = torch.tensor(values, dtype=tensor.dtype).reshape(tuple(tensor.shape))
        if not isinstance(tensor, FakeTensor):
            tensor.detach().copy_(known)
    if isinstance(tensor, FakeTensor):
        _keep(tensor, known, origin)


def forget_value(tensor: Any) -> None:
    """Nobody knows what a tensor holds any more."""
    if isinstance(tensor, FakeTensor) and shares_of(tensor) is not None:
        delattr(tensor, _SHARES)


def value_of(value: Any) -> Any:
    """What is known of a tensor: of a real one that is small, all."""
    if isinstance(value, FakeTensor) or not isinstance(value, torch.Tensor):
        return shares_of(value)
    return value.detach() if type(value) is torch.Tensor and value.device.type == "cpu" and is_small(value) else None


def is_small(value: Any) -> bool:
    """True for whole numbers or truth values that are not too many to be followed, and for one number of any kind: a
    counter may be one of floats."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.dtype.is_complex:
        return False
    return value.numel() == 1 if value.dtype.is_floating_point else _are_few(value)


def _is_of_whole_numbers(value: Any) -> bool:
    is_plain = isinstance(value, FakeTensor) and value.layout is torch.strided
    return is_plain and not value.dtype.is_complex and not value.dtype.is_floating_point


def _is_of_few_floats(value: Any) -> bool:
    is_plain = isinstance(value, FakeTensor) and value.layout is torch.strided
    return is_plain and value.dtype.is_floating_point and value.numel() <= _MOST_FLOATS


def _are_few(value: Any) -> bool:
    return bool(value.numel() <= (_MOST_TRUTHS if value.dtype is torch.bool else _MOST_MOVED))


def _is_number(value: Any) -> bool:
    is_one = isinstance(value, FakeTensor) and is_small(value) and value.numel() == 1
    return is_one and value.dtype is not torch.bool and not value.dtype.is_floating_point


def _full(shape: tuple[int, ...], value: float, dtype: torch.dtype) -> Any:
    with _disable_current_modes():
        return torch.full(shape, value, dtype=dtype)


def _equal(total: int, parts: int, dtype: torch.dtype) -> Any:
    """A total in so many parts that differ by one at most.

    >>> _equal(10, 4, torch.int64).tolist()
    [3, 3, 2, 2]
    """
    if not 0 < parts <= _MOST:
        return None
    with _disable_current_modes():
        sizes = torch.full((parts,), total // parts, dtype=torch.int64)
        sizes[: total % parts] += 1
        return sizes.to(dtype)


def _of_bincount(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
    is_weighted = (len(args) > 1 and args[1] is not None) or kwargs.get("weights") is not None
    return None if is_weighted else _equal(args[0].numel(), result.numel(), result.dtype)


def _of_histogram(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
    return _equal(args[0].numel(), result.numel(), result.dtype)


_COUNTERS: Mapping[str, Callable[[Sequence[Any], Mapping[str, Any], Any], Any]] = {
    "aten::bincount": _of_bincount,
    "aten::histc": _of_histogram,
}
