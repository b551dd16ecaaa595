"""Which tensors of a call are read and which are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from torchledger.claims import claim
from torchledger.nouns import Launch
from torchledger.watching.rewrite import Names, Site

Role = Literal["input", "output", "inout"]
"""``None`` stands for unknown: such a tensor is looked at before (unless nothing has written it) and after."""

_WRITING_METHODS: dict[str, Role] = {"copy_": "output", "fill_": "output", "zero_": "output"}


@dataclass(frozen=True)
class Operand:
    """A tensor of a call: its name in the wrapper, what the call does with it, and where the call has it
    (``planned.Place``)."""

    name: str
    role: Role | None
    tensor: torch.Tensor
    place: tuple[Any, ...] = ()

    @property
    @claim
    def is_read(self) -> bool:
        return self.role != "output"

    @property
    @claim
    def is_written(self) -> bool:
        return self.role != "input"


@dataclass(frozen=True)
class Roles:
    """What a site does with its arguments; worked out once, as it is the same at every call."""

    positional: tuple[Role | None, ...]
    keywords: Mapping[str, Role | None]
    receiver: Role | None

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
            others: list[Role | None] = ["input"] * len(site.arguments)
            return cls(tuple(others), dict.fromkeys(site.keywords, "input"), receiver)
        if schema is not None:
            by_name: dict[str, Role] = {argument.name: _schema_role(argument) for argument in schema.arguments}
            roles: list[Role | None] = [*by_name.values(), *[None] * len(site.arguments)]
            return cls(tuple(roles[: len(site.arguments)]), {name: by_name.get(name) for name in site.keywords}, None)
        is_library = site.name.startswith("extern_kernels.")
        unknown: Role | None = "input" if is_library else None

        def role(names: Names) -> Role | None:
            if isinstance(names, tuple):
                roles = {known.get(name or "", unknown) for name in names}
                return roles.pop() if len(roles) == 1 else None
            return known.get(names or "", unknown)

        return cls(
            tuple(role(names) for names in site.arguments),
            {
                keyword: "output" if keyword.startswith("out") else role(names)
                for keyword, names in site.keywords.items()
            },
            None,
        )


def operands(
    site: Site, roles: Roles, function: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Iterator[Operand]:
    """The tensors among the arguments of a call."""
    if site.receiver is not None and isinstance(getattr(function, "__self__", None), torch.Tensor):
        yield Operand(site.receiver, roles.receiver, function.__self__, ("receiver",))
    for place, value in enumerate(arguments):
        argument = site.arguments[place] if place < len(site.arguments) else None
        role = roles.positional[place] if place < len(roles.positional) else None
        yield from _tensors(argument or f"argument {place}", role, value, ("argument", place))
    for keyword, value in keywords.items():
        yield from _tensors(
            site.keywords.get(keyword) or keyword, roles.keywords.get(keyword), value, ("keyword", keyword)
        )


def scalars(
    site: Site, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Iterator[tuple[str, bool | int | float | complex]]:
    """The numbers among the arguments of a call: sizes that are symbols in the wrapper, scalars, flags."""
    for place, value in enumerate(arguments):
        if isinstance(value, (bool, int, float, complex)):
            name = site.arguments[place] if place < len(site.arguments) else None
            yield (name if isinstance(name, str) else f"argument {place}"), value
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


def _tensors(names: Names, role: Role | None, value: Any, place: tuple[Any, ...]) -> Iterator[Operand]:
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
