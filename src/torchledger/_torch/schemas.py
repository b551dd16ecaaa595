"""Which arguments of an operator are integers, truth values, or lists of them, by its schema."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchledger.work.op_shapes import OpCall, Tensor
from torchledger.work.settings import Parameter

Parameters = tuple[Parameter | None, ...]

_NUMBERS = re.compile(r"(Optional\[)?(List\[)?(int|bool)\]*")
_OF_ALLOCATION = frozenset(("pin_memory", "non_blocking"))
_OF_COPIES: Mapping[str, frozenset[str]] = {
    "aten::_to_copy": frozenset(("dtype", "memory_format")),
    "aten::clone": frozenset(("memory_format",)),
}
"""Arguments that are numbered kinds and decide what a copy makes."""
_WITHOUT_EFFECT = frozenset(("keepdim", "keep_dim"))
"""What changes the shape of a result and nothing of the work."""

_INDICES = "List[Optional[Tensor]]"
"""What may leave dimensions out: which ones are given is a setting of the call (``operator_call``)."""

_NAMED_DIMENSIONS = "name"
"""What torch 2.11's overloads are called that take dimensions by their names; no tensor has any to speak of."""

_INSERTING = frozenset(("aten::stack", "aten::unsqueeze", "aten::_stack"))


def schemas_named(name: str) -> Sequence[Any]:
    """The overloads of ``"aten::linear"``; none of what is no operator, which may have no namespace either, as the
    ranges of c10d have (``"record_param_comms"``)."""
    return torch._C._jit_get_schemas_for_operator(name) if "::" in name else ()


@functools.cache
def parameters_of(func: Any) -> Parameters:
    """The integers among an overload's arguments by their places; of a view, which does no work, none."""
    return _parameters(func._schema)


def parameters_of_recorded(call: OpCall) -> Parameters | None:
    """Those of a call whose overload is not known, as in a profiler's record: what all overloads that take such
    arguments agree on. ``None`` where no overload does."""
    kinds = "".join("t" if isinstance(each, Tensor) else "l" if each else "-" for each in call.arguments)
    return _of_recorded(call.name, kinds)


@functools.cache
def _of_recorded(name: str, kinds: str) -> Parameters | None:
    found = [
        _parameters(schema)
        for schema in schemas_named(name)
        if len(schema.arguments) == len(kinds)
        and all(map(_fits, schema.arguments, kinds))
        and _NAMED_DIMENSIONS not in schema.overload_name
    ]
    if not found:
        return None
    return tuple(first if all(each == first for each in rest) else None for first, *rest in zip(*found, strict=True))


def _fits(argument: Any, kind: str) -> bool:
    """Whether an argument may have been given a tensor ("t"), a list of them ("l"), or neither ("-")."""
    wanted = str(argument.real_type)
    if kind == "t":
        return "Tensor" in wanted and "List" not in wanted
    if kind == "l":
        return "List" in wanted and "Tensor" in wanted
    return "Tensor" not in wanted or wanted.startswith("Optional") or "List" in wanted


def _parameters(schema: Any) -> Parameters:
    if any(each.alias_info is not None and not each.alias_info.is_write for each in schema.arguments):
        return (None,) * len(schema.arguments)
    kinds = _OF_COPIES.get(schema.name, frozenset())
    return tuple(
        Parameter(each.name, None, is_optional=True)
        if each.name in kinds
        else _parameter(each, inserts=schema.name in _INSERTING)
        for each in schema.arguments
    )


def _parameter(argument: Any, *, inserts: bool) -> Parameter | None:
    kind = str(argument.real_type)
    if kind == _INDICES:
        return Parameter(argument.name, is_optional=True)
    if not _NUMBERS.fullmatch(kind) or argument.name in _OF_ALLOCATION | _WITHOUT_EFFECT:
        return None
    default = argument.default_value if argument.has_default_value() else None
    values = None if default is None else tuple(map(int, default if isinstance(default, (list, tuple)) else [default]))
    return Parameter(argument.name, values, kind.startswith("Optional"), inserts)
