"""Collectives that a compiled graph calls itself, as launches of ``_c10d_functional`` operators."""

from __future__ import annotations

import re

from torchledger.nouns import Launch
from torchledger.work.collectives import message_of_call
from torchledger.work.op_shapes import OpCall, Tensor

WAIT = "wait_tensor"

_FUNCTIONAL = re.compile(r"\b_?c10d_functional(_autograd)?\.(?P<name>\w+)")
_GROUP = re.compile(r"'(?P<group>[^']*)'\s*\)?\s*$")


def functional_name(launch: Launch) -> str | None:
    """What a launch calls of ``_c10d_functional``, ``"wait_tensor"`` too, without the mark of what works in place;
    ``None`` for any other launch."""
    for text in (launch.kernel_name, launch.call or ""):
        if match := _FUNCTIONAL.search(text):
            return match["name"].removesuffix("_")
    return None


def group_of(launch: Launch) -> str | None:
    """The name of the process group of a collective."""
    if (named := launch.kwargs.get("group_name")) is not None:
        return named.strip("'\"")
    match = _GROUP.search(launch.call or "")
    return None if match is None else match["group"]


def group_size_of(launch: Launch) -> int | None:
    """How many ranks a collective's arguments say that it has; an all_reduce does not say."""
    text = launch.kwargs.get("group_size", "")
    return int(text) if text.isdigit() else None


def message_bytes_of(launch: Launch, ranks: int | None) -> int | None:
    """The size of a collective's message as nccl-tests count it; ``None`` where its buffers do not say it."""
    name = functional_name(launch)
    tensors = tuple(
        Tensor(tuple(buffer.shape), buffer.dtype)
        for buffer in launch.buffers
        if all(isinstance(size, int) for size in buffer.shape)
    )
    if name is None or len(tensors) != len(launch.buffers):
        return None
    message = message_of_call(OpCall(f"_c10d_functional::{name}", tensors), ranks)
    return None if message is None else message.nbytes
