"""The text of a module that makes one launch alone: what the bench runs, and the heart of an extracted file."""

from __future__ import annotations

from collections.abc import Sequence

from torchledger.replaying.call_site import Allocation, CallSite
from torchledger.replaying.sizes import sizes
from torchledger.work.element_sizes import element_size

MAKE_TENSOR = '''\
def make_tensor(shape, stride, dtype, device, high=None, low=0, positive=False, zero=False):
    """Random values, never all zero but for a tensor that is added to; integers lie in [low, high). The storage ends at
    the last element."""
    if 0 in shape:
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)
    length = 1 + sum((extent - 1) * step for extent, step in zip(shape, stride))
    if dtype.is_floating_point and dtype.itemsize > 1:
        values = torch.empty(length, dtype=dtype, device=device).normal_()
    elif dtype.is_floating_point or dtype.is_complex:
        values = torch.randn(length, device=device).to(dtype)
    elif dtype == torch.bool:
        values = torch.randint(0, 2, (length,), device=device).to(dtype)
    else:
        high = 4 if high is None else max(high, low + 1)
        values = torch.randint(low, high, (length,), device=device).to(dtype)
    if zero:
        values.zero_()
    return torch.as_strided(values.abs_() if positive else values, shape, stride)
'''


def preamble_text(site: CallSite) -> str:
    """Imports and short names, as in the wrapper."""
    return "\n".join(["import torch", *site.preamble]) + "\n"


def head_text(site: CallSite) -> str:
    """Imports, short names and kernels, as in the wrapper."""
    return "\n".join([preamble_text(site), *(text for _, text in site.definitions)]) + "\n"


def body_text(site: CallSite) -> str:
    """``make_inputs() -> dict``, ``prepare(...)`` (clears workspaces) and ``call(...) -> dict`` of its outputs."""
    made = [step.code if isinstance(step, Allocation) else step for step in site.setup]
    arguments = ", ".join(site.arguments)
    workspaces = ", ".join(dict.fromkeys(line.partition(".")[0] for line in site.before))
    outputs = ", ".join(f"{name!r}: {name}" for name, _ in site.outputs)
    return "\n".join(
        [
            "def make_inputs():",
            '    """Every tensor and number that the call needs, by its name in the generated code."""',
            *_indented(["torch.manual_seed(0)", *made]),
            f"    return dict({', '.join(f'{name}={name}' for name in _returned(site))})",
            "",
            "",
            f"def prepare({workspaces + ', ' if workspaces else ''}**others):",
            '    """What must be done before each call: workspaces start cleared."""',
            *_indented(site.before or ("pass",)),
            "",
            "",
            f"def call({arguments}, **others):"
            if len(_returned(site)) > len(site.arguments)
            else f"def call({arguments}):",
            '    """The launch, as the generated code makes it; returns what it wrote."""',
            *_indented([*site.stream, *site.call, *site.after]),
            f"    return {{{outputs}}}",
            "",
        ]
    )


def _returned(site: CallSite) -> tuple[str, ...]:
    """The call's arguments, and what the setup alone needed."""
    return tuple(dict.fromkeys([*site.arguments, *(name for name, _ in site.inputs)]))


def input_bytes(site: CallSite) -> dict[str, int]:
    """Bytes of each tensor that the call needs; those of symbolic size or of an unknown dtype are left out."""
    return allocated_bytes(site.setup)


def allocated_bytes(setup: Sequence[Allocation | str]) -> dict[str, int]:
    """Bytes of each tensor that some lines make; those of symbolic size or of an unknown dtype are left out."""
    found = {}
    for step in setup:
        if not isinstance(step, Allocation) or (item_size := element_size(step.dtype)) is None:
            continue
        size, stride = sizes(step.size, {}), sizes(step.stride, {})
        if size is None or stride is None:
            continue
        length = 0 if 0 in size else 1 + sum((extent - 1) * jump for extent, jump in zip(size, stride, strict=True))
        found[step.name] = length * item_size
    return found


def _indented(lines: list[str] | tuple[str, ...]) -> list[str]:
    return [f"    {line}" for text in lines for line in text.splitlines()]
