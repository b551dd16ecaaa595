"""Which tensors of a call are read and which are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from torchledger.claims import claim
from torchledger.nouns import Launch
from torchledger.watching.rewrite import Names, Site

Role = Literal["input", "output", "inout", "unknown"]
"""An unknown tensor is looked at before (unless nothing has written it) and after."""

_IS_READ: Mapping[Role, bool] = {"input": True, "output": False, "inout": True, "unknown": True}
_IS_WRITTEN: Mapping[Role, bool] = {"input": False, "output": True, "inout": True, "unknown": True}

_WRITING_METHODS: dict[str, Role] = {"copy_": "output", "fill_": "output", "zero_": "output"}


@dataclass(frozen=True)
class Operand:
    """A tensor of a call: its name in the wrapper, what the call does with it, and where the call has it
    (``planned.Place``)."""

    name: str
    role: Role
    tensor: torch.Tensor
    place: tuple[Any, ...] = ()

    @property
    @claim
    def is_read(self) -> bool:
        return _IS_READ[self.role]

    @property
    @claim
    def is_written(self) -> bool:
        return _IS_WRITTEN[self.role]


@dataclass(frozen=True)
class Roles:
    """What a site does with its arguments; worked out once, as it is the same at every call."""

    positional: tuple[Role, ...]
    keywords: Mapping[str, Role]
    receiver: Role

    @classmethod
    def of(cls, site: Site, function: Any, launch: Launch | None) -> Roles:
        """From the operator's schema where it has one, else from what the ledger knows of the launch."""
        known: dict[str, Role] = {}
        for buffer in launch.buffers if launch is not None else ():
            if buffer.role != "workspace":
                known[buffer.name] = "inout" if known.get(buffer.name, buffer.role) != buffer.role else buffer.role
        schema = getattr(function, "_schema", None)
        if site.name.startswith("."):
            method = site.name.removeprefix(".")
            receiver = _WRITING_METHODS.get(method, "inout" if method.endswith("_") else "input")
            others: list[Role] = ["input"] * len(site.arguments)
            return cls(tuple(others), dict.fromkeys(site.keywords, "input"), receiver)
        if schema is not None:
            by_name: dict[str, Role] = {argument.name: _schema_role(argument) for argument in schema.arguments}
            beyond: list[Role] = ["unknown"] * len(site.arguments)
            return cls(
                (*by_name.values(), *beyond)[: len(site.arguments)],
                {name: by_name.get(name, "unknown") for name in site.keywords},
                "unknown",
            )
        unknown: Role = "input" if site.name.startswith("extern_kernels.") else "unknown"

        def role(names: Names) -> Role:
            if isinstance(names, tuple):
                roles = {known.get(name or "", unknown) for name in names}
                return roles.pop() if len(roles) == 1 else "unknown"
            return known.get(names or "", unknown)

        return cls(
            tuple(role(names) for names in site.arguments),
            {
                keyword: "output" if keyword.startswith("out") else role(names)
                for keyword, names in site.keywords.items()
            },
            "unknown",
        )


def operands(
    site: Site, roles: Roles, function: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Iterator[Operand]:
    """The tensors among the arguments of a call."""
    if site.receiver is not None and isinstance(getattr(function, "__self__", None), torch.Tensor):
        yield Operand(site.receiver, roles.receiver, function.__self__, ("receiver",))
    for place, value in enumerate(arguments):
        argument = site.arguments[place] if place < len(site.arguments) else None
        role = roles.positional[place] if place < len(roles.positional) else "unknown"
        yield from _tensors(argument or f"argument {place}", role, value, ("argument", place))
    for keyword, value in keywords.items():
        yield from _tensors(
            site.keywords.get(keyword) or keyword, roles.keywords.get(keyword, "unknown"), value, ("keyword", keyword)
        )


def scalars(
    site: Site, function: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Iterator[tuple[str, bool | int | float | complex]]:
    """The numbers among the arguments of a call: sizes that are symbols in the wrapper, scalars, flags."""
    schema = getattr(function, "_schema", None)
    of_schema = [argument.name for argument in schema.arguments] if schema is not None else []
    for place, value in enumerate(arguments):
        if isinstance(value, (bool, int, float, complex)):
            name = site.arguments[place] if place < len(site.arguments) else None
            if not isinstance(name, str):
                name = of_schema[place] if place < len(of_schema) else f"argument {place}"
            yield name, value
    for keyword, value in keywords.items():
        if isinstance(value, (bool, int, float, complex)) and keyword not in ("stream", "grid"):
            yield keyword, value


def results(site: Site, result: Any) -> Iterator[Operand]:
    """The tensors that a call returned, under the names that the wrapper gives them."""
    if isinstance(result, torch.Tensor):
        yield Operand(site.result or "result", "output", result, ("result",))
    elif isinstance(result, (tuple, list)):
        for place, item in enumerate(result):
            name = site.items.get(place, f"{site.result or 'result'}[{place}]")
            yield from _tensors(name, "output", item, ("result", place))


def _tensors(names: Names, role: Role, value: Any, place: tuple[Any, ...]) -> Iterator[Operand]:
    if isinstance(value, torch.Tensor):
        yield Operand(names if isinstance(names, str) else "argument", role, value, place)
    elif isinstance(value, (tuple, list)):
        for number, item in enumerate(value):
            if isinstance(item, torch.Tensor):
                name = names[number] if isinstance(names, tuple) and number < len(names) else None
                name = name or f"{names if isinstance(names, str) else 'argument'}[{number}]"
                yield Operand(name, role, item, (*place, number))


def _schema_role(argument: Any) -> Role:
    if argument.alias_info is None or not argument.alias_info.is_write:
        return "input"
    return "output" if argument.is_out else "inout"
