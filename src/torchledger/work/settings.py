"""What an operator was asked for beside tensors: the numbers among its arguments, by their names in its schema.

Along which dimensions it works, how many it picks, how a filter moves: at the same tensors these decide what a call
costs. Names and defaults come with the operator (``_torch/schemas.py``), values stand in its call as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchledger.work.op_shapes import DTYPE_OF_SCALAR_TYPE, OpCall, parse_ints

Settings = tuple[tuple[str, tuple[int, ...]], ...]

_BOOLS = {"True": 1, "False": 0, "true": 1, "false": 0}
_KINDS: Mapping[str, int] = {
    **{name: number for number, name in DTYPE_OF_SCALAR_TYPE.items()},
    **{f"torch.{name}": number for number, name in enumerate(
        ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d"))},
}  # fmt: skip
"""Dtypes and memory formats by their names, as profilers number them."""
_MOST = 16
"""Numbers of a list that are kept: more are data, not a setting."""
_COUNTED = {"batch_sizes": "turns"}
"""Of these lists how many numbers there are is kept as well: a packed sequence has so many turns."""

TAKEN = "taken"
"""How many elements of the mask are true that a call was given."""


@dataclass(frozen=True)
class Parameter:
    """An argument of an operator that is an integer, a truth value or a list of either.

    ``default`` is its value where it is not given, ``None`` where there is none; ``is_optional`` says that nothing may
    be given for it. ``inserts`` says of a dimension that it is counted in a result that has one more.
    """

    name: str
    default: tuple[int, ...] | None = None
    is_optional: bool = False
    inserts: bool = False

    @property
    def is_dim(self) -> bool:
        """True for dimensions, which are counted from the front wherever they were counted from."""
        return self.name in ("dim", "dims") or re.fullmatch(r"dim\d", self.name) is not None


def settings_of(call: OpCall, parameters: Sequence[Parameter | None] | None) -> Settings | None:
    """The numbers that a call was given, dimensions from the front; other defaults are left out.

    ``parameters`` holds a ``Parameter`` at each place where the operator takes such numbers. ``None`` where they are
    unknown or one of the values is; ``()`` says that there are none, so that a reduction goes over all dimensions.

    >>> from torchledger.work.op_shapes import Tensor
    >>> call = OpCall("aten::sum", (Tensor((4, 8), "float32"), None, None), ("", "[-1]", "False"))
    >>> settings_of(call, (None, Parameter("dim", is_optional=True), Parameter("keepdim", (0,))))
    (('dim', (1,)),)
    """
    if parameters is None:
        return None
    found = []
    for place, parameter in enumerate(parameters):
        if parameter is None:
            continue
        text = call.constant(place)
        if not text and parameter.is_optional:
            continue
        values = _numbers(text)
        if values is not None and parameter.is_dim:
            values = _from_the_front(values, call, parameter)
        if values is None:
            return None
        if len(values) <= _MOST and (values if parameter.is_dim else values != parameter.default):
            found.append((parameter.name, values))
        if values and parameter.name in _COUNTED:
            found.append((_COUNTED[parameter.name], (len(values),)))
    if call.taken is not None:
        found.append((TAKEN, (call.taken,)))
    return tuple(found)


def settings_of_launch(kwargs: Mapping[str, str]) -> Settings:
    """The numbers that a launch of a library was given, by the names that they stand under in its wrapper.

    >>> settings_of_launch({"dim": "[2]", "onesided": "True", "driver": "None"})
    (('dim', (2,)), ('onesided', (1,)))
    """
    read = ((name, _numbers(text)) for name, text in kwargs.items())
    return tuple((name, values) for name, values in read if values is not None)


def _numbers(text: str) -> tuple[int, ...] | None:
    if text in _BOOLS:
        return (_BOOLS[text],)
    if text in _KINDS:
        return (_KINDS[text],)
    if text.startswith("[") and any(name in text for name in _BOOLS):
        parts = [part.strip() for part in text.strip("[]").split(",")]
        return tuple(_BOOLS[part] for part in parts) if all(part in _BOOLS for part in parts) else None
    return parse_ints(text)


def _from_the_front(dims: tuple[int, ...], call: OpCall, parameter: Parameter) -> tuple[int, ...] | None:
    first = next(iter(call.tensors), None)
    if first is None:
        return None
    # A number in a tensor has one dimension where one is asked for.
    rank = max(1, len(first.shape) + parameter.inserts)
    return tuple(dim % rank for dim in dims) if all(-rank <= dim < rank for dim in dims) else None


def setting(settings: Settings | None, name: str) -> tuple[int, ...] | None:
    """The numbers under a name; ``None`` where it is not among them.

    >>> setting((("dim", (1,)), ("k", (8,))), "k")
    (8,)
    """
    return dict(settings or ()).get(name)


def settings_from(given: Mapping[str, Sequence[int]] | None) -> Settings | None:
    """Settings as they are written in JSON, read again."""
    return None if given is None else tuple((name, tuple(values)) for name, values in given.items())
